//! A client that repeats one request with a small response, over HTTP/1.1 or HTTP/2.

use std::net::SocketAddr;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::work::{HttpVersion, Work};

/// Maximum size of a response.
const BUFFER: usize = 16 << 10;

pub(crate) enum Client {
    Http1(Http1Client),
    Http2(Box<Http2Client>),
}

impl Client {
    /// Opens clients: over HTTP/1.1 with a connection each, over HTTP/2 with a stream each on one connection, as controllers do.
    pub(crate) async fn open(
        address: SocketAddr,
        version: HttpVersion,
        work: &Work,
        count: usize,
    ) -> anyhow::Result<Vec<Self>> {
        let mut clients = Vec::with_capacity(count);
        match version {
            HttpVersion::Http1 => {
                for _ in 0..count {
                    clients.push(Self::Http1(Http1Client::connect(address, work).await?));
                }
            }
            HttpVersion::Http2 => {
                // Boxed: the handshake's future is large.
                let client = Box::pin(Http2Client::connect(address, work)).await?;
                clients.extend((0..count).map(|_| Self::Http2(Box::new(client.clone()))));
            }
        }
        Ok(clients)
    }

    /// Sends the request and reads its response.
    ///
    /// # Errors
    /// The status is no success, or the connection broke.
    pub(crate) async fn send_request(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Http1(client) => client.send_request().await,
            Self::Http2(client) => client.send_request().await,
        }
    }
}

/// One connection, without a library for HTTP: the load shares its cores with the proxies.
pub(crate) struct Http1Client {
    stream: TcpStream,
    request: String,
    buffer: Vec<u8>,
}

impl Http1Client {
    pub(crate) async fn connect(address: SocketAddr, work: &Work) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            request: http1_request(work, work.target),
            buffer: vec![0; BUFFER],
        })
    }

    /// Sends the next requests to another target.
    pub(crate) fn set_target(&mut self, work: &Work, target: &str) {
        self.request = http1_request(work, target);
    }

    /// The response must fit the buffer and have a length.
    pub(crate) async fn send_request(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(self.request.as_bytes()).await?;
        let mut filled = 0;
        loop {
            let Some(free) = self.buffer.get_mut(filled..).filter(|free| !free.is_empty()) else {
                bail!("response too large")
            };
            let read = self.stream.read(free).await?;
            ensure!(read > 0, "connection closed in a response");
            filled += read;
            let seen = self.buffer.get(..filled).unwrap_or_default();
            if let Some(whole) = response_length(seen)?
                && filled >= whole
            {
                return Ok(());
            }
        }
    }
}

fn http1_request(work: &Work, target: &str) -> String {
    let Work { method, body, .. } = work;
    let content = work.content_type.map_or_else(String::new, |kind| {
        format!("content-type: {kind}\r\ncontent-length: {}\r\n", body.len())
    });
    let token = work
        .authorization()
        .map_or_else(String::new, |value| format!("authorization: {value}\r\n"));
    format!(
        "{method} {target} HTTP/1.1\r\nhost: bench\r\naccept: application/json\r\nuser-agent: bench\r\n{token}{content}\r\n{body}"
    )
}

/// Length of head and body, once the head is complete.
fn response_length(seen: &[u8]) -> anyhow::Result<Option<usize>> {
    let Some(head) = seen.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(seen.get(..head).unwrap_or_default())?;
    if !text.starts_with("HTTP/1.1 20") {
        bail!("answered {:?}", text.lines().next());
    }
    let field = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim())
    });
    let body: usize = field.context("a response without a length")?.parse()?;
    Ok(Some(head + 4 + body))
}

/// A stream at a time, on a connection that others may share.
#[derive(Clone)]
pub(crate) struct Http2Client {
    sender: http2::SendRequest<Full<Bytes>>,
    head: http::request::Parts,
    body: Bytes,
}

impl Http2Client {
    async fn connect(address: SocketAddr, work: &Work) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let (sender, connection) = http2::handshake(LocalExecutor, TokioIo::new(tcp)).await?;
        tokio::task::spawn_local(connection);
        let (head, ()) = http2_request(work)?.into_parts();
        Ok(Self {
            sender,
            head,
            body: Bytes::from_static(work.body.as_bytes()),
        })
    }

    async fn send_request(&mut self) -> anyhow::Result<()> {
        let request = Request::from_parts(self.head.clone(), Full::new(self.body.clone()));
        let response = self.sender.send_request(request).await?;
        ensure!(response.status().is_success(), "answered {}", response.status());
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        Ok(())
    }
}

fn http2_request(work: &Work) -> anyhow::Result<Request<()>> {
    let mut request = Request::builder()
        .method(Method::from_bytes(work.method.as_bytes())?)
        .uri(format!("http://bench{}", work.target))
        .body(())?;
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static("bench"));
    if let Some(value) = work.authorization() {
        headers.insert(AUTHORIZATION, HeaderValue::try_from(value)?);
    }
    if let Some(kind) = work.content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    Ok(request)
}

/// Runs hyper's tasks of an HTTP/2 connection on the thread that opened it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{CREATE, GET, LIST, LIST_WITH_TOKEN};

    #[test]
    fn request_with_body_has_its_length() {
        let create = http1_request(&CREATE, CREATE.target);
        let (head, body) = create.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, CREATE.body);
        assert!(
            head.starts_with("POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
        assert!(http1_request(&GET, GET.target).ends_with("user-agent: bench\r\n\r\n"));
    }

    #[test]
    fn both_versions_ask_for_the_same() {
        let request = http2_request(&LIST).unwrap();
        let target = request.uri().path_and_query().unwrap();
        assert!(http1_request(&LIST, LIST.target).starts_with(&format!("{} {target} HTTP/1.1\r\n", request.method())));
    }

    #[test]
    fn both_versions_send_the_token_of_the_work_and_no_other() {
        let value = LIST_WITH_TOKEN.authorization().unwrap();
        assert_eq!(value.len(), "Bearer ".len() + 1_000);
        let sent = http1_request(&LIST_WITH_TOKEN, LIST_WITH_TOKEN.target);
        assert!(sent.contains(&format!("\r\nauthorization: {value}\r\n")), "{sent}");
        let request = http2_request(&LIST_WITH_TOKEN).unwrap();
        assert_eq!(request.headers()[AUTHORIZATION], value);
        assert!(!http1_request(&LIST, LIST.target).contains("authorization"));
        assert!(!http2_request(&LIST).unwrap().headers().contains_key(AUTHORIZATION));
    }

    #[test]
    fn response_is_complete_when_its_body_is() {
        assert_eq!(response_length(b"HTTP/1.1 200 OK\r\nContent-Le").unwrap(), None);
        let head = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(response_length(head).unwrap(), Some(head.len() + 5));
    }

    #[test]
    fn response_fails_unless_it_is_a_complete_success() {
        assert!(response_length(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(response_length(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
