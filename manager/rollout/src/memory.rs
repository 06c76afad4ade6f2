//! What a manager remembers of a namespace from one pass to the next. Whatever is lost with the manager is found out again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ctrlmesh_contract::{Chain, Digest};
use ctrlmesh_manager_planner::hand_over::Claims;

use super::Decision;
use super::pod_actions::{NudgeHistory, Restarts, record_nudge};
use super::pods::PodMemory;
use super::start_gate::StartGate;
use crate::config_maps::StoredConfigMaps;
use crate::fleet::Fleet;
use crate::gauges::NamespaceGauges;
use crate::observation::{Observation, Remembered};
use crate::outcome::{Outcome, WriteFailure};

/// How long a write that the watch does not show is waited for.
pub const MAX_UNSEEN: Duration = Duration::from_secs(5);
/// How long sidecars that were not polled yet hold up what needs their reports.
pub const MAX_UNASKED: Duration = Duration::from_secs(5);
/// Shortest time between two chains that are written because a sidecar runs a later one.
const RAISE: Duration = Duration::from_mins(1);
/// Pause after a failed pass: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The chain that was written last, for a ConfigMap that somebody damages.
    pub last: Option<(Chain, Claims)>,
    /// The stored chain, and since when it is known.
    pub chain: Option<(Digest, Instant)>,
    /// Generation of the stored chain.
    observed_generation: u64,
    /// Highest generation that any sidecar has reported.
    pub highest_generation: u64,
    /// When a chain was last written over a later one that a sidecar runs.
    raised: Option<Instant>,
    pub pods: PodMemory,
    pub nudges: NudgeHistory,
    pub restarts: Restarts,
    /// Since when shards would begin to share objects, by the entry that gains and the entry that has them.
    pub overlaps: BTreeMap<(String, String), Instant>,
    pub start_gate: StartGate,
    /// Versions that our last writes made, by ConfigMap, and when. Watches show them later.
    writes: BTreeMap<String, (u64, Instant)>,
    /// Failed passes in a row.
    failures: u32,
    /// Version of the chain's ConfigMap with which nothing is left to do until there are objects.
    idle_version: Option<String>,
    pub gauges: NamespaceGauges,
}

impl Memory {
    /// Whether nothing is distributed, and nothing is left to do until there are objects.
    pub fn is_idle(&self, config_maps: &StoredConfigMaps) -> bool {
        config_maps.version.is_none() || config_maps.version == self.idle_version
    }

    pub fn remembered(&self) -> Remembered<'_> {
        Remembered {
            last: self.last.as_ref().map(|(chain, _)| chain),
            digest: self.chain.map(|(digest, _)| digest),
        }
    }

    /// Records which chain is stored. Returns whether it is another one than before.
    pub fn observe_chain(&mut self, digest: Option<Digest>, generation: u64, now: Instant) -> bool {
        if self.chain.map(|(digest, _)| digest) == digest {
            return false;
        }
        self.chain = digest.map(|digest| (digest, now));
        // Somebody else wrote the generations in between. A pod may have loaded one of them, though its entries look the same.
        if generation != self.observed_generation.saturating_add(1) {
            self.pods.quiet.clear();
        }
        self.observed_generation = generation;
        true
    }

    /// Whether the watch does not show our last writes yet. A pass would repeat them.
    pub fn has_unseen_writes(&self, config_maps: &StoredConfigMaps, now: Instant) -> bool {
        self.writes.iter().any(|(name, (version, at))| {
            let seen = config_maps.version_of(name).and_then(|seen| seen.parse::<u64>().ok());
            // A ConfigMap that is not there may have been deleted since, so the wait is bounded.
            seen.is_none_or(|seen| seen < *version) && now.duration_since(*at) < MAX_UNSEEN
        })
    }

    pub fn forget_seen_writes(&mut self) {
        self.writes.clear();
    }

    /// Whether to hold back what needs the reports of sidecars that were not polled yet.
    pub fn awaits_reports(&self, fleet: &Fleet, now: Instant) -> bool {
        let since = self.pods.unasked_since.unwrap_or(now);
        !fleet.unasked.is_empty() && now.duration_since(since) < MAX_UNASKED
    }

    /// Whether a report of a later chain may be believed now. A sidecar that lies would make all shards give up what they show.
    pub fn may_raise(&self, now: Instant) -> bool {
        self.raised.is_none_or(|raised| now.duration_since(raised) >= RAISE)
    }

    /// Records what became of a decision.
    pub fn record(&mut self, observation: &Observation, decision: &Decision, outcome: &Outcome, now: Instant) {
        for (name, version) in &outcome.written {
            if let Some(version) = version.as_ref().and_then(|version| version.parse().ok()) {
                self.writes.insert(name.clone(), (version, now));
            }
        }
        let (chain, claims) = (&decision.next.chain, &decision.next.claims);
        if outcome.failure.is_none() {
            self.last = Some((chain.clone(), claims.clone()));
            if decision.states.rolled_back_by.is_some() {
                self.raised = Some(observation.now);
            }
        }
        for nudge in &outcome.nudged {
            record_nudge(&mut self.nudges, nudge, chain.generation, now);
        }
        self.restarts.record(&outcome.evictions, now);
        let is_failure = match &outcome.failure {
            Some(WriteFailure::Conflict) => false,
            Some(WriteFailure::Failed(_)) => true,
            None => outcome.nudges_failed > 0,
        };
        self.failures = if is_failure { self.failures.saturating_add(1) } else { 0 };
        let is_done = outcome.failure.is_none() && outcome.written.is_empty() && outcome.nudges_failed == 0;
        let version = observation.config_maps.version.clone();
        self.idle_version = version.filter(|_| is_done && decision.is_finished);
    }

    /// How long the next pass waits after the failures so far.
    pub fn retry_delay(&self) -> Duration {
        let (first, longest) = RETRY;
        let doubled = 1 << self.failures.saturating_sub(1).min(10);
        first.saturating_mul(doubled).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_generation_resets_quiet_state() {
        let mut memory = Memory::default();
        let mut is_quiet_after = |text: &str, generation| {
            let (digest, now) = (Digest::of(text.as_bytes()), Instant::now());
            memory.pods.quiet.insert("uid".to_owned(), (digest, now));
            let is_other = memory.observe_chain(Some(digest), generation, now);
            (is_other, !memory.pods.quiet.is_empty())
        };
        assert_eq!(is_quiet_after("first", 7), (true, false), "it was not there");
        assert_eq!(is_quiet_after("first", 7), (false, true));
        assert_eq!(is_quiet_after("next", 8), (true, true));
        assert_eq!(is_quiet_after("another", 10), (true, false), "who knows what pods load");
    }

    #[test]
    fn retry_delay_doubles_up_to_a_minute() {
        let delay = |failures| {
            let memory = Memory {
                failures,
                ..Memory::default()
            };
            memory.retry_delay().as_secs()
        };
        assert_eq!([1, 2, 3, 6, 7, u32::MAX].map(delay), [1, 2, 4, 32, 60, 60]);
    }
}
