//! A small real server that external calls go to: plain or TLS, HTTP/1.1 or HTTP/2, and what it has seen.
//!
//! Paths: `/echo` streams the request's body back; `/big` sends [`BIG`] bytes; `/hold` sends one chunk and then nothing, until
//! the client is gone; `/length` is the same and says that this is all; `/reset` breaks off before an answer; `/late` answers when it is let; anything else says `hello`.

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

/// Bytes of `/big`.
pub const BIG: usize = 64 << 20;
const CHUNK: usize = 64 << 10;
const FIRST: &[u8] = b"first";

/// A request that came.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// Its method.
    pub method: Method,
    /// Its target as sent; over HTTP/2 the whole URL.
    pub uri: Uri,
    /// Its protocol.
    pub version: Version,
    /// Its header.
    pub headers: HeaderMap,
}

/// The server. Dropping it ends it with its connections.
pub struct Target {
    address: SocketAddr,
    /// Its certificate as PEM; empty without TLS.
    certificate: String,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    arrived: Mutex<Vec<Arrived>>,
    connections: AtomicUsize,
    held: AtomicUsize,
    late: Notify,
}

impl Target {
    /// Plain HTTP/1.1.
    ///
    /// # Errors
    /// No port.
    pub async fn plain() -> anyhow::Result<Self> {
        Self::start(None, String::new()).await
    }

    /// TLS, offering these protocols; its certificate is for `localhost` and 127.0.0.1.
    ///
    /// # Errors
    /// No port, no certificate.
    pub async fn tls(protocols: &[&str]) -> anyhow::Result<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Self::start(Some(TlsAcceptor::from(Arc::new(config))), made.cert.pem()).await
    }

    async fn start(tls: Option<TlsAcceptor>, certificate: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, tls, Arc::clone(&shared)));
        Ok(Self {
            address,
            certificate,
            shared,
            _serving: serving,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Its certificate, which is its own authority, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// What has come so far.
    #[must_use]
    pub fn arrived(&self) -> Vec<Arrived> {
        self.shared
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Connections that were ever opened to it.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Answers of `/hold` that are open.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Lets one request for `/late` be answered.
    pub fn let_answer(&self) {
        self.shared.late.notify_one();
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::SeqCst);
        connections.spawn(connection(stream, tls.clone(), Arc::clone(&shared)));
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let Some(tls) = tls else {
        return serve(stream, false, shared).await;
    };
    if let Ok(stream) = tls.accept(stream).await {
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        serve(stream, is_http2, shared).await;
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, is_http2: bool, shared: Arc<Shared>) {
    let service = service_fn(move |request| answer(request, Arc::clone(&shared)));
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

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> anyhow::Result<Response<AnyBody>> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let is_http1 = parts.version == Version::HTTP_11;
    let arrived = Arrived {
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
        "/big" => Zeros { left: BIG }.map_err(infallible).boxed_unsync(),
        "/hold" | "/length" => Held::new(shared).map_err(infallible).boxed_unsync(),
        "/reset" => anyhow::bail!("as asked"),
        other => {
            if other == "/late" {
                shared.late.notified().await;
            }
            Full::new(Bytes::from_static(b"hello"))
                .map_err(infallible)
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

fn infallible(never: Infallible) -> anyhow::Error {
    match never {}
}

/// So many zeros.
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

/// One chunk, then nothing.
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
            // The connection's end drops it.
            None => Poll::Pending,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.held.fetch_sub(1, Ordering::SeqCst);
    }
}
