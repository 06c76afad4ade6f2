//! The baseline: a proxy of hyper and nothing else, one thread. It speaks the client's HTTP version (HTTP/2 with prior knowledge), and to
//! the origin HTTP/1.1 in plaintext or HTTP/2 over TLS.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1 as client1, http2 as client2};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use crate::client::LocalExecutor;
use crate::origin::MAX_STREAMS;
use crate::process::announce_addresses;
use crate::tls;

/// As many streams as the sidecar allows its clients on one connection.
const CLIENT_STREAMS: u32 = 1000;

/// `ca`: of the origin's certificate, if it speaks TLS.
pub(crate) async fn serve_bare_proxy(origin: SocketAddr, ca: Option<&Path>) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce_addresses(&[listener.local_addr()?])?;
    serve_clients(listener, origin, ca).await
}

async fn serve_clients(listener: TcpListener, origin: SocketAddr, ca: Option<&Path>) -> anyhow::Result<()> {
    let upstream = match ca {
        None => Upstream::Http1(IdleConnections::default()),
        Some(ca) => Upstream::Http2(SharedConnections {
            connector: TlsConnector::from(tls::client_config(ca)?),
            connections: RefCell::default(),
            opening: Mutex::default(),
        }),
    };
    let proxy = Rc::new(BareProxy {
        origin,
        host: origin.to_string().parse()?,
        upstream,
    });
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::task::spawn_local(serve_client(stream, Rc::clone(&proxy)));
    }
}

/// The first bytes of a client with prior knowledge of HTTP/2, and of no method.
const PREFACE: &[u8; 3] = b"PRI";

async fn serve_client(stream: TcpStream, proxy: Rc<BareProxy>) {
    let mut first = [0; PREFACE.len()];
    if stream.peek(&mut first).await.is_err() {
        return;
    }
    let service = service_fn(move |request| {
        let proxy = Rc::clone(&proxy);
        async move { proxy.forward_request(request).await }
    });
    // A client that goes away is how a measurement ends.
    if first == *PREFACE {
        let _ = http2::Builder::new(LocalExecutor)
            .max_concurrent_streams(CLIENT_STREAMS)
            .serve_connection(TokioIo::new(stream), service)
            .await;
    } else {
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }
}

struct BareProxy {
    origin: SocketAddr,
    host: HeaderValue,
    upstream: Upstream,
}

/// HTTP/1.1 connections that wait for a request.
type IdleConnections = Rc<RefCell<Vec<client1::SendRequest<Incoming>>>>;

enum Upstream {
    Http1(IdleConnections),
    Http2(SharedConnections),
}

struct SharedConnections {
    connector: TlsConnector,
    connections: RefCell<Vec<SharedConnection>>,
    /// Held while a connection is opened, so that waiting requests share it.
    opening: Mutex<()>,
}

struct SharedConnection {
    sender: client2::SendRequest<Incoming>,
    /// Referenced from here and by each open stream.
    streams: Rc<()>,
}

impl BareProxy {
    async fn forward_request(&self, request: Request<Incoming>) -> anyhow::Result<Response<ForwardedBody>> {
        match &self.upstream {
            Upstream::Http1(idle) => self.forward_http1(idle, request).await,
            Upstream::Http2(shared) => self.forward_http2(shared, request).await,
        }
    }

    async fn forward_http1(
        &self,
        idle: &IdleConnections,
        mut request: Request<Incoming>,
    ) -> anyhow::Result<Response<ForwardedBody>> {
        let lease = idle.borrow_mut().pop();
        let mut sender = match lease {
            Some(sender) if sender.is_ready() => sender,
            _ => self.connect_http1().await?,
        };
        if request.version() == Version::HTTP_2 {
            *request.version_mut() = Version::HTTP_11;
            *request.uri_mut() = path_of(request.uri()).parse()?;
        }
        request.headers_mut().insert(HOST, self.host.clone());
        let response = sender.send_request(request).await?;
        let idle = Rc::clone(idle);
        // Returned when the body has been read: hyper makes it ready then.
        tokio::task::spawn_local(async move {
            if sender.ready().await.is_ok() {
                idle.borrow_mut().push(sender);
            }
        });
        Ok(response.map(|body| ForwardedBody { body, _stream: None }))
    }

    async fn connect_http1(&self) -> anyhow::Result<client1::SendRequest<Incoming>> {
        let stream = TcpStream::connect(self.origin).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = client1::handshake(TokioIo::new(stream)).await?;
        tokio::task::spawn_local(connection);
        Ok(sender)
    }

    async fn forward_http2(
        &self,
        shared: &SharedConnections,
        mut request: Request<Incoming>,
    ) -> anyhow::Result<Response<ForwardedBody>> {
        let (mut sender, stream) = self.find_stream(shared).await?;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = Uri::builder()
            .scheme("https")
            .authority(self.host.as_bytes())
            .path_and_query(path_of(request.uri()))
            .build()?;
        request.headers_mut().remove(HOST);
        let response = sender.send_request(request).await?;
        Ok(response.map(|body| ForwardedBody {
            body,
            _stream: Some(stream),
        }))
    }

    /// A connection that may take another stream, and the reference that counts it.
    async fn find_stream(
        &self,
        shared: &SharedConnections,
    ) -> anyhow::Result<(client2::SendRequest<Incoming>, Rc<()>)> {
        if let Some(found) = shared.free_stream() {
            return Ok(found);
        }
        let _opening = shared.opening.lock().await;
        if let Some(found) = shared.free_stream() {
            return Ok(found);
        }
        // Boxed, so that the futures of all other requests stay small.
        let sender = Box::pin(self.connect_http2(&shared.connector)).await?;
        let streams = Rc::new(());
        let stream = Rc::clone(&streams);
        shared.connections.borrow_mut().push(SharedConnection {
            sender: sender.clone(),
            streams,
        });
        Ok((sender, stream))
    }

    async fn connect_http2(&self, connector: &TlsConnector) -> anyhow::Result<client2::SendRequest<Incoming>> {
        let tcp = TcpStream::connect(self.origin).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::from(self.origin.ip());
        let stream = connector.connect(name, tcp).await?;
        let (sender, connection) = client2::handshake(LocalExecutor, TokioIo::new(stream)).await?;
        tokio::task::spawn_local(connection);
        Ok(sender)
    }
}

impl SharedConnections {
    fn free_stream(&self) -> Option<(client2::SendRequest<Incoming>, Rc<()>)> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| !connection.sender.is_closed());
        let free = connections
            .iter()
            .find(|connection| Rc::strong_count(&connection.streams) <= MAX_STREAMS as usize)?;
        Some((free.sender.clone(), Rc::clone(&free.streams)))
    }
}

fn path_of(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", |path| path.as_str())
}

/// The origin's body. Dropping it ends its stream.
struct ForwardedBody {
    body: Incoming,
    _stream: Option<Rc<()>>,
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::{LocalSet, spawn_local};

    use super::*;
    use crate::client::Client;
    use crate::origin::{POD_LIST, POD_LIST_PODS, PROTOBUF_POD_BYTES, QUIET_WATCH, sent_at, serve_ports, watch_target};
    use crate::stream::{PROTOBUF, Stream};
    use crate::tls::TlsFolder;
    use crate::work::{CREATE, GET, HttpVersion, LIST, PATCH};

    async fn bind() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Addresses of two proxies: in front of the origin's plaintext port, and of its TLS port.
    async fn start_proxies(files: &Path) -> [SocketAddr; 2] {
        let tls = TlsFolder::create(files.join("tls")).unwrap();
        let ca = tls.ca_path();
        let ((plain, plain_address), (encrypted, encrypted_address)) = (bind().await, bind().await);
        spawn_local(async move { serve_ports(plain, encrypted, &tls).await });
        let ((first, to_plain), (second, to_encrypted)) = (bind().await, bind().await);
        spawn_local(async move { serve_clients(first, plain_address, None).await });
        spawn_local(async move { serve_clients(second, encrypted_address, Some(ca.as_path())).await });
        [to_plain, to_encrypted]
    }

    #[tokio::test]
    async fn all_work_is_answered_over_every_version_and_port() {
        let files = tempfile::tempdir().unwrap();
        let run = async {
            for proxy in start_proxies(files.path()).await {
                for version in [HttpVersion::Http1, HttpVersion::Http2] {
                    for work in [GET, LIST, CREATE, PATCH] {
                        for mut client in Client::open(proxy, version, &work, 2).await.unwrap() {
                            client.send_request().await.unwrap();
                            client.send_request().await.unwrap();
                        }
                    }
                }
            }
        };
        LocalSet::new().run_until(run).await;
    }

    #[tokio::test]
    async fn lists_are_whole_and_watches_outnumber_streams_of_a_connection() {
        let files = tempfile::tempdir().unwrap();
        let run = async {
            for proxy in start_proxies(files.path()).await {
                let mut list = Stream::open(proxy, POD_LIST, PROTOBUF).await.unwrap();
                let mut bytes = 0;
                while let Some(piece) = list.next().await.unwrap() {
                    bytes += piece.len();
                }
                assert_eq!(bytes, POD_LIST_PODS * PROTOBUF_POD_BYTES);
                let count = MAX_STREAMS as usize + 1;
                let quiet = Stream::open_many(proxy, HttpVersion::Http2, QUIET_WATCH, count);
                for mut watch in quiet.await.unwrap() {
                    assert!(watch.next().await.unwrap().is_some());
                }
                let busy = watch_target(Duration::from_millis(1));
                let busy = Stream::open_many(proxy, HttpVersion::Http1, &busy, 1).await.unwrap();
                for mut watch in busy {
                    let event = watch.next().await.unwrap().unwrap();
                    assert!(sent_at(&event).is_some());
                }
            }
        };
        LocalSet::new().run_until(run).await;
    }
}
