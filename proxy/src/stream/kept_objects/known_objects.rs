//! Which objects the client of a watch has, as far as this watch tells.
//!
//! Guarantees: the memory is bounded. What is not known is reported as unknown, never as an object that the client lacks.

use std::collections::HashSet;
use std::hash::BuildHasher;

/// Most objects that are remembered for one watch. The set takes 9 bytes for each element that it has space for, and these are at most
/// 262,144: 1.2 MB for 100,000 objects that came one after the other, 2.4 MB if removals left space that cannot be used at once, and half
/// as much again while it grows.
pub(super) const MAX_KNOWN_OBJECTS: usize = 100_000;

/// The bit of an entry that says that the client has the object.
const HAS_OBJECT: u64 = 1;

/// Whether a client has an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Possession {
    Has,
    Lacks,
    Unknown,
}

/// The objects of which it is known whether the client has them.
///
/// An object is remembered by 63 bits of a hash of its UID. So two of 100,000 objects are confused in one of two billion watches. The hash
/// has a random seed. It need not withstand clients that search for collisions, because API servers choose UIDs.
#[derive(Debug)]
pub(super) struct KnownObjects {
    entries: HashSet<u64, foldhash::fast::RandomState>,
    uid_hashes: foldhash::quality::RandomState,
    /// Whether the client lacks every object without an entry.
    is_complete: bool,
}

impl KnownObjects {
    /// `starts_empty`: the client has no objects yet.
    pub(super) fn new(starts_empty: bool) -> Self {
        Self {
            entries: HashSet::default(),
            uid_hashes: foldhash::quality::RandomState::default(),
            is_complete: starts_empty,
        }
    }

    /// Nothing is known about an object without a UID.
    pub(super) fn possession_of(&self, uid: &str) -> Possession {
        let entry = self.lacking_entry(uid);
        if uid.is_empty() {
            Possession::Unknown
        } else if self.entries.contains(&(entry | HAS_OBJECT)) {
            Possession::Has
        } else if self.is_complete || self.entries.contains(&entry) {
            Possession::Lacks
        } else {
            Possession::Unknown
        }
    }

    /// Remembers whether the client has the object. Beyond the limit, nothing is known about further objects.
    pub(super) fn remember(&mut self, uid: &str, has_object: bool) {
        let lacking = self.lacking_entry(uid);
        let entry = lacking | u64::from(has_object);
        if uid.is_empty() || self.entries.contains(&entry) {
            return;
        }
        self.entries.remove(&(entry ^ HAS_OBJECT));
        if self.is_complete && !has_object {
            return;
        }
        if self.entries.len() < MAX_KNOWN_OBJECTS {
            self.entries.insert(entry);
        } else {
            self.is_complete = false;
        }
    }

    /// Forgets an object that does not exist any more.
    pub(super) fn forget(&mut self, uid: &str) {
        let lacking = self.lacking_entry(uid);
        self.entries.remove(&lacking);
        self.entries.remove(&(lacking | HAS_OBJECT));
    }

    /// The entry of an object that the client lacks.
    fn lacking_entry(&self, uid: &str) -> u64 {
        self.uid_hashes.hash_one(uid) & !HAS_OBJECT
    }
}

#[cfg(test)]
mod tests {
    use super::Possession::{Has, Lacks, Unknown};
    use super::*;

    #[test]
    fn client_that_starts_empty_lacks_what_it_did_not_get() {
        let mut known = KnownObjects::new(true);
        assert_eq!(known.possession_of("a"), Lacks);
        known.remember("a", true);
        known.remember("b", true);
        known.remember("b", false);
        assert_eq!(["a", "b", "c"].map(|uid| known.possession_of(uid)), [Has, Lacks, Lacks]);
        assert_eq!(known.entries.len(), 1, "only what the client has takes memory");
        known.forget("a");
        assert_eq!(known.possession_of("a"), Lacks);
        assert_eq!(known.entries.len(), 0);
    }

    #[test]
    fn objects_are_unknown_before_their_first_event_when_client_resumes() {
        let mut known = KnownObjects::new(false);
        assert_eq!(known.possession_of("a"), Unknown);
        known.remember("a", true);
        known.remember("b", false);
        assert_eq!(
            ["a", "b", "c"].map(|uid| known.possession_of(uid)),
            [Has, Lacks, Unknown]
        );
        known.remember("a", false);
        known.remember("b", true);
        assert_eq!(["a", "b"].map(|uid| known.possession_of(uid)), [Lacks, Has]);
        assert_eq!(known.entries.len(), 2, "an object has one entry");
        known.forget("a");
        known.forget("b");
        assert_eq!(["a", "b"].map(|uid| known.possession_of(uid)), [Unknown, Unknown]);
        assert_eq!(known.entries.len(), 0);
    }

    #[test]
    fn objects_without_uid_are_unknown() {
        for starts_empty in [true, false] {
            let mut known = KnownObjects::new(starts_empty);
            known.remember("", true);
            assert_eq!(known.possession_of(""), Unknown);
            assert_eq!(known.entries.len(), 0);
        }
    }

    #[test]
    fn objects_beyond_the_limit_are_unknown() {
        for starts_empty in [true, false] {
            let mut known = KnownObjects::new(starts_empty);
            for index in 0..MAX_KNOWN_OBJECTS {
                known.remember(&index.to_string(), true);
            }
            let before = if starts_empty { Lacks } else { Unknown };
            assert_eq!(known.possession_of("further"), before);
            known.remember("further", true);
            known.remember("never got", false);
            assert_eq!(known.entries.len(), MAX_KNOWN_OBJECTS);
            for uid in ["further", "never got"] {
                assert_eq!(known.possession_of(uid), Unknown, "{uid}");
            }
            known.remember("7", false);
            assert_eq!(["6", "7"].map(|uid| known.possession_of(uid)), [Has, Lacks]);
            known.forget("8");
            known.remember("new", true);
            assert_eq!(known.possession_of("new"), Has);
            assert!(known.entries.capacity() * 8 / 7 <= 262_144);
        }
    }
}
