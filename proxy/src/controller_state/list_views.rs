//! Remembers the view that each client's cache was filled under, so that a watch never resumes under another one.
//!
//! A reflector lists, then watches from the list's resource version. If the shard's rule changes in between, the watch would miss every
//! object that the new rule adds, and keep every object that it removes. So each list records the view that it was answered under. A watch
//! (or a later page of the list) with a resource version from another view is answered with 410 `Expired`, and the client lists again.
//!
//! A list by the same reader may have come from another part of the program. It is no evidence about the cache of a watch that ended
//! before, or of a list whose watch has yet to come. So a list, and a watch that ends without a 410 (see [`Position`]), each leave a
//! version to resume from, and a list under another view makes these stale. As many resumptions are answered with 410, whatever was listed
//! meanwhile.
//!
//! Until a client that had to list again has begun a watch, its cache holds the earlier view, and it may write based on that.
//! [`ListViews::stale_cache_count`] counts such clients for the manager, which moves objects between shards.
//!
//! Guarantees: lists record nothing, and lock nothing, while no plugin shapes lists or watches. Bounded: the states of the oldest readers are dropped first,
//! and a reader never has more positions than it had watches open at once. Assumption: the requests of one client for one collection can be
//! told apart by user agent, collection and the client's own selectors.
//! Caveat: states do not survive a restart of the sidecar (docs/adr/0008).

mod outdated;

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use ctrlmesh_contract::status::StaleCache;
use http::HeaderMap;
use http::header::ACCEPT;
use tokio::time::Instant;

use crate::lock::lock_unpoisoned;
use crate::plugin::request_view::header_text;
use crate::plugin::verdict::RequestEdit;
use outdated::{Client, Outdated};

/// Maximum number of states, one for each collection that a controller reads: hundreds at most. A state has 32 bytes.
const MAX_READERS: usize = 4096;

/// Lists from before the first rule leave no state. A client that has such a list begins its watch within this time, which is longer than a
/// paged list of any size takes.
const FIRST_RULE_TIME: Duration = Duration::from_secs(300);

/// The states of all clients. Shared by the worker threads, used by lists and watches only.
#[derive(Debug, Default)]
pub(crate) struct ListViews {
    used: AtomicBool,
    /// Whether clients may have versions from an earlier process.
    inherits: AtomicBool,
    /// When the first rule that shapes a view appeared, if it was not there from the start.
    first_rule: OnceLock<Instant>,
    hasher: RandomState,
    states: Mutex<ReaderStates>,
}

#[derive(Debug, Default)]
struct ReaderStates {
    /// By the reader's hash, which need not be hashed again.
    by_reader: BTreeMap<u64, ReaderState>,
    order: VecDeque<u64>,
    outdated: Outdated,
}

#[derive(Debug, Default)]
struct ReaderState {
    /// View of the reader's last list.
    view: u64,
    /// Number of watches open now, and the maximum that were ever open at once.
    open: u16,
    most: u16,
    /// Number of lists under this view whose watch may still come.
    listed: u16,
    /// Number of positions under this view, left by watches that ended.
    resumable: u16,
    /// Number of positions and lists under an earlier view.
    stale: u16,
}

/// Identifies one client's reads of one collection.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) struct Reader<'a> {
    pub(crate) user_agent: &'a [u8],
    pub(crate) representation: Representation,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) label_selector: &'a str,
    pub(crate) field_selector: &'a str,
}

/// Representation in which objects are requested. One program can read a collection both whole and as metadata, with two informers of the
/// same name (controller-runtime's `OnlyMetadata`). Lists and watches spell it differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Representation {
    Object,
    Metadata,
    Table,
}

impl Representation {
    /// Derives it from the `Accept` fields.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let fields = headers.get_all(ACCEPT).iter().filter_map(header_text);
        let mut representation = Self::Object;
        // Most clients ask for neither, which one search shows.
        for field in fields.filter(|field| field.contains("as=")) {
            if field.contains("as=PartialObjectMetadata") {
                return Self::Metadata;
            }
            if field.contains("as=Table") {
                representation = Self::Table;
            }
        }
        representation
    }
}

/// The note of a list: who listed, and under which view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotedList {
    key: u64,
    view: u64,
}

/// The relation of a resource version that a client sends to the view that the client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KnownView {
    /// The version is from a list under the same view.
    Same,
    /// The version is from a list under another view, or perhaps from a watch under another view.
    Other,
    Nothing,
}

impl ReaderState {
    fn list(&mut self, view: u64) {
        if self.view != view {
            self.view = view;
            let left = self.resumable.saturating_add(self.listed);
            self.stale = self.stale.saturating_add(left).min(self.most.max(1));
            self.resumable = 0;
            self.listed = 0;
        }
        // Capped, so that lists by clients without a cache, which never watch, do not add up.
        self.listed = self.listed.saturating_add(1).min(self.most.max(1));
    }

    /// A client resumes from a version: one of this view, if there may be one.
    fn take(&mut self) {
        for left in [&mut self.resumable, &mut self.listed, &mut self.stale] {
            if *left > 0 {
                *left -= 1;
                return;
            }
        }
    }

    fn resume(&mut self, view: u64) -> KnownView {
        if self.view == view && self.stale > 0 {
            // The version could be from either view; a client that is refused in error lists once more.
            self.stale -= 1;
            return KnownView::Other;
        }
        self.take();
        if self.view == view {
            KnownView::Same
        } else {
            KnownView::Other
        }
    }

    fn open(&mut self) {
        self.open = self.open.saturating_add(1);
        self.most = self.most.max(self.open);
    }

    fn end(&mut self, view: u64, leaves_position: bool) {
        self.open = self.open.saturating_sub(1);
        if leaves_position {
            let positions = if self.view == view {
                &mut self.resumable
            } else {
                &mut self.stale
            };
            *positions = positions.saturating_add(1).min(self.most.max(1));
        }
    }
}

impl ReaderStates {
    /// The state of a reader. A new one begins with this view and as many versions from before, which were not recorded, as `stale` returns.
    fn state_of(&mut self, key: u64, view: u64, stale: impl FnOnce() -> u16) -> &mut ReaderState {
        if !self.by_reader.contains_key(&key) {
            self.order.push_back(key);
            if self.order.len() > MAX_READERS
                && let Some(oldest) = self.order.pop_front()
            {
                self.by_reader.remove(&oldest);
            }
        }
        self.by_reader.entry(key).or_insert_with(|| ReaderState {
            view,
            stale: stale(),
            ..ReaderState::default()
        })
    }

    /// Maximum number of watches that a reader ever had open at once, if known.
    fn max_open_watches(&self, key: u64) -> Option<u16> {
        self.by_reader.get(&key).map(|state| state.most)
    }
}

impl ListViews {
    /// Notes the view that a list is answered under. `is_first_chain`: no other chain was in force before. Returns the note; `None` if none
    /// was made because no view was ever shaped.
    pub(crate) fn list<'e>(
        &self,
        reader: &Reader<'_>,
        view: impl Iterator<Item = &'e RequestEdit>,
        is_first_chain: bool,
    ) -> Option<NotedList> {
        let was_used = self.is_used();
        let view = self.view_hash(view);
        if !self.is_used() {
            return None;
        }
        let key = self.key(reader);
        let list = NotedList { key, view };
        self.record(list, was_used, is_first_chain);
        Some(list)
    }

    /// Notes another list by the same reader under the same view, as [`Self::list`] does.
    pub(crate) fn list_again(&self, list: NotedList, is_first_chain: bool) {
        self.record(list, true, is_first_chain);
    }

    fn record(&self, list: NotedList, was_used: bool, is_first_chain: bool) {
        if (!was_used || self.has_predecessor()) && !is_first_chain {
            self.first_rule.get_or_init(Instant::now);
        }
        let may_be_unnoted = || {
            let first_rule = self.first_rule.get();
            first_rule.is_some_and(|since| since.elapsed() < FIRST_RULE_TIME)
        };
        let mut states = self.lock_states();
        let state = states.state_of(list.key, list.view, || may_be_unnoted().into());
        state.list(list.view);
    }

    /// Notes that another process served this pod before: its states are lost, and it may have shaped views.
    pub(crate) fn note_predecessor(&self) {
        self.inherits.store(true, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
    }

    /// Whether another process served this pod before. If so, even an unshaped view may differ from the one that a client has read.
    pub(crate) fn has_predecessor(&self) -> bool {
        self.inherits.load(Ordering::Relaxed)
    }

    /// Whether any view was ever shaped. From then on every list must leave its state, even an unshaped one.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Compares the view that a later page of a list comes from with this one.
    pub(crate) fn compare_page<'e>(
        &self,
        reader: &Reader<'_>,
        view: impl Iterator<Item = &'e RequestEdit>,
    ) -> KnownView {
        let view = self.view_hash(view);
        match self.lock_states().by_reader.get(&self.key(reader)) {
            Some(state) if state.view == view => KnownView::Same,
            Some(_) => KnownView::Other,
            None => KnownView::Nothing,
        }
    }

    /// Opens a watch that resumes from a resource version, if `lets` accepts what is known about that version's view.
    pub(crate) fn resume<'e>(
        self: &Arc<Self>,
        reader: &Reader<'_>,
        view: impl Iterator<Item = &'e RequestEdit>,
        lets: impl FnOnce(KnownView) -> bool,
    ) -> Option<Position> {
        let (key, view) = (self.key(reader), self.view_hash(view));
        let mut states = self.lock_states();
        let known = states
            .by_reader
            .get_mut(&key)
            .map_or(KnownView::Nothing, |state| state.resume(view));
        if !lets(known) {
            let most = states.max_open_watches(key);
            let is_given_up = states.outdated.note_refusal(key, most, view, reader);
            drop(states);
            if is_given_up {
                warn_of(reader);
            }
            return None;
        }
        states.state_of(key, view, || 0).open();
        states.outdated.begin_watch(key);
        Some(self.position(key, view, reader))
    }

    /// Opens a watch that begins with the current objects. It acts like a list; the client gives up any position that it had.
    pub(crate) fn start_anew<'e>(
        self: &Arc<Self>,
        reader: &Reader<'_>,
        view: impl Iterator<Item = &'e RequestEdit>,
    ) -> Position {
        let (key, view) = (self.key(reader), self.view_hash(view));
        let mut states = self.lock_states();
        let state = states.state_of(key, view, || 0);
        state.take();
        state.list(view);
        // The list's watch is this one.
        state.listed = state.listed.saturating_sub(1);
        state.open();
        states.outdated.begin_watch(key);
        self.position(key, view, reader)
    }

    /// Number of clients whose caches may show an earlier view: they were sent to list again and have not begun a watch since.
    pub(crate) fn stale_cache_count(&self) -> u64 {
        self.lock_states().outdated.count()
    }

    /// The clients that have waited longest, and those that are no longer waited for although they keep resuming from their old version.
    pub(crate) fn stale_caches(&self) -> Vec<StaleCache> {
        self.lock_states().outdated.longest_waiting()
    }

    fn position(self: &Arc<Self>, key: u64, view: u64, reader: &Reader<'_>) -> Position {
        Position {
            list_views: Arc::clone(self),
            key,
            view,
            client: Client::from_reader(reader),
            is_void: false,
        }
    }

    fn lock_states(&self) -> MutexGuard<'_, ReaderStates> {
        lock_unpoisoned(&self.states)
    }

    fn key(&self, reader: &Reader<'_>) -> u64 {
        self.hasher.hash_one(reader)
    }

    fn view_hash<'e>(&self, view: impl Iterator<Item = &'e RequestEdit>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for edit in view.filter(|edit| edit.shapes_view()) {
            self.used.store(true, Ordering::Relaxed);
            edit.hash(&mut hasher);
        }
        hasher.finish()
    }
}

fn warn_of(reader: &Reader<'_>) {
    tracing::warn!(
        client = %String::from_utf8_lossy(reader.user_agent),
        group = reader.group,
        resource = reader.resource,
        namespace = reader.namespace,
        "a client repeats an expired watch and does not list again: hand-overs no longer wait for it, and it may still act on \
         objects that its shard has lost; restart or fix the client"
    );
}

/// A watch, open or about to be opened. When it is dropped, its client may resume from one of its resource versions.
#[derive(Debug)]
pub(crate) struct Position {
    list_views: Arc<ListViews>,
    key: u64,
    view: u64,
    client: Arc<Client>,
    is_void: bool,
}

impl Position {
    /// Notes that a new chain shows the watch's client another view.
    pub(crate) fn mark_outdated(&self) {
        let mut states = self.list_views.lock_states();
        let most = states.max_open_watches(self.key);
        states.outdated.note_change(self.key, most, &self.client);
    }

    /// Notes that the client got a 410 and must list again.
    pub(crate) fn mark_expired(&mut self) {
        self.is_void = true;
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        let mut states = self.list_views.lock_states();
        states.state_of(self.key, self.view, || 0).end(self.view, !self.is_void);
    }
}

#[cfg(test)]
pub(crate) mod tests;
