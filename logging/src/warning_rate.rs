//! Limits warnings that clients can cause many times a second: one is logged every ten seconds, with the number of suppressed ones.
//!
//! The caller passes the time, so that tests can pause its clock.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two warnings of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// Decides which warnings of one kind are logged.
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
}
