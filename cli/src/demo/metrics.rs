//! Reads counters from a sidecar's `/metrics` (OpenMetrics).

use std::collections::BTreeMap;

/// Counters of a sidecar's plugins by entry and name, summed over the labels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct OwnCounts(BTreeMap<(String, String), u64>);

impl OwnCounts {
    pub(crate) fn read(text: &str) -> Self {
        let mut counts = Self::default();
        for (entry, name, value) in text.lines().filter_map(own_count) {
            *counts.0.entry((entry.to_owned(), name.to_owned())).or_default() += value;
        }
        counts
    }

    /// 0 if the entry has not counted that yet.
    pub(crate) fn count_of(&self, entry: &str, name: &str) -> u64 {
        let key = (entry.to_owned(), name.to_owned());
        self.0.get(&key).copied().unwrap_or_default()
    }
}

/// Entry, name and value of a plugin's own counter, which has exactly the labels `entry` and `label`; `None` for other lines.
fn own_count(line: &str) -> Option<(&str, &str, u64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (metric, labels) = series.split_once('{')?;
    let name = metric.strip_prefix("ctrlmesh_plugin_")?.strip_suffix("_total")?;
    let (entry, label) = labels.strip_prefix("entry=\"")?.split_once("\",")?;
    label.strip_prefix("label=")?;
    Some((entry, name, value.parse().ok()?))
}

/// The sum of all series of counter `name` whose labels (the text between the braces) `is_counted` accepts.
pub(crate) fn sum_counter(text: &str, name: &str, is_counted: impl Fn(&str) -> bool) -> u64 {
    let values = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (metric, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}')?;
        (metric == name && is_counted(labels)).then(|| value.parse::<u64>().ok())?
    });
    values.sum()
}

pub(crate) fn request_count(text: &str) -> u64 {
    sum_counter(text, "ctrlmesh_requests_total", |_| true)
}

/// Requests that were answered with an error, not answered, or broken off.
pub(crate) fn failure_count(text: &str) -> u64 {
    let is_error = |labels: &str| {
        ["none", "4xx", "5xx"]
            .iter()
            .any(|code| labels.contains(&format!("code=\"{code}\"")))
    };
    sum_counter(text, "ctrlmesh_requests_total", is_error)
        + sum_counter(text, "ctrlmesh_request_failures_total", |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP ctrlmesh_requests Requests
# TYPE ctrlmesh_requests counter
ctrlmesh_requests_total{verb="list",code="2xx"} 7
ctrlmesh_requests_total{verb="list",code="5xx"} 2
ctrlmesh_requests_total{verb="watch",code="none"} 1
ctrlmesh_request_failures_total{reason="timeout"} 1
ctrlmesh_rechecks_total 4
ctrlmesh_plugin_queued_total{entry="rate-limit/a",label="writes"} 7
ctrlmesh_plugin_queued_total{entry="rate-limit/a",label="lists"} 1
ctrlmesh_plugin_queued_total{entry="rate-limit/b",label="writes"} 9
ctrlmesh_plugin_faults_total{entry="rate-limit/a",kind="trap"} 3
# EOF
"#;

    #[test]
    fn own_counts_are_summed_over_labels_by_entry() {
        let counts = OwnCounts::read(TEXT);
        assert_eq!(counts.count_of("rate-limit/a", "queued"), 8);
        assert_eq!(counts.count_of("rate-limit/b", "queued"), 9);
        assert_eq!(counts.count_of("rate-limit/a", "faults"), 0);
    }

    #[test]
    fn series_are_chosen_by_name_and_labels() {
        assert_eq!(request_count(TEXT), 10);
        assert_eq!(failure_count(TEXT), 4);
        assert_eq!(sum_counter(TEXT, "ctrlmesh_rechecks_total", |_| true), 4);
        assert_eq!(sum_counter(TEXT, "ctrlmesh_requests", |_| true), 0);
    }
}
