//! The context that every part of the manager gets: clients, flags and metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ctrlmesh_manager_api::FIELD_MANAGER;
use kube::Client;
use kube::api::{PatchParams, PostParams};
use kube::runtime::events::Reporter;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::cluster::rate::{self, Bucket, Priority};
use crate::metrics::Metrics;

/// Parameters of a patch by the manager, other than server-side apply.
pub(crate) fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// Parameters of a write of a whole object by the manager.
pub(crate) fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

/// Timeout of a request. API servers themselves give up after a minute.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Shared by all parts; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Client of the API server. All parts share its rate ([`rate`]).
    pub client: Client,
    /// Client for work that may take minutes: its requests come after all others.
    pub background: Client,
    /// Client for the leader's lease and for evictions: its requests do not wait for the rate and are not retried.
    pub urgent: Client,
    pub args: Arc<Args>,
    pub metrics: Arc<Metrics>,
    /// Stops the part: the process stops, or another manager leads.
    pub stop: CancellationToken,
}

impl Context {
    /// `client` should have no retries of its own (see [`rate::rate_limited`]).
    #[must_use]
    pub fn new(client: &Client, args: Args, metrics: Arc<Metrics>, stop: CancellationToken) -> Self {
        let bucket = Arc::new(Bucket::new(args.qps, args.burst));
        let [client, background, urgent] = [
            (Priority::Normal, REQUEST_TIMEOUT),
            (Priority::Background, REQUEST_TIMEOUT),
            (Priority::Urgent, Duration::from_secs(args.lease_seconds) / 3),
        ]
        .map(|(priority, deadline)| rate::rate_limited(client, &bucket, priority, deadline));
        Self {
            client,
            background,
            urgent,
            args: Arc::new(args),
            metrics,
            stop,
        }
    }

    #[must_use]
    pub fn reporter(&self) -> Reporter {
        Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: Some(self.args.pod_name.clone()),
        }
    }

    /// The same context for a part that may stop before the process does.
    #[must_use]
    pub fn with_stop(&self, stop: CancellationToken) -> Self {
        Self { stop, ..self.clone() }
    }
}

/// Whether the manager is ready. Cheap to clone; all clones share the value.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    pub fn set(&self, is_ready: bool) {
        self.0.store(is_ready, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
