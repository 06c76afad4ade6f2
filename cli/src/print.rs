//! The only place that writes to standard output and error, so that nothing else can break the form of either.

use std::error::Error as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::OnceLock;

use comfy_table::{ContentArrangement, Table};

use crate::error::Error;

/// Exit code of a program that was interrupted, as shells have it: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// Exit code of a demo that shows neither that its claims hold nor that one fails: `EX_TEMPFAIL` of sysexits.h, "try again".
pub(crate) const INCONCLUSIVE: u8 = 75;

/// Why standard output takes nothing more. The process has one, so this is the process's, too.
static BROKEN: OnceLock<io::Error> = OnceLock::new();

/// A line on standard output. If it can't be written, nothing more is, and [`outcome`] is a failure.
pub(crate) fn line(text: &str) {
    if BROKEN.get().is_some() {
        return;
    }
    let mut stdout = io::stdout().lock();
    if let Err(error) = writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        // Only the first reason counts, and there is none yet.
        let _ = BROKEN.set(error);
    }
}

/// Fails if something could not be written to standard output. Whoever reads may go away; that is no failure of ours.
pub(crate) fn check() -> Result<(), Error> {
    match BROKEN.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::StandardOutput(io::Error::new(error.kind(), error.to_string())))
        }
        _ => Ok(()),
    }
}

/// The exit code of a command: a failure if what it said is not where it should be.
pub(crate) fn outcome(outcome: Result<ExitCode, Error>) -> ExitCode {
    let outcome = outcome.and_then(|code| check().map(|()| code));
    outcome.unwrap_or_else(|error| failure(&error))
}

/// What clap has to say: help and the version on standard output, with exit code 0, and a wrong command line on standard error, with 2.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(source) if !error.use_stderr() && source.kind() != io::ErrorKind::BrokenPipe => {
            failure(&Error::StandardOutput(source))
        }
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1)),
    }
}

/// How many columns the terminal on standard output has; `None`: there is none, and lines may be of any length.
pub(crate) fn width() -> Option<u16> {
    let size = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    size.map(|(width, _)| width.0)
}

/// A table as text. What does not fit into `width` columns goes on in the next line of its cell.
pub(crate) fn table(mut table: Table, width: Option<u16>) -> String {
    if let Some(width) = width {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
    table.trim_fmt()
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
