//! Every metric and its labels, made in one constructor. Labels come from closed sets, or from the chain (entry names).
//!
//! Counters of the request path are fetched once and kept in arrays: a request costs atomic adds and no lock. Text format
//! is OpenMetrics (`prometheus-client`).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ctrlmesh_wire::Verb;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

mod durations;

pub(crate) use durations::Durations;

use crate::chain::{VERBS, verb_index};
use crate::verdict::Failure;

type Label = (&'static str, &'static str);
type EntryLabels = [(&'static str, String); 2];

/// Classes of status codes; a request that got no answer counts as `none`.
const CODES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

const FAILURES: [(Failure, &str); 7] = [
    (Failure::ClientGone, "client_gone"),
    (Failure::Refused, "refused"),
    (Failure::Unreachable, "unreachable"),
    (Failure::UpstreamReset, "upstream_reset"),
    (Failure::Timeout, "timeout"),
    (Failure::PluginReset, "plugin_reset"),
    (Failure::PluginFailed, "plugin_failed"),
];

/// Counters of one verb.
#[derive(Debug, Clone)]
struct VerbMetrics {
    codes: [Counter; CODES.len()],
    durations: Durations,
}

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    verbs: Vec<VerbMetrics>,
    failures: Vec<Counter>,
    pub(crate) in_flight: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) connections_refused: Counter,
    pub(crate) watches_expired: Counter,
    pub(crate) rechecks: Counter,
    plugin_calls: Family<EntryLabels, Counter>,
    plugin_skips: Family<[(&'static str, String); 1], Counter>,
    plugin_seconds: Family<[(&'static str, String); 1], Counter<f64, AtomicU64>>,
}

/// Counters of one chain entry, fetched once when its instance starts.
#[derive(Debug, Clone)]
pub(crate) struct EntryMetrics {
    pub(crate) requests: Counter,
    pub(crate) responses: Counter,
    pub(crate) completions: Counter,
    pub(crate) seconds: Counter<f64, AtomicU64>,
}

impl Metrics {
    /// Where everything is registered; other parts add theirs before it is handed to [`Metrics::new`].
    pub(crate) fn registry() -> Registry {
        Registry::with_prefix("ctrlmesh")
    }

    /// Registers everything.
    pub(crate) fn new(mut registry: Registry) -> Arc<Self> {
        let requests = Family::<[Label; 2], Counter>::default();
        let durations = Family::<[Label; 1], Durations>::default();
        let failures = Family::<[Label; 1], Counter>::default();
        registry.register(
            "requests",
            "Requests by verb and class of the status that the client got",
            requests.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "From request head to end of body",
            durations.clone(),
        );
        registry.register(
            "request_failures",
            "Requests without a complete response",
            failures.clone(),
        );
        let verbs = VERBS
            .iter()
            .map(|verb| VerbMetrics {
                codes: CODES.map(|code| {
                    requests
                        .get_or_create(&[("verb", verb.as_str()), ("code", code)])
                        .clone()
                }),
                durations: durations.get_or_create(&[("verb", verb.as_str())]).clone(),
            })
            .collect();
        let failures = FAILURES
            .iter()
            .map(|(_, name)| failures.get_or_create(&[("reason", *name)]).clone())
            .collect();
        let mut metrics = Self {
            registry,
            verbs,
            failures,
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            watches_expired: Counter::default(),
            rechecks: Counter::default(),
            plugin_calls: Family::default(),
            plugin_skips: Family::default(),
            plugin_seconds: Family::default(),
        };
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "requests_in_flight",
            "Requests whose body has not ended",
            self.in_flight.clone(),
        );
        registry.register("connections", "Open client connections", self.connections.clone());
        registry.register(
            "connections_refused",
            "Client connections over the limit",
            self.connections_refused.clone(),
        );
        registry.register(
            "watches_expired",
            "Watches ended with 410 because a new chain changed their view",
            self.watches_expired.clone(),
        );
        registry.register(
            "rechecks",
            "Open watches compared with a new chain",
            self.rechecks.clone(),
        );
        registry.register(
            "plugin_skips",
            "Calls that were not made because the entry is quarantined",
            self.plugin_skips.clone(),
        );
        registry.register(
            "plugin_calls",
            "Calls of a plugin by entry and phase",
            self.plugin_calls.clone(),
        );
        registry.register(
            "plugin_call_seconds",
            "Time spent in a plugin's calls",
            self.plugin_seconds.clone(),
        );
    }

    /// A request is over.
    pub(crate) fn request_ended(&self, verb: Verb, status: u16, seconds: f64, failure: Option<Failure>) {
        if let Some(metrics) = self.verbs.get(verb_index(verb)) {
            if let Some(counter) = metrics.codes.get(usize::from(status / 100).min(CODES.len() - 1)) {
                counter.inc();
            }
            metrics.durations.observe(seconds);
        }
        if let Some(failure) = failure
            && let Some(at) = FAILURES.iter().position(|(known, _)| *known == failure)
            && let Some(counter) = self.failures.get(at)
        {
            counter.inc();
        }
    }

    /// A call was not made because its entry is quarantined.
    pub(crate) fn plugin_skipped(&self, entry: &str) {
        self.plugin_skips.get_or_create(&[("entry", entry.to_owned())]).inc();
    }

    /// The counters of one entry.
    pub(crate) fn entry(&self, entry: &str) -> EntryMetrics {
        let calls = |phase: &str| {
            self.plugin_calls
                .get_or_create(&[("entry", entry.to_owned()), ("phase", phase.to_owned())])
                .clone()
        };
        EntryMetrics {
            requests: calls("request"),
            responses: calls("response"),
            completions: calls("complete"),
            seconds: self
                .plugin_seconds
                .get_or_create(&[("entry", entry.to_owned())])
                .clone(),
        }
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// Only if a collector fails to format.
    pub(crate) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::with_capacity(16 << 10);
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_by_verb_and_class_of_code() {
        let metrics = Metrics::new(Metrics::registry());
        metrics.request_ended(Verb::List, 200, 0.002, None);
        metrics.request_ended(Verb::Create, 0, 1.0, Some(Failure::ClientGone));
        metrics.request_ended(Verb::Delete, 404, 0.1, None);
        let text = metrics.text().unwrap();
        assert!(
            text.contains(r#"ctrlmesh_requests_total{verb="list",code="2xx"} 1"#),
            "{text}"
        );
        assert!(
            text.contains(r#"ctrlmesh_requests_total{verb="create",code="none"} 1"#),
            "{text}"
        );
        assert!(
            text.contains(r#"ctrlmesh_requests_total{verb="delete",code="4xx"} 1"#),
            "{text}"
        );
        assert!(
            text.contains(r#"ctrlmesh_request_failures_total{reason="client_gone"} 1"#),
            "{text}"
        );
        assert!(
            text.contains(r#"ctrlmesh_request_duration_seconds_bucket{le="0.0025",verb="list"} 1"#),
            "{text}"
        );
        assert!(
            text.contains(r#"ctrlmesh_request_duration_seconds_count{verb="list"} 1"#),
            "{text}"
        );
    }
}
