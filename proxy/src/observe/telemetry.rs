//! Log set-up: format, filter, colour only on a terminal.

use std::io::IsTerminal;

use ctrlmesh_logging::wants_colour;
use tracing_subscriber::EnvFilter;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One readable line each.
    Text,
    /// One JSON object each.
    Json,
}

/// Starts logging to standard error.
///
/// # Errors
/// The filter cannot be parsed; the message says what to write instead.
pub fn init(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        format!("--log (CTRLMESH_LOG): {error}; write a level (`info`) or pairs (`info,access=debug`)")
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(wants_colour(
            std::io::stderr().is_terminal(),
            std::env::var_os("NO_COLOR").as_deref(),
        ));
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|error| format!("logging can't start: {error}"))
}
