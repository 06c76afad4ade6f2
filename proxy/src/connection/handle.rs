//! The handle by which a request acts on its connection: close it, silence it, take no more requests, reserve memory.
//!
//! `listen::serve` carries the actions out: it polls [`Connection::poll_disposition`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Response};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::activity::{self, Activity};
use super::memory::{ClientMemory, ConnectionMemory, OverBound};
use super::outage::Outage;
use super::read_limit::ReadLimit;
use super::unread_body::UnreadBody;
use super::unsent::{Unsent, UnsentCounter};

/// Bytes that a client may send of a body before it is read. Clients are in the same pod, so a small window fills the pipe. Eight bodies
/// that are never read use up the connection's window. HTTP/1.1 buffers less (`read_limit`).
pub(crate) const STREAM_WINDOW: u32 = 128 << 10;
pub(crate) const CONNECTION_WINDOW: u32 = 1 << 20;

/// The end of a connection that its requests ask for. Ordered: the strongest wish wins.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Disposition {
    #[default]
    KeepOpen,
    /// Finish the requests in flight and take no more.
    Retire,
    /// Stop reading and writing, and stay open.
    Silence,
    Close,
}

/// The handle by which a request acts on the connection that it came on.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    disposition: Cell<Disposition>,
    pub(super) activity: Activity,
    memory: ConnectionMemory,
    unsent: Arc<Unsent>,
    read_limit: ReadLimit,
    /// Checks in a row in which the client has read nothing of what is unsent.
    stalled_checks: Cell<u32>,
    /// Sum of the windows of arriving bodies.
    arriving: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    /// The rest of a request body that is not read, until it is discarded.
    unread: RefCell<Option<UnreadBody>>,
    /// Whether no request can follow the current one, because its body is not read to its end.
    ends_with_response: Cell<bool>,
    /// Closes the connection's port; `None` in tests.
    outage: Option<Outage>,
    /// One of the permits for connections of the port. A tunnel outlives the HTTP connection and keeps it.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// A client connection that was just accepted. `outage` belongs to its port.
    pub(crate) fn new(outage: Outage, memory: &ClientMemory, permit: OwnedSemaphorePermit) -> Rc<Self> {
        Rc::new(Self {
            outage: Some(outage),
            activity: Activity::new(memory.requests.clone()),
            memory: ConnectionMemory::counted_in(memory.requests.clone()),
            unsent: Arc::new(Unsent::counted_in(memory.responses.clone())),
            _permit: Some(permit),
            ..Self::default()
        })
    }

    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Begins a request whose head has arrived.
    pub(crate) fn begin_request(self: &Rc<Self>) -> RequestGuard {
        RequestGuard {
            request: self.activity.begin(),
            connection: Rc::clone(self),
            held: Cell::new(0),
            reusable: Cell::new(0),
        }
    }

    /// Whether there was memory for bytes that are not essential. If so, [`Self::give_back`] must follow.
    pub(crate) fn take_dispensable(&self, bytes: usize) -> bool {
        self.memory.take_dispensable(bytes)
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.memory.give_back(bytes);
    }

    /// A connection of a test that counts unsent bytes there.
    #[cfg(test)]
    pub(super) fn counting(memory: super::ResponseMemory) -> Self {
        Self {
            unsent: Arc::new(Unsent::counted_in(memory)),
            ..Self::default()
        }
    }

    /// Counts the bytes that a response gives to this connection.
    pub(crate) fn unsent_counter(&self) -> UnsentCounter {
        UnsentCounter::new(&self.unsent, self.activity.is_http1())
    }

    /// The bytes of responses that are not written yet.
    pub(crate) fn unsent(&self) -> &Arc<Unsent> {
        &self.unsent
    }

    /// The limit of reads over HTTP/1.1.
    pub(crate) fn read_limit(&self) -> ReadLimit {
        self.read_limit.clone()
    }

    /// Notes that the connection becomes a tunnel if it speaks HTTP/1.1.
    pub(crate) fn begin_tunnel(&self) {
        self.read_limit.lift();
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent.bytes()
    }

    /// Notes whether the client has read anything since the last check. Returns whether bytes are unsent.
    pub(super) fn check_progress(&self) -> bool {
        let (has_unsent, has_progressed) = (self.unsent_bytes() > 0, self.unsent.take_progress());
        let stalled = if has_unsent && !has_progressed {
            self.stalled_checks.get().saturating_add(1)
        } else {
            0
        };
        self.stalled_checks.set(stalled);
        has_unsent
    }

    /// Number of checks in a row in which the client has read nothing.
    pub(super) fn stalled_checks(&self) -> u32 {
        self.stalled_checks.get()
    }

    /// Reserves memory for a body that begins to arrive. All bodies of a connection together reserve at most the connection's window.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn begin_arriving(&self, window: usize) -> Result<(), OverBound> {
        let (before, after) = (self.arriving.get(), self.arriving.get() + window);
        self.memory.take(within_window(after) - within_window(before))?;
        self.arriving.set(after);
        Ok(())
    }

    pub(super) fn end_arriving(&self, window: usize) {
        let (before, after) = (self.arriving.get(), self.arriving.get().saturating_sub(window));
        self.memory.give_back(within_window(before) - within_window(after));
        self.arriving.set(after);
    }

    /// Closes the connection at once, with all its requests.
    pub(crate) fn close(&self) {
        self.set_disposition(Disposition::Close);
    }

    /// Stops reading and writing, and leaves the connection open.
    pub(crate) fn silence(&self) {
        self.set_disposition(Disposition::Silence);
    }

    /// Closes the connection's port for this time, with all its connections.
    pub(crate) fn refuse_connections(&self, length: Duration) {
        if let Some(outage) = &self.outage {
            outage.begin(length);
        }
    }

    /// Takes no requests after this response. On HTTP/1.1 the response says so with `Connection: close`.
    pub(crate) fn retire_with(&self, headers: &mut HeaderMap) {
        self.set_disposition(Disposition::Retire);
        if self.activity.is_http1() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Reads the rest of a body and discards it. `ends_connection`: no request can follow.
    pub(super) fn discard(&self, rest: Option<UnreadBody>, ends_connection: bool) {
        self.unread.replace(rest);
        self.ends_with_response.set(ends_connection);
        self.wake();
    }

    /// Discards the bytes of an unread body that have arrived.
    pub(crate) fn poll_discard(&self, cx: &mut Context<'_>) {
        let mut unread = self.unread.borrow_mut();
        if unread.as_mut().is_some_and(|rest| rest.poll_end(cx).is_ready()) {
            *unread = None;
        }
    }

    /// Adds `Connection: close` to a response after which no request can follow.
    pub(crate) fn finish<B, E>(&self, mut result: Result<Response<B>, E>) -> Result<Response<B>, E> {
        if self.ends_with_response.take()
            && let Ok(response) = &mut result
        {
            self.retire_with(response.headers_mut());
        }
        result
    }

    fn set_disposition(&self, desired: Disposition) {
        self.disposition.set(self.disposition.get().max(desired));
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The disposition of the connection. Registers for changes.
    pub(crate) fn poll_disposition(&self, cx: &Context<'_>) -> Disposition {
        let mut known = self.waker.borrow_mut();
        if known.as_ref().is_none_or(|known| !known.will_wake(cx.waker())) {
            *known = Some(cx.waker().clone());
        }
        self.disposition.get()
    }
}

fn within_window(bytes: usize) -> usize {
    bytes.min(CONNECTION_WINDOW as usize)
}

/// A request's share of its connection: the bytes that it reserves. The connection is not idle while this lives.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    connection: Rc<Connection>,
    held: Cell<usize>,
    /// The part of `held` that is not in use any more.
    reusable: Cell<usize>,
    request: activity::Request,
}

impl RequestGuard {
    pub(crate) fn connection(&self) -> Rc<Connection> {
        Rc::clone(&self.connection)
    }

    /// Notes that the request ends now, which spares another reading of the clock when this is dropped.
    pub(crate) fn set_end(&self, now: Instant) {
        self.request.set_end(now);
    }

    /// Reserves bytes of the head until the request is over.
    ///
    /// # Errors
    /// The limit of the connection, or of all connections, is reached.
    pub(crate) fn hold_head(&self, bytes: usize) -> Result<(), OverBound> {
        self.connection.memory.take_head(bytes)?;
        self.held.set(self.held.get() + bytes);
        Ok(())
    }

    /// Reserves bytes of a body until the request is over.
    ///
    /// # Errors
    /// The limit of the connection, or of all connections, is reached.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), OverBound> {
        let reused = bytes.min(self.reusable.get());
        self.connection.memory.take(bytes - reused)?;
        self.reusable.set(self.reusable.get() - reused);
        self.held.set(self.held.get() + bytes - reused);
        Ok(())
    }

    /// Marks bytes as not in use any more. The next [`Self::hold`] reuses them first, so that it cannot fail for them.
    pub(crate) fn release_for_reuse(&self, bytes: usize) {
        self.reusable.set(self.held.get().min(self.reusable.get() + bytes));
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.connection.memory.give_back(self.held.get());
    }
}
