//! A thread that carries traffic: its own event loop, upstream connections and plugin instances. What the request path
//! shares is what docs/adr/0002 names: counters, what plugins remember and, behind short locks, the `ledger` for lists and
//! watches while a plugin shapes them, and the `leadership` for exchanges about locks that a plugin renames.
//!
//! The acceptor (`listener`) hands connections over; `app` owns the threads and ends them.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::chain::{ChainHandle, Counter, EntryId, Kind, Snapshot, Ticket};
use crate::connection::{self, Service, Timeouts};
use crate::external::{self, External};
use crate::instances::Instances;
use crate::leader_lock::LeaderLocks;
use crate::leadership::Leadership;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::outage::Outage;
use crate::request_memory::RequestMemory;
use crate::signal::Signal;
use crate::tls::ServerTls;
use crate::upstream::{Credentials, Limits, Target, Upstream};
use crate::verdict::Traffic;
use crate::warning_rate::WarningRate;
use crate::wasm::{Engine, StateStore};

/// What every worker thread is made of; shared.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) target: Arc<Target>,
    pub(crate) chain: Arc<ChainHandle>,
    pub(crate) engine: Arc<Engine>,
    /// What the plugins' entries remember.
    pub(crate) states: Arc<StateStore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) locks: Arc<LeaderLocks>,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) outage: Outage,
    pub(crate) tls: ServerTls,
    /// Of client connections.
    pub(crate) timeouts: Timeouts,
    pub(crate) head_timeout: Duration,
    /// What requests hold.
    pub(crate) memory: RequestMemory,
    /// Of connections to the API server.
    pub(crate) sockets: Arc<Semaphore>,
    /// `None`: external traffic is off.
    pub(crate) external: Option<Arc<external::Shared>>,
    /// Graceful: connections finish what they have and take no more.
    pub(crate) drain: CancellationToken,
    /// Forced: everything ends now.
    pub(crate) stop: CancellationToken,
}

/// One worker thread's state.
pub(crate) struct Worker {
    upstream: Rc<Upstream>,
    /// For requests that bring an identity of their own; the same one unless ours is a client certificate.
    strangers: Rc<Upstream>,
    pub(crate) chain: Arc<ChainHandle>,
    counter: Counter,
    pub(crate) instances: Rc<Instances>,
    pub(crate) signal: Rc<Signal>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) locks: Arc<LeaderLocks>,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) outage: Outage,
    pub(crate) tls: ServerTls,
    pub(crate) timeouts: Timeouts,
    pub(crate) memory: RequestMemory,
    /// Clients that speak TLS where there is no certificate.
    pub(crate) unexpected_tls: WarningRate,
    pub(crate) drain: CancellationToken,
    pub(crate) stop: CancellationToken,
    external: Option<Rc<External>>,
    target: Arc<Target>,
    tasks: TaskTracker,
}

/// The connections for requests that are lent our credentials, and those for requests that bring their own.
fn upstreams(target: &Arc<Target>, limits: Limits) -> (Rc<Upstream>, Rc<Upstream>) {
    let upstream = Upstream::new(Arc::clone(target), limits.clone());
    let strangers = match target.for_strangers() {
        same if Arc::ptr_eq(same, target) => Rc::clone(&upstream),
        other => Upstream::new(Arc::clone(other), limits),
    };
    (upstream, strangers)
}

/// What a worker thread is told.
pub(crate) enum Order {
    /// Serve this connection. The permit is given back with it.
    Serve(Traffic, TcpStream, tokio::sync::OwnedSemaphorePermit),
    /// Start the instances of this chain, which is about to come into force.
    Prepare(Arc<Snapshot>, oneshot::Sender<Result<(), String>>),
    /// End the instances of all entries but these.
    MakeRoom(Arc<BTreeSet<EntryId>>, oneshot::Sender<()>),
}

impl Worker {
    fn new(number: usize, shared: Shared) -> Rc<Self> {
        let Shared {
            target,
            chain,
            engine,
            states: _,
            metrics,
            ledger,
            locks,
            leadership,
            outage,
            tls,
            timeouts,
            head_timeout,
            memory,
            sockets,
            external,
            drain,
            stop,
        } = shared;
        let limits = Limits {
            head_timeout: Some(head_timeout),
            sockets: Some(sockets),
            ..Limits::default()
        };
        let unread = Rc::clone(&limits.unread);
        let (upstream, strangers) = upstreams(&target, limits);
        Rc::new(Self {
            upstream,
            strangers,
            instances: Rc::new(Instances::new(engine, Arc::clone(&chain), Arc::clone(&metrics))),
            signal: Signal::new(),
            chain,
            counter: Counter::new(number),
            metrics,
            ledger,
            locks,
            leadership,
            outage,
            tls,
            timeouts,
            memory,
            unexpected_tls: WarningRate::default(),
            drain,
            stop,
            external: external.map(|shared| External::new(shared, head_timeout, unread)),
            target,
            tasks: TaskTracker::new(),
        })
    }

    /// The sidecar's own credentials, for requests that bring none.
    pub(crate) fn credentials(&self) -> &Credentials {
        self.target.credentials()
    }

    /// The connections for a request that was lent our credentials, or has its own.
    pub(crate) fn upstream(&self, is_lent: bool) -> &Rc<Upstream> {
        if is_lent { &self.upstream } else { &self.strangers }
    }

    /// Host name of the API server.
    pub(crate) fn host(&self) -> &str {
        self.target.authority().host()
    }

    /// Port of the API server.
    pub(crate) fn port(&self) -> u16 {
        self.target.port()
    }

    fn service(&self, traffic: Traffic) -> Service {
        match &self.external {
            Some(external) if traffic == Traffic::External => Service::External(Rc::clone(external)),
            _ => Service::Api,
        }
    }

    /// The chain in force, for a request that `/status` counts as long as the ticket lives.
    pub(crate) fn enter(&self, kind: Kind) -> (Guard<Arc<Snapshot>>, Ticket) {
        self.chain.enter(&self.counter, kind)
    }

    /// Runs a task on this thread; it is waited for at the end.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn_local(task);
    }

    /// For hyper's own tasks.
    pub(crate) fn executor(&self) -> LocalExecutor {
        LocalExecutor(self.tasks.clone())
    }
}

/// Spawns on the worker's own thread.
#[derive(Debug, Clone)]
pub(crate) struct LocalExecutor(TaskTracker);

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        self.0.spawn_local(task);
    }
}

/// Runs the worker of this number until the orders end or it is stopped. Blocks the thread.
///
/// # Errors
/// The event loop could not be made.
pub(crate) fn run(number: usize, shared: Shared, orders: mpsc::Receiver<Order>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, work(number, shared, orders));
    Ok(())
}

async fn work(number: usize, shared: Shared, mut orders: mpsc::Receiver<Order>) {
    let (drain, stop) = (shared.drain.clone(), shared.stop.clone());
    let worker = Worker::new(number, shared);
    worker.spawn(hear(Rc::clone(&worker)));
    if let Some(external) = &worker.external {
        worker.spawn(Rc::clone(external).run(drain.clone()));
        if number == 0 {
            worker.spawn(external::follow_advertised(Rc::clone(&worker), Rc::clone(external)));
        }
    }
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => obey(&worker, order),
                None => break,
            },
            () = drain.cancelled() => break,
        }
    }
    drop(orders);
    worker.tasks.close();
    tokio::select! {
        () = worker.tasks.wait() => {}
        () = stop.cancelled() => {}
    }
}

fn obey(worker: &Rc<Worker>, order: Order) {
    match order {
        Order::Serve(traffic, stream, permit) => {
            let serving = Rc::clone(worker);
            let service = worker.service(traffic);
            worker.spawn(async move {
                serving.metrics.connections.inc();
                match tokio::net::TcpStream::from_std(stream) {
                    Ok(stream) => connection::serve(Rc::clone(&serving), service, stream, permit).await,
                    Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
                }
                serving.metrics.connections.dec();
            });
        }
        Order::Prepare(snapshot, done) => {
            let prepared = worker.instances.prepare(&snapshot);
            // The asker may have given up.
            let _ = done.send(prepared.map_err(|(entry, fault)| format!("{entry}: {fault}")));
        }
        Order::MakeRoom(kept, done) => {
            worker.instances.make_room(|id| kept.contains(&id));
            let _ = done.send(());
        }
    }
}

/// Passes on to the streams what happens to the process.
async fn hear(worker: Rc<Worker>) {
    let mut changes = worker.chain.subscribe();
    let mut outages = worker.outage.subscribe();
    let mut retirements = worker.chain.retirements().subscribe();
    loop {
        tokio::select! {
            () = outages.begun() => worker.signal.break_off(),
            Ok(()) = retirements.changed() => worker.instances.forget_retired(),
            changed = changes.changed() => match changed {
                Ok(()) => worker.signal.chain_changed(),
                Err(_) => break,
            },
            () = worker.drain.cancelled() => break,
        }
    }
    worker.drain.cancelled().await;
    worker.signal.end();
}
