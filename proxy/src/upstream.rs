//! Connections to a server: pooled HTTP/2 and HTTP/1.1 connections, one set per worker thread. Each worker has one set for the API server,
//! and one for each target of external traffic (`external`).
//!
//! | file | what is in it |
//! |---|---|
//! | `upgrade` | `exec`, `attach`, `port-forward`, WebSocket watches: a connection of their own |
//! | `body` | the body of a response, whatever connection it arrives on |
//! | `pool` | the connections of a worker |
//! | `http1`, `http2` | one exchange on a connection of each kind |
//! | `keepalive`, `upload` | pings; request bodies at the pace of the server |
//! | `attempt`, `request` | whether a failed request is sent again, and what is kept for that |
//! | `connect`, `target`, `dial` | TLS and ALPN; the API server; DNS, and the gate before a TCP connection |
//! | `head_deadlines` | the time that a request waits for the head of its response |
//! | `credentials` | the sidecar's identity, kept up to date |
//! | `limits`, `unread` | bounds of a worker thread; responses that have arrived and are not read |
//! | `error`, `write_outcome` | errors; whether a write may still be carried out |
//!
//! Flow of a request: get a permit for a connection, do one exchange on it, and if that fails in a way that proves the request
//! unprocessed, try again on another connection.
//! Everything here is `!Send` and runs on the thread's own `LocalSet`; only [`Target`] is shared.
//! Leaves to the caller: hop-by-hop headers, whether a request gets the sidecar's credentials, and the response to the client when it
//! fails.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::time::Instant;

mod attempt;
mod body;
mod connect;
mod credentials;
mod dial;
mod error;
mod head_deadlines;
mod http1;
mod http2;
mod keepalive;
mod limits;
mod pool;
mod request;
mod target;
mod unread;
mod upgrade;
mod upload;
pub(crate) mod write_outcome;

pub use body::UpstreamBody;
pub use credentials::Credentials;
pub(crate) use dial::{Gate, MAX_LOOKUPS, Socket, dial};
pub use error::{BodyError, BoxError, ConnectError, Error, SendError};
pub use limits::Limits;
pub use request::{HeadTimeout, ReplayRoom, RequestHead};
pub use target::Target;
pub(crate) use target::Trust;
pub use unread::UnreadResponses;
pub use upgrade::{Upgrade, UpgradedStream};

use attempt::Attempts;
use head_deadlines::HeadDeadlines;
use http1::Outgoing;
use pool::{Pool, RequestPermit};
use request::{Head, RequestBody};

/// One worker thread's connections to the API server.
///
/// Keep it as long as response bodies are read: dropping it closes its connections.
#[derive(Debug)]
pub struct Upstream {
    target: Arc<Target>,
    limits: Limits,
    pool: Pool,
    head_deadlines: HeadDeadlines,
    repeats: std::cell::Cell<u64>,
}

/// Figures of one [`Upstream`], for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Open connections, used or not.
    pub connections: usize,
    pub opening: usize,
    /// Requests in flight on HTTP/2 connections that accept more.
    pub streams: usize,
    /// Requests that wait for a permit.
    pub waiting: usize,
    /// Connections opened since the start.
    pub opened: u64,
    /// Failed attempts to open a connection since the start.
    pub open_failures: u64,
    /// Requests sent again because they had not been processed, since the start.
    pub repeats: u64,
}

impl Upstream {
    /// Opens no connection yet. Use it inside one `LocalSet` only.
    #[must_use]
    pub fn new(target: Arc<Target>, limits: Limits) -> Rc<Self> {
        Rc::new(Self {
            target,
            limits,
            pool: Pool::default(),
            head_deadlines: HeadDeadlines::default(),
            repeats: std::cell::Cell::new(0),
        })
    }

    #[must_use]
    pub const fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// The limits in force.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Sends a request and waits for the head of its response.
    ///
    /// The URI's path and query are sent as they are (below the server URL's own path), the headers too; only `Host`
    /// and `Expect` are replaced. Interim responses (100, 103) are skipped: API servers send none of their own.
    /// Dropping the future resets the stream or closes the connection.
    ///
    /// # Errors
    /// Each error says whether the server may have carried the request out: [`SendError::maybe_executed`].
    pub async fn send<B>(self: &Rc<Self>, request: Request<B>) -> Result<Response<UpstreamBody>, SendError>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        self.send_within(request, None).await
    }

    /// Like [`Self::send`], with a limit on the part of the body that is kept for a retry.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_within<B>(
        self: &Rc<Self>,
        request: Request<B>,
        room: Option<Rc<dyn ReplayRoom>>,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, SendError>> + use<'_, B>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        self.send_head(parts.into(), body, room, Instant::now())
    }

    /// Like [`Self::send_within`], for a head that was never a request of its own. `now` is the current time.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_head<B>(
        self: &Rc<Self>,
        head: RequestHead,
        body: B,
        room: Option<Rc<dyn ReplayRoom>>,
        now: Instant,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, SendError>> + use<'_, B>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        // Before the future is made, which is smaller without the request.
        let mut body = RequestBody::new(body, self.limits.replay_buffer, room);
        let head = Head::new(head, &self.target);
        async move { self.dispatch(&mut head?, &mut body, now).await }
    }

    async fn dispatch(
        self: &Rc<Self>,
        head: &mut Head,
        body: &mut Option<Box<RequestBody>>,
        mut now: Instant,
    ) -> Result<Response<UpstreamBody>, SendError> {
        let repeatable = head.is_repeatable() && body.is_none();
        let invalid = |error: http::Error| SendError::InvalidRequest { source: error.into() };
        let mut attempts = Attempts::default();
        let mut refused = None;
        loop {
            let permit = match self.free_permit(refused.as_ref()) {
                Some(permit) => permit,
                None => {
                    let permit = self.wait_for_permit(refused.as_ref()).await?;
                    now = Instant::now();
                    permit
                }
            };
            let failure = match permit {
                RequestPermit::Http2(permit, sender) => {
                    refused = Some(Rc::clone(permit.connection()));
                    let request = head.http2(&self.target).map_err(invalid)?;
                    self.within_head_timeout(head, now, pin!(permit.exchange(sender, request, body)))
                        .await?
                        .map(|response| response.map(UpstreamBody::http2))
                }
                RequestPermit::Http1(lease) => {
                    let request = head.http1(&self.target, Outgoing(body.take()));
                    self.within_head_timeout(head, now, pin!(lease.exchange(request, body)))
                        .await?
                        .map(|response| response.map(UpstreamBody::http1))
                }
            };
            match failure {
                Ok(response) => return Ok(response),
                Err(failure) => {
                    attempts.after_failure(failure, repeatable, || body.as_mut().is_none_or(|body| body.rewind()))?;
                    self.repeats.set(self.repeats.get() + 1);
                    now = Instant::now();
                }
            }
        }
    }

    /// Takes the exchange by reference, because it is large and each move of it costs as much as a timer.
    async fn within_head_timeout<T>(
        &self,
        head: &Head,
        now: Instant,
        mut exchange: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, SendError> {
        let limit: Option<Duration> = head
            .head_timeout
            .map_or(self.limits.head_timeout, |HeadTimeout(limit)| limit);
        let limit = limit.and_then(|limit| Some((limit, now.checked_add(limit)?)));
        let Some((limit, at)) = limit else {
            return Ok(exchange.await);
        };
        let mut deadline = None;
        poll_fn(|cx| {
            if let Poll::Ready(end) = exchange.as_mut().poll(cx) {
                return Poll::Ready(Ok(end));
            }
            let deadline = deadline.get_or_insert_with(|| self.head_deadlines.begin(at, cx));
            ready!(deadline.poll_expired(cx));
            Poll::Ready(Err(SendError::HeadTimeout { timeout: limit }))
        })
        .await
    }

    /// Takes no more requests and waits until those in flight, bodies included, have ended. The caller bounds the wait; dropping the future
    /// closes all connections.
    pub async fn shutdown(&self) {
        self.drain().await;
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            connections: self.pool.open.get(),
            opening: self.pool.opening.get(),
            streams: self.open_streams(),
            waiting: self.pool.waiting.get(),
            opened: self.pool.opened.get(),
            open_failures: self.pool.failures.get(),
            repeats: self.repeats.get(),
        }
    }
}
