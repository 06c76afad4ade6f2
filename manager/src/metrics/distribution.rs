//! Metrics of distribution: counters, and gauges over all namespaces.

use std::collections::BTreeMap;

use ctrlmesh_manager_api::CHAIN_KINDS;
use ctrlmesh_manager_rollout::fleet::LagReason;
use ctrlmesh_manager_rollout::pass_state::NamespaceGauges;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lag {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// Counters and gauges of distribution.
#[derive(Debug, Default)]
pub struct Metrics {
    pub chains_written: Counter,
    /// Passes over a namespace.
    pub passes: Counter,
    pub passes_failed: Counter,
    /// Status updates that failed.
    pub status_failed: Counter,
    pub polls: Counter,
    /// Polls without a status.
    pub polls_failed: Counter,
    /// Hand-overs that went on without unreachable pods.
    pub overtaken: Counter,
    /// Pods evicted so that their replacements see the shard as it is now.
    pub evicted: Counter,
    pub evictions_refused: Counter,
    lagging: Family<Lag, Gauge>,
    waiting: Gauge,
    oldest: Gauge,
    unseen: Family<Kind, Gauge>,
}

impl Metrics {
    /// Registers all under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("chains_written", "Chains written", self.chains_written.clone());
        registry.register("passes", "Passes over a namespace", self.passes.clone());
        let failed = "Passes over a namespace that ended with an error";
        registry.register("passes_failed", failed, self.passes_failed.clone());
        let status_failed = "Writes of a status that failed";
        registry.register("status_failed", status_failed, self.status_failed.clone());
        let polls = "Requests for the status of a sidecar";
        registry.register("polls", polls, self.polls.clone());
        let polls_failed = "Requests for the status of a sidecar that failed";
        registry.register("polls_failed", polls_failed, self.polls_failed.clone());
        let overtaken = "Hand-overs that went on without pods that could not be reached";
        registry.register("handovers_overtaken", overtaken, self.overtaken.clone());
        let evicted = "Pods evicted so that their replacements show what their shard shows now";
        registry.register("pods_evicted", evicted, self.evicted.clone());
        let refused = "Evictions that were refused";
        registry.register("evictions_refused", refused, self.evictions_refused.clone());
        let lagging = "Sidecars that do not run the last chain, by reason";
        registry.register("sidecars_lagging", lagging, self.lagging.clone());
        let waiting = "Entries that do not show all their objects yet, because another entry has not given them up";
        registry.register("handovers_waiting", waiting, self.waiting.clone());
        let oldest = "How long the entry that waits longest to show its objects has waited, in seconds";
        registry.register("handovers_oldest_seconds", oldest, self.oldest.clone());
        let unseen = "1: objects of this kind can't be watched";
        registry.register("kind_unseen", unseen, self.unseen.clone());
    }

    /// Sets the gauges to the sums over all namespaces.
    pub(crate) fn update_gauges<'a>(&self, all: impl Iterator<Item = &'a NamespaceGauges>, unsynced: &[&str]) {
        let mut lagging = BTreeMap::from(LagReason::ALL.map(|reason| (reason, 0)));
        let (mut waiting, mut oldest) = (0_usize, 0);
        for namespace in all {
            for (reason, sidecars) in &namespace.lagging {
                *lagging.entry(*reason).or_default() += sidecars;
            }
            waiting += namespace.waiting.len();
            let longest = namespace.waiting.values().map(|since| since.elapsed().as_secs()).max();
            oldest = longest.unwrap_or_default().max(oldest);
        }
        for (reason, sidecars) in lagging {
            let reason = reason.label();
            self.lagging.get_or_create(&Lag { reason }).set(sidecars);
        }
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        self.oldest.set(i64::try_from(oldest).unwrap_or(i64::MAX));
        for kind in CHAIN_KINDS {
            let is_unsynced = i64::from(unsynced.contains(&kind));
            self.unseen.get_or_create(&Kind { kind }).set(is_unsynced);
        }
    }

    /// Clears the gauges, because another manager leads.
    pub(crate) fn clear(&self) {
        self.lagging.clear();
        self.unseen.clear();
        self.waiting.set(0);
        self.oldest.set(0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn gauges_sum_up_namespaces_and_measure_waiting_from_its_start() {
        let metrics = Metrics::default();
        let mut waits = NamespaceGauges::default();
        let long_ago = Instant::now().checked_sub(Duration::from_secs(90)).unwrap();
        waits.waiting.insert("a".to_owned(), long_ago);
        let names = ["a".to_owned(), "b".to_owned()];
        waits.set_waiting(names.iter(), Instant::now());
        let lags = NamespaceGauges {
            lagging: BTreeMap::from([(LagReason::Silent, 3)]),
            ..NamespaceGauges::default()
        };
        metrics.update_gauges([&waits, &lags, &lags].into_iter(), &["CircuitBreaker"]);
        assert_eq!((metrics.waiting.get(), metrics.oldest.get()), (2, 90));
        let silent = metrics.lagging.get_or_create(&Lag { reason: "silent" }).get();
        let unseen = |kind| metrics.unseen.get_or_create(&Kind { kind }).get();
        assert_eq!((silent, unseen("CircuitBreaker"), unseen("ShardingConfig")), (6, 1, 0));
        waits.set_waiting(std::iter::empty(), Instant::now());
        metrics.update_gauges([&waits].into_iter(), &[]);
        assert_eq!((metrics.waiting.get(), metrics.oldest.get()), (0, 0));
    }
}
