//! A guest's printed output: split into lines for its log. The end of stderr is kept for the message of a trap, because it has the message
//! of a Rust panic.

use super::plugin_log::{Level, PluginLog};

/// Maximum length of an unfinished line, and of the stderr that is kept of one call.
const MAX_LINE_BYTES: usize = 1024;
/// Maximum number of lines of one call that are kept until its end.
const MAX_LINES: usize = 32;

/// The two output streams of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// Output of the running call.
#[derive(Debug, Default)]
pub(crate) struct Stdio {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    lines: Vec<(Stream, String)>,
}

impl Stdio {
    /// Takes output of the guest; excess output is dropped.
    pub(crate) fn write(&mut self, stream: Stream, bytes: &[u8]) {
        for byte in bytes {
            let open = match stream {
                Stream::Stdout => &mut self.stdout,
                Stream::Stderr => &mut self.stderr,
            };
            if *byte != b'\n' {
                if open.len() < MAX_LINE_BYTES {
                    open.push(*byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(open).into_owned();
            open.clear();
            self.push(stream, line);
        }
    }

    /// The guest's stderr in this call, on one line.
    pub(crate) fn stderr_line(&self) -> String {
        let finished = self
            .lines
            .iter()
            .filter(|(stream, _)| *stream == Stream::Stderr)
            .map(|(_, line)| line.as_str());
        let open = String::from_utf8_lossy(&self.stderr);
        let said: Vec<&str> = finished
            .chain([open.as_ref()])
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let mut text = said.join(" ");
        text.truncate(text.floor_char_boundary(MAX_LINE_BYTES));
        text
    }

    /// Ends the call: writes all lines to the log, finished or not, and drops them.
    pub(crate) fn flush(&mut self, log: Option<&PluginLog>) {
        if self.stdout.is_empty() && self.stderr.is_empty() && self.lines.is_empty() {
            return;
        }
        // A lone newline ends the unfinished line.
        for (stream, open) in [
            (Stream::Stdout, !self.stdout.is_empty()),
            (Stream::Stderr, !self.stderr.is_empty()),
        ] {
            if open {
                self.write(stream, b"\n");
            }
        }
        for (stream, line) in self.lines.drain(..) {
            let level = if stream == Stream::Stderr {
                Level::Warn
            } else {
                Level::Info
            };
            if let Some(log) = log {
                log.write(level, &line);
            }
        }
    }

    fn push(&mut self, stream: Stream, line: String) {
        if !line.trim().is_empty() && self.lines.len() < MAX_LINES {
            self.lines.push((stream, line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::*;

    #[test]
    fn unfinished_lines_are_logged_at_end_of_call() {
        let log = PluginLog::new("entry", Clock::manual());
        let mut stdio = Stdio::default();
        stdio.write(Stream::Stdout, b"one\ntw");
        stdio.write(Stream::Stdout, b"o");
        stdio.write(Stream::Stderr, b"thread panicked:\nboom\n\n");
        assert_eq!(stdio.stderr_line(), "thread panicked: boom");
        stdio.flush(Some(&log));
        let lines: Vec<_> = log
            .recent_lines()
            .into_iter()
            .map(|line| (line.level, line.message))
            .collect();
        let warn = |text: &str| (Level::Warn, text.to_owned());
        let info = |text: &str| (Level::Info, text.to_owned());
        assert_eq!(
            lines,
            [info("one"), warn("thread panicked:"), warn("boom"), info("two")]
        );
        assert_eq!(stdio.stderr_line(), "");
    }

    #[test]
    fn flood_without_newlines_is_bounded() {
        let mut stdio = Stdio::default();
        stdio.write(Stream::Stderr, &vec![b'x'; 1 << 20]);
        stdio.write(Stream::Stderr, &b"y\n".repeat(1 << 16));
        assert_eq!(stdio.lines.len(), MAX_LINES);
        assert!(stdio.stderr_line().len() <= MAX_LINE_BYTES);
    }
}
