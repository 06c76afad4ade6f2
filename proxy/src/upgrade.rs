//! exec, attach, port-forward and WebSockets: a dedicated HTTP/1.1 connection to the API server; after its 101 bytes pass
//! both ways, unread, until either side ends.

use std::rc::Rc;

use http::header::UPGRADE;
use http::request::Parts;
use http::{Request, Response, StatusCode, Uri};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use crate::body::{ClientBody, RequestBody};
use crate::ending::Answer;
use crate::handler::Exchange;
use crate::headers;
use crate::respond::Accept;
use crate::upstream::{Upgrade, UpgradedStream};
use crate::watch::Watching;

/// Bytes in flight in each direction: a port-forward of a database dump should not crawl.
const BUFFER: usize = 64 << 10;

/// Serves a request that wants another protocol. The API server may refuse; then its answer passes like any other.
pub(crate) async fn serve(
    exchange: &Exchange<'_>,
    mut parts: Parts,
    body: RequestBody,
    uri: Uri,
    watching: Option<Watching>,
) -> Answer {
    let client = parts.extensions.remove::<OnUpgrade>();
    let accept = Accept::of(&parts.headers);
    if let Some(protocol) = &exchange.upgrade {
        parts.headers.insert(UPGRADE, protocol.clone());
    }
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.headers_mut() = parts.headers;
    *request.uri_mut() = uri;
    let sent = Instant::now();
    match exchange.worker.upstream(exchange.is_lent.get()).upgrade(request).await {
        Ok(Upgrade::Switched(response, stream)) => {
            exchange.received(StatusCode::SWITCHING_PROTOCOLS, sent);
            if let Some(client) = client {
                tunnel(exchange, client, stream, watching);
            }
            Ok(response.map(|()| ClientBody::full(bytes::Bytes::new(), Some(Rc::clone(&exchange.record)))))
        }
        Ok(Upgrade::Refused(mut response)) => {
            headers::strip_response(response.headers_mut());
            exchange.received(response.status(), sent);
            Ok(Response::map(response, |body| {
                ClientBody::upstream(body, Rc::clone(&exchange.record))
            }))
        }
        Err(error) => Ok(exchange.failed(&error, &accept)),
    }
}

/// Copies both ways in a task of the worker. Record and connection (with its place) live as long as the tunnel. A watch
/// over WebSocket ends as soon as a new chain would show it something else.
fn tunnel(exchange: &Exchange<'_>, client: OnUpgrade, mut upstream: UpgradedStream, watching: Option<Watching>) {
    let (record, connection) = (Rc::clone(&exchange.record), Rc::clone(&exchange.connection));
    let stop = exchange.worker.stop.clone();
    exchange.worker.spawn(async move {
        let _place = connection;
        let copy = async {
            let mut client = TokioIo::new(client.await.map_err(std::io::Error::other)?);
            tokio::io::copy_bidirectional_with_sizes(&mut client, upstream.io(), BUFFER, BUFFER).await
        };
        let expired = async {
            match watching {
                Some(watching) => watching.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            copied = copy => match copied {
                Ok((up, down)) => {
                    record.add_request_bytes(usize::try_from(up).unwrap_or(usize::MAX));
                    record.add_response_bytes(usize::try_from(down).unwrap_or(usize::MAX));
                }
                Err(error) => tracing::debug!(%error, "upgraded stream broke off"),
            },
            () = expired => {}
            () = stop.cancelled() => {}
        }
    });
}
