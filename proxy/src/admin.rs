//! The admin port: `/readyz`, `/livez`, `/metrics`, `/status`. Read-only: nothing on the network configures a sidecar.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::chain::ChainHandle;
use crate::leadership::Leadership;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// Probes, a scraper, the manager: a handful.
const MAX_CONNECTIONS: usize = 64;

/// A scraper that does not finish its request line.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// What the admin port shows.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) chain: Arc<ChainHandle>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) leadership: Arc<Leadership>,
}

impl Admin {
    /// Serves until `stop`.
    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    if let Ok(permit) = Arc::clone(&places).try_acquire_owned() {
                        let admin = self.clone();
                        connections.spawn(async move {
                            admin.connection(stream).await;
                            drop(permit);
                        });
                    }
                }
                Some(_) = connections.join_next() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn connection(self, stream: TcpStream) {
        let service = service_fn(move |request| {
            let response = self.answer(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = serving.await {
            tracing::debug!(%error, "admin connection ended");
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(
                StatusCode::METHOD_NOT_ALLOWED,
                "this port only shows; nothing here configures a sidecar\n",
            );
        }
        match request.uri().path() {
            "/livez" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.ready(),
            "/metrics" => self.metrics(),
            "/status" => self.status(),
            _ => text(StatusCode::NOT_FOUND, "/readyz /livez /metrics /status\n"),
        }
    }

    fn ready(&self) -> Response<Full<Bytes>> {
        let missing = self.readiness.missing();
        if missing.is_empty() {
            return text(StatusCode::OK, "ok\n");
        }
        let reason = self.chain.status().refused.map(|refused| refused.message);
        let mut body = format!("not ready: {}\n", missing.join(", "));
        if let Some(reason) = reason {
            body.push_str(&reason);
            body.push('\n');
        }
        text(StatusCode::SERVICE_UNAVAILABLE, body)
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        match self.metrics.text() {
            Ok(body) => {
                let mut response = text(StatusCode::OK, body);
                response.headers_mut().insert(
                    CONTENT_TYPE,
                    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8"),
                );
                response
            }
            Err(error) => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("metrics can't be written: {error}\n"),
            ),
        }
    }

    fn status(&self) -> Response<Full<Bytes>> {
        let mut status = self.chain.status();
        // After the watches were counted: a client is noted before its watch counts no more.
        status.chain.earlier.caches = self.ledger.outdated();
        status.leader_elections = self.leadership.told();
        match serde_json::to_vec(&status) {
            Ok(body) => {
                let mut response = text(StatusCode::OK, body);
                response
                    .headers_mut()
                    .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            Err(error) => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("status can't be written: {error}\n"),
            ),
        }
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
