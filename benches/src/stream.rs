//! A client for streaming responses.

use std::net::SocketAddr;

use anyhow::ensure;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::client::LocalExecutor;
use crate::work::HttpVersion;

pub(crate) const JSON: &str = "application/json";
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// An open response. Dropping this closes its connection, if no other stream uses it.
pub(crate) struct Stream {
    body: Incoming,
    // Keeps the connection open.
    _sender: Sender,
}

enum Sender {
    Http1 { _sender: http1::SendRequest<Empty<Bytes>> },
    Http2 { _sender: http2::SendRequest<Empty<Bytes>> },
}

async fn connect_http2(address: SocketAddr) -> anyhow::Result<http2::SendRequest<Empty<Bytes>>> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let (sender, connection) = http2::handshake(LocalExecutor, TokioIo::new(tcp)).await?;
    tokio::task::spawn_local(connection);
    Ok(sender)
}

/// `uri`: the target, or over HTTP/2 an absolute URI.
fn get_request(uri: &str, accept: &str) -> http::Result<Request<Empty<Bytes>>> {
    let request = Request::get(uri).header("accept", accept).header("user-agent", "bench");
    // Over HTTP/2 the authority is in the URI.
    let request = if uri.starts_with('/') {
        request.header("host", "bench")
    } else {
        request
    };
    request.body(Empty::new())
}

impl Stream {
    /// Sends the request over HTTP/1.1 on a new connection.
    pub(crate) async fn open(address: SocketAddr, target: &str, accept: &str) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await?;
        tokio::task::spawn_local(connection);
        let response = sender.send_request(get_request(target, accept)?).await?;
        Self::new(target, response, Sender::Http1 { _sender: sender })
    }

    /// Opens equal streams: over HTTP/1.1 on a connection each, over HTTP/2 on one connection, as controllers do.
    pub(crate) async fn open_many(
        address: SocketAddr,
        version: HttpVersion,
        target: &str,
        count: usize,
    ) -> anyhow::Result<Vec<Self>> {
        let mut streams = Vec::with_capacity(count);
        if version == HttpVersion::Http1 {
            for _ in 0..count {
                streams.push(Self::open(address, target, JSON).await?);
            }
            return Ok(streams);
        }
        // Boxed: the handshake's future is large.
        let mut sender = Box::pin(connect_http2(address)).await?;
        let uri = format!("http://bench{target}");
        for _ in 0..count {
            let response = sender.send_request(get_request(&uri, JSON)?).await?;
            let sender = sender.clone();
            streams.push(Self::new(target, response, Sender::Http2 { _sender: sender })?);
        }
        Ok(streams)
    }

    fn new(target: &str, response: http::Response<Incoming>, sender: Sender) -> anyhow::Result<Self> {
        ensure!(
            response.status() == StatusCode::OK,
            "{target} was answered {}",
            response.status()
        );
        Ok(Self {
            body: response.into_body(),
            _sender: sender,
        })
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}
