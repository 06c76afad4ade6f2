//! The TLS server of the webhooks. Everything has a bound: connections, handshakes, streams, idle time, the way out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// An API server opens one for each webhook; the rest is reserve.
const MAX_CONNECTIONS: usize = 512;
/// Reviews at the same time on one connection.
const MAX_STREAMS: u32 = 250;
/// For a request's head, and so for an idle connection of HTTP/1.1. Longer than Go's clients keep theirs (90 s), so that they
/// close first and never send into a closed one.
const HEAD: Duration = Duration::from_secs(100);
/// HTTP/2: how often, and for how long, the other side is asked whether it is there.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(10);
/// After a failed accept: the system is short of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long others may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// From connect to the end of the handshake.
    pub(crate) handshake: Duration,
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
            handshake: Duration::from_secs(5),
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
    tls: Arc<ServerConfig>,
    router: Router,
    failed_handshakes: Counter,
    bounds: Bounds,
    end: End,
) {
    let acceptor = TlsAcceptor::from(tls);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Some((stream, _, place)) = accept(&listener, &places, &mut connections, &end.stop).await {
        let connection = Connection {
            router: router.clone(),
            bounds,
            end: end.clone(),
            _place: place,
        };
        let (acceptor, failed) = (acceptor.clone(), failed_handshakes.clone());
        connections.spawn(async move {
            match tokio::time::timeout(bounds.handshake, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => connection.serve(stream).await,
                Ok(Err(error)) => {
                    failed.inc();
                    tracing::debug!(%error, "TLS handshake of a webhook connection");
                }
                Err(_) => drop(failed.inc()),
            }
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// `None`: it shall stop.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    connections: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await.ok()?;
            Some((listener.accept().await, place))
        };
        tokio::select! {
            () = stop.cancelled() => return None,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = accepted => match accepted? {
                (Ok((stream, address)), place) => return Some((stream, address, place)),
                (Err(error), _) => {
                    tracing::warn!(%error, "no webhook connection can be accepted; it is tried again");
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
    _place: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(self, stream: TlsStream<TcpStream>) {
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        // Otherwise it would wait for the first bytes, for ever.
        let builder = if is_h2 {
            builder.http2_only()
        } else {
            builder.http1_only()
        };
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.router));
        let mut connection = std::pin::pin!(connection);
        let late = if self.end.goes.is_cancelled() {
            self.bounds.late
        } else {
            Duration::ZERO
        };
        let left = async {
            self.end.goes.cancelled().await;
            tokio::time::sleep(late).await;
        };
        let end = async {
            tokio::select! {
                () = self.end.stop.cancelled() => {}
                () = left => {}
                () = tokio::time::sleep(self.bounds.age), if is_h2 => {}
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = end => {
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(self.bounds.drain, connection).await {
                    Ok(ended) => ended,
                    Err(_) => return tracing::warn!("a review did not end in time and is given up"),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a webhook connection ended");
        }
    }
}
