//! Reads counters from the text of a sidecar's `/metrics` (OpenMetrics).

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
# EOF
"#;

    #[test]
    fn series_are_chosen_by_name_and_labels() {
        assert_eq!(requests(TEXT), 10);
        assert_eq!(failures(TEXT), 4);
        assert_eq!(sum(TEXT, "ctrlmesh_rechecks_total", |_| true), 4);
        assert_eq!(sum(TEXT, "ctrlmesh_requests", |_| true), 0);
    }
}
