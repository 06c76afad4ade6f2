//! An HTTP client that opens a connection for each request.

use std::net::SocketAddr;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::DEADLINE;

/// A client of one address.
#[derive(Debug, Clone)]
pub struct Client {
    address: SocketAddr,
    http2: bool,
    headers: HeaderMap,
}

/// A complete response.
#[derive(Debug, Clone)]
pub struct ReceivedResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

impl ReceivedResponse {
    /// The body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The names of the list items, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let json = self.json();
        let items = json["items"].as_array().cloned().unwrap_or_default();
        let mut names: Vec<String> = items
            .iter()
            .filter_map(|item| item["metadata"]["name"].as_str().map(ToOwned::to_owned))
            .collect();
        names.sort();
        names
    }
}

/// A response that is being read.
pub struct Stream {
    pub head: http::response::Parts,
    body: Incoming,
    _connection: JoinHandle<()>,
}

impl Stream {
    /// The next bytes; `None` at the clean end.
    ///
    /// # Errors
    /// If the stream broke off, or nothing arrived before the deadline.
    pub async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        loop {
            let frame = tokio::time::timeout(DEADLINE, self.body.frame())
                .await
                .context("nothing came")?;
            match frame.transpose()?.map(http_body::Frame::into_data) {
                // HTTP/2 may end a stream with an empty frame.
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => return Ok(Some(data)),
                Some(Err(_trailers)) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next event of a JSON watch.
    ///
    /// # Errors
    /// If the stream broke off or ended, or nothing arrived before the deadline.
    pub async fn next_event(&mut self) -> anyhow::Result<serde_json::Value> {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            line.extend(self.next().await?.context("the watch ended")?);
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

impl Client {
    #[must_use]
    pub fn http1(address: SocketAddr) -> Self {
        Self {
            address,
            http2: false,
            headers: HeaderMap::new(),
        }
    }

    /// HTTP/2 with prior knowledge.
    #[must_use]
    pub fn http2(address: SocketAddr) -> Self {
        Self {
            http2: true,
            ..Self::http1(address)
        }
    }

    /// Adds this header to every request.
    ///
    /// # Panics
    /// If it is not a valid header.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: &str) -> Self {
        #[expect(clippy::expect_used, reason = "a mistake in a test")]
        self.headers.append(name, value.parse().expect("a header value"));
        self
    }

    /// Adds these headers to every request.
    #[must_use]
    pub fn with_headers(mut self, headers: HeaderMap) -> Self {
        self.headers.extend(headers);
        self
    }

    ///
    /// # Errors
    /// If there is no response.
    pub async fn get(&self, target: &str) -> anyhow::Result<ReceivedResponse> {
        self.send(Method::GET, target, Bytes::new()).await
    }

    /// A request with a body.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn send(&self, method: Method, target: &str, body: impl Into<Bytes>) -> anyhow::Result<ReceivedResponse> {
        let read = async {
            let stream = self.send_request(method, target, body.into()).await?;
            let collected = stream.body.collect().await?;
            let trailers = collected.trailers().cloned();
            anyhow::Ok(ReceivedResponse {
                status: stream.head.status.as_u16(),
                headers: stream.head.headers,
                body: collected.to_bytes(),
                trailers,
            })
        };
        tokio::time::timeout(DEADLINE, read)
            .await
            .with_context(|| format!("no response: {target}"))?
    }

    /// A GET request whose response is read piece by piece.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn open_stream(&self, target: &str) -> anyhow::Result<Stream> {
        self.open_stream_with(Method::GET, target).await
    }

    /// Like [`Self::open_stream`] with another method, without a body.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn open_stream_with(&self, method: Method, target: &str) -> anyhow::Result<Stream> {
        tokio::time::timeout(DEADLINE, self.send_request(method, target, Bytes::new()))
            .await
            .context("no response")?
    }

    async fn send_request(&self, method: Method, target: &str, body: Bytes) -> anyhow::Result<Stream> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (response, connection) = if self.http2 {
            self.over_http2(stream, method, target, body).await?
        } else {
            self.over_http1(stream, method, target, body).await?
        };
        let (head, body) = response.into_parts();
        Ok(Stream {
            head,
            body,
            _connection: connection,
        })
    }

    async fn over_http1(
        &self,
        stream: TcpStream,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> anyhow::Result<(Response<Incoming>, JoinHandle<()>)> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(async move { drop(connection.with_upgrades().await) });
        let mut request = self.build_request(method, target, body)?;
        if !request.headers().contains_key(http::header::HOST) {
            request
                .headers_mut()
                .insert(http::header::HOST, self.address.to_string().parse()?);
        }
        Ok((sender.send_request(request).await?, connection))
    }

    async fn over_http2(
        &self,
        stream: TcpStream,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> anyhow::Result<(Response<Incoming>, JoinHandle<()>)> {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let connection = tokio::spawn(async move { drop(connection.await) });
        let request = self.build_request(method, &format!("http://{}{target}", self.address), body)?;
        Ok((sender.send_request(request).await?, connection))
    }

    fn build_request(&self, method: Method, target: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(target).body(Full::new(body))?;
        request.headers_mut().extend(self.headers.clone());
        Ok(request)
    }
}

/// Framings that servers have parsed in two ways: header fields, the blank line, and `smuggled` where a server might take it for the
/// next request. The caller writes the request line and the other header fields before it.
#[must_use]
pub fn smuggled_framings(smuggled: &str) -> Vec<String> {
    let length = smuggled.len();
    vec![
        format!(
            "content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}",
            length + 5
        ),
        format!("transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("content-length: 0\r\ncontent-length: {length}\r\n\r\n{smuggled}"),
        format!("transfer-encoding: xchunked\r\n\r\n{smuggled}"),
        format!("transfer-encoding: chunked, identity\r\n\r\n{smuggled}"),
        format!("content-length: {length}\r\nconnection: close, content-length\r\n\r\n{smuggled}"),
    ]
}
