//! The state of a namespace that a manager keeps from one pass to the next. A new manager starts without it, and observes it again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::begin_gate::BeginGate;
use crate::config_maps::{ChainHistory, MAX_UNSEEN, StoredConfigMaps};
use crate::decision::{Decision, Outcome, WriteFailure};
use crate::fleet::{Fleet, LagReason};
use crate::next_chain::OverlapsSince;
use crate::observation::{Observation, Remembered};
use crate::pod_actions::{NudgeHistory, Restarts, record_nudge};
use crate::pods::PodHistory;

/// Time for which sidecars that were not polled yet hold up decisions that need their reports.
pub const MAX_UNPOLLED_WAIT: Duration = Duration::from_secs(5);
/// Pause after a failed pass: the first, and the longest.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

#[derive(Clone, Debug, Default)]
pub struct PassState {
    pub chain: ChainHistory,
    pub pods: PodHistory,
    pub nudges: NudgeHistory,
    pub restarts: Restarts,
    /// Since when shards would begin to share objects, by the entry that gains and the entry that has them.
    pub overlaps: OverlapsSince,
    pub begin_gate: BeginGate,
    pub retries: Retries,
    pub gauges: NamespaceGauges,
}

/// The share of a namespace in the gauges.
#[derive(Clone, Debug, Default)]
pub struct NamespaceGauges {
    /// Lagging sidecars, by reason.
    pub lagging: BTreeMap<LagReason, i64>,
    /// Entries that wait for objects, and since when.
    pub waiting: BTreeMap<String, Instant>,
}

impl NamespaceGauges {
    /// Sets which entries wait. An entry that waited before keeps its time.
    pub fn set_waiting<'a>(&mut self, entries: impl Iterator<Item = &'a String>, now: Instant) {
        let before = std::mem::take(&mut self.waiting);
        let since = |entry: &String| before.get(entry).copied().unwrap_or(now);
        self.waiting = entries.map(|entry| (entry.clone(), since(entry))).collect();
    }
}

/// Pauses after writes that no watch shows yet, and after failures.
#[derive(Clone, Debug, Default)]
pub struct Retries {
    /// Versions that our last writes made, by ConfigMap, and when. Watches show them later.
    writes: BTreeMap<String, (u64, Instant)>,
    /// Failed passes in a row.
    failures: u32,
    /// Version of the chain's ConfigMap with which nothing is left to do until there are objects.
    idle_version: Option<String>,
}

impl PassState {
    /// Whether nothing is distributed, and nothing is left to do until there are objects.
    pub fn is_idle(&self, config_maps: &StoredConfigMaps) -> bool {
        config_maps.version.is_none() || config_maps.version == self.retries.idle_version
    }

    pub fn remembered(&self) -> Remembered<'_> {
        Remembered {
            last: self.chain.last.as_ref().map(|(chain, _)| chain),
            digest: self.chain.stored.map(|(digest, _)| digest),
        }
    }

    /// Whether the watch does not show our last writes yet. A pass would repeat them.
    pub fn has_unseen_writes(&self, config_maps: &StoredConfigMaps, now: Instant) -> bool {
        self.retries.writes.iter().any(|(name, (version, at))| {
            let seen = config_maps.version_of(name).and_then(|seen| seen.parse::<u64>().ok());
            // A ConfigMap that is not there may have been deleted since, so the wait is bounded.
            seen.is_none_or(|seen| seen < *version) && now.duration_since(*at) < MAX_UNSEEN
        })
    }

    pub fn forget_seen_writes(&mut self) {
        self.retries.writes.clear();
    }

    /// Whether to delay what needs the reports of sidecars that were not polled yet.
    pub fn awaits_reports(&self, fleet: &Fleet, now: Instant) -> bool {
        let since = self.pods.unpolled_since.unwrap_or(now);
        !fleet.unpolled.is_empty() && now.duration_since(since) < MAX_UNPOLLED_WAIT
    }

    pub fn record(&mut self, observation: &Observation, decision: &Decision, outcome: &Outcome, now: Instant) {
        for (name, version) in &outcome.written {
            if let Some(version) = version.as_ref().and_then(|version| version.parse().ok()) {
                self.retries.writes.insert(name.clone(), (version, now));
            }
        }
        let (chain, claims) = (&decision.next.chain, &decision.next.claims);
        if outcome.failure.is_none() {
            self.chain.last = Some((chain.clone(), claims.clone()));
            if decision.states.rolled_back_by.is_some() {
                self.chain.record_raise(observation.now);
            }
        }
        for nudge in &outcome.nudged {
            record_nudge(&mut self.nudges, nudge, chain.generation, now);
        }
        self.restarts.record(&outcome.restarts, now);
        let is_failure = match &outcome.failure {
            Some(WriteFailure::Conflict) => false,
            Some(WriteFailure::Failed(_)) => true,
            None => outcome.nudges_failed > 0,
        };
        self.retries.failures = if is_failure {
            self.retries.failures.saturating_add(1)
        } else {
            0
        };
        let is_done = outcome.failure.is_none() && outcome.written.is_empty() && outcome.nudges_failed == 0;
        let version = observation.config_maps.version.clone();
        self.retries.idle_version = version.filter(|_| is_done && decision.is_finished);
    }

    /// Pause before the next pass, by the failures so far.
    pub fn retry_delay(&self) -> Duration {
        let (first, longest) = RETRY_BACKOFF;
        let doubled = 1 << self.retries.failures.saturating_sub(1).min(10);
        first.saturating_mul(doubled).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delay_doubles_up_to_a_minute() {
        let delay = |failures| {
            let mut pass_state = PassState::default();
            pass_state.retries.failures = failures;
            pass_state.retry_delay().as_secs()
        };
        assert_eq!([1, 2, 3, 6, 7, u32::MAX].map(delay), [1, 2, 4, 32, 60, 60]);
    }
}
