//! `exec`, `attach`, `port-forward` and WebSocket watches: each needs its own connection, which stops being HTTP after 101.
//!
//! Leaves copying bytes to the caller.

use std::{pin::pin, rc::Rc, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::CONNECTION};
use http_body::Body;
use hyper::{client::conn::http1, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Upstream,
    body::UpstreamBody,
    connect,
    error::{BoxError, ConnectError, SendError},
    http1::Outgoing,
    pool::Open,
    request::{Head, RequestBody},
};

/// The response to a request for another protocol.
#[derive(Debug)]
pub enum Upgrade {
    /// 101: the head, and the bytes that follow in both directions.
    Switched(Response<()>, UpgradedStream),
    /// Any other status: an ordinary response.
    Refused(Response<UpstreamBody>),
}

/// The bytes of an upgraded connection. Dropping it closes the connection.
#[derive(Debug)]
pub struct UpgradedStream {
    io: TokioIo<Upgraded>,
    _open: Open,
}

impl Upstream {
    /// Sends a request with `Upgrade` on its own connection, always HTTP/1.1.
    ///
    /// `Connection: upgrade` is added here; the `Upgrade` header and those that belong to it
    /// (`Sec-WebSocket-*`, `X-Stream-Protocol-Version`) are the caller's.
    ///
    /// # Errors
    /// As [`Upstream::send`]; an upgrade is never sent twice.
    pub async fn upgrade<B>(self: &Rc<Self>, request: Request<B>) -> Result<Upgrade, SendError>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        let mut head = Head::new(parts.into(), &self.target)?;
        let body = Outgoing(RequestBody::new(body, 0, None));
        let request = head.http1(&self.target, body);
        if self.pool.open.get() + self.pool.opening.get() >= self.limits.max_connections {
            return Err(SendError::TooManyConnections {
                limit: self.limits.max_connections,
            });
        }
        let open = Open::new(self);
        let stream = self.open_alone().await.map_err(|error| SendError::Unreachable {
            source: Arc::new(error),
        })?;
        let (mut sender, driver) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken_connection)?;
        let driver = AbortOnDropHandle::new(tokio::task::spawn_local(async move {
            if let Err(error) = driver.with_upgrades().await {
                tracing::debug!(%error, "connection for an upgrade ended");
            }
        }));
        let mut response = self
            .within_head_timeout(&head, Instant::now(), pin!(sender.send_request(request)))
            .await?
            .map_err(failed_connection)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Upgrade::Refused(
                response.map(|body| UpstreamBody::owning_connection(body, driver, open)),
            ));
        }
        let io = TokioIo::new(hyper::upgrade::on(&mut response).await.map_err(broken_connection)?);
        Ok(Upgrade::Switched(
            response.map(drop),
            UpgradedStream { io, _open: open },
        ))
    }

    async fn open_alone(&self) -> Result<connect::Transport, ConnectError> {
        let limit = self.limits.connect_timeout;
        let authority = || self.target.authority().to_string();
        timeout(limit, connect::open_http1(&self.target, &self.limits))
            .await
            .unwrap_or_else(|_| {
                Err(ConnectError::Timeout {
                    authority: authority(),
                    timeout: limit,
                })
            })
    }
}

fn broken_connection(error: hyper::Error) -> SendError {
    SendError::Broken {
        maybe_executed: true,
        source: error.into(),
    }
}

fn failed_connection(error: hyper::Error) -> SendError {
    if error.is_user() {
        SendError::RequestBody { source: error.into() }
    } else {
        broken_connection(error)
    }
}

impl UpgradedStream {
    /// The bytes in both directions.
    pub const fn io(&mut self) -> &mut TokioIo<Upgraded> {
        &mut self.io
    }
}
