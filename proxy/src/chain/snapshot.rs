//! A chain in force: immutable, swapped as a whole, kept by each request to its end.
//!
//! Leaves building to `build.rs`, swapping to `handle.rs`, and running its plugins to others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ctrlmesh_contract::chain::MAX_ENTRIES_PER_POD;
use ctrlmesh_contract::{Digest, FailurePolicy};

use super::in_flight::InFlightCounts;
use super::index::{Index, Matched};
use super::matcher::{MatchQuery, Matcher};
use super::quarantine::Quarantine;
use super::retirement::RetirementGuard;
use super::reuse::ReuseState;
use crate::plugin::verdict::Subscription;
use crate::wasm;

/// A configured plugin, as the requests of one chain see it.
pub struct Entry {
    /// Identifies the build of a worker thread's instance. An entry that appears again in a later chain with the same plugin, settings and
    /// limits keeps its id, and so its live instances.
    pub id: EntryId,
    /// Name in the document.
    pub name: String,
    pub order: i32,
    /// Whether a request goes on when the plugin fails.
    pub on_failure: FailurePolicy,
    pub digest: Digest,
    pub settings_hash: String,
    pub plugin: Arc<wasm::Plugin>,
    /// Configuration that an instance is started with.
    pub config: Arc<wasm::EntryConfig>,
    /// State that later chains with this entry keep.
    pub state: Arc<wasm::EntryState>,
    /// Memory of an instance that has just been configured, in bytes.
    pub start_bytes: usize,
    /// The requests and phases that the plugin wants to see.
    pub subscription: Subscription,
    /// The subscription's rules, compiled.
    pub matcher: Matcher,
    pub quarantine: Arc<Quarantine>,
    /// Whether its verdicts may be repeated.
    pub reuse: Arc<ReuseState>,
    /// Dropped with the last chain or request that uses the entry.
    pub(super) retirement: RetirementGuard,
}

/// See [`Entry::id`]. Unique within the process, and never reused. An entry of a later chain has the same id or a higher one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(u64);

impl EntryId {
    pub(crate) fn next_id() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The id as a number, for the state of entries, which knows no chains.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

/// A chain in force, or about to be.
pub struct Snapshot {
    /// Unique within the process, and never reused.
    pub(crate) id: u64,
    /// The document's generation; 0: no document yet.
    pub generation: u64,
    /// Digest of the document's bytes; `None`: no document yet.
    pub document: Option<Digest>,
    /// No other chain was in force before: nothing that clients have cached is stale.
    pub(super) is_first: bool,
    /// The number of the document's entries that select other pods only.
    pub(super) other_entries: usize,
    /// No labels of the pod are known, and none will be.
    pub(super) without_labels: bool,
    entries: Vec<Arc<Entry>>,
    index: Index,
    /// Counts the requests that began under this chain.
    pub(super) in_flight_counts: Arc<InFlightCounts>,
}

impl Snapshot {
    /// The chain before the first document: no entries.
    #[must_use]
    pub fn without_document() -> Self {
        Self {
            is_first: true,
            ..Self::from_entries(0, None, Vec::new())
        }
    }

    /// Builds the chain of a document. The caller has checked that there are at most [`MAX_ENTRIES_PER_POD`] entries.
    pub(crate) fn new(generation: u64, document: Digest, entries: Vec<Arc<Entry>>) -> Self {
        Self::from_entries(generation, Some(document), entries)
    }

    fn from_entries(generation: u64, document: Option<Digest>, mut entries: Vec<Arc<Entry>>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        debug_assert!(entries.len() <= MAX_ENTRIES_PER_POD, "the caller has checked that");
        entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
        let index = Index::new(entries.iter().map(|entry| (&entry.matcher, entry.subscription.phases)));
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            generation,
            document,
            is_first: false,
            other_entries: 0,
            without_labels: false,
            entries,
            index,
            in_flight_counts: InFlightCounts::new(),
        }
    }

    /// Whether no other chain was in force before.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.is_first
    }

    /// All entries, in the order of the chain.
    #[must_use]
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Whether the chain has an entry with this id.
    pub(crate) fn has_entry(&self, id: EntryId) -> bool {
        self.entries.iter().any(|entry| entry.id == id)
    }

    /// Whether an entry has this name. A name that ends with a slash stands for any entry below it.
    pub(super) fn has_entry_named(&self, name: &str) -> bool {
        let is_below = |entry: &str| name.ends_with('/') && entry.starts_with(name);
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.name == name || is_below(&entry.name))
    }

    /// The entries that want a request, in any phase. Does not allocate.
    pub fn matching_entries(&self, query: &MatchQuery<'_>) -> Matched {
        self.index
            .matching_entries(query, |at| self.entries.get(at).map(|entry| &entry.matcher))
    }

    /// The matched entries, in the order of the chain.
    pub(crate) fn matched_entries(&self, matched: Matched) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.entries_at(matched)
    }

    /// The matched entries that subscribe to `on-request`, in calling order.
    pub fn on_request(&self, matched: Matched) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.entries_at(self.index.on_request(matched))
    }

    /// The matched entries that subscribe to `on-response`, in calling order: the reverse of the chain's.
    pub fn on_response(&self, matched: Matched) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.entries_at(self.index.on_response(matched)).rev()
    }

    /// The matched entries that subscribe to `on-complete`, in the order of the chain.
    pub fn on_complete(&self, matched: Matched) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.entries_at(self.index.on_complete(matched))
    }

    fn entries_at(&self, matched: Matched) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        matched.positions().filter_map(|at| self.entries.get(at))
    }

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
