//! From the custom resources of a namespace to the ConfigMaps that its sidecars mount, and back: what sidecars say goes into
//! the objects' status.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use crate::context::Context;
use crate::error::Error;
use crate::rbac::Rule;

/// What it does at the API server.
pub const RULES: &[Rule] = &[];

/// What is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Chains written.
    pub written: Counter,
}

impl Metrics {
    /// Under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("chains_written", "Chains written", self.written.clone());
    }
}

/// Runs until it shall stop.
///
/// # Errors
/// A watch can't be started.
pub async fn run(context: Context) -> Result<(), Error> {
    context.stop.cancelled().await;
    Ok(())
}
