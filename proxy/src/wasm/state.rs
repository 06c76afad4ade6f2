//! State that survives a hot reload and is shared by all instances of an entry (WIT `state`), with the entry's metrics and log.
//!
//! Keyed by the entry's name; each call is atomic under a short lock. [`Clock`] provides the time. The arithmetic of buckets and windows is
//! in `state/`; metrics and log are in `plugin_metrics.rs` and `plugin_log.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::clock::Clock;
use super::plugin_log::PluginLog;
use super::plugin_metrics::SeriesSet;
use crate::lock::lock_unpoisoned;

pub(crate) mod bucket;
mod entry;
mod window;

pub use bucket::Rule;
pub(crate) use entry::CountedOutcome;
pub use entry::EntryState;

/// Maximum number of keys of an entry.
pub(crate) const MAX_KEYS: usize = 1024;
/// Maximum length of a key in bytes. Has room for `kind/namespace/name` with the longest names of Kubernetes.
pub(crate) const MAX_KEY_BYTES: usize = 640;
/// Maximum size of a cell's value in bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 4096;
/// Maximum number of claims in one call: a request meets a handful of rules.
pub(crate) const MAX_CLAIMS: usize = 64;
/// Maximum number of cells that one call reads.
pub(crate) const MAX_READ_KEYS: usize = 64;
/// Maximum time ahead for which tokens are granted; the delay of a verdict has the same limit.
pub(crate) const MAX_WAIT_MS: u32 = 60_000;

/// Why a call of `state` failed (WIT `state.error`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The entry has the maximum number of keys.
    #[error("the entry has {MAX_KEYS} keys already")]
    TooManyKeys,
    /// A key or value is too large.
    #[error("a key has at most {MAX_KEY_BYTES} bytes, a value {MAX_VALUE_BYTES}")]
    TooLarge,
    /// The key holds another kind of value.
    #[error("the key is used for another kind of state")]
    WrongKind,
    /// A number is invalid.
    #[error("a number is out of range")]
    Invalid,
}

/// Result of `take` (WIT `state.grant`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// All tokens were taken.
    Granted,
    /// No tokens were taken; all would be available after this many milliseconds.
    WaitMs(u64),
}

/// A number of tokens from one bucket (WIT `state.claim`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Key of the bucket.
    pub key: String,
    pub rule: Rule,
    pub tokens: u32,
}

/// A claim that may be granted ahead of time (WIT `state.ask`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) claim: Claim,
    /// 0 allows only tokens that are available now.
    pub(crate) max_wait_ms: u32,
}

impl Ask {
    /// An ask for tokens that are available now.
    pub(crate) const fn available_now(claim: Claim) -> Self {
        Self { claim, max_wait_ms: 0 }
    }
}

/// One of at most `max` places (WIT `state.place`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) key: String,
    pub(crate) max: u32,
}

/// A call of `increment` (WIT `state.increment`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Increment {
    /// Key of the counter.
    pub(crate) key: String,
    pub(crate) by: u64,
}

/// Result of `admit` (WIT `state.admission`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Everything was taken; continue after this many milliseconds.
    Granted { wait_ms: u64 },
    /// Nothing was taken; of all asks, this one would have to wait longest.
    Short { ask: usize, wait_ms: u64 },
    /// Nothing was taken; this place is not free.
    Full { place: usize },
}

/// A small value with a version (WIT `state.cell`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    pub value: Vec<u8>,
    pub version: u64,
}

/// The state of all entries of this sidecar.
#[derive(Debug)]
pub struct StateStore {
    clock: Clock,
    entries: Mutex<HashMap<String, Arc<EntryState>>>,
}

impl StateStore {
    /// An empty store on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// An empty store on this clock.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self {
            clock,
            entries: Mutex::default(),
        }
    }

    /// The state of an entry; created if it does not exist.
    #[must_use]
    pub fn entry(&self, name: &str) -> Arc<EntryState> {
        let mut entries = lock_unpoisoned(&self.entries);
        if let Some(entry) = entries.get(name) {
            return Arc::clone(entry);
        }
        let entry = Arc::new(EntryState::new(name, self.clock.clone()));
        entries.insert(name.to_owned(), Arc::clone(&entry));
        entry
    }

    /// Drops the state of entries that are not in the chain any more. Running instances keep theirs to their end.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        lock_unpoisoned(&self.entries).retain(|name, _| keep(name));
    }

    /// All entries by name, for the exporter.
    #[must_use]
    pub fn entries(&self) -> Vec<(String, Arc<EntryState>)> {
        let mut entries: Vec<_> = lock_unpoisoned(&self.entries)
            .iter()
            .map(|(name, entry)| (name.clone(), Arc::clone(entry)))
            .collect();
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        entries
    }
}

impl Default for StateStore {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
