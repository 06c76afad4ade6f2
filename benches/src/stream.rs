//! A client for streaming responses.

use std::net::SocketAddr;

use anyhow::bail;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// An open response. Dropping this closes its connection.
pub(crate) struct Stream {
    body: Incoming,
    // Keeps the connection open.
    _sender: http1::SendRequest<Empty<Bytes>>,
}

impl Stream {
    /// Sends the request on a new connection.
    pub(crate) async fn open(address: SocketAddr, target: &str) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await?;
        tokio::task::spawn_local(connection);
        let request = Request::get(target)
            .header("host", "bench")
            .header("accept", "application/json")
            .header("user-agent", "bench")
            .body(Empty::new())?;
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            bail!("{target} was answered {}", response.status());
        }
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
