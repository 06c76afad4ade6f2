//! Metrics of the chain, for `/metrics` and for the counts of `/status`.
//!
//! Leaves metrics of requests to the code that handles them.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use ctrlmesh_contract::status::Counts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::snapshot::Snapshot;
use crate::lock::lock_unpoisoned;

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
    /// Names of entries that have series.
    counted_entries: Arc<Mutex<BTreeSet<String>>>,
    totals: Arc<Totals>,
}

/// Counters of one entry's calls, fetched once when its instance starts. If the entry leaves the chain, its series are removed, and what
/// requests in flight still add here is seen nowhere.
#[derive(Debug, Clone)]
pub(super) struct CallMetrics {
    pub(super) requests: Counter,
    pub(super) responses: Counter,
    pub(super) objects: Counter,
    pub(super) completions: Counter,
    pub(super) crossings: Counter,
    /// Calls that were not made because the entry is quarantined.
    pub(super) skips: Counter,
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

/// `entry` is the name of an entry in the chain in force or in the one that is tried, at most 64 in each. [`Metrics::keep_series_of`]
/// removes the series of entries that are gone.
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
/// Phases of calls that are counted.
const CALL_PHASES: [&str; 5] = ["request", "response", "objects", "complete", "crossed"];

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

    /// Counts the chain that is in force now, and removes the series of entries that it does not have.
    pub(super) fn chain_applied(&self, now: &Snapshot) {
        self.generation.set(now.generation);
        self.entries.set(now.entries().len() as u64);
        self.applied.inc();
        self.keep_series_of(now);
    }

    /// Removes the series of entries that the chain in force does not have: of earlier chains, and of chains that were refused. If a
    /// request in flight or a thread that is late counts such an entry afterwards, its series are there until the next chain is tried.
    pub(super) fn keep_series_of(&self, now: &Snapshot) {
        lock_unpoisoned(&self.counted_entries).retain(|name| {
            let stays = now.entry(name).is_some();
            if !stays {
                self.remove_series(name);
            }
            stays
        });
    }

    fn remove_series(&self, entry: &str) {
        for kind in FAULT_KINDS {
            let entry = entry.to_owned();
            self.faults.remove(&FaultLabels { entry, kind });
        }
        for phase in CALL_PHASES {
            let entry = entry.to_owned();
            self.calls.remove(&CallLabels { entry, phase });
        }
        let labels = EntryLabels {
            entry: entry.to_owned(),
        };
        self.call_seconds.remove(&labels);
        for family in [
            &self.quarantines,
            &self.skips,
            &self.reused,
            &self.audited,
            &self.uncounted_outcomes,
        ] {
            family.remove(&labels);
        }
    }

    /// Notes that the entry has series. It is called when they exist: a chain that comes into force between the two would miss them
    /// otherwise.
    fn note_counted(&self, entry: &str) {
        let mut counted = lock_unpoisoned(&self.counted_entries);
        if !counted.contains(entry) {
            counted.insert(entry.to_owned());
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
        self.note_counted(entry);
        self.totals.faults.inc();
    }

    pub(super) fn count_quarantine(&self, entry: &str) {
        self.quarantines
            .get_or_create(&EntryLabels {
                entry: entry.to_owned(),
            })
            .inc();
        self.note_counted(entry);
        self.totals.quarantines.inc();
    }

    /// The counters of one entry's calls.
    pub(super) fn call_metrics(&self, entry: &str) -> CallMetrics {
        let calls = |phase: &'static str| {
            let entry = entry.to_owned();
            self.calls.get_or_create(&CallLabels { entry, phase }).clone()
        };
        let labels = EntryLabels {
            entry: entry.to_owned(),
        };
        let metrics = CallMetrics {
            requests: calls("request"),
            responses: calls("response"),
            objects: calls("objects"),
            completions: calls("complete"),
            crossings: calls("crossed"),
            skips: self.skips.get_or_create_owned(&labels),
            seconds: self.call_seconds.get_or_create_owned(&labels),
            reused: self.reused.get_or_create_owned(&labels),
            audited: self.audited.get_or_create_owned(&labels),
            uncounted_outcomes: self.uncounted_outcomes.get_or_create_owned(&labels),
        };
        self.note_counted(entry);
        metrics
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

#[cfg(test)]
mod tests {
    use ctrlmesh_contract::Digest;
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::chain::tests::{scripted_guest, test_entry};
    use crate::wasm::StateStore;

    fn chain(generation: u64, names: &[&str]) -> Snapshot {
        let states = StateStore::new();
        let entries = names
            .iter()
            .map(|name| test_entry(name, 0, scripted_guest(), "{}", &states));
        Snapshot::new(generation, Digest::of(b"document"), entries.collect())
    }

    /// Counts everything once that is counted for an entry.
    fn count_everything(metrics: &Metrics, entry: &str) -> CallMetrics {
        let calls = metrics.call_metrics(entry);
        for counter in [
            &calls.requests,
            &calls.responses,
            &calls.completions,
            &calls.crossings,
            &calls.skips,
            &calls.reused,
            &calls.audited,
            &calls.uncounted_outcomes,
        ] {
            counter.inc();
        }
        calls.seconds.inc_by(0.5);
        for kind in FAULT_KINDS {
            metrics.count_fault(entry, kind);
        }
        metrics.count_quarantine(entry);
        calls
    }

    /// Lines of the encoded metrics that have the label of this entry.
    fn series_of(entry: &str, registry: &Registry) -> Vec<String> {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        let label = format!("entry=\"{entry}\"");
        let lines = text.lines().filter(|line| line.contains(&label));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn series_of_entry_that_is_gone_are_removed_and_others_stay() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        metrics.chain_applied(&chain(1, &["gone", "stays"]));
        let gone = count_everything(&metrics, "gone");
        let stays = count_everything(&metrics, "stays");
        let of_each = FAULT_KINDS.len() + CALL_PHASES.len() + 6;
        assert_eq!(series_of("gone", &registry).len(), of_each);
        metrics.chain_applied(&chain(2, &["stays"]));
        assert_eq!(series_of("gone", &registry), [""; 0]);
        assert_eq!(series_of("stays", &registry).len(), of_each);
        gone.reused.inc();
        stays.reused.inc();
        assert_eq!(metrics.reuse_counts("stays"), (2, 1));

        let again = metrics.call_metrics("gone");
        metrics.chain_applied(&chain(3, &["gone", "stays"]));
        gone.reused.inc();
        assert_eq!(metrics.reuse_counts("gone"), (0, 0), "another entry had this name");
        again.reused.inc();
        assert_eq!(metrics.reuse_counts("gone"), (1, 0));
    }

    #[test]
    fn series_that_came_without_chain_are_removed_by_next_one() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        // Of a request in flight whose entry is gone, and of a chain that was refused after its instances had started.
        metrics.count_fault("gone", "trap");
        metrics.call_metrics("refused");
        assert!(!series_of("gone", &registry).is_empty() && !series_of("refused", &registry).is_empty());
        metrics.chain_applied(&chain(1, &[]));
        assert_eq!(series_of("gone", &registry), [""; 0]);
        assert_eq!(series_of("refused", &registry), [""; 0]);
        assert_eq!(metrics.current_counts().faults, 1, "totals stay");
    }
}
