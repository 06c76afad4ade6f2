//! The worker threads: each has its own event loop and serves the connections that `accept` deals to it.
//!
//! `app` owns the threads and ends them. What a thread serves requests with is `request::worker`.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::serve::{self, ServerThread};
use super::tls::ServerTls;
use crate::chain::{EntryId, Snapshot};
use crate::connection::{Outage, RequestMemory, Timeouts};
use crate::external::{self, External};
use crate::observe::warning_rate::WarningRate;
use crate::plugin::verdict::Traffic;
use crate::request::worker::{Shared, Worker};

/// What all worker threads serve connections with.
pub(crate) struct Server {
    /// What requests are served with.
    pub(crate) requests: Arc<Shared>,
    /// `None`: external traffic is disabled.
    pub(crate) external: Option<Arc<external::Shared>>,
    /// By which the API port closes.
    pub(crate) outage: Outage,
    pub(crate) tls: ServerTls,
    pub(crate) timeouts: Timeouts,
    /// Bounds the bytes that requests hold.
    pub(crate) memory: RequestMemory,
}

/// What a worker thread is asked to do.
pub(crate) enum Task {
    /// Serve this connection. The permit is given back when it ends.
    Serve(Traffic, TcpStream, OwnedSemaphorePermit),
    /// Start the instances of this chain, which is about to come into force.
    Prepare(Arc<Snapshot>, oneshot::Sender<Result<(), String>>),
    /// End the instances of all entries but these.
    MakeRoom(Arc<BTreeSet<EntryId>>, oneshot::Sender<()>),
}

/// Runs the worker of this number until `tasks` ends or the server stops. Blocks the thread.
///
/// # Errors
/// The event loop could not be made.
pub(crate) fn run(number: usize, server: Arc<Server>, tasks: mpsc::Receiver<Task>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, work(number, server, tasks));
    Ok(())
}

async fn work(number: usize, server: Arc<Server>, mut tasks: mpsc::Receiver<Task>) {
    let unread = Rc::default();
    let worker = Worker::new(number, Arc::clone(&server.requests), Rc::clone(&unread));
    let external = server.external.as_ref();
    let thread = Rc::new(ServerThread {
        external: external.map(|shared| External::new(Arc::clone(shared), server.requests.head_timeout, unread)),
        unexpected_tls: WarningRate::default(),
        worker: Rc::clone(&worker),
        server,
    });
    worker.spawn(notify_streams(Rc::clone(&thread)));
    let drain = &worker.shared.drain;
    if let Some(external) = &thread.external {
        worker.spawn(Rc::clone(external).run(drain.clone()));
        if number == 0 {
            worker.spawn(external::follow_advertised(Rc::clone(&worker), Rc::clone(external)));
        }
    }
    loop {
        tokio::select! {
            task = tasks.recv() => match task {
                Some(task) => start(&thread, task),
                None => break,
            },
            () = drain.cancelled() => break,
        }
    }
    drop(tasks);
    tokio::select! {
        () = worker.wait_for_tasks() => {}
        () = worker.shared.stop.cancelled() => {}
    }
}

fn start(thread: &Rc<ServerThread>, task: Task) {
    match task {
        Task::Serve(traffic, stream, permit) => {
            let serving = Rc::clone(thread);
            thread.worker.spawn(async move {
                let metrics = Arc::clone(&serving.worker.shared.metrics);
                metrics.connections.inc();
                match tokio::net::TcpStream::from_std(stream) {
                    Ok(stream) => serve::serve(serving, traffic, stream, permit).await,
                    Err(error) => tracing::warn!(%error, "failed to hand a connection to its worker"),
                }
                metrics.connections.dec();
            });
        }
        Task::Prepare(snapshot, done) => {
            let prepared = thread.worker.instances.prepare(&snapshot);
            // The asker may have given up.
            let _ = done.send(prepared.map_err(|(entry, fault)| format!("{entry}: {fault}")));
        }
        Task::MakeRoom(kept, done) => {
            thread.worker.instances.make_room(|id| kept.contains(&id));
            let _ = done.send(());
        }
    }
}

/// Passes on to the streams of this thread what happens to the process.
async fn notify_streams(thread: Rc<ServerThread>) {
    let worker = &thread.worker;
    let mut changes = worker.shared.chain.subscribe();
    let mut outages = thread.server.outage.subscribe();
    let mut retirements = worker.shared.chain.retirements().subscribe();
    loop {
        tokio::select! {
            () = outages.begun() => worker.notifier.break_off(),
            Ok(()) = retirements.changed() => worker.instances.forget_retired(),
            changed = changes.changed() => match changed {
                Ok(()) => worker.notifier.chain_changed(),
                Err(_) => break,
            },
            () = worker.shared.drain.cancelled() => break,
        }
    }
    worker.shared.drain.cancelled().await;
    worker.notifier.end();
}
