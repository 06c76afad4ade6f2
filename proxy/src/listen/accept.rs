//! Accepts connections and hands them to the worker threads in turn.
//!
//! Ports are bound before anything starts, so that a taken port is an error at once and tests can use port 0. Accepting begins with the
//! first chain, so that no request passes unfiltered; until then the kernel lets clients wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_logging::WarningRate;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::threads::Task;
use crate::connection::{Outage, Outages};
use crate::error::Error;
use crate::observe::metrics::Metrics;
use crate::plugin::verdict::Traffic;

/// Connections that wait in the kernel while the sidecar is busy or loads the first chain.
const BACKLOG: i32 = 1024;

/// Pause after an accept error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Binds a listening socket.
///
/// # Errors
/// The address is taken or not one of this machine's.
pub(crate) fn bind_listener(setting: &'static str, address: SocketAddr) -> Result<TcpListener, Error> {
    let listen = || -> std::io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // A restarted sidecar must not wait for the old one's connections to time out.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    listen().map_err(|source| Error::Bind {
        setting,
        address,
        source,
    })
}

/// A port whose connections go to the workers.
pub(crate) struct Port {
    /// Kind of traffic on this port.
    pub(crate) traffic: Traffic,
    /// The flag that sets the address.
    pub(crate) setting: &'static str,
    pub(crate) listener: TcpListener,
    /// Bounds the number of connections.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) outage: Outage,
}

/// Accepts until `stop`, round robin over the workers: a controller has few connections, and each should have a core. During an outage the
/// port is closed.
pub(crate) async fn accept(
    port: Port,
    workers: Vec<mpsc::Sender<Task>>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let Port {
        traffic,
        setting,
        mut listener,
        permits,
        outage,
    } = port;
    let mut turn = workers.iter().cycle();
    let mut outages = outage.subscribe();
    let (failures, refusals) = (WarningRate::default(), WarningRate::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = outages.next_start() => {
                let reopened = tokio::select! {
                    reopened = reopen_listener(listener, setting, &mut outages) => reopened,
                    () = stop.cancelled() => return,
                };
                listener = reopened;
                continue;
            }
            () = stop.cancelled() => return,
        };
        let stream = match accepted.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => stream,
            Err(error) => {
                if let Some(suppressed) = failures.admit(Instant::now().into_std()) {
                    tracing::warn!(%error, suppressed, "failed to accept connection");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            metrics.connections_refused.inc();
            warn_of_refusal(setting, &refusals);
            continue;
        };
        let Some(worker) = turn.next() else { return };
        // A worker that does not take the task is about to end.
        tokio::select! {
            _ = worker.send(Task::Serve(traffic, stream, permit)) => {}
            () = stop.cancelled() => return,
        }
    }
}

fn warn_of_refusal(setting: &str, rate: &WarningRate) {
    if let Some(suppressed) = rate.admit(Instant::now().into_std()) {
        tracing::warn!(
            setting,
            suppressed,
            "connection refused: --max-connections (CTRLMESH_MAX_CONNECTIONS) is reached"
        );
    }
}

/// Closes the port until the outage has ended.
async fn reopen_listener(listener: TcpListener, setting: &'static str, outages: &mut Outages) -> TcpListener {
    let address = listener.local_addr();
    drop(listener);
    tracing::warn!(setting, "port closed because a plugin refuses connections");
    loop {
        outages.wait_until_over().await;
        let bound = match &address {
            Ok(address) => bind_listener(setting, *address).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match bound {
            Ok(listener) => return listener,
            Err(error) => tracing::error!(%error, "failed to open the port again; retrying"),
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}
