//! Which view each client's cache was filled under, so that a watch never resumes under another one.
//!
//! A reflector lists, then watches from the list's resource version. If the shard's rule changes in between, the watch
//! would miss every object that the new rule adds, and keep every object that it takes away. So a list notes the view it
//! was answered under, and a watch (or a later page of the list) that comes with a resource version from another view is
//! answered 410 `Expired`: list again.
//!
//! Guarantees: nothing is noted, and nothing locked, while no plugin shapes lists or watches. Bounded: the oldest notes go
//! first. Assumption: what one client does to one collection is told apart by user agent, collection and its own selectors.
//! Caveat: notes do not survive a restart of the sidecar (docs/adr/0008).

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::verdict::RequestEdit;

/// Collections that one controller reads: hundreds at most. Each note is 24 bytes.
const MAX_NOTES: usize = 4096;

/// The notes of all clients; shared by the worker threads, touched by lists and watches only.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    used: AtomicBool,
    hasher: RandomState,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    views: HashMap<u64, u64>,
    order: VecDeque<u64>,
}

/// What tells one client's reading of one collection apart.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) struct Reader<'a> {
    pub(crate) user_agent: &'a [u8],
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) label_selector: &'a str,
    pub(crate) field_selector: &'a str,
}

/// What the ledger knows of a resource version that a client comes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// From a list under the same view.
    Same,
    /// From a list under another view.
    Other,
    /// Nothing is known.
    Nothing,
}

impl Ledger {
    /// Notes the view that a list, or a watch with initial events, is answered under.
    pub(crate) fn note<'e>(&self, reader: &Reader<'_>, view: impl Iterator<Item = &'e RequestEdit>) {
        let Some(view) = self.view(view) else { return };
        let key = self.hasher.hash_one(reader);
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.views.insert(key, view).is_none() {
            notes.order.push_back(key);
        }
        while notes.views.len() > MAX_NOTES {
            let Some(oldest) = notes.order.pop_front() else { break };
            notes.views.remove(&oldest);
        }
    }

    /// Whether any view was ever shaped: then every list must leave its note, also an unshaped one.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// What is known of the view that this client's resource version comes from.
    pub(crate) fn check<'e>(&self, reader: &Reader<'_>, view: impl Iterator<Item = &'e RequestEdit>) -> Known {
        let Some(view) = self.view(view) else {
            return Known::Nothing;
        };
        let key = self.hasher.hash_one(reader);
        match self
            .notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .views
            .get(&key)
        {
            Some(noted) if *noted == view => Known::Same,
            Some(_) => Known::Other,
            None => Known::Nothing,
        }
    }

    /// Hash of the view; `None` while the ledger was never used and there is nothing to note.
    fn view<'e>(&self, view: impl Iterator<Item = &'e RequestEdit>) -> Option<u64> {
        let mut hasher = self.hasher.build_hasher();
        let mut any = false;
        for edit in view.filter(|edit| edit.shapes_view()) {
            any = true;
            edit.hash(&mut hasher);
        }
        if any {
            self.used.store(true, Ordering::Relaxed);
        }
        (any || self.is_used()).then(|| hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: Reader<'_> = Reader {
        user_agent: b"manager",
        group: "",
        version: "v1",
        resource: "configmaps",
        namespace: "",
        label_selector: "",
        field_selector: "",
    };

    fn shard(name: &str) -> Vec<RequestEdit> {
        vec![RequestEdit::AndLabelSelector(format!("shard={name}"))]
    }

    #[test]
    fn a_watch_is_known_to_come_from_the_same_or_another_view() {
        let ledger = Ledger::default();
        assert_eq!(ledger.check(&READER, shard("a").iter()), Known::Nothing);
        ledger.note(&READER, shard("a").iter());
        assert_eq!(ledger.check(&READER, shard("a").iter()), Known::Same);
        assert_eq!(ledger.check(&READER, shard("b").iter()), Known::Other);
        assert_eq!(
            ledger.check(&READER, [].iter()),
            Known::Other,
            "a rule that went away is another view"
        );
        assert_eq!(
            ledger.check(
                &Reader {
                    namespace: "n",
                    ..READER
                },
                shard("a").iter()
            ),
            Known::Nothing
        );
        ledger.note(&READER, [].iter());
        assert_eq!(ledger.check(&READER, [].iter()), Known::Same);
    }

    #[test]
    fn nothing_is_noted_while_no_plugin_shapes_lists() {
        let ledger = Ledger::default();
        ledger.note(&READER, [].iter());
        assert!(ledger.notes.lock().unwrap().views.is_empty());
    }

    #[test]
    fn the_oldest_notes_go_first() {
        let ledger = Ledger::default();
        let names: Vec<String> = (0..=MAX_NOTES).map(|n| n.to_string()).collect();
        for name in &names {
            ledger.note(
                &Reader {
                    namespace: name,
                    ..READER
                },
                shard("a").iter(),
            );
        }
        assert_eq!(
            ledger.check(
                &Reader {
                    namespace: "0",
                    ..READER
                },
                shard("a").iter()
            ),
            Known::Nothing
        );
        assert_eq!(
            ledger.check(
                &Reader {
                    namespace: "1",
                    ..READER
                },
                shard("a").iter()
            ),
            Known::Same
        );
    }
}
