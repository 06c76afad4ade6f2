//! The only place that writes to standard output and error, so that nothing else can break the form of either.

use std::error::Error as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::error::Error;

/// Exit code of a program that was interrupted, as shells have it: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// Exit code of a demo that shows neither that its claims hold nor that one fails: `EX_TEMPFAIL` of sysexits.h, "try again".
pub(crate) const INCONCLUSIVE: u8 = 75;

/// A line on standard output. Whoever reads may go away; that is no failure of ours.
pub(crate) fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{text}");
    let _ = stdout.flush();
}

/// Tells an error with its causes on standard error, and returns the exit code for it.
pub(crate) fn failure(error: &Error) -> ExitCode {
    let _ = writeln!(io::stderr().lock(), "ctrlmesh: {}", with_causes(error));
    ExitCode::from(code(error))
}

const fn code(error: &Error) -> u8 {
    match error {
        Error::Interrupted => INTERRUPTED,
        Error::TooSlow { .. } => INCONCLUSIVE,
        _ => 1,
    }
}

/// What an error and its causes say, each once.
pub(crate) fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Many errors tell their cause themselves.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn machine_that_is_too_slow_has_an_exit_code_and_words_of_its_own() {
        let (what, last) = ("a thing".to_owned(), "nothing".to_owned());
        let after = Duration::from_secs(30);
        let slow = Error::TooSlow {
            percent: "7.5".to_owned(),
            what: what.clone(),
            after,
            last: last.clone(),
        };
        assert_eq!(code(&slow), 75);
        let told = with_causes(&slow);
        assert!(
            told.starts_with("inconclusive: machine too slow. In the 30 s") && told.contains("7.5 %"),
            "{told}"
        );
        assert_eq!(code(&Error::Deadline { what, after, last }), 1);
        assert_eq!(code(&Error::Interrupted), 130);
    }
}
