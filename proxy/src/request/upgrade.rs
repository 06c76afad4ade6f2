//! exec, attach, port-forward and WebSockets: a dedicated HTTP/1.1 connection to the API server. After its 101, bytes pass in both
//! directions, unread, until either side ends.

use std::rc::Rc;

use http::header::UPGRADE;
use http::request::Parts;
use http::{Request, Response, StatusCode, Uri, response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use crate::request::early_response::sidecar_response;
use crate::request::exchange::Exchange;
use crate::request::headers;
use crate::respond::{Accept, Reply};
use crate::stream::body::{ClientBody, RequestBody};
use crate::stream::watch::Watching;
use crate::upstream::write_outcome::WriteOutcome;
use crate::upstream::{Upgrade, UpgradedStream, UpstreamBody};

/// Bytes in flight in each direction: a port-forward of a database dump should not crawl.
const BUFFER_BYTES: usize = 64 << 10;

/// The API server's response to the upgrade.
pub(crate) enum Offered {
    Switched(Switched),
    /// The API server answered with an ordinary response.
    Ordinary(Response<UpstreamBody>),
    /// The API server cannot be reached, or broke off.
    Failed(Response<ClientBody>),
}

/// Both ends of a tunnel that is about to begin.
pub(crate) struct Switched {
    /// The API server's 101.
    pub(super) head: response::Parts,
    upstream: UpgradedStream,
    client: Option<OnUpgrade>,
}

pub(crate) async fn send_upgrade(exchange: &Exchange<'_>, mut parts: Parts, body: RequestBody, uri: &Uri) -> Offered {
    let client = parts.extensions.remove::<OnUpgrade>();
    let accept = Accept::from_headers(&parts.headers);
    if let Some(protocols) = &exchange.upgrade {
        parts.headers.insert(UPGRADE, protocols.clone());
    }
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.headers_mut() = parts.headers;
    *request.uri_mut() = uri.clone();
    let sent = Instant::now();
    exchange.record.mark_sent(sent);
    let result = exchange
        .worker
        .upstream(exchange.uses_sidecar_credentials.get())
        .upgrade(request)
        .await;
    exchange.record.record_outcome(match &result {
        // Bytes from here on belong to no write that a hand-over waits for.
        Ok(Upgrade::Switched(..)) => WriteOutcome::Finished,
        Ok(Upgrade::Refused(response)) => WriteOutcome::of_status(response.status()),
        Err(error) => WriteOutcome::of_error(error),
    });
    match result {
        Ok(Upgrade::Switched(response, _)) if !is_offered(exchange, &response) => {
            let reply = Reply::broken_body(&"the API server switched to a protocol that was not asked for".into());
            Offered::Failed(sidecar_response(exchange.record, &accept, reply))
        }
        Ok(Upgrade::Switched(response, upstream)) => {
            exchange.record_response(StatusCode::SWITCHING_PROTOCOLS, sent);
            let (head, ()) = response.into_parts();
            Offered::Switched(Switched { head, upstream, client })
        }
        Ok(Upgrade::Refused(mut response)) => {
            headers::strip_response(response.headers_mut());
            exchange.record_response(response.status(), sent);
            Offered::Ordinary(response)
        }
        Err(error) => Offered::Failed(exchange.failure_response(&error, &accept)),
    }
}

fn is_offered(exchange: &Exchange<'_>, response: &Response<()>) -> bool {
    let offered = exchange.upgrade.as_ref();
    offered.is_some_and(|offered| headers::is_offered(offered, response.headers()))
}

/// Tells the client to switch protocols too, and begins the tunnel.
pub(crate) fn switch_protocols(
    exchange: &Exchange<'_>,
    switched: Switched,
    watching: Option<Watching>,
) -> Response<ClientBody> {
    let Switched { head, upstream, client } = switched;
    if let Some(client) = client {
        start_tunnel(exchange, client, upstream, watching);
    }
    let body = ClientBody::full(bytes::Bytes::new(), Some(Rc::clone(exchange.record)));
    Response::from_parts(head, body)
}

/// Copies in both directions in a task of the worker. Record and connection (with its permit) live as long as the tunnel. A watch over
/// WebSocket ends as soon as a new chain would show it another view.
fn start_tunnel(exchange: &Exchange<'_>, client: OnUpgrade, mut upstream: UpgradedStream, watching: Option<Watching>) {
    let (record, connection) = (Rc::clone(exchange.record), Rc::clone(&exchange.connection));
    connection.begin_tunnel();
    let stop = exchange.worker.shared.stop.clone();
    exchange.worker.spawn(async move {
        let _connection = connection;
        let copy = async {
            let mut client = TokioIo::new(client.await.map_err(std::io::Error::other)?);
            tokio::io::copy_bidirectional_with_sizes(&mut client, upstream.io(), BUFFER_BYTES, BUFFER_BYTES).await
        };
        let expired = async {
            match watching {
                Some(watching) => watching.wait_for_end().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            copied = copy => match copied {
                Ok((up, down)) => {
                    record.add_request_bytes(usize::try_from(up).unwrap_or(usize::MAX));
                    record.add_response_bytes(usize::try_from(down).unwrap_or(usize::MAX));
                }
                Err(error) => tracing::debug!(%error, "upgraded stream aborted"),
            },
            () = expired => {}
            () = stop.cancelled() => {}
        }
    });
}
