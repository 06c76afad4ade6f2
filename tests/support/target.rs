//! A small real server as target of external calls: plain or TLS, HTTP/1.1 or HTTP/2. It records its requests.
//!
//! Paths: `/echo` streams the request's body back; `/big` sends [`BIG`] bytes; `/hold` sends one chunk and then nothing until the client
//! is gone; `/length` does the same with a length that is already complete; `/reset` breaks off before a response; `/late` answers when
//! the test releases it; all other paths answer `hello`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Size of `/big` in bytes.
pub const BIG: usize = 64 << 20;
const CHUNK: usize = 64 << 10;
const FIRST: &[u8] = b"first";

/// A received request.
#[derive(Debug, Clone)]
pub struct ArrivedRequest {
    pub method: Method,
    /// Target as sent; over HTTP/2, the whole URL.
    pub uri: Uri,
    pub version: Version,
    pub headers: HeaderMap,
}

/// The server. Dropping this ends it with its connections.
pub struct Target {
    address: SocketAddr,
    /// Certificate as PEM; empty without TLS.
    certificate: String,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    arrived: Mutex<Vec<ArrivedRequest>>,
    connections: AtomicUsize,
    held: AtomicUsize,
    late: Notify,
}

impl Target {
    /// Starts a plain HTTP/1.1 server.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start_plain() -> anyhow::Result<Self> {
        Self::start_server(None, String::new()).await
    }

    /// Starts a TLS server that offers these protocols; its certificate is for `localhost` and 127.0.0.1.
    ///
    /// # Errors
    /// If no port can be bound or the certificate can't be made.
    pub async fn start_tls(protocols: &[&str]) -> anyhow::Result<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Self::start_server(Some(TlsAcceptor::from(Arc::new(config))), made.cert.pem()).await
    }

    async fn start_server(tls: Option<TlsAcceptor>, certificate: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let mut serving = JoinSet::new();
        serving.spawn(accept_connections(listener, tls, Arc::clone(&shared)));
        Ok(Self {
            address,
            certificate,
            shared,
            _serving: serving,
        })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Its self-signed certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// All requests so far.
    #[must_use]
    pub fn arrived_requests(&self) -> Vec<ArrivedRequest> {
        self.shared
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// All connections so far.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Open responses to `/hold`.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Lets one request for `/late` be answered.
    pub fn release_late_response(&self) {
        self.shared.late.notify_one();
    }
}

async fn accept_connections(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::SeqCst);
        connections.spawn(serve_connection(stream, tls.clone(), Arc::clone(&shared)));
    }
}

async fn serve_connection(stream: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let Some(tls) = tls else {
        return serve_http(stream, false, shared).await;
    };
    if let Ok(stream) = tls.accept(stream).await {
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        serve_http(stream, is_http2, shared).await;
    }
}

async fn serve_http<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    is_http2: bool,
    shared: Arc<Shared>,
) {
    let service = service_fn(move |request| answer_request(request, Arc::clone(&shared)));
    let io = TokioIo::new(stream);
    if is_http2 {
        let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        drop(http2.serve_connection(io, service).await);
    } else {
        drop(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(io, service)
                .await,
        );
    }
}

type AnyBody = http_body_util::combinators::UnsyncBoxBody<Bytes, anyhow::Error>;

async fn answer_request(request: Request<Incoming>, shared: Arc<Shared>) -> anyhow::Result<Response<AnyBody>> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let is_http1 = parts.version == Version::HTTP_11;
    let arrived = ArrivedRequest {
        method: parts.method,
        uri: parts.uri,
        version: parts.version,
        headers: parts.headers,
    };
    shared
        .arrived
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(arrived);
    let body = match path.as_str() {
        "/echo" => body.map_err(anyhow::Error::from).boxed_unsync(),
        "/big" => Zeros { left: BIG }.map_err(never_fails).boxed_unsync(),
        "/hold" | "/length" => Held::new(shared).map_err(never_fails).boxed_unsync(),
        "/reset" => anyhow::bail!("as asked"),
        other => {
            if other == "/late" {
                shared.late.notified().await;
            }
            Full::new(Bytes::from_static(b"hello"))
                .map_err(never_fails)
                .boxed_unsync()
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert("x-kept", "1".parse()?);
    headers.insert("proxy-authenticate", "Basic".parse()?);
    if path == "/length" {
        headers.insert("content-length", FIRST.len().into());
    }
    if is_http1 {
        headers.insert("connection", "keep-alive, x-hop".parse()?);
        headers.insert("x-hop", "1".parse()?);
    }
    Ok(response)
}

fn never_fails(never: Infallible) -> anyhow::Error {
    match never {}
}

/// A body of zeros.
struct Zeros {
    left: usize,
}

impl Body for Zeros {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let size = CHUNK.min(self.left);
        self.left -= size;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; CHUNK]).slice(..size)))))
    }
}

/// A body with one chunk that never ends.
struct Held {
    first: Option<Bytes>,
    shared: Arc<Shared>,
}

impl Held {
    fn new(shared: Arc<Shared>) -> Self {
        shared.held.fetch_add(1, Ordering::SeqCst);
        Self {
            first: Some(Bytes::from_static(FIRST)),
            shared,
        }
    }
}

impl Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            // Dropped when the connection ends.
            None => Poll::Pending,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.held.fetch_sub(1, Ordering::SeqCst);
    }
}
