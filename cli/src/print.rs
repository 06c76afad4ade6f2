//! The only place that writes to standard output and standard error, so that nothing else can break their format.

use std::error::Error as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::OnceLock;

use comfy_table::{ContentArrangement, Table};
use ctrlmesh_manager_api::status::response_text;

use crate::error::Error;

/// Exit code of an interrupted program, as in shells: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// Exit code of a demo whose checks neither hold nor fail: `EX_TEMPFAIL` of sysexits.h, "try again".
pub(crate) const INCONCLUSIVE: u8 = 75;

/// Why standard output cannot be written any more. A process has only one, so this is global.
static BROKEN: OnceLock<io::Error> = OnceLock::new();

/// Prints a line to standard output, with control characters escaped: names in it come from files and servers, and must not reach
/// the terminal as commands. If printing fails, later lines are dropped, and [`exit_code`] is a failure.
pub(crate) fn line(text: &str) {
    painted_line(&escape_controls(text));
}

/// The text with control characters in the notation of JSON, but for line breaks and tabs.
pub(crate) fn escape_controls(text: &str) -> String {
    let escape = |char: char| match char {
        '\n' | '\t' => char.to_string(),
        char if char.is_control() => format!("\\u{:04x}", u32::from(char)),
        char => char.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Prints a line of the program's own text, which may have colours. Control characters are not escaped.
pub(crate) fn painted_line(text: &str) {
    if BROKEN.get().is_some() {
        return;
    }
    let mut stdout = io::stdout().lock();
    if let Err(error) = writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        // Only the first error counts.
        let _ = BROKEN.set(error);
    }
}

/// Fails if a line could not be written to standard output. A closed pipe is not a failure.
pub(crate) fn check_output() -> Result<(), Error> {
    match BROKEN.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::StandardOutput(io::Error::new(error.kind(), error.to_string())))
        }
        _ => Ok(()),
    }
}

/// The exit code of a command: a failure if its output could not be written.
pub(crate) fn exit_code(outcome: Result<ExitCode, Error>) -> ExitCode {
    let outcome = outcome.and_then(|code| check_output().map(|()| code));
    outcome.unwrap_or_else(|error| print_failure(&error))
}

/// Prints clap's help or version to standard output with exit code 0, or a usage error to standard error with exit code 2.
pub(crate) fn print_usage(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(source) if !error.use_stderr() && source.kind() != io::ErrorKind::BrokenPipe => {
            print_failure(&Error::StandardOutput(source))
        }
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1)),
    }
}

/// Columns of the terminal on standard output; `None` if it is no terminal, so that lines may have any length.
pub(crate) fn terminal_width() -> Option<u16> {
    let size = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    size.map(|(width, _)| width.0)
}

/// A table as text. Cells wrap at `width` columns.
pub(crate) fn render_table(mut table: Table, width: Option<u16>) -> String {
    if let Some(width) = width {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
    table.trim_fmt()
}

/// Prints an error with its causes to standard error, and returns its exit code.
pub(crate) fn print_failure(error: &Error) -> ExitCode {
    let _ = writeln!(
        io::stderr().lock(),
        "ctrlmesh: {}",
        escape_controls(&with_causes(error))
    );
    ExitCode::from(failure_code(error))
}

const fn failure_code(error: &Error) -> u8 {
    match error {
        Error::Interrupted => INTERRUPTED,
        Error::TooSlow { .. } => INCONCLUSIVE,
        _ => 1,
    }
}

/// The messages of an error and its causes, each once.
pub(crate) fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let response = api_response(error);
        let is_last = response.is_some();
        let more = response.unwrap_or_else(|| match error.downcast_ref() {
            Some(error) => io_text(error),
            None => error.to_string(),
        });
        // Many errors already include their cause.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        // The cause of such an error is the same response in other words.
        cause = error.source().filter(|_| !is_last);
    }
    text
}

/// An error of the operating system without its number.
pub(crate) fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => text.replace(&format!(" (os error {code})"), ""),
        None => text,
    }
}

/// The response of an API server. The client's own text of it has its `Debug` form, too.
fn api_response(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let boxed = || error.downcast_ref::<Box<kube::Error>>().map(AsRef::as_ref);
    match error.downcast_ref().or_else(boxed)? {
        kube::Error::Api(status) => Some(response_text(status)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::core::Status;

    use super::*;

    #[test]
    fn response_of_api_server_is_printed_once_and_in_words() {
        let refused = || {
            let status = Status::failure("namespaces \"demo\" not found", "NotFound").with_code(404);
            kube::Error::Api(Box::new(status))
        };
        assert!(refused().to_string().contains("Status {"), "this is no longer needed");
        let message = with_causes(&Error::client("the objects of the demo")(refused()));
        assert_eq!(
            message,
            "the objects of the demo: namespaces \"demo\" not found (HTTP 404)"
        );
        let message = with_causes(&Error::Uninstall(refused().into()));
        assert_eq!(message, "the API server: namespaces \"demo\" not found (HTTP 404)");
    }

    #[test]
    fn slow_machine_has_its_own_exit_code_and_message() {
        let (what, last) = ("a thing".to_owned(), "nothing".to_owned());
        let after = Duration::from_secs(30);
        let slow = Error::TooSlow {
            percent: "7.5".to_owned(),
            what: what.clone(),
            after,
            last: last.clone(),
        };
        assert_eq!(failure_code(&slow), 75);
        let message = with_causes(&slow);
        assert!(
            message.starts_with("inconclusive: machine too slow. In the 30 s") && message.contains("7.5 %"),
            "{message}"
        );
        assert_eq!(failure_code(&Error::Deadline { what, after, last }), 1);
        assert_eq!(failure_code(&Error::Interrupted), 130);
    }
}
