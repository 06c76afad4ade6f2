//! Objects whose labels somebody else keeps undoing: neither side would ever stop.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// So often in a minute the labels of one object are written. Who needs more is at odds with somebody.
const MAX_WRITES: u32 = 5;
const WINDOW: Duration = Duration::from_mins(1);
/// Objects whose writes are counted; more are not kept in mind. Some hundred kilobytes.
const MAX_COUNTED: usize = 4096;

/// How often objects were written lately. An object that was only looked at does not count.
pub(super) struct Contest {
    since: Instant,
    writes: HashMap<String, u32>,
}

impl Contest {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            writes: HashMap::new(),
        }
    }

    /// Counts a write that begins, unless there were too many.
    pub(super) fn admits(&mut self, uid: &str, now: Instant) -> bool {
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

    /// The write that began wrote nothing.
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
    fn an_object_is_not_written_for_ever() {
        let now = Instant::now();
        let mut contest = Contest::new(now);
        let admitted = (0..10).filter(|_| contest.admits("one", now)).count();
        assert_eq!(admitted, 5);
        assert!(contest.admits("other", now));
        let later = now + WINDOW;
        assert!(contest.admits("one", later));
        for number in 0..2 * MAX_COUNTED {
            assert!(contest.admits(&number.to_string(), later));
        }
        assert_eq!(contest.writes.len(), MAX_COUNTED);
    }

    #[test]
    fn only_what_was_written_counts() {
        let now = Instant::now();
        let mut contest = Contest::new(now);
        for _ in 0..10 {
            assert!(contest.admits("one", now));
            contest.take_back("one");
        }
        let admitted = (0..10).filter(|_| contest.admits("one", now)).count();
        assert_eq!(admitted, 5);
    }
}
