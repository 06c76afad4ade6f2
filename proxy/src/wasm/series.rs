//! The metrics of an entry (WIT `metrics`): counters and gauges by name and label, bounded in number.
//!
//! Leaves the export to `metrics.rs`, which reads [`SeriesSet::snapshot`].

use std::sync::Mutex;

use super::state::lock;

/// Series that an entry may have.
pub const MAX_SERIES: usize = 64;
/// Longest name. Prometheus has no bound; a person reads these.
const MAX_NAME_BYTES: usize = 64;
/// Longest label: a namespace and a name of Kubernetes with a separator.
const MAX_LABEL_BYTES: usize = 320;

/// Names that the sidecar's own metrics have behind `ctrlmesh_plugin_`.
const RESERVED: [&str; 7] = [
    "call_seconds",
    "calls",
    "faults",
    "log_lines_suppressed",
    "quarantines",
    "skips",
    "updates_dropped",
];

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Lower-case letters, digits and `_`.
    pub name: String,
    /// Free text.
    pub label: String,
    /// Its value.
    pub value: SeriesValue,
}

/// A value of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SeriesValue {
    /// Only grows.
    Counter(u64),
    /// The last value set.
    Gauge(f64),
}

/// The series of an entry.
#[derive(Debug, Default)]
pub struct SeriesSet(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    series: Vec<Series>,
    dropped: u64,
}

impl SeriesSet {
    /// Adds to a counter.
    pub(crate) fn count(&self, name: &str, label: &str, by: u64) {
        self.update(name, label, SeriesValue::Counter(by));
    }

    /// Sets a gauge.
    pub(crate) fn gauge(&self, name: &str, label: &str, value: f64) {
        self.update(name, label, SeriesValue::Gauge(value));
    }

    /// All series, in the order in which they first appeared, and how many updates were dropped: of a series too many, with
    /// an invalid name, too long a label, or of another kind than before.
    #[must_use]
    pub fn snapshot(&self) -> (Vec<Series>, u64) {
        let inner = lock(&self.0);
        (inner.series.clone(), inner.dropped)
    }

    /// Counts something else that the entry handed over in vain.
    pub(crate) fn drop_update(&self) {
        let mut inner = lock(&self.0);
        inner.dropped = inner.dropped.saturating_add(1);
    }

    fn update(&self, name: &str, label: &str, value: SeriesValue) {
        let mut inner = lock(&self.0);
        let updated = inner.find(name, label).map(|known| known.update(value));
        if updated.is_none() && inner.accepts(name, label, value) {
            inner.series.push(Series {
                name: name.to_owned(),
                label: label.to_owned(),
                value,
            });
        } else if updated != Some(true) {
            inner.dropped = inner.dropped.saturating_add(1);
        }
    }
}

impl SeriesValue {
    /// Whether both are counters or both are gauges.
    pub(crate) fn is_of_kind(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// Whether the update was of the same kind.
    const fn update(&mut self, value: Self) -> bool {
        match (self, value) {
            (Self::Counter(sum), Self::Counter(by)) => *sum = sum.saturating_add(by),
            (Self::Gauge(last), Self::Gauge(value)) => *last = value,
            _ => return false,
        }
        true
    }
}

impl Inner {
    fn find(&mut self, name: &str, label: &str) -> Option<&mut SeriesValue> {
        let known = self
            .series
            .iter_mut()
            .find(|series| series.name == name && series.label == label);
        known.map(|series| &mut series.value)
    }

    fn accepts(&self, name: &str, label: &str, value: SeriesValue) -> bool {
        let valid_name = (1..=MAX_NAME_BYTES).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && !RESERVED.contains(&name);
        // A family has one kind: an exporter can't print a counter and a gauge under one name.
        let one_kind = self
            .series
            .iter()
            .filter(|series| series.name == name)
            .all(|series| series.value.is_of_kind(value));
        valid_name && one_kind && label.len() <= MAX_LABEL_BYTES && self.series.len() < MAX_SERIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_and_gauges_keep_the_last_value() {
        let set = SeriesSet::default();
        set.count("refused", "a", 2);
        set.count("refused", "a", 3);
        set.gauge("level", "", 1.0);
        set.gauge("level", "", 0.5);
        let (series, dropped) = set.snapshot();
        let values: Vec<_> = series
            .iter()
            .map(|series| (series.name.as_str(), series.value))
            .collect();
        assert_eq!(
            values,
            [("refused", SeriesValue::Counter(5)), ("level", SeriesValue::Gauge(0.5))]
        );
        assert_eq!(dropped, 0);
    }

    #[test]
    fn a_series_too_many_is_dropped_and_counted_while_known_ones_go_on() {
        let set = SeriesSet::default();
        for number in 0..=MAX_SERIES {
            set.count("seen", &number.to_string(), 1);
        }
        set.count("seen", "0", 1);
        let (series, dropped) = set.snapshot();
        assert_eq!(series.len(), MAX_SERIES);
        assert_eq!(series[0].value, SeriesValue::Counter(2));
        assert_eq!(dropped, 1);
    }

    #[test]
    fn invalid_names_and_a_change_of_kind_are_dropped() {
        let set = SeriesSet::default();
        set.count("Upper", "", 1);
        set.count("", "", 1);
        set.count("7th", "", 1);
        set.count("a-b", "", 1);
        set.count("fine", &"x".repeat(MAX_LABEL_BYTES + 1), 1);
        set.count("kind", "", 1);
        set.gauge("kind", "", 1.0);
        set.gauge("kind", "other", 1.0);
        let (series, dropped) = set.snapshot();
        assert_eq!(series.len(), 1);
        assert_eq!(dropped, 7);
    }
}
