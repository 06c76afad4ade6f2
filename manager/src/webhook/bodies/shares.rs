//! What each source has of the memory for bodies, and which of its bodies gives way first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::DECISIONS_OF_SOURCE;
use crate::webhook::connections::Source;

/// The shares of all sources that have a body.
#[derive(Debug, Default)]
pub(super) struct Shares(BTreeMap<Source, Share>);

/// Bodies of one source, by identities that rise with time.
#[derive(Debug)]
pub(super) struct Share {
    bytes: usize,
    places: usize,
    /// Bodies of which nothing has arrived.
    silent: BTreeSet<u64>,
    /// Bodies that have arrived in part.
    begun: BTreeSet<u64>,
    decisions: Arc<Semaphore>,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            bytes: 0,
            places: 0,
            silent: BTreeSet::new(),
            begun: BTreeSet::new(),
            decisions: Arc::new(Semaphore::new(DECISIONS_OF_SOURCE)),
        }
    }
}

impl Share {
    pub(super) fn begin(&mut self, id: u64, bytes: usize) {
        self.bytes += bytes;
        self.places += 1;
        self.silent.insert(id);
    }

    pub(super) fn grow(&mut self, id: u64, bytes: usize) {
        self.bytes += bytes;
        if self.silent.remove(&id) {
            self.begun.insert(id);
        }
    }

    pub(super) fn complete(&mut self, id: u64) {
        self.silent.remove(&id);
        self.begun.remove(&id);
    }

    pub(super) fn decisions(&self) -> Arc<Semaphore> {
        Arc::clone(&self.decisions)
    }

    fn incomplete(&self) -> usize {
        self.silent.len() + self.begun.len()
    }

    /// An API server's body follows its head at once, so that one without bytes goes first.
    fn oldest(&self) -> Option<u64> {
        self.silent.first().or_else(|| self.begun.first()).copied()
    }
}

impl Shares {
    pub(super) fn of_mut(&mut self, source: Source) -> &mut Share {
        self.0.entry(source).or_default()
    }

    pub(super) fn bytes_of(&self, source: Source) -> usize {
        self.0.get(&source).map_or(0, |share| share.bytes)
    }

    fn incomplete_of(&self, source: Source) -> usize {
        self.0.get(&source).map_or(0, Share::incomplete)
    }

    pub(super) fn end(&mut self, source: Source, id: u64, bytes: usize) {
        let Some(share) = self.0.get_mut(&source) else {
            return;
        };
        share.complete(id);
        share.bytes = share.bytes.saturating_sub(bytes);
        share.places = share.places.saturating_sub(1);
        if share.places == 0 {
            self.0.remove(&source);
        }
    }

    /// The oldest body of this source that has not arrived.
    pub(super) fn oldest_of(&self, source: Source) -> Option<u64> {
        self.0.get(&source)?.oldest()
    }

    /// The oldest body that has not arrived, of the source that has the most of these. The one that asks has one more.
    pub(super) fn oldest_of_largest(&self, asks: Source) -> Option<u64> {
        let places = |(source, share): &(&Source, &Share)| share.incomplete() + usize::from(**source == asks);
        let arriving = self.0.iter().filter(|(_, share)| share.incomplete() > 0);
        arriving.max_by_key(places)?.1.oldest()
    }

    /// The same, if that source has more of these than the one that asks.
    pub(super) fn oldest_of_larger(&self, asks: Source) -> Option<u64> {
        let largest = self.0.values().max_by_key(|share| share.incomplete())?;
        (largest.incomplete() > self.incomplete_of(asks)).then(|| largest.oldest())?
    }
}
