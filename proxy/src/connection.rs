//! One client connection: TLS or not, HTTP/1.1 or HTTP/2 by its first bytes, served until it ends, drains or is closed.
//!
//! Leaves the requests to `handler` and `external`. Limits stand here, each with its reason.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_util::future::{Either, FutureExt as _};
use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::body::ClientBody;
use crate::ending::Answer;
use crate::external::{self, External};
use crate::handler;
use crate::outage::Outage;
use crate::request_memory::{ConnectionMemory, OverBound};
use crate::shape::LONGEST_HANG;
use crate::signal::Signal;
use crate::upstream::BoxError;
use crate::worker::{LocalExecutor, Worker};

mod activity;
mod header_block;
mod opening;
mod unread_body;
mod unsent;

pub(crate) use activity::{Activity, Deadlines, Expired, ObservedStream, Timeouts};
use opening::{Opening, Protocol, Rewound, read_opening};
pub(crate) use unread_body::IncomingBody;
use unread_body::UnreadBody;
pub(crate) use unsent::Unsent;

/// A client that has begun a handshake or a request head and does not finish it in this time holds a place that others need.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request head. Go's servers take 1 MiB; tokens with many groups stay below 64 KiB.
const MAX_HEAD: usize = 128 << 10;

/// Header fields; hyper's own default is 100.
const MAX_HEADERS: usize = 256;

/// Streams of one HTTP/2 connection: client-go puts every watch of a controller on one.
const MAX_STREAMS: u32 = 1000;

/// What a client may have sent of a body that is not read: clients are in the same pod, so a small window covers the pipe. Eight
/// bodies that nobody reads use the connection up. HTTP/1.1 buffers up to [`MAX_HEAD`], which is as much.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Bytes buffered towards one slow reader; for all streams of a connection see [`Unsent`].
const MAX_SEND_BUFFER: usize = 256 << 10;

/// A client that vanished without a word is noticed by an unanswered ping.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// What a request can wish of the connection that it came on; a later one outranks those before it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    #[default]
    None,
    Retire,
    Silence,
    Close,
}

/// The handle by which a request acts on the connection that it came on.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    wish: Cell<Wish>,
    activity: Activity,
    memory: ConnectionMemory,
    unsent: Arc<Unsent>,
    /// Windows of bodies that are arriving.
    arriving: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    /// What comes of a body that nobody reads any more.
    unread: RefCell<Option<UnreadBody>>,
    /// The body of the request under way leaves the connection of no use for another one.
    ends_with_answer: Cell<bool>,
    /// Of its port; `None` in tests.
    outage: Option<Outage>,
    /// Its place among all connections; a tunnel keeps it.
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// A request whose head has arrived.
    pub(crate) fn begin_request(self: &Rc<Self>) -> RequestPlace {
        RequestPlace {
            _request: self.activity.begin(),
            connection: Rc::clone(self),
            held: Cell::new(0),
            spare: Cell::new(0),
        }
    }

    /// Whether there was room for bytes that can be done without. [`Self::give_back`] must follow.
    pub(crate) fn take_dispensable(&self, bytes: usize) -> bool {
        self.memory.take_dispensable(bytes)
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.memory.give_back(bytes);
    }

    /// What HTTP/2 has not written yet; HTTP/1.1 takes no more than it can write.
    pub(crate) fn unsent(&self) -> Option<Arc<Unsent>> {
        (!self.activity.is_http1()).then(|| Arc::clone(&self.unsent))
    }

    /// A body begins to arrive. The bodies of a connection hold their windows, and not more than the connection's.
    ///
    /// # Errors
    /// There is no room for it.
    fn begin_arriving(&self, window: usize) -> Result<(), OverBound> {
        let (before, after) = (self.arriving.get(), self.arriving.get() + window);
        self.memory.take(within_window(after) - within_window(before))?;
        self.arriving.set(after);
        Ok(())
    }

    fn end_arriving(&self, window: usize) {
        let (before, after) = (self.arriving.get(), self.arriving.get().saturating_sub(window));
        self.memory.give_back(within_window(before) - within_window(after));
        self.arriving.set(after);
    }

    /// Closes the connection at once, with all its requests.
    pub(crate) fn close(&self) {
        self.wish(Wish::Close);
    }

    /// Nothing is read or written on it any more, up to [`LONGEST_HANG`].
    pub(crate) fn silence(&self) {
        self.wish(Wish::Silence);
    }

    /// Closes its port for so long, with all connections of it.
    pub(crate) fn refuse_connections(&self, length: Duration) {
        if let Some(outage) = &self.outage {
            outage.begin(length);
        }
    }

    /// Takes no new requests after this answer, which says so itself on HTTP/1.1.
    pub(crate) fn retire_with(&self, answer: &mut HeaderMap) {
        self.wish(Wish::Retire);
        if self.activity.is_http1() {
            answer.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Reads the rest of a body and discards it. `ends_connection`: the answer says that no other request is taken.
    fn discard(&self, rest: Option<UnreadBody>, ends_connection: bool) {
        self.unread.replace(rest);
        self.ends_with_answer.set(ends_connection);
        self.wake();
    }

    fn poll_discard(&self, cx: &mut Context<'_>) {
        let mut unread = self.unread.borrow_mut();
        if unread.as_mut().is_some_and(|rest| rest.poll_end(cx).is_ready()) {
            *unread = None;
        }
    }

    /// Says in the answer whether the connection ends with it.
    fn finish(&self, mut answer: Answer) -> Answer {
        if self.ends_with_answer.take()
            && let Ok(response) = &mut answer
        {
            self.retire_with(response.headers_mut());
        }
        answer
    }

    fn wish(&self, wish: Wish) {
        self.wish.set(self.wish.get().max(wish));
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll_wish(&self, cx: &Context<'_>) -> Wish {
        let mut known = self.waker.borrow_mut();
        if known.as_ref().is_none_or(|known| !known.will_wake(cx.waker())) {
            *known = Some(cx.waker().clone());
        }
        self.wish.get()
    }
}

fn within_window(bytes: usize) -> usize {
    bytes.min(CONNECTION_WINDOW as usize)
}

/// A request's part of its connection, which is not idle as long as it lives: the bytes that it holds.
#[derive(Debug)]
pub(crate) struct RequestPlace {
    connection: Rc<Connection>,
    held: Cell<usize>,
    /// Of these, bytes that are in use no more.
    spare: Cell<usize>,
    _request: activity::Request,
}

impl RequestPlace {
    pub(crate) fn connection(&self) -> Rc<Connection> {
        Rc::clone(&self.connection)
    }

    /// Holds so many bytes more, until the request is over.
    ///
    /// # Errors
    /// There is no room for them.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), OverBound> {
        let spared = bytes.min(self.spare.get());
        self.connection.memory.take(bytes - spared)?;
        self.spare.set(self.spare.get() - spared);
        self.held.set(self.held.get() + bytes - spared);
        Ok(())
    }

    /// So many bytes are in use no more: what is held next takes their place, and finds room for sure.
    pub(crate) fn spare(&self, bytes: usize) {
        self.spare.set(self.held.get().min(self.spare.get() + bytes));
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        self.connection.memory.give_back(self.held.get());
    }
}

/// Whose requests a connection carries.
#[derive(Clone)]
pub(crate) enum Service {
    /// A controller's, to the API server.
    Api,
    /// Anybody's in the pod, to the world.
    External(Rc<External>),
}

/// Serves one connection to its end.
pub(crate) async fn serve(worker: Rc<Worker>, service: Service, stream: TcpStream, place: OwnedSemaphorePermit) {
    let outage = match &service {
        Service::Api => &worker.outage,
        Service::External(external) => external.outage(),
    };
    let connection = Rc::new(Connection {
        outage: Some(outage.clone()),
        activity: Activity::new(worker.memory.clone()),
        memory: ConnectionMemory::of(worker.memory.clone()),
        _place: Some(place),
        ..Connection::default()
    });
    let _ = stream.set_nodelay(true);
    let opening = tokio::select! {
        biased;
        opening = read_opening(stream, worker.timeouts) => opening,
        // Clients keep connections that they have not used yet. None of them holds up the end.
        () = worker.drain.cancelled() => return,
    };
    match opening {
        Some((Opening::Plain(protocol), stream)) => serve_http(worker, service, connection, stream, protocol).await,
        Some((Opening::Tls, stream)) => Box::pin(serve_tls(worker, service, connection, stream)).await,
        // Nothing was said: a port scan, a probe, or a connection that was never needed.
        None => {}
    }
}

async fn serve_tls(worker: Rc<Worker>, service: Service, connection: Rc<Connection>, stream: Rewound<TcpStream>) {
    let Some(acceptor) = worker.tls.acceptor() else {
        if let Some(suppressed) = worker.unexpected_tls.admit() {
            tracing::warn!(
                suppressed,
                "a client speaks TLS and no --tls-dir (CTRLMESH_TLS_DIR) is set: connection closed"
            );
        }
        return;
    };
    let accepted = tokio::select! {
        biased;
        accepted = tokio::time::timeout(worker.timeouts.head, acceptor.accept(stream)) => accepted,
        // Nothing was asked for yet.
        () = worker.drain.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => {
            let protocol = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Protocol::Http2,
                _ => Protocol::Http1,
            };
            serve_http(worker, service, connection, stream, protocol).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn serve_http<S>(worker: Rc<Worker>, service: Service, connection: Rc<Connection>, stream: S, protocol: Protocol)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let signal = match &service {
        Service::Api => Rc::clone(&worker.signal),
        Service::External(external) => Rc::clone(external.signal()),
    };
    let service = {
        let (worker, connection) = (Rc::clone(&worker), Rc::clone(&connection));
        service_fn(move |request: Request<Incoming>| {
            let (worker, used) = (Rc::clone(&worker), Rc::clone(&connection));
            let request = IncomingBody::of(&connection, request);
            let answering = match &service {
                Service::Api => Either::Left(handler::handle(worker, used, request)),
                Service::External(external) => {
                    let external = Rc::clone(external);
                    Either::Right(Box::pin(external::handle(worker, external, used, request)))
                }
            };
            let connection = Rc::clone(&connection);
            answering.map(move |answer| connection.finish(answer))
        })
    };
    let activity = connection.activity.clone();
    if protocol == Protocol::Http1 {
        activity.set_http1();
    }
    let result = match protocol {
        Protocol::Http1 => serve_http1(&signal, &connection, stream, worker.timeouts, service).await,
        Protocol::Http2 => {
            let io = TokioIo::new(ObservedStream::new(stream, activity.clone()));
            let deadlines = Deadlines::new(activity, worker.timeouts);
            let serving = http2(worker.executor()).serve_connection(io, service);
            drive(&signal, &connection, deadlines, Box::pin(serving), |it| {
                it.graceful_shutdown()
            })
            .await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "client connection ended");
    }
}

async fn serve_http1<S, H>(
    signal: &Rc<Signal>,
    connection: &Connection,
    stream: S,
    timeouts: Timeouts,
    service: H,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: HttpService<Incoming, ResBody = ClientBody, Error = BoxError>,
{
    let activity = connection.activity.clone();
    let io = TokioIo::new(ObservedStream::new(stream, activity.clone()));
    let deadlines = Deadlines::new(activity, timeouts);
    let serving = http1().serve_connection(io, service).with_upgrades();
    drive(signal, connection, deadlines, Box::pin(serving), |it| {
        it.graceful_shutdown()
    })
    .await
}

/// Drives a connection until it ends, is closed by a request or an outage, has drained or was idle for too long. It is polled several times for
/// each request, so what it listens to belongs to this thread and takes no lock.
async fn drive<C, E>(
    signal: &Rc<Signal>,
    connection: &Connection,
    mut deadlines: Deadlines,
    mut serving: Pin<Box<C>>,
    retire: impl FnOnce(Pin<&mut C>),
) -> Result<(), E>
where
    C: Future<Output = Result<(), E>>,
{
    let mut listener = signal.listen();
    let mut retire = Some(retire);
    let mut silence = None;
    std::future::poll_fn(|cx| {
        let wish = connection.poll_wish(cx);
        // Registers for the end and for outages; a new chain is no news for a connection.
        listener.poll_changed(cx);
        if wish == Wish::Close || listener.is_broken_off() {
            return Poll::Ready(Ok(()));
        }
        if wish == Wish::Silence {
            let silence = silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(LONGEST_HANG)));
            let is_over = listener.is_ending() || silence.as_mut().poll(cx).is_ready();
            // hyper is kept and not polled any more.
            return if is_over { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        if (listener.is_ending() || wish == Wish::Retire)
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
                Expired::Head | Expired::Farewell | Expired::Unread => return Poll::Ready(Ok(())),
            }
        }
    })
    .await
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Ours: hyper's would close connections that have been idle for as long.
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        // The API server's own Date passes.
        .auto_date_header(false);
    builder
}

fn http2(executor: LocalExecutor) -> http2::Builder<LocalExecutor> {
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
