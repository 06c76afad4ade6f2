//! The clock that plugins and their state use: the system's, or one that a test moves by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A wall clock and a monotonic clock.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System { start: Instant },
    Manual(Arc<AtomicU64>),
}

impl Clock {
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System { start: Instant::now() })
    }

    /// A clock that stands still until [`Clock::advance`]; both times start at 0. Clones share it.
    #[must_use]
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::default()))
    }

    /// Advances a manual clock; has no effect on the system's.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(nanoseconds) = &self.0 {
            nanoseconds.fetch_add(saturating_ns(by), Ordering::SeqCst);
        }
    }

    /// Time since 1970-01-01T00:00:00Z.
    pub(crate) fn since_epoch(&self) -> Duration {
        match &self.0 {
            // A clock set before 1970 reads as 1970.
            Source::System { .. } => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Source::Manual(nanoseconds) => Duration::from_nanos(nanoseconds.load(Ordering::SeqCst)),
        }
    }

    /// Nanoseconds since the clock was created; never goes back.
    pub(crate) fn monotonic_ns(&self) -> u64 {
        match &self.0 {
            Source::System { start } => saturating_ns(start.elapsed()),
            Source::Manual(nanoseconds) => nanoseconds.load(Ordering::SeqCst),
        }
    }

    /// Whole milliseconds of [`Clock::monotonic_ns`].
    pub(crate) fn monotonic_ms(&self) -> u64 {
        self.monotonic_ns() / 1_000_000
    }
}

fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
