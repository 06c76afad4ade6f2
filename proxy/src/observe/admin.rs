//! The admin port: `/readyz`, `/livez`, `/metrics`, `/status`. Read-only: nothing on the network configures a sidecar.
//!
//! Kubelet's probes come from the network, and so may any other client: no connection lasts long, and the newest is always served.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use ctrlmesh_contract::names::readiness::FIRST_CHAIN;
use ctrlmesh_contract::status::Compiling;
use ctrlmesh_logging::WarningRate;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::chain::ChainHandle;
use crate::connection::Timeouts;
use crate::controller_state::leadership::Leadership;
use crate::controller_state::list_views::ListViews;
use crate::observe::metrics::Metrics;
use crate::observe::readiness::Readiness;

/// Maximum number of connections: probes, a scraper and the manager need a handful.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// Lifetime of a connection from its first request byte; it has one request and is closed with the response, which says so. A client that
/// needs longer is no prober. A client that has not begun is idle, with the same timeout as on any port.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(10);

/// Pause after an accept error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Everything that the admin port shows.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) chain: Arc<ChainHandle>,
    pub(crate) list_views: Arc<ListViews>,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) timeouts: Timeouts,
}

impl Admin {
    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let (mut connections, mut oldest_first) = (JoinSet::new(), VecDeque::new());
        let failures = WarningRate::default();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        make_room(&mut oldest_first);
                        oldest_first.push_back(connections.spawn(self.clone().serve_connection(stream)));
                    }
                    Err(error) => {
                        if let Some(suppressed) = failures.admit(Instant::now().into_std()) {
                            tracing::warn!(%error, suppressed, "failed to accept connection on the admin port");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn serve_connection(self, stream: TcpStream) {
        let mut first_byte = [0];
        let peeked = tokio::time::timeout(self.timeouts.idle, stream.peek(&mut first_byte));
        if !matches!(peeked.await, Ok(Ok(1))) {
            return;
        }
        let service = service_fn(move |request| {
            let response = self.response_to(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        match tokio::time::timeout(CONNECTION_LIFETIME, serving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "admin connection ended"),
            Err(_) => tracing::debug!("admin connection closed: it was idle for too long"),
        }
    }

    fn response_to(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text_response(
                StatusCode::METHOD_NOT_ALLOWED,
                "this port only shows; nothing here configures a sidecar\n",
            );
        }
        match request.uri().path() {
            "/livez" => text_response(StatusCode::OK, "ok\n"),
            "/readyz" => self.readiness_response(),
            "/metrics" => self.metrics(),
            "/status" => self.status(),
            _ => text_response(StatusCode::NOT_FOUND, "/readyz /livez /metrics /status\n"),
        }
    }

    fn readiness_response(&self) -> Response<Full<Bytes>> {
        let missing = self.readiness.missing_parts();
        if missing.is_empty() {
            return text_response(StatusCode::OK, "ok\n");
        }
        let status = self.chain.status();
        let mut body = format!("not ready: {}\n", waits_for(&missing, status.compiling.as_ref()));
        if let Some(refused) = status.refused {
            body.push_str(&refused.message);
            body.push('\n');
        }
        text_response(StatusCode::SERVICE_UNAVAILABLE, body)
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        match self.metrics.text() {
            Ok(body) => {
                let mut response = text_response(StatusCode::OK, body);
                response.headers_mut().insert(
                    CONTENT_TYPE,
                    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8"),
                );
                response
            }
            Err(error) => text_response(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("metrics can't be written: {error}\n"),
            ),
        }
    }

    fn status(&self) -> Response<Full<Bytes>> {
        let mut status = self.chain.status();
        status.not_ready = self.readiness.missing_parts().into_iter().map(str::to_owned).collect();
        // Read after the number of watches: a client is noted as stale before its watch stops counting.
        status.chain.earlier.caches = self.list_views.stale_cache_count();
        status.chain.stale_caches = self.list_views.stale_caches();
        status.leader_elections = self.leadership.statuses();
        let now = SystemTime::now();
        status.touched = self.metrics.touched.status_rows(now, Instant::now());
        status.api_traffic = Some(self.metrics.api_traffic_status(now));
        match serde_json::to_vec(&status) {
            Ok(body) => {
                let mut response = text_response(StatusCode::OK, body);
                response
                    .headers_mut()
                    .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            Err(error) => text_response(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("status can't be written: {error}\n"),
            ),
        }
    }
}

/// The parts that are missing. While plugins are compiled, the first chain is one of them.
fn waits_for(missing: &[&str], compiling: Option<&Compiling>) -> String {
    let compiling = compiling.map(ToString::to_string);
    let parts = missing.iter().map(|part| match &compiling {
        Some(compiling) if *part == FIRST_CHAIN => compiling.as_str(),
        _ => *part,
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Ends the oldest connections if the maximum is reached.
fn make_room(oldest_first: &mut VecDeque<AbortHandle>) {
    oldest_first.retain(|connection| !connection.is_finished());
    while oldest_first.len() >= MAX_CONNECTIONS {
        if let Some(oldest) = oldest_first.pop_front() {
            oldest.abort();
        }
    }
}

fn text_response(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
