//! The metrics of an entry (WIT `metrics`): counters and gauges by name and label, bounded in number.
//!
//! `metrics.rs` exports them through [`SeriesSet::snapshot`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock::lock_unpoisoned;

/// Maximum number of series of an entry: three decisions about each of the 64 buckets that it can claim for one request, and some more.
/// At the maximum length of names and labels they take 100 KiB.
pub const MAX_SERIES: usize = 256;
/// Maximum number of counters in one call: one for each rule of a plugin that has as many as it can claim tokens for.
const MAX_COUNTED: usize = 64;
/// Maximum length of a name. Prometheus has no limit; this keeps names readable.
const MAX_NAME_BYTES: usize = 64;
/// Maximum length of a label: a namespace and a name of Kubernetes with a separator.
const MAX_LABEL_BYTES: usize = 320;

/// Names of the sidecar's own metrics with the prefix `ctrlmesh_plugin_`.
const RESERVED_NAMES: [&str; 12] = [
    "audited",
    "call_seconds",
    "calls",
    "faults",
    "log_lines_suppressed",
    "memory_bytes",
    "memory_limit_bytes",
    "quarantines",
    "reused",
    "skips",
    "uncounted_outcomes",
    "updates_dropped",
];

#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name of lower-case letters, digits and `_`.
    pub name: String,
    pub label: String,
    pub value: SeriesValue,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SeriesValue {
    Counter(u64),
    /// The last value that was set.
    Gauge(f64),
}

/// The series of an entry.
#[derive(Debug, Default)]
pub struct SeriesSet(Mutex<Inner>);

/// A counter of an entry. It can be kept, because series are never removed: adding to it takes no lock and no search.
#[derive(Debug, Clone)]
pub(crate) struct CounterHandle(Arc<AtomicU64>);

#[derive(Debug, Default)]
struct Inner {
    /// By name, then by label.
    families: BTreeMap<String, BTreeMap<String, StoredValue>>,
    /// Number of series in all families.
    len: usize,
    dropped: u64,
}

#[derive(Debug)]
enum StoredValue {
    Counter(CounterHandle),
    Gauge(f64),
}

impl SeriesSet {
    /// Adds to a counter.
    pub(crate) fn count(&self, name: &str, label: &str, by: u64) {
        self.update(name, label, SeriesValue::Counter(by));
    }

    /// The counter; `None` if it does not exist.
    pub(crate) fn counter(&self, name: &str, label: &str) -> Option<CounterHandle> {
        match lock_unpoisoned(&self.0).families.get(name)?.get(label)? {
            StoredValue::Counter(counter) => Some(counter.clone()),
            StoredValue::Gauge(_) => None,
        }
    }

    /// Adds to several counters: names, labels and amounts. Those beyond the maximum are dropped.
    pub(crate) fn count_all<'a>(&self, counted: impl ExactSizeIterator<Item = (&'a str, &'a str, u64)>) {
        let excess = counted.len().saturating_sub(MAX_COUNTED);
        let mut inner = lock_unpoisoned(&self.0);
        for (name, label, by) in counted.take(MAX_COUNTED) {
            inner.update(name, label, SeriesValue::Counter(by));
        }
        inner.dropped = inner.dropped.saturating_add(u64::try_from(excess).unwrap_or(u64::MAX));
    }

    pub(crate) fn gauge(&self, name: &str, label: &str, value: f64) {
        self.update(name, label, SeriesValue::Gauge(value));
    }

    /// All series by name and label, and the number of dropped updates: too many series, an invalid name, too long a label, or another kind
    /// than before.
    #[must_use]
    pub fn snapshot(&self) -> (Vec<Series>, u64) {
        let inner = lock_unpoisoned(&self.0);
        let series = inner.families.iter().flat_map(|(name, labels)| {
            labels.iter().map(|(label, value)| Series {
                name: name.clone(),
                label: label.clone(),
                value: value.current(),
            })
        });
        (series.collect(), inner.dropped)
    }

    /// Counts another kind of update of the entry that was dropped.
    pub(crate) fn drop_update(&self) {
        let mut inner = lock_unpoisoned(&self.0);
        inner.dropped = inner.dropped.saturating_add(1);
    }

    fn update(&self, name: &str, label: &str, value: SeriesValue) {
        lock_unpoisoned(&self.0).update(name, label, value);
    }
}

impl SeriesValue {
    /// Whether both are counters or both are gauges.
    pub(crate) fn is_of_kind(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl CounterHandle {
    /// Adds to the counter, which stops at [`u64::MAX`].
    pub(crate) fn add(&self, by: u64) {
        let mut sum = self.0.load(Ordering::Relaxed);
        while let Err(other) =
            self.0
                .compare_exchange_weak(sum, sum.saturating_add(by), Ordering::Relaxed, Ordering::Relaxed)
        {
            sum = other;
        }
    }
}

impl StoredValue {
    fn new(value: SeriesValue) -> Self {
        match value {
            SeriesValue::Counter(sum) => Self::Counter(CounterHandle(Arc::new(AtomicU64::new(sum)))),
            SeriesValue::Gauge(value) => Self::Gauge(value),
        }
    }

    fn current(&self) -> SeriesValue {
        match self {
            Self::Counter(counter) => SeriesValue::Counter(counter.0.load(Ordering::Relaxed)),
            Self::Gauge(value) => SeriesValue::Gauge(*value),
        }
    }

    /// Applies the update. Returns whether it was of the same kind.
    fn update(&mut self, value: SeriesValue) -> bool {
        match (self, value) {
            (Self::Counter(counter), SeriesValue::Counter(by)) => counter.add(by),
            (Self::Gauge(last), SeriesValue::Gauge(value)) => *last = value,
            _ => return false,
        }
        true
    }
}

impl Inner {
    /// Updates a series, or counts the update as dropped.
    fn update(&mut self, name: &str, label: &str, value: SeriesValue) {
        let known = self.families.get_mut(name).and_then(|labels| labels.get_mut(label));
        let is_updated = match known {
            Some(known) => known.update(value),
            None => self.insert(name, label, value),
        };
        if !is_updated {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Adds a series; returns `false` if it is not allowed.
    fn insert(&mut self, name: &str, label: &str, value: SeriesValue) -> bool {
        if self.len >= MAX_SERIES || label.len() > MAX_LABEL_BYTES || !is_valid(name) {
            return false;
        }
        let labels = self.families.entry(name.to_owned()).or_default();
        // A family has one kind: an exporter cannot print a counter and a gauge under one name.
        if labels
            .values()
            .next()
            .is_some_and(|first| !first.current().is_of_kind(value))
        {
            return false;
        }
        labels.insert(label.to_owned(), StoredValue::new(value));
        self.len += 1;
        true
    }
}

fn is_valid(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !RESERVED_NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_and_gauges_keep_last_value() {
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
            [("level", SeriesValue::Gauge(0.5)), ("refused", SeriesValue::Counter(5))]
        );
        assert_eq!(dropped, 0);
    }

    #[test]
    fn counters_of_one_call_add_up_and_excess_is_dropped() {
        let set = SeriesSet::default();
        set.count_all([("seen", "a", 2), ("seen", "a", 3), ("Bad", "", 1)].into_iter());
        set.count_all(vec![("more", "", 1); MAX_COUNTED + 2].into_iter());
        let (series, dropped) = set.snapshot();
        let values: Vec<_> = series.iter().map(|series| (&*series.name, series.value)).collect();
        assert_eq!(
            values,
            [("more", SeriesValue::Counter(64)), ("seen", SeriesValue::Counter(5))]
        );
        assert_eq!(dropped, 3);
    }

    #[test]
    fn kept_counter_adds_to_its_series_and_stops_at_maximum() {
        let set = SeriesSet::default();
        assert!(set.counter("refused", "a").is_none());
        set.count("refused", "a", 2);
        set.count("refused", "b", 1);
        set.gauge("level", "", 1.0);
        assert!(set.counter("level", "").is_none(), "it is no counter");
        assert!(set.counter("refused", "c").is_none());
        let counter = set.counter("refused", "a").unwrap();
        let counts = || -> Vec<SeriesValue> { set.snapshot().0.iter().map(|series| series.value).skip(1).collect() };
        counter.add(3);
        set.count("refused", "a", 4);
        assert_eq!(counts(), [SeriesValue::Counter(9), SeriesValue::Counter(1)]);
        counter.add(u64::MAX);
        counter.add(1);
        assert_eq!(counts(), [SeriesValue::Counter(u64::MAX), SeriesValue::Counter(1)]);
        assert_eq!(set.snapshot().1, 0);
    }

    #[test]
    fn excess_series_is_dropped_and_counted_and_known_ones_continue() {
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
    fn invalid_names_and_change_of_kind_are_dropped() {
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
