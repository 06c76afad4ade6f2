//! Serves one client connection, TLS or not, HTTP/1.1 or HTTP/2 by its first bytes, until it ends, drains or is closed.
//!
//! Leaves the requests to `request::handler` and `external`. This file has the limits, each with its reason.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use ctrlmesh_logging::WarningRate;
use futures_util::future::{Either, FutureExt as _};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::opening::{Opening, Protocol, Rewound, read_opening};
use super::tls::ServerTls;
use crate::connection::{
    CONNECTION_WINDOW, ClientMemory, Connection, Deadlines, Disposition, Expired, IncomingBody, LimitedReads,
    ObservedStream, Outage, ResponseReaders, STREAM_WINDOW, StreamNotifier, Timeouts,
};
use crate::external::{self, External};
use crate::plugin::verdict::Traffic;
use crate::request::handler;
use crate::request::headers::MAX_FIELDS;
use crate::request::worker::{LocalExecutor, Shared, Worker};
use crate::stream::body::ClientBody;
use crate::stream::shape::LONGEST_HANG;
use crate::upstream::BoxError;

/// Maximum size of a request head. Go's servers accept 1 MiB; tokens with many groups stay below 64 KiB.
const MAX_HEAD: usize = 128 << 10;

/// Maximum number of streams of one HTTP/2 connection: client-go puts every watch of a controller on one.
const MAX_STREAMS: u32 = 1000;

/// Bytes buffered for one slow reader; for all streams of a connection see `connection::unsent`.
const MAX_SEND_BUFFER: usize = 256 << 10;

/// An unanswered ping reveals a client that vanished without closing its connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// State that all worker threads need to serve connections.
pub(crate) struct Server {
    /// State that all worker threads need to serve requests.
    pub(crate) requests: Arc<Shared>,
    /// `None` if external traffic is disabled.
    pub(crate) external: Option<Arc<external::Shared>>,
    /// Closes the API port.
    pub(crate) outage: Outage,
    pub(crate) tls: ServerTls,
    pub(crate) timeouts: Timeouts,
    /// Bounds what clients make the process hold.
    pub(crate) memory: ClientMemory,
    /// Bound of the unread responses of one worker thread.
    pub(crate) unread: usize,
}

/// A worker thread as connections see it.
pub(super) struct ServerThread {
    pub(super) worker: Rc<Worker>,
    /// `None` if external traffic is disabled.
    pub(super) external: Option<Rc<External>>,
    pub(super) server: Arc<Server>,
    /// Limits warnings about TLS clients where there is no certificate.
    pub(super) unexpected_tls: WarningRate,
    pub(super) readers: ResponseReaders,
}

/// Destination of a connection's requests.
#[derive(Clone)]
enum Service {
    Api,
    External(Rc<External>),
}

impl ServerThread {
    fn service(&self, traffic: Traffic) -> Service {
        match &self.external {
            Some(external) if traffic == Traffic::External => Service::External(Rc::clone(external)),
            _ => Service::Api,
        }
    }
}

/// Serves one connection to its end.
pub(super) async fn serve(thread: Rc<ServerThread>, traffic: Traffic, stream: TcpStream, permit: OwnedSemaphorePermit) {
    let (server, service) = (&thread.server, thread.service(traffic));
    let outage = match &service {
        Service::Api => &server.outage,
        Service::External(external) => external.outage(),
    };
    let connection = Connection::new(outage.clone(), &server.memory, permit);
    thread.readers.track(&connection);
    let _ = stream.set_nodelay(true);
    let opening = tokio::select! {
        biased;
        opening = read_opening(stream, server.timeouts) => opening,
        // Clients keep connections that they have not used yet; these must not delay the shutdown.
        () = thread.worker.shared.drain.cancelled() => return,
    };
    match opening {
        Some((Opening::Plain(protocol), stream)) => serve_http(&thread, service, connection, stream, protocol).await,
        Some((Opening::Tls, stream)) => Box::pin(serve_tls(&thread, service, connection, stream)).await,
        // A port scan, a probe, or a connection that was never needed.
        None => {}
    }
}

async fn serve_tls(thread: &ServerThread, service: Service, connection: Rc<Connection>, stream: Rewound<TcpStream>) {
    let Some(acceptor) = thread.server.tls.current_acceptor() else {
        if let Some(suppressed) = thread.unexpected_tls.admit(Instant::now().into_std()) {
            tracing::warn!(
                suppressed,
                "connection closed: the client speaks TLS and no certificate is configured; set --tls-dir (CTRLMESH_TLS_DIR)"
            );
        }
        return;
    };
    let accepted = tokio::select! {
        biased;
        accepted = tokio::time::timeout(thread.server.timeouts.head, acceptor.accept(stream)) => accepted,
        // The client has not sent a request yet.
        () = thread.worker.shared.drain.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => {
            let protocol = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Protocol::Http2,
                _ => Protocol::Http1,
            };
            serve_http(thread, service, connection, stream, protocol).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn serve_http<S>(
    thread: &ServerThread,
    service: Service,
    connection: Rc<Connection>,
    stream: S,
    protocol: Protocol,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (worker, timeouts) = (&thread.worker, thread.server.timeouts);
    let notifier = match &service {
        Service::Api => Rc::clone(&worker.notifier),
        Service::External(external) => Rc::clone(external.notifier()),
    };
    let service = {
        let (worker, connection) = (Rc::clone(worker), Rc::clone(&connection));
        service_fn(move |request: Request<Incoming>| {
            let (worker, used) = (Rc::clone(&worker), Rc::clone(&connection));
            let request = IncomingBody::new(&connection, request);
            let answering = match &service {
                Service::Api => Either::Left(handler::handle(worker, used, request)),
                Service::External(external) => {
                    let external = Rc::clone(external);
                    Either::Right(Box::pin(external::handle(worker, external, used, request)))
                }
            };
            let connection = Rc::clone(&connection);
            answering.map(move |result| connection.finish(result))
        })
    };
    let activity = connection.activity().clone();
    if protocol == Protocol::Http1 {
        activity.set_http1();
    }
    let result = match protocol {
        Protocol::Http1 => serve_http1(&notifier, &connection, stream, timeouts, service).await,
        Protocol::Http2 => {
            let io = TokioIo::new(ObservedStream::new(stream, activity.clone()));
            let deadlines = Deadlines::new(activity, timeouts);
            let serving = http2_builder(worker.executor()).serve_connection(io, service);
            drive_connection(&notifier, &connection, deadlines, Box::pin(serving), |serving| {
                serving.graceful_shutdown()
            })
            .await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "client connection ended");
    }
}

async fn serve_http1<S, H>(
    notifier: &Rc<StreamNotifier>,
    connection: &Connection,
    stream: S,
    timeouts: Timeouts,
    service: H,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: HttpService<Incoming, ResBody = ClientBody, Error = BoxError>,
{
    let activity = connection.activity().clone();
    let stream = ObservedStream::new(stream, activity.clone()).counting(connection.unsent());
    let io = TokioIo::new(LimitedReads::new(stream, connection.read_limit()));
    let deadlines = Deadlines::new(activity, timeouts);
    let serving = http1_builder().serve_connection(io, service).with_upgrades();
    drive_connection(notifier, connection, deadlines, Box::pin(serving), |serving| {
        serving.graceful_shutdown()
    })
    .await
}

/// Drives a connection until it ends, is closed by a request or an outage, has drained or was idle for too long. It is polled several times
/// per request, so everything that it checks belongs to this thread and takes no lock.
async fn drive_connection<C, E>(
    notifier: &Rc<StreamNotifier>,
    connection: &Connection,
    mut deadlines: Deadlines,
    mut serving: Pin<Box<C>>,
    retire: impl FnOnce(Pin<&mut C>),
) -> Result<(), E>
where
    C: Future<Output = Result<(), E>>,
{
    let mut listener = notifier.listen();
    let mut retire = Some(retire);
    let mut silence = None;
    std::future::poll_fn(|cx| {
        connection.activity().begin_poll();
        let disposition = connection.poll_disposition(cx);
        // Registers for the end and for outages; a new chain does not affect connections.
        listener.poll_changed(cx);
        if disposition == Disposition::Close || listener.is_broken_off() {
            return Poll::Ready(Ok(()));
        }
        if disposition == Disposition::Silence {
            let silence = silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(LONGEST_HANG)));
            let is_over = listener.is_ending() || silence.as_mut().poll(cx).is_ready();
            // hyper's connection is kept, but not polled any more.
            return if is_over { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        if (listener.is_ending() || disposition == Disposition::Retire)
            && let Some(retire) = retire.take()
        {
            retire(serving.as_mut());
        }
        loop {
            if let Poll::Ready(ended) = serving.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            connection.poll_discard(cx);
            match ready!(deadlines.poll_expired(cx)) {
                Expired::Idle => {
                    if let Some(retire) = retire.take() {
                        retire(serving.as_mut());
                    }
                }
                Expired::Head | Expired::CloseGrace | Expired::Unread => return Poll::Ready(Ok(())),
            }
        }
    })
    .await
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // `Activity` replaces hyper's timeout, which would also close connections that have been idle for this long.
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_FIELDS)
        // The API server's own `Date` is passed on.
        .auto_date_header(false);
    builder
}

fn http2_builder(executor: LocalExecutor) -> http2::Builder<LocalExecutor> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
        .max_send_buf_size(MAX_SEND_BUFFER)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .auto_date_header(false);
    builder
}

#[cfg(test)]
mod tests;
