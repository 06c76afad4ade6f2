//! CONNECT: a connection to the target, over which bytes pass in both directions, unread, until both sides have ended.
//!
//! Guarantees: the number of tunnels is bounded; a silent tunnel ends, sooner if one side has ended or the sidecar drains.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::call::Call;
use crate::chain::phases::Plugins;
use crate::observe::record::Record;
use crate::plugin::verdict::Failure;
use crate::request::early_response::ServeResult;
use crate::respond::Reply;
use crate::stream::body::ClientBody;
use crate::upstream::{SendError, Socket, dial};

mod flow;

use flow::{Flow, Metered};

/// Bytes in flight in each direction.
const BUFFER_BYTES: usize = 64 << 10;

/// A tunnel without traffic for this long is closed: longer than any client keeps an unused connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Maximum silence of the other side once one has ended.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum silence of a tunnel while the sidecar drains. Requests inside it are not visible; one that is answered within this time
/// survives.
const DRAINING_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects to the target and answers 200. The tunnel runs in a task of the worker.
pub(super) async fn open_tunnel(call: &Call, mut parts: Parts, plugins: Option<&Plugins>) -> ServeResult {
    let Ok(permit) = Arc::clone(&call.external.tunnels).try_acquire_owned() else {
        return Ok(call.sidecar_response(Reply::too_many_tunnels(super::MAX_TUNNELS)));
    };
    let destination = &call.destination;
    let began = tokio::time::Instant::now();
    let dialled = dial(
        &destination.host(),
        destination.target.port,
        Some(&call.external.shared.gate),
        &call.external.limits,
    )
    .await;
    let stream = match dialled {
        Ok(stream) => stream,
        Err(error) => {
            let error = SendError::Unreachable {
                source: Arc::new(error),
            };
            return Ok(call.sidecar_response(call.failure_reply(&error, true)));
        }
    };
    let (mut head, ()) = Response::new(()).into_parts();
    // The target sends no readable response; the successful connection counts as one.
    call.record.set_upstream(head.status.as_u16(), began.elapsed());
    if let Some(plugins) = plugins
        && let Err(stop) = plugins.edit_tunnel_response(&mut head, &call.connection).await
    {
        return call.stop(stop).await;
    }
    call.record.set_status(head.status.as_u16());
    if let Some(client) = parts.extensions.remove::<OnUpgrade>() {
        start_tunnel(call, client, stream, permit);
    }
    let body = ClientBody::full(Bytes::new(), Some(Rc::clone(&call.record)));
    Ok(Response::from_parts(head, body))
}

fn start_tunnel(call: &Call, client: OnUpgrade, stream: Socket, permit: OwnedSemaphorePermit) {
    let (worker, connection) = (Rc::clone(&call.worker), Rc::clone(&call.connection));
    let record = Rc::clone(&call.record);
    connection.begin_tunnel();
    call.worker.spawn(async move {
        // One of the permits for tunnels, and one of those for connections.
        let _permits = (permit, connection);
        worker.shared.metrics.external_tunnels.inc();
        tokio::select! {
            () = run_tunnel(client, stream, record, worker.shared.drain.clone()) => {}
            () = worker.shared.stop.cancelled() => {}
        }
        worker.shared.metrics.external_tunnels.dec();
    });
}

async fn run_tunnel(client: OnUpgrade, stream: Socket, record: Rc<Record>, drain: CancellationToken) {
    let flow = Rc::new(Flow::new(Rc::clone(&record)));
    let mut target = Metered::new(stream, Rc::clone(&flow));
    let copy = async {
        let mut client = TokioIo::new(client.await.map_err(std::io::Error::other)?);
        tokio::io::copy_bidirectional_with_sizes(&mut client, &mut target, BUFFER_BYTES, BUFFER_BYTES).await
    };
    tokio::select! {
        copied = copy => if let Err(error) = copied {
            tracing::debug!(%error, "tunnel aborted");
            record.record_failure(if flow.is_broken() { Failure::UpstreamReset } else { Failure::ClientGone });
        },
        () = wait_until_idle(&flow, drain) => {}
    }
}

/// Waits until there was no traffic for too long.
async fn wait_until_idle(flow: &Flow, drain: CancellationToken) {
    loop {
        let idle_timeout = if drain.is_cancelled() {
            DRAINING_TIMEOUT
        } else if flow.is_half_closed() {
            HALF_CLOSED_TIMEOUT
        } else {
            IDLE_TIMEOUT
        };
        let end = flow.last_activity() + idle_timeout;
        if end <= tokio::time::Instant::now() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep_until(end) => {}
            () = flow.half_closed() => {}
            () = drain.cancelled(), if !drain.is_cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;
    use crate::observe::Class;
    use crate::observe::ProxyForm;
    use crate::observe::metrics::Metrics;

    fn new_flow() -> Rc<Flow> {
        let metrics = Metrics::new(Metrics::registry());
        let record = Record::new(
            &metrics,
            Class::External(ProxyForm::Connect),
            Method::CONNECT,
            Uri::default(),
        );
        Rc::new(Flow::new(record))
    }

    #[tokio::test(start_paused = true)]
    async fn silent_tunnel_ends_sooner_when_one_side_has_and_when_sidecar_drains() {
        let draining = CancellationToken::new();
        draining.cancel();
        for (half_closed, drain, idle_timeout) in [
            (false, CancellationToken::new(), IDLE_TIMEOUT),
            (true, CancellationToken::new(), HALF_CLOSED_TIMEOUT),
            (false, draining, DRAINING_TIMEOUT),
        ] {
            let flow = new_flow();
            if half_closed {
                let mut target = Metered::new(tokio::io::sink(), Rc::clone(&flow));
                target.shutdown().await.unwrap();
            }
            let start = Instant::now();
            wait_until_idle(&flow, drain).await;
            assert_eq!(start.elapsed(), idle_timeout);
        }
    }
}
