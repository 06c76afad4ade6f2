//! `/healthz`, `/readyz` and `/metrics`. Probes come from the network, where any client may connect, so the newest connection is
//! always served.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::cluster::{Error, Readiness};
use crate::metrics::Metrics;

/// Enough for kubelet and a few scrapers. If there are more, the oldest connection is closed.
const MAX_CONNECTIONS: usize = 64;

/// Timeout of an idle connection, and of a request's head. It is longer than that of Go's clients (90 s), so that they close first
/// and never send into a closed connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(100);

/// Pause after a failed accept, which shows that the system lacks some resource.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Response to a readiness probe, which `kubectl describe` shows to people who have not read the log yet.
const NOT_READY: &str = "not ready: the webhooks have no certificate yet; the log says why";

/// Binds the port early, so that a taken port fails the start.
///
/// # Errors
/// [`Error::Bind`].
pub async fn bind_listener(setting: &'static str, address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Bind {
        setting,
        address,
        source,
    })
}

/// Serves `/metrics` until `stop`.
pub async fn serve_metrics(listener: TcpListener, metrics: Arc<Metrics>, stop: CancellationToken) {
    let router = Router::new()
        .route("/metrics", get(respond_with_metrics))
        .with_state(metrics);
    serve_router(listener, router, stop).await;
}

/// Serves `/healthz` and `/readyz` until `stop`.
pub async fn serve_health(listener: TcpListener, readiness: Readiness, stop: CancellationToken) {
    let router = Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(readiness_response))
        .with_state(readiness);
    serve_router(listener, router, stop).await;
}

async fn serve_router(listener: TcpListener, router: Router, stop: CancellationToken) {
    let (mut connections, mut oldest_first) = (JoinSet::new(), VecDeque::new());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    make_room(&mut oldest_first);
                    oldest_first.push_back(connections.spawn(serve_connection(stream, router.clone())));
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to accept connection; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT);
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = serving.await {
        tracing::debug!(%error, "health or metrics connection closed");
    }
}

/// Closes the oldest connections if the limit is reached.
fn make_room(oldest_first: &mut VecDeque<AbortHandle>) {
    oldest_first.retain(|connection| !connection.is_finished());
    while oldest_first.len() >= MAX_CONNECTIONS {
        if let Some(oldest) = oldest_first.pop_front() {
            oldest.abort();
        }
    }
}

async fn readiness_response(State(readiness): State<Readiness>) -> Response {
    if readiness.is_ready() {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, NOT_READY).into_response()
    }
}

async fn respond_with_metrics(State(metrics): State<Arc<Metrics>>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::test_env::idle_time_of_server;

    #[tokio::test(start_paused = true)]
    async fn idle_connection_stays_open_for_longer_than_clients_keep_theirs_and_ends_then() {
        let idle = idle_time_of_server(|stream| serve_connection(stream, Router::new())).await;
        assert_eq!(idle.as_secs(), IDLE_TIMEOUT.as_secs());
    }

    #[tokio::test]
    async fn oldest_connection_is_closed_when_there_are_too_many() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve_health(listener, Readiness::default(), stop.clone()));
        let mut held = Vec::new();
        for _ in 0..=MAX_CONNECTIONS {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        let ended = tokio::time::timeout(Duration::from_secs(10), held[0].read(&mut [0; 1])).await;
        assert!(ended.unwrap().map_or(true, |read| read == 0));
        let mut newest = TcpStream::connect(address).await.unwrap();
        newest
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut response = String::new();
        newest.read_to_string(&mut response).await.unwrap();
        assert!(response.ends_with("\r\n\r\nok"), "{response}");
        stop.cancel();
        serving.await.unwrap();
    }
}
