//! Calls to other services than the API server: a forward proxy with three ways in, and the same plugins as API traffic.
//!
//! | file | what is in it |
//! |---|---|
//! | `handler` | **start here**: one request, top to bottom |
//! | `tunnel` | bytes after a CONNECT |
//! | `call` | operations of every request: send it, respond without the target |
//! | `edit` | edits of the query |
//! | `trust` | certificate authorities for external targets |
//! | `address_policy` | the addresses that may be reached |
//! | `api_server` | the API server's addresses, which this port must not reach |
//! | `advertised` | asks the API server for its own address |
//! | `settings` | flags and environment variables |
//! | `destination` | reads where a request goes |
//! | `targets` | one worker's connections to each server |
//!
//! Code shared with API traffic: `connection`, `phases`, `record`, `ending`, `upstream`.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::connection::Outage;
use crate::connection::StreamNotifier;
use crate::error::Error;
use crate::observe::metrics::Metrics;
use crate::upstream::{Gate, Limits, Target, Trust, UnreadResponses};

mod address_policy;
mod advertised;
mod api_server;
mod call;
mod destination;
mod edit;
mod handler;
mod settings;
mod targets;
mod trust;
mod tunnel;

pub(crate) use advertised::follow_advertised;
pub(crate) use handler::handle;
pub use settings::{Allow, ExternalSettings};

use address_policy::AddressPolicy;
use api_server::ApiServer;
use targets::Targets;

/// Servers on the internet are farther away than an API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of connections to one target, per thread: HTTP/1.1 servers need one for each request in flight.
const MAX_CONNECTIONS: usize = 256;

/// Maximum number of tunnels, per thread. Each holds two sockets and up to 128 KiB.
const MAX_TUNNELS: usize = 1024;

/// State that all threads share.
pub(crate) struct Shared {
    address_policy: Arc<AddressPolicy>,
    gate: Arc<Gate>,
    trust: Trust,
    pub(crate) outage: Outage,
    metrics: Arc<Metrics>,
    /// Bounds the connections to other services, tunnels included.
    sockets: Arc<Semaphore>,
}

impl Shared {
    /// Loads the certificate authorities. This port does not reach the addresses in `own` (the sidecar's ports; `address` is that of this
    /// one), or the API server, which is `target`.
    ///
    /// # Errors
    /// The file with additional certificate authorities is unusable.
    pub(crate) fn new(
        settings: &ExternalSettings,
        address: SocketAddr,
        own: Vec<SocketAddr>,
        target: &Target,
        metrics: &Arc<Metrics>,
        sockets: Arc<Semaphore>,
    ) -> Result<Arc<Self>, Error> {
        let api_server = ApiServer::new(target, service_of_pod());
        let address_policy = Arc::new(AddressPolicy::new(&settings.external_allow, own, api_server));
        let refused = metrics.external_addresses_refused.clone();
        let policy = Arc::clone(&address_policy);
        let gate = Gate::new(move |host, address| {
            policy.check_address(host, address).inspect_err(|_| {
                refused.inc();
            })
        });
        if !address.ip().is_loopback() {
            tracing::warn!(
                %address,
                "--external-address (CTRLMESH_EXTERNAL_ADDRESS) is not on loopback: every client that reaches this port sends \
                 requests from this pod's network address"
            );
        }
        Ok(Arc::new(Self {
            address_policy,
            gate: Arc::new(gate),
            trust: trust::load(settings.external_ca_file.as_deref())?,
            outage: Outage::new(),
            metrics: Arc::clone(metrics),
            sockets,
        }))
    }

    /// Tracks the API server's addresses until `stop`.
    pub(crate) async fn follow_api_server(self: Arc<Self>, stop: CancellationToken) {
        let close = || self.gate.check_open_sockets();
        self.address_policy.api_server.follow_name(stop, close).await;
    }

    /// Checks whether requests to this host name are allowed.
    ///
    /// # Errors
    /// The reason for a refusal, for users.
    fn check_name(&self, host: &str, port: u16) -> Result<(), String> {
        self.address_policy.check_name(host, port).inspect_err(|_| {
            self.metrics.external_addresses_refused.inc();
        })
    }
}

/// Address of Service `kubernetes`, which kubelet sets in each pod's environment.
fn service_of_pod() -> Option<SocketAddr> {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?.parse().ok()?;
    let port = std::env::var("KUBERNETES_SERVICE_PORT").ok()?.parse().ok()?;
    Some(SocketAddr::new(host, port))
}

/// One worker thread's state.
pub(crate) struct External {
    shared: Arc<Shared>,
    limits: Limits,
    notifier: Rc<StreamNotifier>,
    targets: Targets,
    tunnels: Arc<Semaphore>,
}

impl External {
    pub(crate) fn new(shared: Arc<Shared>, head_timeout: Duration, unread: Rc<UnreadResponses>) -> Rc<Self> {
        let limits = Limits {
            connect_timeout: CONNECT_TIMEOUT,
            head_timeout: Some(head_timeout),
            max_connections: MAX_CONNECTIONS,
            sockets: Some(Arc::clone(&shared.sockets)),
            unread,
            ..Limits::default()
        };
        Rc::new(Self {
            targets: Targets::new(shared.metrics.external_targets.clone()),
            shared,
            limits,
            notifier: StreamNotifier::new(),
            tunnels: Arc::new(Semaphore::new(MAX_TUNNELS)),
        })
    }

    /// The outage that closes the external port.
    pub(crate) fn outage(&self) -> &Outage {
        &self.shared.outage
    }

    /// Notifies its connections of outages and the end.
    pub(crate) fn notifier(&self) -> &Rc<StreamNotifier> {
        &self.notifier
    }

    /// Forwards events to its connections, and drops unused targets, until draining.
    pub(crate) async fn run(self: Rc<Self>, drain: CancellationToken) {
        let mut outages = self.shared.outage.subscribe();
        let mut sweeps = tokio::time::interval(targets::SWEEP_INTERVAL);
        loop {
            tokio::select! {
                _ = sweeps.tick() => self.targets.drop_unused(),
                () = outages.next_start() => self.notifier.break_off(),
                () = drain.cancelled() => break,
            }
        }
        self.notifier.end();
    }
}
