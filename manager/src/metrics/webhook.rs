//! Metrics of the webhook server.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Webhook {
    Validate,
    Namespace,
    Resource,
    Pod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    Allowed,
    Patched,
    Refused,
    /// The request was no review, or too many came at once.
    NoReview,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Review {
    webhook: Webhook,
    outcome: Outcome,
}

#[derive(Debug, Default)]
pub struct Metrics {
    reviews: Family<Review, Counter>,
    /// Connections that never became TLS.
    pub(crate) failed_handshakes: Counter,
    /// When what is served ends. Seconds since 1970.
    pub(crate) certificate_ends: Gauge,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "webhook_reviews",
            "Reviews by webhook and outcome",
            self.reviews.clone(),
        );
        registry.register(
            "webhook_failed_handshakes",
            "Connections to the webhook server that never became TLS",
            self.failed_handshakes.clone(),
        );
        registry.register(
            "webhook_certificate_not_after_seconds",
            "When the certificate ends that is served, in seconds since 1970; 0 while there is none",
            self.certificate_ends.clone(),
        );
    }

    pub(crate) fn count(&self, webhook: Webhook, outcome: Outcome) {
        self.reviews.get_or_create(&Review { webhook, outcome }).inc();
    }
}
