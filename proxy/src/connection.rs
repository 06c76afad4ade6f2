//! One client connection: TLS or not, HTTP/1.1 or HTTP/2 by its first bytes, served until it ends, drains or is closed.
//!
//! Leaves the requests to `handler` and `external`. Limits stand here, each with its reason.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::Either;
use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::external::{self, External};
use crate::handler;
use crate::outage::Outage;
use crate::shape::LONGEST_HANG;
use crate::signal::Signal;
use crate::worker::{LocalExecutor, Worker};

/// A client that does not finish its handshake or request head in this time holds a place that others need.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request head. Go's servers take 1 MiB; tokens with many groups stay below 64 KiB.
const MAX_HEAD: usize = 128 << 10;

/// Header fields; hyper's own default is 100.
const MAX_HEADERS: usize = 256;

/// Streams of one HTTP/2 connection: client-go puts every watch of a controller on one.
const MAX_STREAMS: u32 = 1000;

/// Flow control: a large list needs a window that covers the pipe, an idle watch costs nothing for it.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Bytes buffered towards one slow reader.
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
    is_http1: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Of its port; `None` in tests.
    outage: Option<Outage>,
    /// Its place among all connections; a tunnel keeps it.
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
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
        if self.is_http1.get() {
            answer.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    fn wish(&self, wish: Wish) {
        self.wish.set(self.wish.get().max(wish));
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

/// The HTTP version that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    Tls,
    Plain(Protocol),
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const TLS_HANDSHAKE: u8 = 0x16;

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
        _place: Some(place),
        ..Connection::default()
    });
    let _ = stream.set_nodelay(true);
    let opening = tokio::select! {
        biased;
        opening = tokio::time::timeout(HEAD_TIMEOUT, opening(&stream)) => opening,
        // Clients keep connections that they have not used yet. None of them holds up the end.
        () = worker.drain.cancelled() => return,
    };
    match opening {
        Ok(Ok(Some(Opening::Plain(protocol)))) => serve_http(worker, service, connection, stream, protocol).await,
        Ok(Ok(Some(Opening::Tls))) => Box::pin(serve_tls(worker, service, connection, stream)).await,
        // Nothing was said: a port scan, or a probe.
        Ok(Ok(None) | Err(_)) | Err(_) => {}
    }
}

/// Looks at the first bytes and leaves them in place.
async fn opening(stream: &TcpStream) -> std::io::Result<Option<Opening>> {
    let mut bytes = [0; PREFACE.len()];
    let mut seen = 0;
    loop {
        let read = stream.peek(&mut bytes).await?;
        let start = bytes.get(..read).unwrap_or_default();
        match start.first() {
            None => return Ok(None),
            Some(&TLS_HANDSHAKE) => return Ok(Some(Opening::Tls)),
            Some(_) if !PREFACE.starts_with(start) => return Ok(Some(Opening::Plain(Protocol::Http1))),
            Some(_) if read == PREFACE.len() => return Ok(Some(Opening::Plain(Protocol::Http2))),
            Some(_) if read == seen => {
                // Peek does not wait for more than is there: let the rest of the preface arrive.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Some(_) => seen = read,
        }
    }
}

async fn serve_tls(worker: Rc<Worker>, service: Service, connection: Rc<Connection>, stream: TcpStream) {
    let Some(acceptor) = worker.tls.acceptor() else {
        tracing::warn!("a client speaks TLS and no --tls-dir (CTRLMESH_TLS_DIR) is set: connection closed");
        return;
    };
    let accepted = tokio::select! {
        biased;
        accepted = tokio::time::timeout(HEAD_TIMEOUT, acceptor.accept(stream)) => accepted,
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
        service_fn(move |request| {
            let (worker, connection) = (Rc::clone(&worker), Rc::clone(&connection));
            match &service {
                Service::Api => Either::Left(handler::handle(worker, connection, request)),
                Service::External(external) => {
                    let external = Rc::clone(external);
                    Either::Right(Box::pin(external::handle(worker, external, connection, request)))
                }
            }
        })
    };
    connection.is_http1.set(protocol == Protocol::Http1);
    let io = TokioIo::new(stream);
    let result = match protocol {
        Protocol::Http1 => {
            let serving = http1().serve_connection(io, service).with_upgrades();
            drive(&signal, &connection, Box::pin(serving), |it| it.graceful_shutdown()).await
        }
        Protocol::Http2 => {
            let serving = http2(worker.executor()).serve_connection(io, service);
            drive(&signal, &connection, Box::pin(serving), |it| it.graceful_shutdown()).await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "client connection ended");
    }
}

/// Drives a connection until it ends, is closed by a request or an outage, or has drained. It is polled several times for
/// each request, so what it listens to belongs to this thread and takes no lock.
async fn drive<C, E>(
    signal: &Rc<Signal>,
    connection: &Connection,
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
        serving.as_mut().poll(cx)
    })
    .await
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
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
