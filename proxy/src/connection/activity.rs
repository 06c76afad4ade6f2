//! Detects when a server connection has been idle, or the head of a request has been arriving, for too long.
//!
//! hyper's `header_read_timeout` starts when a connection becomes idle, so it closes connections that clients still count on. Here the two
//! are separate: an idle connection stays open for longer than clients keep one, and a head that has begun has seconds to arrive.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
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
}

impl Deadlines {
    pub(crate) fn new(activity: Activity, timeouts: Timeouts) -> Self {
        Self {
            timer: Box::pin(tokio::time::sleep(timeouts.idle)),
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
                self.timer.as_mut().reset(at);
            }
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            match due {
                Some((at, expired)) if at <= now => {
                    self.notified_at.get_or_insert(now);
                    return Poll::Ready(expired);
                }
                Some((at, _)) => self.timer.as_mut().reset(at),
                None => self.timer.as_mut().reset(now + self.timeouts.idle),
            }
        }
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
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    const TIMEOUTS: Timeouts = Timeouts {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(120),
    };
    const SECOND: Duration = Duration::from_secs(1);

    fn observed_connection(is_http1: bool) -> (Activity, Deadlines, ObservedStream<DuplexStream>, DuplexStream) {
        let (client, server) = tokio::io::duplex(64);
        let activity = Activity::default();
        if is_http1 {
            activity.set_http1();
        }
        let deadlines = Deadlines::new(activity.clone(), TIMEOUTS);
        let stream = ObservedStream::new(server, activity.clone());
        (activity, deadlines, stream, client)
    }

    /// The next limit that is exceeded, and after how many seconds.
    async fn next_expiry(deadlines: &mut Deadlines) -> (Expired, u64) {
        let start = Instant::now();
        let expired = poll_fn(|cx| deadlines.poll_expired(cx)).await;
        (expired, start.elapsed().as_secs())
    }

    async fn expires_not_within(deadlines: &mut Deadlines, time: Duration) {
        let expired = tokio::time::timeout(time, next_expiry(deadlines)).await;
        assert!(expired.is_err(), "{expired:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connection_expires_after_idle_time_since_its_last_request() {
        let (activity, mut deadlines, _stream, _client) = observed_connection(true);
        expires_not_within(&mut deadlines, 100 * SECOND).await;
        let request = activity.begin();
        expires_not_within(&mut deadlines, 1000 * SECOND).await;
        drop(request);
        assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 120));
        let late = activity.begin();
        expires_not_within(&mut deadlines, 1000 * SECOND).await;
        drop(late);
        assert_eq!(next_expiry(&mut deadlines).await, (Expired::CloseGrace, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn connection_is_not_idle_while_one_of_two_requests_remains() {
        let (activity, mut deadlines, _stream, _client) = observed_connection(false);
        let (first, second) = (activity.begin(), activity.begin());
        drop(first);
        expires_not_within(&mut deadlines, 1000 * SECOND).await;
        drop(second);
        assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 120));
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_head_expires_although_bytes_keep_arriving() {
        let (activity, mut deadlines, mut stream, mut client) = observed_connection(true);
        drop(activity.begin());
        expires_not_within(&mut deadlines, 100 * SECOND).await;
        for _ in 0..3 {
            client.write_all(b"G").await.unwrap();
            stream.read_u8().await.unwrap();
            expires_not_within(&mut deadlines, 3 * SECOND).await;
        }
        assert_eq!(next_expiry(&mut deadlines).await, (Expired::Head, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn pipelined_request_or_body_does_not_count_as_next_head() {
        let (activity, mut deadlines, mut stream, mut client) = observed_connection(true);
        let request = activity.begin();
        client.write_all(b"body").await.unwrap();
        stream.read_exact(&mut [0; 4]).await.unwrap();
        drop(request);
        assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 120));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_without_requests_do_not_keep_http2_connection() {
        let (_activity, mut deadlines, mut stream, mut client) = observed_connection(false);
        expires_not_within(&mut deadlines, 60 * SECOND).await;
        let (preface, ping) = ([0; 24], *b"\0\0\x08\x06\0\0\0\0\0pingping");
        client.write_all(&[&preface[..], &ping].concat()).await.unwrap();
        stream.read_exact(&mut [0; 24 + 17]).await.unwrap();
        assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn http2_head_that_has_begun_expires_beside_other_requests() {
        let (activity, mut deadlines, mut stream, mut client) = observed_connection(false);
        let _other = activity.begin();
        let (preface, headers) = ([0; 24], *b"\0\0\x08\x01\0\0\0\0\x01half");
        client.write_all(&[&preface[..], &headers].concat()).await.unwrap();
        stream.read_exact(&mut [0; 24 + 13]).await.unwrap();
        assert_eq!(next_expiry(&mut deadlines).await, (Expired::Head, 10));
    }

    #[tokio::test]
    async fn one_poll_of_a_connection_reads_one_portion_of_heads() {
        let (client, server) = tokio::io::duplex(1 << 20);
        let (activity, mut client) = (Activity::default(), client);
        let mut stream = ObservedStream::new(server, activity.clone());
        let heads = [&[0, 0x20, 0, 1, 4, 0, 0, 0, 1][..], &[0; 0x2000]].concat();
        client
            .write_all(&[&[0; 24][..], &heads, &heads].concat())
            .await
            .unwrap();
        let mut read = |bytes: usize| {
            let mut bytes = vec![0; bytes];
            let mut buffer = ReadBuf::new(&mut bytes);
            let polled = Pin::new(&mut stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
            polled.is_ready() && !buffer.filled().is_empty()
        };
        assert!(read(24 + heads.len()));
        for _ in 0..3 {
            assert!(!read(1), "hyper reads after each request that it accepts");
        }
        activity.begin_poll();
        assert!(read(1));
    }

    #[tokio::test]
    async fn arriving_head_reserves_memory_and_is_refused_at_limit() {
        let memory = RequestMemory::default();
        let connection = || {
            let (client, server) = tokio::io::duplex(1 << 20);
            let activity = Activity::new(memory.clone());
            activity.set_http1();
            (client, ObservedStream::new(server, activity.clone()), activity)
        };
        let send = async |(client, stream): (&mut DuplexStream, &mut ObservedStream<DuplexStream>), bytes: usize| {
            client.write_all(&vec![b'x'; bytes]).await.unwrap();
            stream.read_exact(&mut vec![0; bytes]).await.map(drop)
        };
        let (mut client, mut stream, activity) = connection();
        send((&mut client, &mut stream), FREE_HEAD).await.unwrap();
        send((&mut client, &mut stream), 100).await.unwrap();
        assert!(memory.take(memory.bound() - 100) && !memory.take(1));
        let (mut other, mut small, _) = connection();
        send((&mut other, &mut small), FREE_HEAD).await.unwrap();
        let refused = send((&mut other, &mut small), 1).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
        let _request = activity.begin();
        assert!(memory.take(100), "the head is whole");
        send((&mut client, &mut stream), 1 << 16).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_is_still_being_read_keeps_its_connection() {
        let (activity, mut deadlines, mut stream, mut client) = observed_connection(true);
        drop(activity.begin());
        let unread = tokio::time::timeout(SECOND, stream.write_all(&[0; 100])).await;
        assert!(unread.is_err(), "the client has room for 64 bytes");
        for _ in 0..3 {
            expires_not_within(&mut deadlines, 100 * SECOND).await;
            client.read_exact(&mut [0; 64]).await.unwrap();
            let unread = tokio::time::timeout(SECOND, stream.write_all(&[0; 100])).await;
            assert!(unread.is_err(), "some of it is read each time");
        }
        client.read_exact(&mut [0; 64]).await.unwrap();
        stream.write_all(&[0; 1]).await.unwrap();
        assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 120));
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_reads_nothing_keeps_its_connection_for_idle_time() {
        let (activity, mut deadlines, mut stream, _client) = observed_connection(false);
        let request = activity.begin();
        let unread = tokio::time::timeout(SECOND, stream.write_all(&[0; 100])).await;
        assert!(unread.is_err(), "the client has room for 64 bytes");
        expires_not_within(&mut deadlines, 1000 * SECOND).await;
        drop(request);
        assert_eq!(next_expiry(&mut deadlines).await, (Expired::Unread, 120));
    }
}
