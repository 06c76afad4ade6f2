//! Remembers chains: the one that was written last, the one that is stored, and those that sidecars report.

use std::time::{Duration, Instant};

use ctrlmesh_contract::{Chain, Digest};
use ctrlmesh_manager_planner::hand_over::Claims;

/// Shortest time between two chains that are written because a sidecar runs a later one.
const MIN_RAISE_INTERVAL: Duration = Duration::from_mins(1);

#[derive(Clone, Debug, Default)]
pub struct ChainMemory {
    /// The chain that was written last, for a ConfigMap that somebody damages.
    pub last: Option<(Chain, Claims)>,
    /// The stored chain, and since when it is known.
    pub stored: Option<(Digest, Instant)>,
    /// Generation of the stored chain.
    stored_generation: u64,
    /// Highest generation that any sidecar has reported.
    pub highest_generation: u64,
    /// When a chain was last written over a later one that a sidecar runs.
    last_raise: Option<Instant>,
}

/// The stored chain, compared with that of the pass before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredChain {
    Same,
    Next,
    /// Somebody else wrote the generations in between. A pod may have loaded one of them, though its entries look the same.
    Skipped,
}

impl ChainMemory {
    /// Records which chain is stored.
    pub fn observe(&mut self, digest: Option<Digest>, generation: u64, now: Instant) -> StoredChain {
        if self.stored.map(|(digest, _)| digest) == digest {
            return StoredChain::Same;
        }
        self.stored = digest.map(|digest| (digest, now));
        let is_next = generation == self.stored_generation.saturating_add(1);
        self.stored_generation = generation;
        if is_next {
            StoredChain::Next
        } else {
            StoredChain::Skipped
        }
    }

    /// Whether a report of a later chain may be believed now. A sidecar that lies would make all shards give up what they show.
    #[must_use]
    pub fn may_raise(&self, now: Instant) -> bool {
        self.last_raise
            .is_none_or(|last_raise| now.duration_since(last_raise) >= MIN_RAISE_INTERVAL)
    }

    /// Records that a chain was written over a later one.
    pub fn record_raise(&mut self, now: Instant) {
        self.last_raise = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_generations_are_noticed() {
        let mut memory = ChainMemory::default();
        let mut observe =
            |text: &str, generation| memory.observe(Some(Digest::of(text.as_bytes())), generation, Instant::now());
        assert_eq!(
            observe("first", 7),
            StoredChain::Skipped,
            "nobody knows what was before"
        );
        assert_eq!(observe("first", 7), StoredChain::Same);
        assert_eq!(observe("next", 8), StoredChain::Next);
        assert_eq!(observe("another", 10), StoredChain::Skipped);
    }
}
