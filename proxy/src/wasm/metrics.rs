//! Exports plugins' memory to `/metrics`, and their own metrics: `ctrlmesh_plugin_<name>` with the labels `entry` and `label`.
//!
//! Read from the entries' state at each scrape, so that the series of an entry disappear with it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::memory::GuestMemory;
use super::plugin_metrics::SeriesValue;
use super::state::StateStore;

/// Memory that plugins use, as metrics to be registered under the prefix `ctrlmesh`.
#[derive(Debug)]
pub struct MemorySeries(GuestMemory);

impl MemorySeries {
    /// Exports the usage of this memory.
    #[must_use]
    pub const fn new(memory: GuestMemory) -> Self {
        Self(memory)
    }
}

impl Collector for MemorySeries {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, bytes: usize| {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(bytes as u64).encode(encoder)
        };
        gauge(
            "plugin_memory_bytes",
            "Memory and machine code of all plugins",
            self.0.used_bytes(),
        )?;
        let Some(bounds) = self.0.bounds() else { return Ok(()) };
        gauge(
            "plugin_memory_limit_bytes",
            "Memory that all plugins together may use",
            bounds.plugin_limit_bytes,
        )?;
        gauge(
            "memory_limit_bytes",
            "Memory that the sidecar may use",
            bounds.limit_bytes,
        )
    }
}

/// The plugins' metrics, to be registered under the prefix `ctrlmesh`.
#[derive(Debug)]
pub struct PluginSeries(Arc<StateStore>);

/// Samples of one family: entry, label, value.
type Samples = Vec<(String, Option<String>, SeriesValue)>;

impl PluginSeries {
    /// Exports the entries of this store.
    #[must_use]
    pub const fn new(states: Arc<StateStore>) -> Self {
        Self(states)
    }

    /// All families by name. A name has one kind: if entries differ, the first entry's counts.
    fn collect_families(&self) -> BTreeMap<String, Samples> {
        let mut families: BTreeMap<String, Samples> = BTreeMap::new();
        let mut add = |family: String, entry: &str, label: Option<String>, value: SeriesValue| {
            let samples = families.entry(family).or_default();
            if samples.first().is_none_or(|(_, _, first)| first.is_of_kind(value)) {
                samples.push((entry.to_owned(), label, value));
            }
        };
        for (entry, state) in self.0.entries() {
            let (series, dropped) = state.series().snapshot();
            for series in series {
                add(
                    format!("plugin_{}", series.name),
                    &entry,
                    Some(series.label),
                    series.value,
                );
            }
            add(
                "plugin_updates_dropped".into(),
                &entry,
                None,
                SeriesValue::Counter(dropped),
            );
            let suppressed = SeriesValue::Counter(state.log().suppressed());
            add("plugin_log_lines_suppressed".into(), &entry, None, suppressed);
        }
        families
    }
}

impl Collector for PluginSeries {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for (family, samples) in self.collect_families() {
            let (kind, help) = match (family.as_str(), samples.first()) {
                ("plugin_updates_dropped", _) => (MetricType::Counter, "Updates of a plugin's metrics over its bounds"),
                ("plugin_log_lines_suppressed", _) => (MetricType::Counter, "Lines of a plugin's log over its rate"),
                (_, Some((_, _, SeriesValue::Gauge(_)))) => (MetricType::Gauge, "Set by a plugin"),
                _ => (MetricType::Counter, "Counted by a plugin"),
            };
            let mut encoder = encoder.encode_descriptor(&family, help, None, kind)?;
            for (entry, label, value) in samples {
                let mut labels = vec![("entry", entry)];
                labels.extend(label.map(|label| ("label", label)));
                let sample = encoder.encode_family(&labels)?;
                match value {
                    SeriesValue::Counter(value) => ConstCounter::new(value).encode(sample)?,
                    SeriesValue::Gauge(value) => ConstGauge::new(value).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn series_of_all_entries_are_exported_with_one_kind_for_each_name() {
        let states = Arc::new(StateStore::new());
        states.entry("a").series().count("refused", "pods", 2);
        states.entry("a").series().gauge("level", "", 0.5);
        states.entry("b").series().count("refused", "", 3);
        states.entry("b").series().count("level", "", 3);
        // This name belongs to the host.
        states.entry("b").series().count("calls", "", 3);
        let mut registry = Registry::with_prefix("ctrlmesh");
        registry.register_collector(Box::new(PluginSeries::new(Arc::clone(&states))));
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        for line in [
            "# TYPE ctrlmesh_plugin_refused counter",
            r#"ctrlmesh_plugin_refused_total{entry="a",label="pods"} 2"#,
            r#"ctrlmesh_plugin_refused_total{entry="b",label=""} 3"#,
            "# TYPE ctrlmesh_plugin_level gauge",
            r#"ctrlmesh_plugin_level{entry="a",label=""} 0.5"#,
            r#"ctrlmesh_plugin_updates_dropped_total{entry="b"} 1"#,
            r#"ctrlmesh_plugin_log_lines_suppressed_total{entry="a"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(
            !text.contains("plugin_level_total") && !text.contains("plugin_calls"),
            "{text}"
        );
        states.retain(|name| name == "b");
        text.clear();
        encode(&mut text, &registry).expect("text");
        assert!(!text.contains(r#"entry="a""#), "{text}");
    }
}
