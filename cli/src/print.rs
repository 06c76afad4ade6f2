//! The only place that writes to standard output and error, so that nothing else can break the form of either.

use std::error::Error as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::error::Error;

/// Exit code of a program that was interrupted, as shells have it: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// A line on standard output. Whoever reads may go away; that is no failure of ours.
pub(crate) fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{text}");
    let _ = stdout.flush();
}

/// Tells an error with its causes on standard error, and returns the exit code for it.
pub(crate) fn failure(error: &Error) -> ExitCode {
    let _ = writeln!(io::stderr().lock(), "ctrlmesh: {}", with_causes(error));
    match error {
        Error::Interrupted => ExitCode::from(INTERRUPTED),
        _ => ExitCode::FAILURE,
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
