//! The log of an entry (WIT `log`, and a plugin's printed output): bounded in rate, line length, and number of remembered lines.

use std::collections::VecDeque;
use std::sync::Mutex;

use tracing::{debug, error, info, warn};

use super::clock::Clock;
use crate::lock::lock_unpoisoned;

/// Number of lines that may be logged at once.
const MAX_BURST: u64 = 50;
/// Interval after which one more line may be logged: a plugin that logs each request of a busy controller must not fill the node's disk.
const MS_PER_LINE: u64 = 100;
/// Maximum length of a line in bytes; the rest is cut off.
const MAX_LINE_BYTES: usize = 1024;
/// Number of lines remembered for `/status` and for tests.
const MAX_REMEMBERED: usize = 32;

/// Severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Information for the author of the plugin.
    Debug,
    Info,
    Warn,
    /// A malfunction.
    Error,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub level: Level,
    /// One line of text, without control characters.
    pub message: String,
}

/// The log of an entry.
#[derive(Debug)]
pub struct PluginLog {
    entry: String,
    clock: Clock,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Number of lines that may be logged now, and the time of that figure.
    allowance: u64,
    at_ms: u64,
    suppressed: u64,
    recent: VecDeque<LogLine>,
}

impl PluginLog {
    pub(super) fn new(entry: &str, clock: Clock) -> Self {
        let at_ms = clock.monotonic_ms();
        let inner = Inner {
            allowance: MAX_BURST,
            at_ms,
            suppressed: 0,
            recent: VecDeque::new(),
        };
        Self {
            entry: entry.to_owned(),
            clock,
            inner: Mutex::new(inner),
        }
    }

    /// Logs a line, or only counts it if there were too many.
    pub(crate) fn write(&self, level: Level, message: &str) {
        let Some(suppressed) = self.admit() else { return };
        let message = one_line(message);
        let entry = self.entry.as_str();
        // `suppressed`: number of lines left out before this one since the start.
        match level {
            Level::Debug => debug!(target: "plugin", entry, suppressed, message),
            Level::Info => info!(target: "plugin", entry, suppressed, message),
            Level::Warn => warn!(target: "plugin", entry, suppressed, message),
            Level::Error => error!(target: "plugin", entry, suppressed, message),
        }
        let mut inner = lock_unpoisoned(&self.inner);
        if inner.recent.len() == MAX_REMEMBERED {
            inner.recent.pop_front();
        }
        inner.recent.push_back(LogLine { level, message });
    }

    /// The last logged lines.
    #[must_use]
    pub fn recent_lines(&self) -> Vec<LogLine> {
        lock_unpoisoned(&self.inner).recent.iter().cloned().collect()
    }

    /// Number of lines left out.
    #[must_use]
    pub fn suppressed(&self) -> u64 {
        lock_unpoisoned(&self.inner).suppressed
    }

    /// Admits one more line if the rate allows it, and returns how many were left out.
    fn admit(&self) -> Option<u64> {
        let now_ms = self.clock.monotonic_ms();
        let mut inner = lock_unpoisoned(&self.inner);
        let earned = now_ms.saturating_sub(inner.at_ms) / MS_PER_LINE;
        inner.at_ms = inner.at_ms.saturating_add(earned * MS_PER_LINE);
        inner.allowance = inner.allowance.saturating_add(earned).min(MAX_BURST);
        if let Some(left) = inner.allowance.checked_sub(1) {
            inner.allowance = left;
            Some(inner.suppressed)
        } else {
            inner.suppressed = inner.suppressed.saturating_add(1);
            None
        }
    }
}

/// Cuts a text to its maximum length and removes characters that could forge a log line or move a terminal's cursor.
fn one_line(text: &str) -> String {
    let bounded = text.get(..text.floor_char_boundary(MAX_LINE_BYTES)).unwrap_or(text);
    bounded
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_above_rate_are_suppressed_and_counted_until_rate_allows() {
        let clock = Clock::manual();
        let log = PluginLog::new("entry", clock.clone());
        for _ in 0..MAX_BURST + 3 {
            log.write(Level::Info, "x");
        }
        assert_eq!(log.suppressed(), 3);
        clock.advance(Duration::from_millis(MS_PER_LINE));
        log.write(Level::Warn, "again");
        log.write(Level::Warn, "too soon");
        assert_eq!(log.suppressed(), 4);
        assert_eq!(
            log.recent_lines().last().map(|line| line.message.clone()),
            Some("again".into())
        );
    }

    #[test]
    fn line_is_cut_at_character_and_can_not_forge_another() {
        let log = PluginLog::new("entry", Clock::manual());
        log.write(Level::Error, &format!("a\nb\u{1b}[2J{}", "ü".repeat(MAX_LINE_BYTES)));
        let line = log.recent_lines().remove(0);
        assert!(line.message.starts_with("a b [2Jü"), "{}", line.message);
        assert!(line.message.len() <= MAX_LINE_BYTES);
    }
}
