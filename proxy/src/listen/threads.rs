//! The worker threads: each has its own event loop and serves the connections that `accept` hands to it.
//!
//! `app` owns the threads and ends them. `request::worker` has the state with which a thread serves requests.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;

use ctrlmesh_logging::WarningRate;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::serve::{self, Server, ServerThread};
use crate::chain::{EntryId, Snapshot};
use crate::connection::ResponseReaders;
use crate::external::{self, External};
use crate::plugin::verdict::Traffic;
use crate::request::worker::Worker;
use crate::upstream::UnreadResponses;

/// A task for a worker thread.
pub(crate) enum Task {
    /// Serve this connection. The permit is released when it ends.
    Serve(Traffic, TcpStream, OwnedSemaphorePermit),
    /// Start the instances of this chain, which is about to come into force.
    Prepare(Arc<Snapshot>, oneshot::Sender<Result<(), String>>),
    /// End the instances of all entries but these.
    MakeRoom(Arc<BTreeSet<EntryId>>, oneshot::Sender<()>),
}

/// Runs worker `number` until `tasks` ends or the server stops. Blocks the thread.
///
/// # Errors
/// The event loop could not be created.
pub(crate) fn run(number: usize, server: Arc<Server>, tasks: mpsc::Receiver<Task>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    // A task, because a `LocalSet` polls the future itself each time that any of its tasks is woken.
    let worker = local.spawn_local(run_worker(number, server, tasks));
    if let Err(error) = local.block_on(&runtime, worker)
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
    Ok(())
}

async fn run_worker(number: usize, server: Arc<Server>, mut tasks: mpsc::Receiver<Task>) {
    let unread = Rc::new(UnreadResponses::within(server.unread));
    let worker = Worker::new(number, Arc::clone(&server.requests), Rc::clone(&unread));
    let external = server.external.as_ref();
    let thread = Rc::new(ServerThread {
        external: external.map(|shared| External::new(Arc::clone(shared), server.requests.head_timeout, unread)),
        unexpected_tls: WarningRate::default(),
        readers: ResponseReaders::default(),
        worker: Rc::clone(&worker),
        server,
    });
    worker.spawn(notify_streams(Rc::clone(&thread)));
    worker.spawn(close_stalled(Rc::clone(&thread)));
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
                Some(task) => start_task(&thread, task),
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

fn start_task(thread: &Rc<ServerThread>, task: Task) {
    match task {
        Task::Serve(traffic, stream, permit) => {
            let serving = Rc::clone(thread);
            thread.worker.spawn(async move {
                let metrics = Arc::clone(&serving.worker.shared.metrics);
                metrics.connections.inc();
                match tokio::net::TcpStream::from_std(stream) {
                    Ok(stream) => serve::serve(serving, traffic, stream, permit).await,
                    Err(error) => tracing::warn!(%error, "failed to hand connection to worker"),
                }
                metrics.connections.dec();
            });
        }
        Task::Prepare(snapshot, done) => {
            let prepared = thread.worker.instances.prepare(&snapshot);
            // The receiver may have given up.
            let _ = done.send(prepared.map_err(|(entry, fault)| format!("{entry}: {fault}")));
        }
        Task::MakeRoom(kept, done) => {
            thread.worker.instances.make_room(|id| kept.contains(&id));
            let _ = done.send(());
        }
    }
}

/// Closes connections whose clients read nothing, until draining, which has a deadline of its own.
async fn close_stalled(thread: Rc<ServerThread>) {
    tokio::select! {
        () = thread.readers.close_stalled(&thread.server.memory.responses) => {}
        () = thread.worker.shared.drain.cancelled() => {}
    }
}

/// Forwards events of the process to the streams of this thread.
async fn notify_streams(thread: Rc<ServerThread>) {
    let worker = &thread.worker;
    let mut changes = worker.shared.chain.subscribe();
    let mut outages = thread.server.outage.subscribe();
    let mut retirements = worker.shared.chain.retirements().subscribe();
    loop {
        tokio::select! {
            () = outages.next_start() => worker.notifier.break_off(),
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
