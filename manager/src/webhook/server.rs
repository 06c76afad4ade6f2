//! The TLS server of the webhooks. Everything has a bound: connections ([`super::connections`]), handshakes, the first request, streams,
//! idle time, what is buffered, the way out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::client_ca::Tls;
use super::connections::{Connections, MAX_CONNECTIONS, MAX_OF_SOURCE, Peer};
use super::warning_rate::WarningRate;

/// Reviews at the same time on one connection. RFC 9113 advises against fewer (6.5.2); beyond it Go's clients open another connection.
const MAX_STREAMS: u32 = 100;
/// For an idle connection of HTTP/1.1 that was used. Longer than Go's clients keep theirs (90 s), so that they close first and never
/// send into a closed one.
const IDLE: Duration = Duration::from_secs(100);
/// Bytes of one stream, and of one connection, that may lie here unread.
const WINDOW: u32 = 128 << 10;
/// The same of HTTP/1.1, with a request's head.
const MAX_BUFFER: usize = 64 << 10;
/// HTTP/2: how often, and for how long, the other side is asked whether it is there.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(10);
/// For a connection that gives its place to another, to tell its client so.
const GIVES_WAY: Duration = Duration::from_secs(1);
/// After a failed accept: the system is short of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long others may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections in all.
    pub(crate) connections: usize,
    /// From connect to the end of the handshake.
    pub(crate) handshake: Duration,
    /// From the handshake to the first request's head: API servers connect when they have one.
    pub(crate) first_head: Duration,
    /// For a request's body to arrive. API servers wait 10 seconds for a whole review unless told otherwise.
    pub(crate) body: Duration,
    /// For reviews in flight when the manager stops.
    pub(crate) drain: Duration,
    /// From a connection's handshake until it takes no new reviews. Of HTTP/2; those of HTTP/1.1 end when they are idle.
    pub(crate) age: Duration,
    /// The same for one that is made while the manager goes.
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

/// The end, in two steps.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// The manager goes: connections take no new reviews, for who comes after it may answer otherwise, with another sidecar's image.
    /// New connections are served all the same: API servers call whom they knew a moment ago.
    pub(crate) goes: CancellationToken,
    /// Nobody is served any more.
    pub(crate) stop: CancellationToken,
}

/// Serves until it shall stop; then ends what is in flight.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<Tls>,
    router: Router,
    failed_handshakes: Counter,
    bounds: Bounds,
    end: End,
) {
    let places = Connections::new(bounds.connections, MAX_OF_SOURCE, bounds.handshake);
    let mut connections = JoinSet::new();
    let (failed_accepts, other_names) = (WarningRate::default(), Arc::new(WarningRate::default()));
    while let Some((stream, address)) = accept(&listener, &mut connections, &failed_accepts, &end.stop).await {
        let Some(peer) = places.admit(address.ip()) else {
            tracing::debug!(%address, "webhook connection refused: all places are taken by reviews");
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

/// `None`: it shall stop.
async fn accept(
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
                    if let Some(suppressed) = failed.admit() {
                        tracing::warn!(%error, suppressed, "no webhook connection can be accepted; it is tried again");
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
    end: End,
    peer: Arc<Peer>,
    /// Clients with certificates of other names.
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
            Ok(Ok(stream)) if tls.admits(stream.get_ref().1.peer_certificates()) => self.serve(stream).await,
            Ok(Ok(_)) => {
                failed.inc();
                if let Some(suppressed) = self.other_names.admit() {
                    tracing::warn!(
                        suppressed,
                        "webhook client has a certificate of another name than --webhook-client-name says"
                    );
                }
            }
            Ok(Err(error)) => {
                failed.inc();
                tracing::debug!(%error, "TLS handshake of a webhook connection");
            }
            Err(_) => drop(failed.inc()),
        }
    }

    async fn serve(self, stream: TlsStream<TcpStream>) {
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let service = Asked {
            router: self.router.clone(),
            peer: self.peer.clone(),
        };
        let builder = builder(is_h2);
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let mut connection = std::pin::pin!(connection);
        let drain = tokio::select! {
            ended = connection.as_mut() => return log(ended),
            drain = self.over(is_h2) => drain,
        };
        if drain.is_zero() {
            return;
        }
        connection.as_mut().graceful_shutdown();
        match tokio::time::timeout(drain, connection).await {
            Ok(ended) => log(ended),
            Err(_) if drain == self.bounds.drain => tracing::warn!("a review did not end in time and is given up"),
            Err(_) => {}
        }
    }

    /// Waits until the connection takes no more reviews, and says how long those in flight may take.
    async fn over(&self, is_h2: bool) -> Duration {
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
            // No review is under way.
            () = self.peer.gives_way() => GIVES_WAY,
            () = silent => Duration::ZERO,
        }
    }
}

/// By the protocol that was agreed on: otherwise it would wait for the first bytes, for ever.
fn builder(is_h2: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
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

fn log(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a webhook connection ended");
    }
}

/// Notes that a connection has asked, and tells requests which connection they came on.
#[derive(Clone)]
struct Asked {
    router: Router,
    peer: Arc<Peer>,
}

impl<B> Service<Request<B>> for Asked
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
        self.peer.asks();
        request.extensions_mut().insert(Arc::clone(&self.peer));
        self.router.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connection_stays_open_for_longer_than_clients_keep_theirs() {
        assert!(
            IDLE >= Duration::from_secs(100),
            "{IDLE:?}: Go's clients keep theirs for 90 s"
        );
    }
}
