//! The TLS server of the webhooks. Everything is limited: connections ([`super::connections`]), handshakes, the first request,
//! streams, idle time, buffers, shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use ctrlmesh_logging::WarningRate;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::client_ca::Tls;
use super::connections::{Connections, MAX_CONNECTIONS, MAX_OF_SOURCE, Peer};

/// Maximum reviews at a time on one connection. RFC 9113 advises against fewer (6.5.2); beyond it Go's clients open another
/// connection.
const MAX_STREAMS: u32 = 100;
/// Idle timeout of used HTTP/1.1 connections. It is longer than that of Go's clients (90 s), so that they close first and never
/// send into a closed connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(100);
/// Maximum unread bytes of one stream, and of one connection.
const WINDOW: u32 = 128 << 10;
/// Maximum unread bytes of HTTP/1.1, including a request's head.
const MAX_BUFFER: usize = 64 << 10;
/// HTTP/2: interval of keep-alive pings, and timeout of their responses.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(10);
/// Time that a connection which is closed for another one has to notify its client.
const GIVES_WAY: Duration = Duration::from_secs(1);
/// Pause after a failed accept, which shows that the system lacks some resource.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Timeouts and limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) connections: usize,
    /// From accept to the end of the handshake.
    pub(crate) handshake: Duration,
    /// From the handshake to the first request's head. API servers connect when they have a request.
    pub(crate) first_head: Duration,
    /// Time for a request's body to arrive. API servers wait 10 seconds for a whole review by default.
    pub(crate) body: Duration,
    /// Time for reviews in flight when the manager stops.
    pub(crate) drain: Duration,
    /// Age from which an HTTP/2 connection takes no new reviews. HTTP/1.1 connections end when they are idle.
    pub(crate) age: Duration,
    /// The same for a connection that is made while the manager shuts down.
    pub(crate) late: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: MAX_CONNECTIONS,
            handshake: Duration::from_secs(5),
            first_head: Duration::from_secs(5),
            body: Duration::from_secs(5),
            drain: Duration::from_secs(10),
            age: Duration::from_mins(10),
            late: Duration::from_secs(1),
        }
    }
}

/// Shutdown, in two steps.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown {
    /// The manager shuts down: connections take no new reviews, because a later manager may answer differently, for example with
    /// another sidecar image. New connections are still served, because API servers may call a replica that they knew a moment ago.
    pub(crate) goes: CancellationToken,
    /// Nobody is served any more.
    pub(crate) stop: CancellationToken,
}

/// Serves until `stop`, then finishes the reviews in flight.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<Tls>,
    router: Router,
    failed_handshakes: Counter,
    bounds: Bounds,
    end: Shutdown,
) {
    let places = Connections::new(bounds.connections, MAX_OF_SOURCE, bounds.handshake);
    let mut connections = JoinSet::new();
    let (failed_accepts, other_names) = (WarningRate::default(), Arc::new(WarningRate::default()));
    while let Some((stream, address)) = accept_connection(&listener, &mut connections, &failed_accepts, &end.stop).await
    {
        let Some(peer) = places.admit(address.ip()) else {
            tracing::debug!(%address, "refused webhook connection: all connections are busy with reviews");
            continue;
        };
        let connection = Connection {
            router: router.clone(),
            bounds,
            end: end.clone(),
            peer,
            other_names: Arc::clone(&other_names),
        };
        connections.spawn(connection.run(stream, tls.clone(), failed_handshakes.clone()));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// `None`: the server stops.
async fn accept_connection(
    listener: &TcpListener,
    connections: &mut JoinSet<()>,
    failed: &WarningRate,
    stop: &CancellationToken,
) -> Option<(TcpStream, SocketAddr)> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return None,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok(accepted) => return Some(accepted),
                Err(error) => {
                    if let Some(suppressed) = failed.admit(Instant::now().into_std()) {
                        tracing::warn!(%error, suppressed, "failed to accept webhook connection; retrying");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

struct Connection {
    router: Router,
    bounds: Bounds,
    end: Shutdown,
    peer: Arc<Peer>,
    /// Limits warnings about clients with certificates of other names.
    other_names: Arc<WarningRate>,
}

impl Connection {
    async fn run(self, stream: TcpStream, tls: Arc<Tls>, failed: Counter) {
        let handshake = TlsAcceptor::from(tls.config()).accept(stream);
        let stream = tokio::select! {
            stream = tokio::time::timeout(self.bounds.handshake, handshake) => stream,
            () = self.peer.gives_way() => return,
        };
        match stream {
            Ok(Ok(stream)) if tls.admits_client(stream.get_ref().1.peer_certificates()) => self.serve(stream).await,
            Ok(Ok(_)) => {
                failed.inc();
                if let Some(suppressed) = self.other_names.admit(Instant::now().into_std()) {
                    tracing::warn!(
                        suppressed,
                        "rejected webhook client: its certificate's common name is not in --webhook-client-name"
                    );
                }
            }
            Ok(Err(error)) => {
                failed.inc();
                tracing::debug!(%error, "TLS handshake of webhook connection failed");
            }
            Err(_) => drop(failed.inc()),
        }
    }

    async fn serve(self, stream: TlsStream<TcpStream>) {
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let service = RecordedRouter {
            router: self.router.clone(),
            peer: self.peer.clone(),
        };
        let builder = http_builder(is_h2);
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let mut connection = std::pin::pin!(connection);
        let drain = tokio::select! {
            ended = connection.as_mut() => return log_end(ended),
            drain = self.wait_until_ending(is_h2) => drain,
        };
        if drain.is_zero() {
            return;
        }
        connection.as_mut().graceful_shutdown();
        match tokio::time::timeout(drain, connection).await {
            Ok(ended) => log_end(ended),
            Err(_) if drain == self.bounds.drain => tracing::warn!("review did not finish in time; aborting it"),
            Err(_) => {}
        }
    }

    /// Waits until the connection takes no more reviews. Returns how long those in flight may take.
    async fn wait_until_ending(&self, is_h2: bool) -> Duration {
        let late = if self.end.goes.is_cancelled() {
            self.bounds.late
        } else {
            Duration::ZERO
        };
        let left = async {
            self.end.goes.cancelled().await;
            tokio::time::sleep(late).await;
        };
        let silent = async {
            tokio::time::sleep(self.bounds.first_head).await;
            if self.peer.has_asked() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.end.stop.cancelled() => self.bounds.drain,
            () = left => self.bounds.drain,
            () = tokio::time::sleep(self.bounds.age), if is_h2 => self.bounds.drain,
            // No review is in flight.
            () = self.peer.gives_way() => GIVES_WAY,
            () = silent => Duration::ZERO,
        }
    }
}

/// Uses the protocol that was negotiated. Detecting it would wait for the first bytes without a limit.
fn http_builder(is_h2: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(MAX_BUFFER)
        .http2()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG);
    if is_h2 {
        builder.http2_only()
    } else {
        builder.http1_only()
    }
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "webhook connection closed");
    }
}

/// Records that a connection has sent a request, and gives requests their connection.
#[derive(Clone)]
struct RecordedRouter {
    router: Router,
    peer: Arc<Peer>,
}

impl<B> Service<Request<B>> for RecordedRouter
where
    Router: Service<Request<B>>,
{
    type Response = <Router as Service<Request<B>>>::Response;
    type Error = <Router as Service<Request<B>>>::Error;
    type Future = <Router as Service<Request<B>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<Request<B>>::poll_ready(&mut self.router, cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        self.peer.begin_request();
        request.extensions_mut().insert(Arc::clone(&self.peer));
        self.router.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_env::idle_time_of_server;

    #[tokio::test(start_paused = true)]
    async fn idle_connection_stays_open_for_longer_than_clients_keep_theirs_and_ends_then() {
        let idle = idle_time_of_server(async |stream| {
            let service = TowerToHyperService::new(Router::new());
            log_end(
                http_builder(false)
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        })
        .await;
        assert_eq!(idle.as_secs(), IDLE_TIMEOUT.as_secs());
    }
}
