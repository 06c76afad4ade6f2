//! Limits warnings that clients can cause many times a second: one is written every ten seconds, with the number of suppressed
//! ones.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time between two warnings of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// Decides which warnings of one kind are written.
#[derive(Debug, Default)]
pub(super) struct WarningRate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl WarningRate {
    /// Whether to write this warning; if so, the number of suppressed ones since the last.
    pub(super) fn admit(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
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

    #[tokio::test(start_paused = true)]
    async fn one_warning_in_ten_seconds_is_written_and_counts_the_rest() {
        let rate = WarningRate::default();
        assert_eq!(rate.admit(), Some(0));
        for _ in 0..1000 {
            assert_eq!(rate.admit(), None);
        }
        tokio::time::advance(PAUSE).await;
        assert_eq!(rate.admit(), Some(1000));
        assert_eq!(rate.admit(), None);
    }
}
