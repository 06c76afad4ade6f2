//! Limits the writes of labels that somebody else keeps undoing. Otherwise neither side would ever stop.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Maximum writes of an object's labels in a minute. If it needs more, somebody undoes them.
const MAX_WRITES: u32 = 5;
const WINDOW: Duration = Duration::from_mins(1);
/// Maximum objects whose writes are counted. They take some hundred kilobytes.
const MAX_COUNTED: usize = 4096;

/// Counts recent writes of each object. Objects that were only checked do not count.
pub(super) struct WriteLimiter {
    since: Instant,
    writes: HashMap<String, u32>,
}

impl WriteLimiter {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            writes: HashMap::new(),
        }
    }

    /// Counts a write. Returns false if there were too many.
    pub(super) fn admits_write(&mut self, uid: &str, now: Instant) -> bool {
        if now.duration_since(self.since) >= WINDOW {
            *self = Self::new(now);
        }
        if let Some(writes) = self.writes.get_mut(uid) {
            if *writes >= MAX_WRITES {
                return false;
            }
            *writes += 1;
        } else if self.writes.len() < MAX_COUNTED {
            self.writes.insert(uid.to_owned(), 1);
        }
        true
    }

    /// The write changed nothing, so it does not count.
    pub(super) fn take_back(&mut self, uid: &str) {
        if let Some(writes) = self.writes.get_mut(uid) {
            *writes = writes.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_object_are_limited() {
        let now = Instant::now();
        let mut limiter = WriteLimiter::new(now);
        let admitted = (0..10).filter(|_| limiter.admits_write("one", now)).count();
        assert_eq!(admitted, 5);
        assert!(limiter.admits_write("other", now));
        let later = now + WINDOW;
        assert!(limiter.admits_write("one", later));
        for number in 0..2 * MAX_COUNTED {
            assert!(limiter.admits_write(&number.to_string(), later));
        }
        assert_eq!(limiter.writes.len(), MAX_COUNTED);
    }

    #[test]
    fn unneeded_write_does_not_count() {
        let now = Instant::now();
        let mut limiter = WriteLimiter::new(now);
        for _ in 0..10 {
            assert!(limiter.admits_write("one", now));
            limiter.take_back("one");
        }
        let admitted = (0..10).filter(|_| limiter.admits_write("one", now)).count();
        assert_eq!(admitted, 5);
    }
}
