//! Metrics of the chain, for `/metrics` and for the counts of `/status`.
//!
//! Leaves metrics of requests to the code that handles them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ctrlmesh_contract::status::Counts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::snapshot::Snapshot;

#[derive(Debug, Clone, Default)]
pub struct Metrics {
    generation: Gauge<u64, AtomicU64>,
    entries: Gauge<u64, AtomicU64>,
    applied: Counter,
    refused: Family<RefusedLabels, Counter>,
    faults: Family<FaultLabels, Counter>,
    quarantines: Family<EntryLabels, Counter>,
    calls: Family<CallLabels, Counter>,
    skips: Family<EntryLabels, Counter>,
    call_seconds: Family<EntryLabels, Counter<f64, AtomicU64>>,
    reused: Family<EntryLabels, Counter>,
    audited: Family<EntryLabels, Counter>,
    uncounted_outcomes: Family<EntryLabels, Counter>,
    totals: Arc<Totals>,
}

/// Counters of one entry's calls, fetched once when its instance starts.
#[derive(Debug, Clone)]
pub(super) struct CallMetrics {
    pub(super) requests: Counter,
    pub(super) responses: Counter,
    pub(super) completions: Counter,
    pub(super) crossings: Counter,
    pub(super) seconds: Counter<f64, AtomicU64>,
    pub(super) reused: Counter,
    pub(super) audited: Counter,
    pub(super) uncounted_outcomes: Counter,
}

/// Sums over label sets, which a metric family does not provide.
#[derive(Debug, Default)]
struct Totals {
    refused: Counter,
    faults: Counter,
    quarantines: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    reason: &'static str,
}

/// `entry` is the name of an entry in the chain, at most 64 at a time. [`Metrics::chain_applied`] removes the labels of entries that are gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FaultLabels {
    entry: String,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EntryLabels {
    entry: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    entry: String,
    phase: &'static str,
}

/// Kinds of faults, as `wasm::Fault::kind` names them.
const FAULT_KINDS: [&str; 6] = ["trap", "deadline", "memory", "invalid", "impure", "settings"];

impl Metrics {
    /// Registers the metrics, whose names begin with `chain_` and `plugin_`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "chain_generation",
            "Generation of the chain in force; 0 before the first",
            metrics.generation.clone(),
        );
        registry.register(
            "chain_entries",
            "Entries of the chain that select this pod",
            metrics.entries.clone(),
        );
        registry.register("chain_applied", "Chains that came into force", metrics.applied.clone());
        registry.register(
            "chain_refused",
            "Chain documents that were refused",
            metrics.refused.clone(),
        );
        registry.register(
            "plugin_faults",
            "Faults of a plugin by entry and kind",
            metrics.faults.clone(),
        );
        registry.register(
            "plugin_quarantines",
            "Times that an entry was quarantined",
            metrics.quarantines.clone(),
        );
        registry.register(
            "plugin_skips",
            "Calls that were not made because the entry is quarantined",
            metrics.skips.clone(),
        );
        registry.register(
            "plugin_calls",
            "Calls of a plugin by entry and phase",
            metrics.calls.clone(),
        );
        registry.register(
            "plugin_call_seconds",
            "Time spent in a plugin's calls",
            metrics.call_seconds.clone(),
        );
        registry.register(
            "plugin_reused",
            "Verdicts that were repeated without a call",
            metrics.reused.clone(),
        );
        registry.register(
            "plugin_audited",
            "Calls that were made to check a verdict that could have been repeated",
            metrics.audited.clone(),
        );
        registry.register(
            "plugin_uncounted_outcomes",
            "Outcomes of requests that were not counted because the entry has no room for another tally",
            metrics.uncounted_outcomes.clone(),
        );
        metrics
    }

    pub(super) fn chain_applied(&self, before: &Snapshot, now: &Snapshot) {
        self.generation.set(now.generation);
        self.entries.set(now.entries().len() as u64);
        self.applied.inc();
        for gone in before.entries().iter().filter(|entry| now.entry(&entry.name).is_none()) {
            let entry = gone.name.clone();
            for kind in FAULT_KINDS {
                self.faults.remove(&FaultLabels {
                    entry: entry.clone(),
                    kind,
                });
            }
            self.quarantines.remove(&EntryLabels { entry });
        }
    }

    pub(super) fn count_refusal(&self, reason: &'static str) {
        self.refused.get_or_create(&RefusedLabels { reason }).inc();
        self.totals.refused.inc();
    }

    pub(super) fn count_fault(&self, entry: &str, kind: &'static str) {
        self.faults
            .get_or_create(&FaultLabels {
                entry: entry.to_owned(),
                kind,
            })
            .inc();
        self.totals.faults.inc();
    }

    pub(super) fn count_quarantine(&self, entry: &str) {
        self.quarantines
            .get_or_create(&EntryLabels {
                entry: entry.to_owned(),
            })
            .inc();
        self.totals.quarantines.inc();
    }

    /// Counts a call that was not made because its entry is quarantined.
    pub(super) fn count_skipped(&self, entry: &str) {
        let entry = entry.to_owned();
        self.skips.get_or_create(&EntryLabels { entry }).inc();
    }

    /// The counters of one entry's calls.
    pub(super) fn call_metrics(&self, entry: &str) -> CallMetrics {
        let calls = |phase: &'static str| {
            let entry = entry.to_owned();
            self.calls.get_or_create(&CallLabels { entry, phase }).clone()
        };
        let entry = entry.to_owned();
        CallMetrics {
            requests: calls("request"),
            responses: calls("response"),
            completions: calls("complete"),
            crossings: calls("crossed"),
            seconds: self
                .call_seconds
                .get_or_create(&EntryLabels { entry: entry.clone() })
                .clone(),
            reused: self.reused.get_or_create(&EntryLabels { entry: entry.clone() }).clone(),
            audited: self
                .audited
                .get_or_create(&EntryLabels { entry: entry.clone() })
                .clone(),
            uncounted_outcomes: self.uncounted_outcomes.get_or_create(&EntryLabels { entry }).clone(),
        }
    }

    /// Numbers of verdicts of an entry that were repeated, and of those that were audited.
    pub(super) fn reuse_counts(&self, entry: &str) -> (u64, u64) {
        let entry = EntryLabels {
            entry: entry.to_owned(),
        };
        let count = |family: &Family<EntryLabels, Counter>| family.get(&entry).map_or(0, |counter| counter.get());
        (count(&self.reused), count(&self.audited))
    }

    pub(super) fn current_counts(&self) -> Counts {
        Counts {
            applied: self.applied.get(),
            refused: self.totals.refused.get(),
            faults: self.totals.faults.get(),
            quarantines: self.totals.quarantines.get(),
        }
    }
}
