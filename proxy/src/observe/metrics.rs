//! All metrics of requests and connections with their labels, made in one constructor. Labels come from closed sets, or from the chain
//! (entry names).
//!
//! Counters of the request path are fetched once and kept in arrays: a request costs atomic adds and no lock. Text format
//! is OpenMetrics (`prometheus-client`).

use std::sync::Arc;
use std::time::SystemTime;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

mod api_traffic;
mod durations;
mod requests;

use api_traffic::ApiTraffic;
use ctrlmesh_contract::status::ApiTraffic as ApiTrafficStatus;
pub(crate) use durations::Durations;
use requests::Requests;

use crate::chain::touched::TouchedRequests;
use crate::chain::{VERBS, verb_index};
use crate::observe::Class;
use crate::observe::ProxyForm;
use crate::plugin::verdict::Failure;

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// Requests to the API server, by verb.
    api: Requests,
    /// External requests, by way in.
    external: Requests,
    /// When the last request to the API server arrived.
    pub(crate) api_traffic: ApiTraffic,
    pub(crate) external_tunnels: Gauge,
    pub(crate) external_targets: Gauge,
    pub(crate) external_addresses_refused: Counter,
    pub(crate) connections: Gauge,
    pub(crate) connections_refused: Counter,
    pub(crate) watches_expired: Counter,
    pub(crate) rechecks: Counter,
    pub(crate) objects_hidden: Counter,
    pub(crate) unfilterable_responses: Counter,
    creates_of_existing: Family<[(&'static str, String); 1], Counter>,
    refused_objects: Family<[(&'static str, String); 1], Counter>,
    /// The last requests that plugins had an effect on; for these, a count alone does not help users.
    pub(crate) touched: TouchedRequests,
}

impl Metrics {
    /// The registry with the project's prefix; other parts add their metrics before it is handed to [`Metrics::new`].
    pub(crate) fn registry() -> Registry {
        Registry::with_prefix("ctrlmesh")
    }

    pub(crate) fn new(mut registry: Registry) -> Arc<Self> {
        let api = Requests::new(&mut registry, "verb", &VERBS.map(|verb| verb.as_str()));
        let ways = ProxyForm::ALL.map(ProxyForm::as_str);
        let external = Requests::new(registry.sub_registry_with_prefix("external"), "way", &ways);
        let mut metrics = Self {
            registry,
            api,
            external,
            api_traffic: ApiTraffic::default(),
            external_tunnels: Gauge::default(),
            external_targets: Gauge::default(),
            external_addresses_refused: Counter::default(),
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            watches_expired: Counter::default(),
            rechecks: Counter::default(),
            objects_hidden: Counter::default(),
            unfilterable_responses: Counter::default(),
            creates_of_existing: Family::default(),
            refused_objects: Family::default(),
            touched: TouchedRequests::default(),
        };
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        self.register_external();
        let registry = &mut self.registry;
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
            "objects_hidden",
            "Objects of lists and events of watches that plugins left out",
            self.objects_hidden.clone(),
        );
        registry.register(
            "unfilterable_responses",
            "Lists and watches that were refused or broken off because objects could not be left out of them",
            self.unfilterable_responses.clone(),
        );
        registry.register(
            "creates_already_exist",
            "Creates that were answered 409, in kinds that an entry narrows",
            self.creates_of_existing.clone(),
        );
        registry.register(
            "objects_refused",
            "Requests that were refused because their object does not match what an entry requires",
            self.refused_objects.clone(),
        );
    }

    fn register_external(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "external_tunnels",
            "Open tunnels of CONNECT",
            self.external_tunnels.clone(),
        );
        registry.register(
            "external_targets",
            "Targets of external traffic with connections of their own, of all threads together",
            self.external_targets.clone(),
        );
        registry.register(
            "external_addresses_refused",
            "Addresses that external traffic wanted and may not have",
            self.external_addresses_refused.clone(),
        );
    }

    /// Counts a create that was answered with 409, of a kind whose lists this entry filters.
    pub(crate) fn create_of_existing(&self, entry: &str) {
        let labels = [("entry", entry.to_owned())];
        self.creates_of_existing.get_or_create(&labels).inc();
    }

    /// Counts a request that was refused because of its object, for the entry that requires another one.
    pub(crate) fn refused_object(&self, entry: &str) {
        let labels = [("entry", entry.to_owned())];
        self.refused_objects.get_or_create(&labels).inc();
    }

    pub(crate) fn request_began(&self, class: Class, now: Instant) {
        if matches!(class, Class::Api(_)) {
            self.api_traffic.record_request(now);
        }
        self.class_counters(class).0.count_begun();
    }

    /// Counts a request that ends now.
    pub(crate) fn request_ended(
        &self,
        class: Class,
        now: Instant,
        status: u16,
        seconds: f64,
        failure: Option<Failure>,
    ) {
        if matches!(class, Class::Api(_)) {
            self.api_traffic.record_request(now);
        }
        let (requests, kind) = self.class_counters(class);
        requests.count_ended(kind, status, seconds, failure);
    }

    /// Traffic to the API server, for `/status`.
    pub(crate) fn api_traffic_status(&self, now: SystemTime) -> ApiTrafficStatus {
        self.api_traffic.status(now, self.api.in_flight())
    }

    /// The counters of a class, and the index of its kind there.
    fn class_counters(&self, class: Class) -> (&Requests, usize) {
        match class {
            Class::Api(verb) => (&self.api, verb_index(verb)),
            Class::External(form) => (&self.external, form.index()),
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
    use ctrlmesh_wire::Verb;

    use super::*;

    #[test]
    fn request_is_counted_by_verb_or_way_and_class_of_code() {
        let metrics = Metrics::new(Metrics::registry());
        let now = Instant::now();
        metrics.request_ended(Class::Api(Verb::List), now, 200, 0.002, None);
        metrics.request_ended(Class::Api(Verb::Create), now, 0, 1.0, Some(Failure::ClientGone));
        metrics.request_ended(Class::Api(Verb::Delete), now, 404, 0.1, None);
        metrics.request_ended(
            Class::External(ProxyForm::Connect),
            now,
            403,
            0.1,
            Some(Failure::Refused),
        );
        let text = metrics.text().unwrap();
        assert!(
            text.contains(r#"ctrlmesh_external_requests_total{way="connect",code="4xx"} 1"#),
            "{text}"
        );
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
