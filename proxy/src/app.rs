//! Makes every part in the order of its needs, binds, runs, drains.
//!
//! `build` binds the ports before anything serves and returns their addresses; `run` serves until `stop` and then drains.
//! The thread that calls `run` is the control thread: admin port, chain, credentials and certificate live there; traffic
//! lives on the worker threads. A slow scrape or a chain being compiled never delays a request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use ctrlmesh_contract::names::readiness::LISTENER;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admin::Admin;
use crate::chain::{EntryId, Snapshot};
use crate::config::Settings;
use crate::connection::{HEAD_TIMEOUT, Timeouts};
use crate::descriptors::Descriptors;
use crate::error::Error;
use crate::external;
use crate::listener;
use crate::memory_limit;
use crate::metrics::Metrics;
use crate::outage::Outage;
use crate::readiness::{Guard, Readiness};
use crate::request_memory::RequestMemory;
use crate::tls::ServerTls;
use crate::upstream::Target;
use crate::verdict::Traffic;
use crate::wasm::{Engine, GuestMemory, MemorySeries, PluginSeries, StateStore};
use crate::worker::{self, Order, Shared};

mod feed;
mod ports;

pub use ports::Addresses;
use ports::{Bound, Ports};

/// Connections waiting for a busy worker; the kernel's backlog holds the rest.
const ORDERS: usize = 64;

/// A sidecar whose ports are bound.
pub struct App {
    settings: Settings,
    ports: Ports,
    addresses: Addresses,
    shared: Shared,
    readiness: Readiness,
}

impl App {
    /// Makes the parts and binds the ports. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// Anything that would keep the sidecar from working: settings, ports, kubeconfig, certificate.
    pub async fn build(settings: Settings) -> Result<Self, Error> {
        settings.validate().map_err(Error::Settings)?;
        let (bound, addresses) = Bound::new(&settings)?;
        let mut registry = Metrics::registry();
        let chain = feed::handle(&settings, &mut registry);
        let states = Arc::new(StateStore::new());
        registry.register_collector(Box::new(PluginSeries::new(Arc::clone(&states))));
        let memory = guest_memory(&settings);
        registry.register_collector(Box::new(MemorySeries::new(memory.clone())));
        let metrics = Metrics::new(registry);
        let target = Target::infer(settings.kubeconfig.as_deref(), settings.context.as_deref()).await?;
        let share = Descriptors::raise().share(&settings);
        let external = addresses
            .external
            .map(|_| external::Shared::new(&settings.external, &addresses, &target, &metrics, share.sockets()))
            .transpose()?;
        let shared = Shared {
            target,
            engine: Engine::with_memory(memory)?,
            metrics,
            states,
            chain,
            ledger: Arc::default(),
            locks: Arc::default(),
            leadership: Arc::default(),
            outage: Outage::new(),
            tls: ServerTls::load(settings.tls_dir.as_deref())?,
            timeouts: Timeouts {
                head: HEAD_TIMEOUT,
                idle: settings.idle_timeout(),
            },
            head_timeout: settings.head_timeout(),
            memory: RequestMemory::default(),
            sockets: share.sockets(),
            external,
            drain: CancellationToken::new(),
            stop: CancellationToken::new(),
        };
        let ports = bound.ports(share.connections, &shared);
        Ok(Self {
            settings,
            ports,
            addresses,
            shared,
            readiness: Readiness::new(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Serves until `stop`, then drains.
    ///
    /// # Errors
    /// A thread can't be started, or requests had to be cut off at the end.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let Self {
            settings,
            ports,
            shared,
            readiness,
            ..
        } = self;
        let listening = readiness.guard(LISTENER);
        let awaited = feed::Awaited::of(&settings, &readiness);
        let control = CancellationToken::new();
        let (workers, threads) = start_workers(&settings, &shared)?;
        let mut tasks = JoinSet::new();
        let admin_parts = Admin {
            readiness: readiness.clone(),
            metrics: Arc::clone(&shared.metrics),
            chain: shared.chain.clone(),
            ledger: Arc::clone(&shared.ledger),
            leadership: Arc::clone(&shared.leadership),
            timeouts: shared.timeouts,
        };
        tasks.spawn(admin_parts.serve(ports.admin, control.clone()));
        if let Some(directory) = settings.tls_dir.clone() {
            tasks.spawn(shared.tls.clone().follow(directory, control.clone()));
        }
        if let Some(external) = &shared.external {
            tasks.spawn(Arc::clone(external).follow_api_server(control.clone()));
        }
        let senders = workers.clone();
        feed::start(&mut tasks, &settings, &shared, senders, awaited, control.clone())?;
        if let Some(external) = ports.external {
            tasks.spawn(accept(external, workers.clone(), shared.clone(), None));
        }
        let mut ready = Some(listening);
        let mut accepting = JoinSet::new();
        for port in ports.api {
            accepting.spawn(accept(port, workers.clone(), shared.clone(), ready.take()));
        }
        drop(workers);
        tokio::select! {
            _ = accepting.join_next() => {}
            () = stop => {}
        }
        accepting.shutdown().await;
        readiness.drain();
        let drained = drain(&settings, &shared, threads).await;
        control.cancel();
        tasks.shutdown().await;
        drained
    }
}

/// What plugins may use of the memory of this process.
fn guest_memory(settings: &Settings) -> GuestMemory {
    let Some(limit_bytes) = memory_limit::effective(settings.memory_limit) else {
        tracing::info!("there is no memory limit: plugins may use what each entry may have");
        return GuestMemory::unlimited();
    };
    let memory = GuestMemory::within(usize::try_from(limit_bytes).unwrap_or(usize::MAX));
    let plugin_bytes = memory.bounds().map(|bounds| bounds.budget_bytes);
    tracing::info!(limit_bytes, plugin_bytes, "plugins share a part of the memory limit");
    memory
}

/// Accepts from the first chain on, until draining.
async fn accept(port: listener::Port, workers: Vec<mpsc::Sender<Order>>, shared: Shared, listening: Option<Guard>) {
    shared.chain.ready().await;
    drop(listening);
    let (metrics, drain) = (Arc::clone(&shared.metrics), shared.drain.clone());
    drop(shared);
    if port.traffic == Traffic::Api {
        metrics.api_traffic.begins(SystemTime::now());
    }
    listener::accept(port, workers, metrics, drain).await;
}

type Workers = (Vec<mpsc::Sender<Order>>, Vec<JoinHandle<std::io::Result<()>>>);

fn start_workers(settings: &Settings, shared: &Shared) -> Result<Workers, Error> {
    let mut senders = Vec::new();
    let mut threads = Vec::new();
    for number in 0..usize::from(settings.workers) {
        let (sender, orders) = mpsc::channel(ORDERS);
        let shared = shared.clone();
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || worker::run(number, shared, orders))
            .map_err(Error::Thread)?;
        senders.push(sender);
        threads.push(thread);
    }
    Ok((senders, threads))
}

/// Lets requests finish, up to the deadline; then ends them.
async fn drain(
    settings: &Settings,
    shared: &Shared,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
) -> Result<(), Error> {
    shared.drain.cancel();
    let joined = tokio::task::spawn_blocking(move || {
        for thread in threads {
            // A worker that panicked has been reported by the panic itself.
            let _ = thread.join();
        }
    });
    tokio::pin!(joined);
    let forced = tokio::select! {
        _ = &mut joined => return Ok(()),
        () = tokio::time::sleep(settings.drain_deadline()) => {
            Err(Error::Forced { seconds: settings.drain_timeout })
        }
    };
    shared.stop.cancel();
    let _ = joined.await;
    forced
}

/// Has every worker start the instances of a chain that is about to come into force.
///
/// # Errors
/// The first worker that could not.
pub(crate) async fn prepare(workers: &[mpsc::Sender<Order>], snapshot: &Arc<Snapshot>) -> Result<(), String> {
    let mut answers = Vec::new();
    for worker in workers {
        let (done, answer) = oneshot::channel();
        if worker.send(Order::Prepare(Arc::clone(snapshot), done)).await.is_ok() {
            answers.push(answer);
        }
    }
    for answer in answers {
        answer
            .await
            .unwrap_or_else(|_| Err("the worker is ending".to_owned()))?;
    }
    Ok(())
}

/// Has every worker end the instances of all entries but these.
pub(crate) async fn make_room(workers: &[mpsc::Sender<Order>], kept: BTreeSet<EntryId>) {
    let kept = Arc::new(kept);
    let mut answers = Vec::new();
    for worker in workers {
        let (done, answer) = oneshot::channel();
        if worker.send(Order::MakeRoom(Arc::clone(&kept), done)).await.is_ok() {
            answers.push(answer);
        }
    }
    for answer in answers {
        // A worker that is ending has no instances soon.
        let _ = answer.await;
    }
}
