//! Detects when a server connection has been idle, or the head of a request has been arriving, for too long.
//!
//! hyper's `header_read_timeout` starts when a connection becomes idle, so it closes connections that clients still count on. Here the two
//! are separate: an idle connection stays open for longer than clients keep one, and a head that has begun has seconds to arrive.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep};

use super::header_block::HeaderBlock;
use super::memory::{OverBound, RequestMemory};
use super::unsent::Unsent;

/// Time for a client to close its idle connection after it was told to. Requests that were in transit arrive within this time.
const CLOSE_GRACE: Duration = Duration::from_secs(10);

/// Bytes of an arriving head that are not counted: hyper has a buffer of this size anyway.
const FREE_HEAD: usize = 8 << 10;

/// A client must finish a handshake or a request head in this time; otherwise it would keep a connection from others.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limits for a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// From the first byte of a request head to its last.
    pub(crate) head: Duration,
    /// Maximum time without a request in flight, even if the client does not read what was written.
    pub(crate) idle: Duration,
}

/// The limit that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The connection has been idle; the client must be told that it ends.
    Idle,
    /// The client was told, and has sent no request since.
    CloseGrace,
    /// A request head takes too long.
    Head,
    /// The client does not read the rest of its responses.
    Unread,
}

/// Activity of one connection; shared by its stream, its requests and its driver.
#[derive(Debug, Clone, Default)]
pub(crate) struct Activity(Arc<Observed>);

#[derive(Debug)]
struct Observed {
    opened: Instant,
    requests: AtomicUsize,
    /// Milliseconds from `opened` to the end of the last request, or to the last time that the client read more or stopped reading.
    idle_since: AtomicU64,
    /// Bytes of the head that is arriving.
    head: AtomicUsize,
    /// The part of `head` that is reserved in `memory`.
    held: AtomicUsize,
    memory: RequestMemory,
    /// Whether the client does not read what was written.
    is_blocked: AtomicBool,
    is_http1: AtomicBool,
    /// Whether nothing more is read until the connection is polled again, because a portion of heads was read.
    is_paused: AtomicBool,
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct Request {
    activity: Activity,
    /// When it ended, if that is known.
    end: Cell<Option<Instant>>,
}

enum State {
    Busy,
    Head,
    /// No request is in flight, and bytes wait until the client reads.
    Unread {
        since: Instant,
    },
    Idle {
        since: Instant,
    },
}

impl Default for Observed {
    fn default() -> Self {
        Self::new(RequestMemory::default())
    }
}

impl Observed {
    fn new(memory: RequestMemory) -> Self {
        Self {
            opened: Instant::now(),
            requests: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            head: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            memory,
            is_blocked: AtomicBool::new(false),
            is_http1: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
        }
    }

    fn give_back(&self) {
        self.memory.give_back(self.held.swap(0, Ordering::Relaxed));
    }
}

impl Activity {
    /// The activity of a new connection. `memory` counts the bytes of a head until it is complete.
    pub(crate) fn new(memory: RequestMemory) -> Self {
        Self(Arc::new(Observed::new(memory)))
    }

    /// Notes that the client speaks HTTP/1.1.
    pub(crate) fn set_http1(&self) {
        self.0.is_http1.store(true, Ordering::Relaxed);
    }

    /// Whether the client is known to speak HTTP/1.1.
    pub(crate) fn is_http1(&self) -> bool {
        self.0.is_http1.load(Ordering::Relaxed)
    }

    /// Begins a poll of the connection. hyper reads whenever it has spawned the task that serves a request, so without this one poll
    /// would read many portions of heads before any of these tasks runs.
    pub(crate) fn begin_poll(&self) {
        self.0.is_paused.store(false, Ordering::Relaxed);
    }

    /// Begins a request whose head has arrived.
    pub(crate) fn begin(&self) -> Request {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        if self.is_http1() {
            self.end_head();
        }
        Request {
            activity: self.clone(),
            end: Cell::new(None),
        }
    }

    fn end(&self, now: Instant) {
        self.becomes_idle(now);
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }

    fn becomes_idle(&self, now: Instant) {
        let since = now.saturating_duration_since(self.0.opened).as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.0.idle_since.store(since, Ordering::Relaxed);
    }

    /// Notes that a head has `bytes` bytes so far.
    ///
    /// # Errors
    /// There is no memory for them.
    fn begin_head(&self, bytes: usize) -> io::Result<()> {
        let observed = &self.0;
        observed.head.store(bytes, Ordering::Relaxed);
        let more = bytes.saturating_sub(FREE_HEAD + observed.held.load(Ordering::Relaxed));
        if more == 0 {
            return Ok(());
        }
        if !observed.memory.take(more) {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                OverBound::InAll(observed.memory.bound()),
            ));
        }
        observed.held.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// Notes that the head is complete; from here on its request counts the memory.
    fn end_head(&self) {
        if self.0.head.swap(0, Ordering::Relaxed) > 0 {
            self.0.give_back();
        }
    }

    fn state(&self) -> State {
        let observed = &self.0;
        if observed.head.load(Ordering::Relaxed) > 0 {
            State::Head
        } else if observed.requests.load(Ordering::Relaxed) > 0 {
            State::Busy
        } else {
            let since = observed.opened + Duration::from_millis(observed.idle_since.load(Ordering::Relaxed));
            match observed.is_blocked.load(Ordering::Relaxed) {
                true => State::Unread { since },
                false => State::Idle { since },
            }
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Request {
    /// Notes that the request ends now.
    pub(super) fn set_end(&self, now: Instant) {
        self.end.set(Some(now));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let end = self.end.get().unwrap_or_else(Instant::now);
        self.activity.end(end);
    }
}

/// The time-outs of one connection.
pub(crate) struct Deadlines {
    activity: Activity,
    timeouts: Timeouts,
    /// When the arriving head was first seen.
    head: Option<Instant>,
    /// When the client was told that its idle connection ends.
    notified_at: Option<Instant>,
    /// Set no later than the next deadline; a request does not move it.
    timer: Pin<Box<Sleep>>,
    /// The waker that the timer has since it was set.
    waker: Option<Waker>,
}

impl Deadlines {
    pub(crate) fn new(activity: Activity, timeouts: Timeouts) -> Self {
        Self {
            timer: Box::pin(tokio::time::sleep(timeouts.idle)),
            waker: None,
            activity,
            timeouts,
            head: None,
            notified_at: None,
        }
    }

    /// Ready when a time limit is exceeded. Call it after the connection was polled, and again after the client was told of the end.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Expired> {
        loop {
            let due = self.next_due();
            if let Some((at, _)) = due
                && at < self.timer.deadline()
            {
                self.set_timer(at);
            }
            ready!(self.poll_timer(cx));
            let now = Instant::now();
            match due {
                Some((at, expired)) if at <= now => {
                    self.notified_at.get_or_insert(now);
                    return Poll::Ready(expired);
                }
                Some((at, _)) => self.set_timer(at),
                None => self.set_timer(now + self.timeouts.idle),
            }
        }
    }

    fn set_timer(&mut self, at: Instant) {
        self.timer.as_mut().reset(at);
        self.waker = None;
    }

    /// Ready when the timer has fired. A connection polls it several times for each request, so the timer itself is polled only if it has
    /// not this task's waker yet.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let has_waker = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if has_waker && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        // Pending must mean that the timer has the waker, and not that the task has used up tokio's budget.
        let polled = pin!(unconstrained(self.timer.as_mut())).poll(cx);
        self.waker = polled.is_pending().then(|| cx.waker().clone());
        polled
    }

    fn next_due(&mut self) -> Option<(Instant, Expired)> {
        let state = self.activity.state();
        if !matches!(state, State::Head) {
            self.head = None;
        }
        match state {
            State::Busy => None,
            State::Head => {
                let start = *self.head.get_or_insert_with(Instant::now);
                Some((start + self.timeouts.head, Expired::Head))
            }
            State::Unread { since } => Some((since + self.timeouts.idle, Expired::Unread)),
            State::Idle { since } => Some(match self.notified_at {
                None => (since + self.timeouts.idle, Expired::Idle),
                Some(notified_at) => (since.max(notified_at) + CLOSE_GRACE, Expired::CloseGrace),
            }),
        }
    }
}

/// A connection's stream that notes its [`Activity`].
#[derive(Debug)]
pub(crate) struct ObservedStream<S> {
    stream: S,
    activity: Activity,
    /// Parser of frames, for HTTP/2 only.
    block: Option<HeaderBlock>,
    /// Bytes queued for the client, for HTTP/1.1 only.
    unsent: Option<Arc<Unsent>>,
}

impl<S> ObservedStream<S> {
    /// The protocol of `activity` must be known already.
    pub(crate) fn new(stream: S, activity: Activity) -> Self {
        Self {
            stream,
            block: (!activity.is_http1()).then(HeaderBlock::new),
            activity,
            unsent: None,
        }
    }

    /// Reports written bytes of HTTP/1.1.
    pub(crate) fn counting(self, unsent: &Arc<Unsent>) -> Self {
        Self {
            unsent: Some(Arc::clone(unsent)),
            ..self
        }
    }

    /// Notes bytes that have arrived.
    ///
    /// # Errors
    /// There is no memory for the head that they belong to.
    fn observe(&mut self, bytes: &[u8]) -> io::Result<()> {
        let observed = &self.activity.0;
        match &mut self.block {
            Some(block) => match block.read(bytes) {
                Some(length) => self.activity.begin_head(length.max(1)),
                None => {
                    self.activity.end_head();
                    Ok(())
                }
            },
            // Between two requests of HTTP/1.1 only heads arrive.
            None if observed.requests.load(Ordering::Relaxed) == 0 => {
                let length = observed.head.load(Ordering::Relaxed) + bytes.len();
                self.activity.begin_head(length)
            }
            None => Ok(()),
        }
    }

    fn note_blocked<T>(&self, result: &Poll<T>) {
        let is_blocked = &self.activity.0.is_blocked;
        if result.is_pending() != is_blocked.load(Ordering::Relaxed) {
            is_blocked.store(result.is_pending(), Ordering::Relaxed);
            self.activity.becomes_idle(Instant::now());
        }
    }

    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.note_blocked(&written);
        if let (Some(unsent), Poll::Ready(Ok(bytes))) = (&self.unsent, &written) {
            unsent.written(*bytes);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.block.as_mut().is_some_and(HeaderBlock::ends_portion) {
            self.activity.0.is_paused.store(true, Ordering::Relaxed);
        }
        if self.activity.0.is_paused.load(Ordering::Relaxed) {
            // This task runs again after those that serve the requests, because they are spawned before its poll ends.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        match buf.filled().get(before..) {
            Some(bytes) if !bytes.is_empty() => Poll::Ready(self.observe(bytes)),
            _ => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes when its buffer is empty.
        if let Some(unsent) = &self.unsent {
            unsent.flushed();
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.note_blocked(&flushed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(written)
    }
}

#[cfg(test)]
mod tests;
