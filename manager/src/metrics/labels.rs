//! Metrics of the labels controller.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A kind, as `deployments.apps`. A closed set: those that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Kind {
    pub kind: String,
}

#[derive(Debug, Default)]
pub struct Metrics {
    /// Objects that were looked at.
    pub seen: Family<Kind, Counter>,
    /// Objects whose labels were written.
    pub written: Family<Kind, Counter>,
    /// Writes that failed; they are tried again.
    pub failed: Family<Kind, Counter>,
    /// Writes that were put off, because somebody else undoes them.
    pub contested: Family<Kind, Counter>,
    /// 1: every object of the kind was looked at since this manager leads, and what was wrong is written.
    pub is_done: Family<Kind, Gauge>,
    /// 1: the list of kinds that is in force is the one that the cluster has.
    pub is_config_good: Gauge,
}

impl Metrics {
    /// Adds a series to each metric with labels.
    pub(super) fn add_sample(&self) {
        let kind = Kind { kind: String::new() };
        for counter in [&self.seen, &self.written, &self.failed, &self.contested] {
            drop(counter.get_or_create(&kind));
        }
        drop(self.is_done.get_or_create(&kind));
    }

    pub fn register(&self, registry: &mut Registry) {
        registry.register("labels_objects_seen", "Objects looked at", self.seen.clone());
        registry.register(
            "labels_objects_written",
            "Objects whose labels were written",
            self.written.clone(),
        );
        registry.register(
            "labels_objects_failed",
            "Writes of labels that failed",
            self.failed.clone(),
        );
        registry.register(
            "labels_objects_contested",
            "Writes of labels put off, because somebody undoes them",
            self.contested.clone(),
        );
        registry.register(
            "labels_backfill_done",
            "1: every object of the kind was looked at since this manager leads",
            self.is_done.clone(),
        );
        registry.register(
            "labels_config_good",
            "1: the list of kinds in force is the one that the ConfigMap has, or the default one if there is none",
            self.is_config_good.clone(),
        );
    }
}
