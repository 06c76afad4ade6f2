//! The memory that each source has for bodies, and which of its bodies gives its place to another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::MAX_DECISIONS_OF_SOURCE;
use crate::webhook::connections::Source;

/// The shares of all sources that have a body.
#[derive(Debug, Default)]
pub(super) struct Shares(BTreeMap<Source, Share>);

/// Bodies of one source, by ids that increase with time.
#[derive(Debug)]
pub(super) struct Share {
    bytes: usize,
    places: usize,
    /// Bodies of which nothing has arrived.
    silent: BTreeSet<u64>,
    /// Bodies that have arrived in part.
    partial: BTreeSet<u64>,
    /// Bodies that have arrived and wait for their decision.
    waiting: BTreeSet<u64>,
    decisions: Arc<Semaphore>,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            bytes: 0,
            places: 0,
            silent: BTreeSet::new(),
            partial: BTreeSet::new(),
            waiting: BTreeSet::new(),
            decisions: Arc::new(Semaphore::new(MAX_DECISIONS_OF_SOURCE)),
        }
    }
}

impl Share {
    pub(super) fn add_body(&mut self, id: u64, bytes: usize) {
        self.bytes += bytes;
        self.places += 1;
        self.silent.insert(id);
    }

    pub(super) fn add_bytes(&mut self, id: u64, bytes: usize) {
        self.bytes += bytes;
        if self.silent.remove(&id) {
            self.partial.insert(id);
        }
    }

    pub(super) fn mark_complete(&mut self, id: u64) {
        self.silent.remove(&id);
        self.partial.remove(&id);
        self.waiting.insert(id);
    }

    /// The body is being decided or gone, so it no longer gives its place to another.
    pub(super) fn mark_settled(&mut self, id: u64) {
        self.silent.remove(&id);
        self.partial.remove(&id);
        self.waiting.remove(&id);
    }

    pub(super) fn decisions(&self) -> Arc<Semaphore> {
        Arc::clone(&self.decisions)
    }

    /// Bodies that may have to give their place to others.
    fn undecided_bodies(&self) -> usize {
        self.silent.len() + self.partial.len() + self.waiting.len()
    }

    /// An API server's body follows its head at once, so bodies without bytes go first.
    fn oldest_arriving(&self) -> Option<u64> {
        self.silent.first().or_else(|| self.partial.first()).copied()
    }

    /// Of complete bodies, the newest goes first, because it would be decided last.
    fn first_to_go(&self) -> Option<u64> {
        self.oldest_arriving().or_else(|| self.waiting.last().copied())
    }
}

impl Shares {
    pub(super) fn of_mut(&mut self, source: Source) -> &mut Share {
        self.0.entry(source).or_default()
    }

    pub(super) fn bytes_of(&self, source: Source) -> usize {
        self.0.get(&source).map_or(0, |share| share.bytes)
    }

    fn undecided_of(&self, source: Source) -> usize {
        self.0.get(&source).map_or(0, Share::undecided_bodies)
    }

    pub(super) fn remove_body(&mut self, source: Source, id: u64, bytes: usize) {
        let Some(share) = self.0.get_mut(&source) else {
            return;
        };
        share.mark_settled(id);
        share.bytes = share.bytes.saturating_sub(bytes);
        share.places = share.places.saturating_sub(1);
        if share.places == 0 {
            self.0.remove(&source);
        }
    }

    /// The oldest body of this source that has not arrived.
    pub(super) fn oldest_arriving_of(&self, source: Source) -> Option<u64> {
        self.0.get(&source)?.oldest_arriving()
    }

    /// The body that gives its place to a new one: from the source with the most undecided bodies. The new body counts for its
    /// source. If that source has the most, the new body does not replace one that has arrived.
    pub(super) fn first_to_go_for(&self, asks: Source) -> Option<u64> {
        let places = |(source, share): &(&Source, &Share)| share.undecided_bodies() + usize::from(**source == asks);
        let undecided = self.0.iter().filter(|(_, share)| share.undecided_bodies() > 0);
        let (source, share) = undecided.max_by_key(places)?;
        if *source == asks {
            return share.oldest_arriving();
        }
        share.first_to_go()
    }

    /// The body that gives its place to one that is arriving: only from a source with more undecided bodies.
    pub(super) fn first_to_go_of_larger(&self, asks: Source) -> Option<u64> {
        let largest = self.0.values().max_by_key(|share| share.undecided_bodies())?;
        (largest.undecided_bodies() > self.undecided_of(asks)).then(|| largest.first_to_go())?
    }
}
