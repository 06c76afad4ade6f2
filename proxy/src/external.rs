//! Calls to other services than the API server: a forward proxy with three ways in, and the same plugins as API traffic.
//!
//! Flow: `destination` reads where a request goes; `call` asks the plugins, sends, asks again; `targets` has connections to
//! each server, which `reach` lets be opened or not; `tunnel` carries bytes after a CONNECT. `api_server` and `advertised` know
//! where the API server is, which is out of reach. What is the same for API traffic is shared: `connection`, `phases`, `record`, `ending`, `upstream`.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::app::Addresses;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::outage::Outage;
use crate::signal::Signal;
use crate::upstream::{Gate, Limits, Target, Trust, UnreadAnswers};

mod advertised;
mod api_server;
mod call;
mod destination;
mod edit;
mod reach;
mod settings;
mod targets;
mod trust;
mod tunnel;

pub(crate) use advertised::follow_advertised;
pub(crate) use call::handle;
pub(crate) use destination::{DestinationError, Way};
pub use settings::{Allow, ExternalSettings};

use api_server::ApiServer;
use reach::Reach;
use targets::Targets;

/// Servers on the internet are farther away than an API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections to one target, of one thread: HTTP/1.1 servers take one for each request under way.
const MAX_CONNECTIONS: usize = 256;

/// Tunnels of one thread. Each holds two sockets and up to 128 KiB.
const MAX_TUNNELS: usize = 1024;

/// What all threads share.
pub(crate) struct Shared {
    reach: Arc<Reach>,
    gate: Arc<Gate>,
    trust: Trust,
    pub(crate) outage: Outage,
    metrics: Arc<Metrics>,
    /// Of connections to other services, tunnels too.
    sockets: Arc<Semaphore>,
}

impl Shared {
    /// Reads the certificate authorities. `addresses`: the sidecar's own, and `target`: the API server; nobody reaches either
    /// through this port.
    ///
    /// # Errors
    /// The file of more certificate authorities is of no use.
    pub(crate) fn new(
        settings: &ExternalSettings,
        addresses: &Addresses,
        target: &Target,
        metrics: &Arc<Metrics>,
        sockets: Arc<Semaphore>,
    ) -> Result<Arc<Self>, Error> {
        let own = addresses
            .api
            .iter()
            .copied()
            .chain([addresses.admin])
            .chain(addresses.external);
        let api_server = ApiServer::new(target, service_of_pod());
        let reach = Arc::new(Reach::new(&settings.external_allow, own.collect(), api_server));
        let refused = metrics.external_addresses_refused.clone();
        let judge = Arc::clone(&reach);
        let gate = Gate::new(move |host, address| {
            judge.judge(host, address).inspect_err(|_| {
                refused.inc();
            })
        });
        if let Some(address) = addresses.external.filter(|address| !address.ip().is_loopback()) {
            tracing::warn!(
                %address,
                "--external-address (CTRLMESH_EXTERNAL_ADDRESS) is not on loopback: whoever reaches this port sends requests from \
                 this pod's place in the network"
            );
        }
        Ok(Arc::new(Self {
            reach,
            gate: Arc::new(gate),
            trust: trust::load(settings.external_ca_file.as_deref())?,
            outage: Outage::new(),
            metrics: Arc::clone(metrics),
            sockets,
        }))
    }

    /// Keeps knowing where the API server is, until `stop`.
    pub(crate) async fn follow_api_server(self: Arc<Self>, stop: CancellationToken) {
        let close = || self.gate.check_open_sockets();
        self.reach.api_server.follow(stop, close).await;
    }

    /// Whether a host of this name may be called.
    ///
    /// # Errors
    /// Why not, for people.
    fn judge_name(&self, host: &str, port: u16) -> Result<(), String> {
        self.reach.judge_name(host, port).inspect_err(|_| {
            self.metrics.external_addresses_refused.inc();
        })
    }
}

/// Where Service `kubernetes` is, as kubelet tells each pod.
fn service_of_pod() -> Option<SocketAddr> {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?.parse().ok()?;
    let port = std::env::var("KUBERNETES_SERVICE_PORT").ok()?.parse().ok()?;
    Some(SocketAddr::new(host, port))
}

/// One worker thread's part.
pub(crate) struct External {
    shared: Arc<Shared>,
    limits: Limits,
    signal: Rc<Signal>,
    targets: Targets,
    tunnels: Arc<Semaphore>,
}

impl External {
    pub(crate) fn new(shared: Arc<Shared>, head_timeout: Duration, unread: Rc<UnreadAnswers>) -> Rc<Self> {
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
            signal: Signal::new(),
            tunnels: Arc::new(Semaphore::new(MAX_TUNNELS)),
        })
    }

    /// By which its port closes.
    pub(crate) fn outage(&self) -> &Outage {
        &self.shared.outage
    }

    /// What its connections listen to.
    pub(crate) fn signal(&self) -> &Rc<Signal> {
        &self.signal
    }

    /// Tells its connections what happens, and drops targets that nobody asks any more, until draining.
    pub(crate) async fn run(self: Rc<Self>, drain: CancellationToken) {
        let mut outages = self.shared.outage.subscribe();
        let mut sweeps = tokio::time::interval(targets::SWEEP);
        loop {
            tokio::select! {
                _ = sweeps.tick() => self.targets.drop_unused(),
                () = outages.begun() => self.signal.break_off(),
                () = drain.cancelled() => break,
            }
        }
        self.signal.end();
    }
}
