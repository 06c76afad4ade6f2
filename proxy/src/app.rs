//! Builds every part in dependency order, binds the ports, runs, drains.
//!
//! | file | what is in it |
//! |---|---|
//! | `chain_source` | connects the chain to the process: its source, and the workers that prepare each snapshot |
//! | `ports` | binds all ports before anything serves |
//! | `descriptors` | raises the limit of file descriptors, and divides it between the ports |
//! | `huge_pages` | keeps the kernel from backing the process with huge pages |
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

use crate::chain::{EntryId, ReuseSettings, Snapshot};
use crate::config::memory_limit;
use crate::config::{Settings, Switch};
use crate::connection::Outage;
use crate::connection::{ClientMemory, ClientMemorySeries, HEAD_TIMEOUT, RequestMemory, ResponseMemory, Timeouts};
use crate::controller_state::leader_locks::LeaderLocks;
use crate::error::Error;
use crate::external;
use crate::listen::accept;
use crate::listen::serve::Server;
use crate::listen::threads::{self, Task};
use crate::listen::tls::ServerTls;
use crate::memory_shares::{ClientShares, SMALLEST_LIMIT};
use crate::observe::admin::Admin;
use crate::observe::metrics::Metrics;
use crate::observe::readiness::{Guard, Readiness};
use crate::plugin::verdict::Traffic;
use crate::request::worker::Shared;
use crate::upstream::Target;
use crate::wasm::{Engine, GuestMemory, MemorySeries, PluginSeries, StateStore};

mod chain_source;
mod descriptors;
mod huge_pages;
mod ports;

use chain_source::ChainLoader;
use descriptors::Descriptors;
pub use huge_pages::disable_huge_pages;
pub use ports::Addresses;
use ports::{Bound, Ports};

/// Maximum number of tasks that wait for a busy worker; the kernel's backlog holds further connections.
const MAX_WAITING_TASKS: usize = 64;

/// A sidecar whose ports are bound and which does not serve yet.
pub struct App {
    settings: Settings,
    ports: Ports,
    addresses: Addresses,
    server: Arc<Server>,
    states: Arc<StateStore>,
    readiness: Readiness,
}

impl App {
    /// Builds all parts and binds the ports. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Any problem with settings, ports, kubeconfig or certificate that would keep the sidecar from working.
    pub async fn build(settings: Settings) -> Result<Self, Error> {
        settings.validate().map_err(Error::Settings)?;
        let (bound, addresses) = Bound::new(&settings)?;
        let mut registry = Metrics::registry();
        let chain = chain_source::chain_handle(&settings, &mut registry);
        let states = Arc::new(StateStore::new());
        registry.register_collector(Box::new(PluginSeries::new(Arc::clone(&states))));
        let (memory, clients) = divide_memory(&settings);
        registry.register_collector(Box::new(MemorySeries::new(memory.clone())));
        let client_memory = ClientMemory {
            requests: RequestMemory::within(clients.requests),
            responses: ResponseMemory::within(clients.unsent),
        };
        registry.register_collector(Box::new(ClientMemorySeries::new(client_memory.clone())));
        let metrics = Metrics::new(registry);
        let target = Target::infer(settings.kubeconfig.as_deref(), settings.context.as_deref()).await?;
        log_start(&settings, &target);
        let share = Descriptors::raise_limit().divide(&settings);
        let external = addresses
            .external
            .map(|address| {
                let own = addresses.bound_addresses();
                external::Shared::new(
                    &settings.external,
                    address,
                    own,
                    &target,
                    &metrics,
                    share.socket_permits(),
                )
            })
            .transpose()?;
        let requests = Shared {
            target,
            chain,
            engine: Engine::with_memory(memory)?,
            metrics,
            list_views: Arc::default(),
            leader_locks: LeaderLocks::default(),
            leadership: Arc::default(),
            reuse: reuse_settings(&settings),
            head_timeout: settings.head_timeout(),
            sockets: share.socket_permits(),
            drain: CancellationToken::new(),
            stop: CancellationToken::new(),
        };
        let server = Arc::new(Server {
            requests: Arc::new(requests),
            external,
            outage: Outage::new(),
            tls: ServerTls::load(settings.tls_dir.as_deref())?,
            timeouts: Timeouts {
                head: HEAD_TIMEOUT,
                idle: settings.idle_timeout(),
            },
            memory: client_memory,
            unread: clients.unread_of_thread(settings.workers.into()),
        });
        let most = clients.connections_of_port(1 + usize::from(addresses.external.is_some()));
        let ports = bound.into_ports(share.connections.min(most), &server);
        Ok(Self {
            settings,
            ports,
            addresses,
            server,
            states,
            readiness: Readiness::new(),
        })
    }

    #[must_use]
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Serves until `stop`, then drains.
    ///
    /// # Errors
    /// A thread cannot be started, or requests had to be cut off at the end.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let Self {
            settings,
            ports,
            server,
            states,
            readiness,
            ..
        } = self;
        let listening = readiness.guard(LISTENER);
        let awaited = chain_source::Awaited::from_settings(&settings, &readiness);
        let control = CancellationToken::new();
        let shared = &server.requests;
        let (workers, threads) = start_workers(&settings, &server)?;
        let mut tasks = JoinSet::new();
        let admin = Admin {
            readiness: readiness.clone(),
            metrics: Arc::clone(&shared.metrics),
            chain: shared.chain.clone(),
            list_views: Arc::clone(&shared.list_views),
            leadership: Arc::clone(&shared.leadership),
            timeouts: server.timeouts,
        };
        tasks.spawn(admin.serve(ports.admin, control.clone()));
        if let Some(directory) = settings.tls_dir.clone() {
            tasks.spawn(server.tls.clone().follow_directory(directory, control.clone()));
        }
        if let Some(external) = &server.external {
            tasks.spawn(Arc::clone(external).follow_api_server(control.clone()));
        }
        let loader = ChainLoader {
            settings: &settings,
            shared,
            states,
            workers: workers.clone(),
        };
        loader.start(&mut tasks, awaited, control.clone())?;
        if let Some(external) = ports.external {
            tasks.spawn(accept_clients(external, workers.clone(), Arc::clone(shared), None));
        }
        let mut ready = Some(listening);
        let mut accepting = JoinSet::new();
        for port in ports.api {
            accepting.spawn(accept_clients(port, workers.clone(), Arc::clone(shared), ready.take()));
        }
        drop(workers);
        tokio::select! {
            _ = accepting.join_next() => {}
            () = stop => {}
        }
        accepting.shutdown().await;
        readiness.drain();
        let drained = drain(&settings, shared, threads).await;
        control.cancel();
        tasks.shutdown().await;
        drained
    }
}

/// Logs what the process will do, so that a wrong kubeconfig or a missing key is noticed at once.
fn log_start(settings: &Settings, target: &Target) {
    // Without a user and password that the URL may have.
    let api_server = format!("{}:{}", target.authority().host(), target.port());
    let chains = settings.chain_verification();
    tracing::info!(%api_server, chains, "requests go to the API server");
}

/// Memory that plugins and clients may use of this process.
fn divide_memory(settings: &Settings) -> (GuestMemory, ClientShares) {
    let Some(limit) = memory_limit::effective_limit(settings.memory_limit) else {
        let clients = ClientShares::unlimited(settings.workers.into());
        tracing::info!(
            request_bytes = clients.requests,
            unread_bytes = clients.unread,
            unsent_bytes = clients.unsent,
            "no memory limit is set: plugins are limited by their entries alone"
        );
        return (GuestMemory::unlimited(), clients);
    };
    let limit_bytes = usize::try_from(limit).unwrap_or(usize::MAX);
    let (memory, clients) = (GuestMemory::within(limit_bytes), ClientShares::within(limit_bytes));
    tracing::info!(
        limit_bytes,
        plugin_bytes = memory.bounds().map(|bounds| bounds.plugin_limit_bytes),
        request_bytes = clients.requests,
        unread_bytes = clients.unread,
        unsent_bytes = clients.unsent,
        connections = clients.connections,
        "plugins and clients share the memory limit"
    );
    if limit_bytes < SMALLEST_LIMIT {
        tracing::warn!(
            limit_bytes,
            needed_bytes = SMALLEST_LIMIT,
            "the memory limit is lower than plugins and clients need together, so the kernel may kill the sidecar; raise it"
        );
    }
    (memory, clients)
}

/// Accepts connections from the first chain on, until draining.
async fn accept_clients(
    port: accept::Port,
    workers: Vec<mpsc::Sender<Task>>,
    shared: Arc<Shared>,
    listening: Option<Guard>,
) {
    shared.chain.wait_until_ready().await;
    drop(listening);
    let (metrics, drain) = (Arc::clone(&shared.metrics), shared.drain.clone());
    drop(shared);
    if port.traffic == Traffic::Api {
        metrics.api_traffic.record_start(SystemTime::now());
    }
    accept::accept(port, workers, metrics, drain).await;
}

type Workers = (Vec<mpsc::Sender<Task>>, Vec<JoinHandle<std::io::Result<()>>>);

fn start_workers(settings: &Settings, server: &Arc<Server>) -> Result<Workers, Error> {
    let mut senders = Vec::new();
    let mut threads = Vec::new();
    for number in 0..usize::from(settings.workers) {
        let (sender, waiting) = mpsc::channel(MAX_WAITING_TASKS);
        let server = Arc::clone(server);
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || threads::run(number, server, waiting))
            .map_err(Error::Thread)?;
        senders.push(sender);
        threads.push(thread);
    }
    Ok((senders, threads))
}

/// Lets requests finish until the deadline, then cuts off the rest.
async fn drain(
    settings: &Settings,
    shared: &Shared,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
) -> Result<(), Error> {
    shared.drain.cancel();
    let joined = tokio::task::spawn_blocking(move || {
        for thread in threads {
            // A panic in a worker has already been reported.
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

/// Makes every worker start the instances of a chain that is about to come into force.
///
/// # Errors
/// The first worker that failed.
pub(crate) async fn prepare_workers(workers: &[mpsc::Sender<Task>], snapshot: &Arc<Snapshot>) -> Result<(), String> {
    let mut waiting = Vec::new();
    for worker in workers {
        let (done, finished) = oneshot::channel();
        if worker.send(Task::Prepare(Arc::clone(snapshot), done)).await.is_ok() {
            waiting.push(finished);
        }
    }
    for finished in waiting {
        finished
            .await
            .unwrap_or_else(|_| Err("the worker is ending".to_owned()))?;
    }
    Ok(())
}

/// Makes every worker end the instances of all entries but these.
pub(crate) async fn make_room(workers: &[mpsc::Sender<Task>], kept: BTreeSet<EntryId>) {
    let kept = Arc::new(kept);
    let mut waiting = Vec::new();
    for worker in workers {
        let (done, finished) = oneshot::channel();
        if worker.send(Task::MakeRoom(Arc::clone(&kept), done)).await.is_ok() {
            waiting.push(finished);
        }
    }
    for finished in waiting {
        // A worker that is ending will have no instances soon.
        let _ = finished.await;
    }
}

/// Whether verdicts of plugins are repeated, and how often that is checked.
fn reuse_settings(settings: &Settings) -> ReuseSettings {
    ReuseSettings {
        is_on: settings.plugin_reuse == Switch::On,
        audited_one_in: settings.plugin_audit,
    }
}
