//! Reads counters from the text of a sidecar's `/metrics` (OpenMetrics).

use std::collections::BTreeMap;

/// What the plugins of a sidecar count themselves: the sum over the labels, by entry and name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct OwnCounts(BTreeMap<(String, String), u64>);

impl OwnCounts {
    /// Reads them all.
    pub(crate) fn read(text: &str) -> Self {
        let mut counts = Self::default();
        for (entry, name, value) in text.lines().filter_map(own_count) {
            *counts.0.entry((entry.to_owned(), name.to_owned())).or_default() += value;
        }
        counts
    }

    /// The count `name` of an entry; 0 if it has not counted that yet.
    pub(crate) fn of(&self, entry: &str, name: &str) -> u64 {
        let key = (entry.to_owned(), name.to_owned());
        self.0.get(&key).copied().unwrap_or_default()
    }
}

/// Entry, name and value of a line, if it is a plugin's own counter: those have just the labels `entry` and `label`.
fn own_count(line: &str) -> Option<(&str, &str, u64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (metric, labels) = series.split_once('{')?;
    let name = metric.strip_prefix("ctrlmesh_plugin_")?.strip_suffix("_total")?;
    let (entry, label) = labels.strip_prefix("entry=\"")?.split_once("\",")?;
    label.strip_prefix("label=")?;
    Some((entry, name, value.parse().ok()?))
}

/// The sum of all series of counter `name` whose labels `wanted` accepts. `wanted` gets what stands between the braces.
pub(crate) fn sum(text: &str, name: &str, wanted: impl Fn(&str) -> bool) -> u64 {
    let values = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (metric, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}')?;
        (metric == name && wanted(labels)).then(|| value.parse::<u64>().ok())?
    });
    values.sum()
}

/// Requests that a sidecar has answered.
pub(crate) fn requests(text: &str) -> u64 {
    sum(text, "ctrlmesh_requests_total", |_| true)
}

/// Requests that failed: answered with an error, not at all, or broken off.
pub(crate) fn failures(text: &str) -> u64 {
    let is_error = |labels: &str| {
        ["none", "4xx", "5xx"]
            .iter()
            .any(|code| labels.contains(&format!("code=\"{code}\"")))
    };
    sum(text, "ctrlmesh_requests_total", is_error) + sum(text, "ctrlmesh_request_failures_total", |_| true)
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
        assert_eq!(counts.of("rate-limit/a", "queued"), 8);
        assert_eq!(counts.of("rate-limit/b", "queued"), 9);
        assert_eq!(counts.of("rate-limit/a", "faults"), 0);
    }

    #[test]
    fn series_are_chosen_by_name_and_labels() {
        assert_eq!(requests(TEXT), 10);
        assert_eq!(failures(TEXT), 4);
        assert_eq!(sum(TEXT, "ctrlmesh_rechecks_total", |_| true), 4);
        assert_eq!(sum(TEXT, "ctrlmesh_requests", |_| true), 0);
    }
}
