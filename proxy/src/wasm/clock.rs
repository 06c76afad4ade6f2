//! The clock and the random numbers that plugins and their state use: the system's, or those of a test, which moves the clock by hand and
//! gets the same numbers each time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand;

/// A wall clock and a monotonic clock.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System { start: Instant },
    Manual(Arc<Manual>),
}

#[derive(Debug, Default)]
struct Manual {
    nanoseconds: AtomicU64,
    /// Random numbers drawn so far.
    draws: AtomicU64,
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
        if let Source::Manual(manual) = &self.0 {
            manual.nanoseconds.fetch_add(saturating_ns(by), Ordering::SeqCst);
        }
    }

    /// Time since 1970-01-01T00:00:00Z.
    pub(crate) fn since_epoch(&self) -> Duration {
        match &self.0 {
            // A clock set before 1970 reads as 1970.
            Source::System { .. } => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Source::Manual(manual) => Duration::from_nanos(manual.nanoseconds.load(Ordering::SeqCst)),
        }
    }

    /// Nanoseconds since the clock was created; never goes back.
    pub(crate) fn monotonic_ns(&self) -> u64 {
        match &self.0 {
            Source::System { start } => saturating_ns(start.elapsed()),
            Source::Manual(manual) => manual.nanoseconds.load(Ordering::SeqCst),
        }
    }

    /// Whole milliseconds of [`Clock::monotonic_ns`] at `now`, a reading of the process's clock that a caller has already. A manual clock
    /// goes by its own time.
    pub(crate) fn monotonic_ms_at(&self, now: tokio::time::Instant) -> u64 {
        match &self.0 {
            Source::System { start } => whole_ms(saturating_ns(now.into_std().saturating_duration_since(*start))),
            Source::Manual(_) => self.monotonic_ms(),
        }
    }

    /// A random number; not for secrets.
    pub(crate) fn random(&self) -> u64 {
        match &self.0 {
            Source::System { .. } => {
                let mut bytes = [0; 8];
                // The system's generator fails only before it is seeded, at boot.
                let _ = rand::fill(&mut bytes);
                u64::from_ne_bytes(bytes)
            }
            Source::Manual(manual) => {
                // SplitMix64, whose state is the number of draws.
                let draw = manual.draws.fetch_add(1, Ordering::SeqCst) + 1;
                let mut number = draw.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                number ^ (number >> 31)
            }
        }
    }

    /// Whole milliseconds of [`Clock::monotonic_ns`].
    pub(crate) fn monotonic_ms(&self) -> u64 {
        whole_ms(self.monotonic_ns())
    }
}

const fn whole_ms(nanoseconds: u64) -> u64 {
    nanoseconds / 1_000_000
}

fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant as Reading;

    use super::*;

    #[test]
    fn reading_of_the_process_clock_is_one_of_the_system_clock() {
        let before = Reading::now();
        let clock = Clock::system();
        let earliest = clock.monotonic_ms();
        let at = clock.monotonic_ms_at(Reading::now());
        let latest = clock.monotonic_ms();
        assert!((earliest..=latest).contains(&at), "{earliest} {at} {latest}");
        assert_eq!(clock.monotonic_ms_at(before), 0, "the clock was created later");
        let later = Reading::now() + Duration::from_millis(5000);
        assert!(clock.monotonic_ms_at(later) >= 5000);
    }

    #[test]
    fn manual_clock_ignores_the_process_clock() {
        let clock = Clock::manual();
        clock.advance(Duration::from_micros(7900));
        let later = Reading::now() + Duration::from_secs(60);
        assert_eq!((clock.monotonic_ms_at(later), clock.monotonic_ms()), (7, 7));
    }
}
