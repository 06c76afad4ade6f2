//! What every part of the manager works with.

use std::sync::Arc;

use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::metrics::Metrics;

/// Field manager of everything that the manager applies.
pub const FIELD_MANAGER: &str = "ctrlmesh-manager";

/// Shared by all parts; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The way to the API server. Every request goes through it, so that the allowed rate holds for all parts together.
    pub client: Client,
    /// Flags.
    pub args: Arc<Args>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Writes Events.
    pub recorder: Recorder,
    /// Ends the part: the process stops, or another manager leads.
    pub stop: CancellationToken,
}

impl Context {
    /// Puts the parts together.
    #[must_use]
    pub fn new(client: Client, args: Args, metrics: Arc<Metrics>, stop: CancellationToken) -> Self {
        let reporter = Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: Some(args.pod_name.clone()),
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            args: Arc::new(args),
            metrics,
            stop,
        }
    }

    /// The same for a part that may end before the process does.
    #[must_use]
    pub fn until(&self, stop: CancellationToken) -> Self {
        Self { stop, ..self.clone() }
    }
}
