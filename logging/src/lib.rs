//! Parts that the logs of all programs share. Pure: the caller passes the time and the environment.

use std::ffi::OsStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two warnings of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// Limits warnings of one kind that clients can cause many times a second: one is logged every ten seconds, with the number of
/// suppressed ones. The caller passes the time, so that tests can pause its clock.
#[derive(Debug, Default)]
pub struct WarningRate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl WarningRate {
    /// Returns `None` to suppress a warning at this time, or the number of warnings suppressed since the last one.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

/// The last error of a periodic check, which is logged once, and not each time that the check fails in the same way.
#[derive(Debug, Default)]
pub struct RepeatedError(Option<String>);

impl RepeatedError {
    /// Records the result of a check. Returns the error's text if it differs from that of the check before.
    pub fn record<E: std::fmt::Display>(&mut self, result: Result<(), E>) -> Option<&str> {
        let error = result.err().map(|error| error.to_string());
        let is_new = error != self.0;
        self.0 = error;
        self.0.as_deref().filter(|_| is_new)
    }
}

/// Whether output is coloured. Colours are for terminals of people who did not refuse them: <https://no-color.org>. `no_color`: the
/// variable `NO_COLOR`.
#[must_use]
pub fn wants_colour(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_is_logged_every_ten_seconds_with_number_of_suppressed_ones() {
        let (rate, now) = (WarningRate::default(), Instant::now());
        assert_eq!(rate.admit(now), Some(0));
        for _ in 0..999 {
            assert_eq!(rate.admit(now), None);
        }
        assert_eq!(rate.admit(now + PAUSE - Duration::from_millis(1)), None);
        assert_eq!(rate.admit(now + PAUSE), Some(1000));
        assert_eq!(rate.admit(now + PAUSE), None);
    }

    #[test]
    fn error_is_logged_when_it_differs_from_that_of_the_check_before() {
        let mut last = RepeatedError::default();
        assert_eq!(last.record(Err("a")), Some("a"));
        assert_eq!(last.record(Err("a")), None);
        assert_eq!(last.record(Err("b")), Some("b"));
        assert_eq!(last.record(Ok::<(), &str>(())), None);
        assert_eq!(last.record(Err("b")), Some("b"), "it is back");
    }

    #[test]
    fn colours_are_only_for_a_terminal_without_no_color() {
        for (is_terminal, no_color, expected) in [
            (true, None, true),
            (true, Some(""), true),
            (true, Some("1"), false),
            (false, None, false),
        ] {
            assert_eq!(
                wants_colour(is_terminal, no_color.map(OsStr::new)),
                expected,
                "{no_color:?}"
            );
        }
    }
}
