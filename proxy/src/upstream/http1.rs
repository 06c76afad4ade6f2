//! One HTTP/1.1 connection to the API server: one request at a time, returned to the pool after each complete response.
//!
//! hyper implements the protocol. Leaves choosing a connection to `pool.rs`, upgrades to `upgrade.rs`.

use std::{
    cell::{Cell, OnceCell, RefCell},
    future::poll_fn,
    pin::Pin,
    rc::{Rc, Weak},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;

use super::{
    Upstream,
    attempt::Failure,
    connect::Transport,
    error::{BoxError, ConnectError},
    request::RequestBody,
};

/// Bytes of a response that wait in a connection, and maximum size of a response's head. hyper's default is 408 KiB, which a hundred clients
/// that read nothing would make the sidecar hold each.
const MAX_BUFFER: usize = 64 << 10;

/// A request body or none: the single body type of all HTTP/1.1 connections. Boxed, because most requests have none and hyper moves a
/// request often.
#[derive(Debug)]
pub(super) struct Outgoing(pub(super) Option<Box<RequestBody>>);

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.get_mut()
            .0
            .as_mut()
            .map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

type Driver = http1::Connection<TokioIo<Transport>, Outgoing>;

/// A connection, whether it is in use or not.
#[derive(Debug)]
pub(super) struct ConnectionState {
    pub(super) generation: u64,
    pub(super) driver: OnceCell<AbortHandle>,
    pool: Weak<Upstream>,
    answered: Cell<bool>,
    /// Set if the sender was returned before hyper was done with the response; the driver then parks it.
    returned: RefCell<Option<SendRequest<Outgoing>>>,
    returned_to: RefCell<Option<Waker>>,
}

#[derive(Debug)]
pub(super) struct IdleConnection {
    sender: SendRequest<Outgoing>,
    pub(super) state: Rc<ConnectionState>,
    /// [`Upstream::sweeps`] when the last request ended.
    pub(super) idle_since: u64,
}

/// The right to send one request. Dropped before [`finish`](Lease::finish), it closes the connection.
#[derive(Debug)]
pub(super) struct Lease {
    sender: SendRequest<Outgoing>,
    guard: CloseOnDrop,
}

/// The body of a response, with the connection that it arrives on.
#[derive(Debug)]
pub(super) struct LeasedBody {
    pub(super) incoming: Incoming,
    pub(super) lease: Lease,
}

#[derive(Debug)]
struct CloseOnDrop {
    state: Rc<ConnectionState>,
    armed: bool,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if self.armed
            && let Some(driver) = self.state.driver.get()
        {
            driver.abort();
        }
    }
}

/// Prepares a connection; HTTP/1.1 needs no handshake. The returned future drives it.
pub(super) async fn establish(
    stream: Transport,
    generation: u64,
    pool: &Rc<Upstream>,
) -> Result<(IdleConnection, impl Future<Output = ()> + use<>), ConnectError> {
    let broken = |error: hyper::Error| ConnectError::Handshake {
        authority: pool.target().authority().to_string(),
        source: error.into(),
    };
    let (sender, driver) = http1::Builder::new()
        .max_buf_size(MAX_BUFFER)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let state = Rc::new(ConnectionState {
        generation,
        driver: OnceCell::new(),
        pool: Rc::downgrade(pool),
        answered: Cell::new(false),
        returned: RefCell::new(None),
        returned_to: RefCell::new(None),
    });
    let drive = drive_connection(driver, Rc::downgrade(&state));
    Ok((
        IdleConnection {
            sender,
            state,
            idle_since: pool.sweeps(),
        },
        drive,
    ))
}

async fn drive_connection(mut driver: Driver, state: Weak<ConnectionState>) {
    poll_fn(|cx| {
        if let Poll::Ready(end) = Pin::new(&mut driver).poll(cx) {
            if let Err(error) = end {
                tracing::debug!(%error, "HTTP/1.1 connection to a server ended");
            }
            return Poll::Ready(());
        }
        if let Some(state) = state.upgrade() {
            state.poll_returned(cx);
        }
        Poll::Pending
    })
    .await;
}

impl ConnectionState {
    fn poll_returned(self: &Rc<Self>, cx: &mut Context<'_>) {
        let mut known = self.returned_to.borrow_mut();
        if known.as_ref().is_none_or(|known| !known.will_wake(cx.waker())) {
            *known = Some(cx.waker().clone());
        }
        drop(known);
        let Some(mut sender) = self.returned.take() else { return };
        match sender.poll_ready(cx) {
            Poll::Ready(Ok(())) => self.park(sender),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                self.returned.replace(Some(sender));
            }
        }
    }

    fn park(self: &Rc<Self>, sender: SendRequest<Outgoing>) {
        if let Some(pool) = self.pool.upgrade() {
            pool.park(IdleConnection {
                sender,
                state: Rc::clone(self),
                idle_since: pool.sweeps(),
            });
        }
    }
}

impl IdleConnection {
    /// Whether the connection accepts a request; the server may have closed it meanwhile.
    pub(super) fn is_open(&self) -> bool {
        self.sender.is_ready()
    }

    pub(super) fn lease(self) -> Lease {
        Lease {
            sender: self.sender,
            guard: CloseOnDrop {
                state: self.state,
                armed: true,
            },
        }
    }
}

impl Lease {
    /// Sends a request, and returns a future that waits for the head of its response. If nothing was sent, `body` is restored.
    ///
    /// The request is given to the connection at once, because the future would be larger with it and move it twice.
    pub(super) fn exchange(
        mut self,
        request: Request<Outgoing>,
        body: &mut Option<Box<RequestBody>>,
    ) -> impl Future<Output = Result<Response<LeasedBody>, Failure>> {
        let stale = self.guard.state.answered.get();
        let sent = self.sender.try_send_request(request);
        async move {
            let mut error = match sent.await {
                Ok(response) => {
                    self.guard.state.answered.set(true);
                    return Ok(response.map(|incoming| LeasedBody { incoming, lease: self }));
                }
                Err(error) => error,
            };
            if let Some(request) = error.take_message() {
                *body = request.into_body().0;
                return Err(Failure::Unsent(error.into_error().into()));
            }
            let error = error.into_error();
            if error.is_user() {
                return Err(Failure::RequestBody(error.into()));
            }
            let stale = stale && !error.is_parse();
            Err(Failure::Broken {
                stale,
                source: error.into(),
            })
        }
    }

    /// Returns the connection for reuse after a complete response.
    pub(super) fn finish(self) {
        let Self { sender, mut guard } = self;
        guard.armed = false;
        if sender.is_ready() {
            guard.state.park(sender);
        } else if !sender.is_closed() {
            guard.state.returned.replace(Some(sender));
            if let Some(driver) = guard.state.returned_to.borrow().as_ref() {
                driver.wake_by_ref();
            }
        }
    }
}
