//! Metrics of the manager, as `/metrics` shows them. Each part has a struct here, and reaches it through its context.
//!
//! | file | counts |
//! |---|---|
//! | `distribution` | passes, chains, sidecars, hand-overs |
//! | `labels` | objects that are labelled |
//! | `webhook` | reviews, handshakes, the certificate |
//! | this one | shards and the ManagerState; plugins count in `ctrlmesh-manager-oci` |

pub mod distribution;
pub mod labels;
pub mod webhook;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// All metrics of the process.
#[derive(Debug, Default)]
pub struct Metrics {
    /// 1 while this manager leads.
    pub leader: Gauge,
    pub distribution: distribution::Metrics,
    pub labels: labels::Metrics,
    pub state: ManagerState,
    /// Shards that are made from roots.
    pub shards: Shards,
    pub webhook: webhook::Metrics,
    /// Plugins in registries.
    pub oci: ctrlmesh_manager_oci::Metrics,
}

impl Metrics {
    /// Metrics for their reference page. Each one with labels has a series, because a metric without any is not served.
    #[must_use]
    pub fn sample() -> Self {
        let metrics = Self::default();
        metrics.distribution.update_gauges(std::iter::empty(), &[]);
        metrics.labels.add_sample();
        metrics
            .webhook
            .count(webhook::Webhook::Validate, webhook::Outcome::Allowed);
        metrics.oci.add_sample();
        metrics
    }

    /// The metrics as text, in the form that Prometheus reads.
    ///
    /// # Errors
    /// A metric can't be printed; none of ours does that.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("ctrlmesh_manager");
        registry.register("leader", "1 while this manager leads", self.leader.clone());
        self.distribution.register(&mut registry);
        self.labels.register(&mut registry);
        self.state.register(&mut registry);
        self.shards.register(&mut registry);
        self.webhook.register(&mut registry);
        self.oci.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// Metrics of shards that are made from roots.
#[derive(Debug, Default)]
pub struct Shards {
    /// Shards that were made or edited.
    pub written: Counter,
    /// Shards that were deleted.
    pub deleted: Counter,
    pub failed: Counter,
}

impl Shards {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("shards_written", "Shards made or edited", self.written.clone());
        registry.register("shards_deleted", "Shards deleted", self.deleted.clone());
        registry.register(
            "shards_passes_failed",
            "Passes over the roots of a namespace that failed",
            self.failed.clone(),
        );
    }
}

/// Metrics of the ManagerState.
#[derive(Debug, Default)]
pub struct ManagerState {
    /// Times that the object was written.
    pub written: Counter,
    /// Writes that failed; they are tried again.
    pub failed: Counter,
}

impl ManagerState {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("state_written", "Writes of the ManagerState", self.written.clone());
        registry.register(
            "state_failed",
            "Writes of the ManagerState that failed",
            self.failed.clone(),
        );
    }
}
