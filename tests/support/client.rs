//! A client that sends what it is told, over a connection of its own for each request.

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

/// A response that was read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Header fields.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// Trailer fields.
    pub trailers: Option<HeaderMap>,
}

impl Answer {
    /// The body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Names of a list's items, sorted.
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
    /// Its head.
    pub head: http::response::Parts,
    body: Incoming,
    _connection: JoinHandle<()>,
}

impl Stream {
    /// The next bytes; `None` at the clean end.
    ///
    /// # Errors
    /// The stream broke off, or nothing came before the deadline.
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
    /// The stream broke off or ended, or nothing came before the deadline.
    pub async fn event(&mut self) -> anyhow::Result<serde_json::Value> {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            line.extend(self.next().await?.context("the watch ended")?);
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

impl Client {
    /// HTTP/1.1.
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

    /// Sends this header with every request.
    ///
    /// # Panics
    /// It is no header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        #[expect(clippy::expect_used, reason = "a mistake in a test")]
        self.headers.append(name, value.parse().expect("a header value"));
        self
    }

    /// Sends these headers with every request.
    #[must_use]
    pub fn with_all(mut self, headers: HeaderMap) -> Self {
        self.headers.extend(headers);
        self
    }

    /// GET.
    ///
    /// # Errors
    /// No answer.
    pub async fn get(&self, target: &str) -> anyhow::Result<Answer> {
        self.send(Method::GET, target, Bytes::new()).await
    }

    /// Any request with a body.
    ///
    /// # Errors
    /// No answer.
    pub async fn send(&self, method: Method, target: &str, body: impl Into<Bytes>) -> anyhow::Result<Answer> {
        let read = async {
            let stream = self.open(method, target, body.into()).await?;
            let collected = stream.body.collect().await?;
            let trailers = collected.trailers().cloned();
            anyhow::Ok(Answer {
                status: stream.head.status.as_u16(),
                headers: stream.head.headers,
                body: collected.to_bytes(),
                trailers,
            })
        };
        tokio::time::timeout(DEADLINE, read)
            .await
            .with_context(|| format!("no answer: {target}"))?
    }

    /// A request whose response is read piece by piece.
    ///
    /// # Errors
    /// No answer.
    pub async fn stream(&self, target: &str) -> anyhow::Result<Stream> {
        self.stream_of(Method::GET, target).await
    }

    /// The same with another method, and without a body.
    ///
    /// # Errors
    /// No answer.
    pub async fn stream_of(&self, method: Method, target: &str) -> anyhow::Result<Stream> {
        tokio::time::timeout(DEADLINE, self.open(method, target, Bytes::new()))
            .await
            .context("no answer")?
    }

    async fn open(&self, method: Method, target: &str, body: Bytes) -> anyhow::Result<Stream> {
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
        let mut request = self.request(method, target, body)?;
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
        let request = self.request(method, &format!("http://{}{target}", self.address), body)?;
        Ok((sender.send_request(request).await?, connection))
    }

    fn request(&self, method: Method, target: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(target).body(Full::new(body))?;
        request.headers_mut().extend(self.headers.clone());
        Ok(request)
    }
}
