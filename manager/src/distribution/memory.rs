//! What a manager knows of a namespace from one pass to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::{Chain, Digest};

use super::caches::Caches;
use super::config_maps::StoredConfigMaps;
use super::deliver::Written;
use super::fleet::Fleet;
use super::metrics::NamespaceGauges;
use super::nudges::NudgeHistory;
use super::overlap_grace::Since;
use super::reconcile::Decision;
use super::restarts::Restarts;
use super::start_gate::StartGate;
use super::unreachable_pods::SilentPods;
use crate::error::Error;
use crate::hand_over::Claims;

/// A write that is not seen by then is no longer waited for.
pub(super) const MAX_UNSEEN: Duration = Duration::from_secs(5);
/// How long sidecars that were not asked yet are waited for with what needs their answers.
pub(super) const MAX_UNASKED: Duration = Duration::from_secs(5);
/// Between two chains that are written because a sidecar runs a later one.
const RAISE: Duration = Duration::from_mins(1);
/// Until a pass that failed is begun again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Since when pods run the entries of their shards, and nothing before them: by UID, with what stands for those entries.
pub(super) type Quiet = BTreeMap<String, (Digest, Instant)>;

/// Locks of shards that pods ask for, and since when they do, by UID.
pub(super) type Locks = BTreeMap<String, (BTreeSet<String>, Instant)>;

/// What is known of a namespace besides what lies in the cluster. Whatever is lost with it is found out again.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// The chain that was written last, for a ConfigMap that somebody spoils.
    pub(super) last: Option<(Chain, Claims)>,
    /// The chain that lies there, and since when it is known.
    pub(super) chain: Option<(Digest, Instant)>,
    /// Its generation.
    seen: u64,
    /// Since when pods are quiet.
    pub(super) quiet: Quiet,
    /// Since when pods ask for the locks of shards that they ask for, by UID.
    pub(super) locks: Locks,
    /// Names of the entries that sidecars may run, by the pod's UID.
    pub(super) running: BTreeMap<String, BTreeSet<String>>,
    /// Highest generation that any sidecar has spoken of.
    pub(super) generation: u64,
    /// When a chain was written over a later one that sidecars run.
    pub(super) raised: Option<Instant>,
    /// Versions that our last writes made, by ConfigMap, and when: what is watched comes later.
    written: BTreeMap<String, (u64, Instant)>,
    /// Pods that were told of the chain.
    pub(super) nudges: NudgeHistory,
    /// Since when there are sidecars that were not asked yet.
    unasked: Option<Instant>,
    /// Version of the chain's ConfigMap with which there is nothing more to do until there are objects.
    pub(super) idle_version: Option<String>,
    /// Passes that failed, one after the other.
    pub(super) failures: u32,
    /// Pods that are waited for and do not answer.
    pub(super) silent: SilentPods,
    /// Pods that are made again.
    pub(super) restarts: Restarts,
    /// Since when shards would share objects.
    pub(super) overlaps: Since,
    /// Shards that have not begun.
    pub(super) start_gate: StartGate,
    /// What is shown of it.
    pub(super) gauges: NamespaceGauges,
}

impl Memory {
    /// Notes which chain lies there. Whether that is another one.
    pub(super) fn observe_chain(&mut self, digest: Option<Digest>, generation: u64) -> bool {
        if self.chain.map(|(digest, _)| digest) == digest {
            return false;
        }
        self.chain = digest.map(|digest| (digest, Instant::now()));
        // Somebody else wrote those in between: that a pod's entries are what they were does not say that it runs them.
        if generation != self.seen.saturating_add(1) {
            self.quiet.clear();
        }
        self.seen = generation;
        true
    }

    /// Whether the watch has come as far as our last writes. Without that, they would be repeated.
    pub(super) fn has_seen_writes(&mut self, caches: &Caches, namespace: &str) -> bool {
        self.written.retain(|name, (version, at)| {
            let map = caches.config_map(namespace, name);
            let seen = map.and_then(|map| map.metadata.resource_version.as_deref()?.parse::<u64>().ok());
            // Somebody may have deleted it since.
            seen.is_none_or(|seen| seen < *version) && at.elapsed() < MAX_UNSEEN
        });
        self.written.is_empty()
    }

    /// Whether to wait with what needs the answers of sidecars that were not asked yet.
    pub(super) fn is_patient(&mut self, fleet: &mut Fleet) -> bool {
        if fleet.unasked.is_empty() {
            self.unasked = None;
            return false;
        }
        fleet.awaits_answers = self.unasked.get_or_insert_with(Instant::now).elapsed() < MAX_UNASKED;
        fleet.awaits_answers
    }

    /// Whether a sidecar may be believed that it runs a later chain: one that lies would have shards give up what they show.
    pub(super) fn may_raise(&self) -> bool {
        self.raised.is_none_or(|raised| raised.elapsed() >= RAISE)
    }

    /// The highest generation that a manager has written, as far as is known.
    pub(super) fn written_generation(&self, stored: &StoredConfigMaps) -> u64 {
        let last = self.last.as_ref().map(|(chain, _)| chain.generation);
        let stored = stored.chain.as_ref().map(|chain| chain.generation);
        last.max(stored).unwrap_or_default()
    }

    /// Counts passes that failed.
    pub(super) fn count_failures(&mut self, written: &Result<Written, Error>) {
        self.failures = match written {
            Err(error) if !error.is_conflict() => self.failures.saturating_add(1),
            Ok(done) if !done.all_nudged => self.failures.saturating_add(1),
            _ => 0,
        };
    }

    /// Notes who lags and who waits, to be shown.
    pub(super) fn update_gauges(&mut self, next: &Decision, fleet: &Fleet) {
        self.gauges.wait(next.plan.waiting.keys());
        self.gauges.lagging.clear();
        for sidecar in fleet.sidecars.iter().filter(|sidecar| sidecar.ip.is_some()) {
            if let Some(reason) = fleet.lag_reason(sidecar, &next.chain.entries, next.chain.generation) {
                *self.gauges.lagging.entry(reason).or_default() += 1;
            }
        }
    }

    /// Remembers a write.
    pub(super) fn record_write(&mut self, name: Option<String>, version: Option<String>) {
        let version = version.and_then(|version| version.parse().ok());
        if let (Some(name), Some(version)) = (name, version) {
            self.written.insert(name, (version, Instant::now()));
        }
    }

    /// How long the next pass waits after so many that failed.
    pub(super) fn retry_delay(&self) -> Duration {
        let (first, longest) = RETRY;
        let doubled = 1 << self.failures.saturating_sub(1).min(10);
        first.saturating_mul(doubled).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_quiet_under_a_chain_before_one_that_was_not_seen_is_not_known_to_be() {
        let mut memory = Memory::default();
        let mut is_quiet_after = |text: &str, generation| {
            let digest = Digest::of(text.as_bytes());
            memory.quiet.insert("uid".to_owned(), (digest, Instant::now()));
            (memory.observe_chain(Some(digest), generation), !memory.quiet.is_empty())
        };
        assert_eq!(is_quiet_after("first", 7), (true, false), "it was not there");
        assert_eq!(is_quiet_after("first", 7), (false, true));
        assert_eq!(is_quiet_after("next", 8), (true, true));
        assert_eq!(is_quiet_after("another", 10), (true, false), "who knows what pods load");
    }

    #[test]
    fn passes_that_fail_are_begun_again_later_and_later() {
        let pause = |failures| {
            let memory = Memory {
                failures,
                ..Memory::default()
            };
            memory.retry_delay().as_secs()
        };
        assert_eq!([1, 2, 3, 6, 7, u32::MAX].map(pause), [1, 2, 4, 32, 60, 60]);
    }
}
