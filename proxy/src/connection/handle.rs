//! The handle by which a request acts on the connection that it came on: close it, silence it, take no more requests, hold memory.
//!
//! Leaves carrying it out to `listen::serve`, which polls [`Connection::poll_disposition`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Response};
use tokio::sync::OwnedSemaphorePermit;

use super::activity::{self, Activity};
use super::memory::{ConnectionMemory, OverBound, RequestMemory};
use super::outage::Outage;
use super::unread_body::UnreadBody;
use super::unsent::Unsent;

/// What a client may have sent of a body that is not read: clients are in the same pod, so a small window covers the pipe. Eight
/// bodies that nobody reads use the connection up. HTTP/1.1 buffers about as much.
pub(crate) const STREAM_WINDOW: u32 = 128 << 10;
pub(crate) const CONNECTION_WINDOW: u32 = 1 << 20;

/// What its requests want done with a connection. Ordered: the strongest wins.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Disposition {
    #[default]
    KeepOpen,
    /// Finish the requests under way and take no more.
    Retire,
    /// Neither read nor write any more, and stay open.
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
    /// Windows of bodies that are arriving.
    arriving: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    /// The rest of a request body that nobody reads, until it is discarded.
    unread: RefCell<Option<UnreadBody>>,
    /// No request can follow the one under way, because its body is not read to its end.
    ends_with_answer: Cell<bool>,
    /// By which its port closes; `None` in tests.
    outage: Option<Outage>,
    /// Counts it among all connections. A tunnel outlives the HTTP connection and keeps it.
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// A client connection that was just accepted. `outage` is that of its port.
    pub(crate) fn new(outage: Outage, memory: RequestMemory, place: OwnedSemaphorePermit) -> Rc<Self> {
        Rc::new(Self {
            outage: Some(outage),
            activity: Activity::new(memory.clone()),
            memory: ConnectionMemory::of(memory),
            _place: Some(place),
            ..Self::default()
        })
    }

    /// Requests under way, idle times and arriving heads.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// A request whose head has arrived.
    pub(crate) fn begin_request(self: &Rc<Self>) -> RequestPlace {
        RequestPlace {
            _request: self.activity.begin(),
            connection: Rc::clone(self),
            held: Cell::new(0),
            spare: Cell::new(0),
        }
    }

    /// Whether there was room for bytes that can be done without. [`Self::give_back`] must follow.
    pub(crate) fn take_dispensable(&self, bytes: usize) -> bool {
        self.memory.take_dispensable(bytes)
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.memory.give_back(bytes);
    }

    /// What HTTP/2 has not written yet; HTTP/1.1 takes no more than it can write.
    pub(crate) fn unsent(&self) -> Option<Arc<Unsent>> {
        (!self.activity.is_http1()).then(|| Arc::clone(&self.unsent))
    }

    /// A body begins to arrive. The bodies of a connection hold their windows, and not more than the connection's.
    ///
    /// # Errors
    /// There is no room for it.
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

    /// Closes its port, with all connections of it, for this time.
    pub(crate) fn refuse_connections(&self, length: Duration) {
        if let Some(outage) = &self.outage {
            outage.begin(length);
        }
    }

    /// Takes no requests after this answer. On HTTP/1.1 the answer says so with `Connection: close`.
    pub(crate) fn retire_with(&self, answer: &mut HeaderMap) {
        self.set_disposition(Disposition::Retire);
        if self.activity.is_http1() {
            answer.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Reads the rest of a body and discards it. `ends_connection`: no request can follow.
    pub(super) fn discard(&self, rest: Option<UnreadBody>, ends_connection: bool) {
        self.unread.replace(rest);
        self.ends_with_answer.set(ends_connection);
        self.wake();
    }

    /// Discards what has arrived of an unread body.
    pub(crate) fn poll_discard(&self, cx: &mut Context<'_>) {
        let mut unread = self.unread.borrow_mut();
        if unread.as_mut().is_some_and(|rest| rest.poll_end(cx).is_ready()) {
            *unread = None;
        }
    }

    /// Adds `Connection: close` to an answer after which no request can follow.
    pub(crate) fn finish<B, E>(&self, mut answer: Result<Response<B>, E>) -> Result<Response<B>, E> {
        if self.ends_with_answer.take()
            && let Ok(response) = &mut answer
        {
            self.retire_with(response.headers_mut());
        }
        answer
    }

    fn set_disposition(&self, wanted: Disposition) {
        self.disposition.set(self.disposition.get().max(wanted));
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// What is to be done with the connection. Registers for changes.
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

/// A request's part of its connection: the bytes that it holds. The connection is not idle as long as it lives.
#[derive(Debug)]
pub(crate) struct RequestPlace {
    connection: Rc<Connection>,
    held: Cell<usize>,
    /// Part of `held` that is no longer in use.
    spare: Cell<usize>,
    _request: activity::Request,
}

impl RequestPlace {
    pub(crate) fn connection(&self) -> Rc<Connection> {
        Rc::clone(&self.connection)
    }

    /// Holds more bytes, until the request is over.
    ///
    /// # Errors
    /// The bound of the connection, or of all connections, is reached.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), OverBound> {
        let spared = bytes.min(self.spare.get());
        self.connection.memory.take(bytes - spared)?;
        self.spare.set(self.spare.get() - spared);
        self.held.set(self.held.get() + bytes - spared);
        Ok(())
    }

    /// Marks bytes as no longer in use. The next [`Self::hold`] takes them first, so that it finds room for sure.
    pub(crate) fn spare(&self, bytes: usize) {
        self.spare.set(self.held.get().min(self.spare.get() + bytes));
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        self.connection.memory.give_back(self.held.get());
    }
}
