//! Rate limit for warnings that any client can cause many times a second: one is logged every ten seconds, with the number of suppressed
//! ones.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time between two warnings of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// Decides which warnings of one kind are logged.
#[derive(Debug, Default)]
pub(crate) struct WarningRate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl WarningRate {
    /// Returns `None` to suppress this warning, or the number of warnings suppressed since the last one.
    pub(crate) fn admit(&self) -> Option<u64> {
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
    async fn warning_is_logged_every_ten_seconds_with_number_of_suppressed_ones() {
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
