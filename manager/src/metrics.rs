//! What the manager counts. Each part registers its own in a struct beside its code; this is where they meet.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// All metrics of the process.
#[derive(Debug, Default)]
pub struct Metrics {
    /// 1 while this manager leads.
    pub leader: Gauge,
    /// Of the distribution of chains.
    pub distribution: crate::distribution::Metrics,
    /// Of labels.
    pub labels: crate::labels::Metrics,
    /// Of the ManagerState.
    pub state: crate::manager_state::Metrics,
    /// Of shards that are made from roots.
    pub shards: crate::shards::Metrics,
    /// Of the webhook server.
    pub webhook: crate::webhook::Metrics,
    /// Of plugins in registries.
    pub oci: crate::oci::Metrics,
}

impl Metrics {
    /// As text, in the form that Prometheus reads.
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
