//! One client connection: TLS or plaintext, HTTP/1.1 or HTTP/2, until it ends, is asked to end, or is reset. [`crate::route`] serves
//! the requests.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::control::Control;
use crate::route::serve_request;
use crate::shared::Shared;
use crate::socket::{Layer, Socket, SocketControl};
use crate::upgrade::Tunnels;

/// The connection preface of HTTP/2 with prior knowledge (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// From accept to the first request: handshake and first bytes.
const OPENING_DEADLINE: Duration = Duration::from_secs(10);

/// Longest time that an HTTP/1.1 connection may be idle or slow with its head: kube-apiserver's idle time of 90 s, with a margin.
const HEADER_DEADLINE: Duration = Duration::from_secs(120);

/// Go's default, which kube-apiserver keeps: long selectors must reach the parser.
const MAX_HEADERS: u32 = 1024 * 1024;

/// hyper's tasks of a connection, tracked by the server.
#[derive(Debug, Clone)]
struct Tasks {
    tracker: TaskTracker,
    abort: CancellationToken,
}

impl<F> Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        let abort = self.abort.clone();
        self.tracker
            .spawn(async move { abort.run_until_cancelled_owned(future).await.map(drop) });
    }
}

pub(crate) async fn serve_connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    ended: CancellationToken,
) {
    let _guard = shared.gauges.count_connection();
    let tricks = Arc::new(SocketControl::default());
    let tunnels = Tunnels {
        tasks: tasks.clone(),
        ended: ended.clone(),
        gauges: shared.gauges.clone(),
    };
    let abort = ended.child_token();
    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
    let control = Arc::new(Control::new(Arc::clone(&tricks), abort.clone(), tunnels, number));
    // Nagle's algorithm would delay small watch events.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let socket = Socket::new(stream, tricks);
    let connection = Connection {
        shared,
        control,
        tasks: Tasks {
            tracker: tasks,
            abort: abort.clone(),
        },
    };
    if let Some(Err(error)) = abort.run_until_cancelled(connection.serve_socket(socket, tls)).await {
        tracing::debug!(%error, "connection ended");
    }
    abort.cancel();
}

struct Connection {
    shared: Arc<Shared>,
    control: Arc<Control>,
    tasks: Tasks,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Connection {
    async fn serve_socket(self, mut socket: Socket, tls: Option<TlsAcceptor>) -> Result<(), Failure> {
        let tricks = Arc::clone(&self.control.tricks);
        match tls {
            Some(acceptor) => {
                let stream = tokio::time::timeout(OPENING_DEADLINE, acceptor.accept(socket)).await??;
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                self.serve_http(Layer::new(stream, Bytes::new(), tricks), is_http2)
                    .await
            }
            None => {
                let sniffed = tokio::time::timeout(OPENING_DEADLINE, sniff_protocol(&mut socket)).await??;
                let is_http2 = sniffed.starts_with(PREFACE);
                self.serve_http(Layer::new(socket, sniffed, tricks), is_http2).await
            }
        }
    }

    async fn serve_http<S>(self, stream: Layer<S>, is_http2: bool) -> Result<(), Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { shared, control, tasks } = self;
        let max_streams = shared.max_concurrent_streams;
        let service = {
            let control = Arc::clone(&control);
            service_fn(move |request| serve_request(Arc::clone(&shared), Arc::clone(&control), request))
        };
        let io = TokioIo::new(stream);
        if is_http2 {
            let mut builder = http2::Builder::new(tasks);
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(max_streams)
                .max_header_list_size(MAX_HEADERS);
            let connection = pin!(builder.serve_connection(io, service));
            drive_connection(connection, http2::Connection::graceful_shutdown, &control).await?;
        } else {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_DEADLINE);
            let connection = pin!(builder.serve_connection(io, service).with_upgrades());
            drive_connection(connection, http1::UpgradeableConnection::graceful_shutdown, &control).await?;
        }
        Ok(())
    }
}

/// Polls the connection to its end, and shuts it down when `control` says so.
async fn drive_connection<C>(
    mut connection: Pin<&mut C>,
    shut_down: fn(Pin<&mut C>),
    control: &Control,
) -> hyper::Result<()>
where
    C: Future<Output = hyper::Result<()>>,
{
    loop {
        tokio::select! {
            done = connection.as_mut() => return done,
            () = control.goaway_requested() => shut_down(connection.as_mut()),
        }
    }
}

/// Reads enough bytes to distinguish HTTP/2 from HTTP/1.1.
async fn sniff_protocol(socket: &mut Socket) -> io::Result<Bytes> {
    let mut read = BytesMut::with_capacity(1024);
    while PREFACE.starts_with(&read) && read.len() < PREFACE.len() {
        if socket.read_buf(&mut read).await? == 0 {
            break;
        }
    }
    Ok(read.freeze())
}
