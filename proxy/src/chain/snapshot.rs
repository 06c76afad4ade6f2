//! A chain as it is in force: immutable, swapped whole, kept by each request to its end.
//!
//! Leaves making one to `build.rs`, swapping to `handle.rs`, and running its plugins to others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ctrlmesh_contract::chain::MAX_ENTRIES_PER_POD;
use ctrlmesh_contract::{Digest, FailurePolicy};

use super::health::Health;
use super::index::{Index, Matched};
use super::matcher::{MatchQuery, Matcher};
use super::retirement::RetirementGuard;
use super::tally::Tally;
use crate::verdict::Subscription;
use crate::wasm;

/// A plugin at work, as the requests of one chain see it.
pub struct Entry {
    /// Names what a worker thread's instance was made of. An entry that comes again in a later chain with the same plugin,
    /// settings and limits keeps its id, and so its live instances.
    pub id: EntryId,
    /// Its name in the document.
    pub name: String,
    /// Low goes first.
    pub order: i32,
    /// What becomes of a request when the plugin fails.
    pub on_failure: FailurePolicy,
    /// Digest of the plugin.
    pub digest: Digest,
    /// Hash of the settings.
    pub settings_hash: String,
    /// The loaded plugin.
    pub plugin: Arc<wasm::Plugin>,
    /// What an instance is started with.
    pub config: Arc<wasm::EntryConfig>,
    /// What survives a reload.
    pub state: Arc<wasm::EntryState>,
    /// Bytes of memory of an instance that has just been configured.
    pub start_bytes: usize,
    /// What the plugin wants to see.
    pub subscription: Subscription,
    /// The subscription's rules, compiled.
    pub matcher: Matcher,
    /// Whether it may be called.
    pub health: Arc<Health>,
    /// Tells that no chain and no request holds it any more.
    pub(super) retirement: RetirementGuard,
}

/// See [`Entry::id`]. Never used twice in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(u64);

impl EntryId {
    /// One that was never used before.
    pub(crate) fn unused() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A chain as it is in force.
pub struct Snapshot {
    /// The document's generation; 0: no document yet.
    pub generation: u64,
    /// Digest of the document's bytes; `None`: no document yet.
    pub document: Option<Digest>,
    /// Whatever clients have read before, they have read under it: no other chain was in force.
    pub(super) is_first: bool,
    entries: Vec<Arc<Entry>>,
    index: Index,
    /// Requests that began under it.
    pub(super) tally: Arc<Tally>,
}

impl Snapshot {
    /// The chain before the first document: no entries.
    #[must_use]
    pub fn none() -> Self {
        Self {
            is_first: true,
            ..Self::of(0, None, Vec::new())
        }
    }

    /// The chain of a document. The caller has checked that there are at most [`MAX_ENTRIES_PER_POD`] entries.
    pub(crate) fn new(generation: u64, document: Digest, entries: Vec<Arc<Entry>>) -> Self {
        Self::of(generation, Some(document), entries)
    }

    fn of(generation: u64, document: Option<Digest>, mut entries: Vec<Arc<Entry>>) -> Self {
        debug_assert!(entries.len() <= MAX_ENTRIES_PER_POD, "the caller has checked that");
        entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
        let index = Index::new(entries.iter().map(|entry| (&entry.matcher, entry.subscription.phases)));
        Self {
            generation,
            document,
            is_first: false,
            entries,
            index,
            tally: Tally::new(),
        }
    }

    /// Whether no other chain was in force before it.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.is_first
    }

    /// All entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Whether the entry is one of this chain's.
    pub(crate) fn has(&self, id: EntryId) -> bool {
        self.entries.iter().any(|entry| entry.id == id)
    }

    /// Whether one of the entries has this name, or with a slash at its end, one below it.
    pub(super) fn has_entry(&self, name: &str) -> bool {
        let is_below = |entry: &str| name.ends_with('/') && entry.starts_with(name);
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.name == name || is_below(&entry.name))
    }

    /// The entries that want a request, in any phase. Allocates nothing.
    pub fn matching(&self, query: &MatchQuery<'_>) -> Matched {
        self.index
            .matching(query, |at| self.entries.get(at).map(|entry| &entry.matcher))
    }

    /// Those of them that want `on-request`, in the order in which they are called.
    pub fn on_request(&self, matched: Matched) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.at(self.index.on_request(matched))
    }

    /// Those of them that want `on-response`, in the order in which they are called: the reverse of the chain's.
    pub fn on_response(&self, matched: Matched) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.at(self.index.on_response(matched)).rev()
    }

    /// Those of them that want `on-complete`, in the order of the chain.
    pub fn on_complete(&self, matched: Matched) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.at(self.index.on_complete(matched))
    }

    fn at(&self, matched: Matched) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        matched.positions().filter_map(|at| self.entries.get(at))
    }

    /// The entry of that name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
        f.debug_struct("Snapshot")
            .field("generation", &self.generation)
            .field("entries", &names)
            .finish_non_exhaustive()
    }
}
