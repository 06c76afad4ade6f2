//! The connections of one worker thread: decides which one takes a request, when another is opened, and when one is closed.
//!
//! Rules: a request goes to the least loaded HTTP/2 connection with room. If none has room, as many are opened as the waiting requests will
//! fill, so that a burst of 200 requests opens two connections and not 200. A connection that got GOAWAY, was made under an older client
//! certificate or has used up its stream numbers takes no new requests; its streams go on. Leaves the protocols to `http2.rs` and
//! `http1.rs`.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::{Pin, pin},
    rc::{Rc, Weak},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval_at, timeout, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Upstream,
    connect::{self, Protocol},
    error::{ConnectError, SendError},
    http1::{self, IdleConnection, Lease},
    http2::{self, Connection, Established, StreamPermit},
    keepalive::Keepalive,
    unread::UnreadResponses,
};

/// Assumed number of streams per connection until a server has announced one: kube-apiserver's default.
const EXPECTED_STREAMS: usize = 100;

/// Sweeps for unused connections per idle timeout, so that they live at most a third longer than it says.
const SWEEPS_PER_IDLE_TIMEOUT: u32 = 3;

/// The right to send one request on a connection.
#[derive(Debug)]
pub(super) enum RequestPermit {
    /// On a shared connection.
    Http2(StreamPermit, SendRequest<Bytes>),
    /// On a connection of its own.
    Http1(Lease),
}

/// Open connections, connections being opened, and waiting requests. Never borrowed across an await.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// HTTP/2 connections that accept requests.
    shared: RefCell<Vec<Rc<Connection>>>,
    /// Unused HTTP/1.1 connections, the longest unused first.
    parked: RefCell<Vec<IdleConnection>>,
    /// Connections of all kinds whose driver runs.
    pub(super) open: Cell<usize>,
    pub(super) opening: Cell<usize>,
    pub(super) waiting: Cell<usize>,
    /// Number of connections opened since the start.
    pub(super) opened: Cell<u64>,
    pub(super) failures: Cell<u64>,
    last_failure: RefCell<Option<Arc<ConnectError>>>,
    /// Number of requests that one new connection is expected to take; learnt from the last one.
    expected: Cell<Option<usize>>,
    changed: Notify,
    tasks: RefCell<JoinSet<()>>,
    sweeper: RefCell<Option<AbortOnDropHandle<()>>>,
    /// Number of sweeps for unused connections so far. Idle times are counted in sweeps, because a clock would be read for each request.
    sweeps: Cell<u64>,
    pub(super) closing: Cell<bool>,
}

/// Counts as long as it lives.
struct Counted<'a>(&'a Cell<usize>);

impl<'a> Counted<'a> {
    fn new(cell: &'a Cell<usize>) -> Self {
        cell.set(cell.get() + 1);
        Self(cell)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl Upstream {
    /// A permit for a request, on a connection that is opened for it if none gets room before.
    pub(super) async fn wait_for_permit(
        self: &Rc<Self>,
        avoid: Option<&Rc<Connection>>,
    ) -> Result<RequestPermit, SendError> {
        let pool = &self.pool;
        let _waiting = Counted::new(&pool.waiting);
        let failures = pool.failures.get();
        let since = Instant::now();
        loop {
            let mut changed = pin!(pool.changed.notified());
            changed.as_mut().enable();
            if let Some(permit) = self.free_permit(avoid) {
                return Ok(permit);
            }
            if pool.closing.get() {
                return Err(SendError::Unreachable {
                    source: Arc::new(ConnectError::ShuttingDown),
                });
            }
            if pool.failures.get() != failures
                && pool.opening.get() == 0
                && let Some(source) = pool.last_failure.borrow().clone()
            {
                return Err(SendError::Unreachable { source });
            }
            self.open_for_waiting();
            // A connection being opened has its own deadline; after it, other requests may have been quicker.
            let time_limit = self.limits.connect_timeout * if pool.opening.get() > 0 { 2 } else { 1 };
            if timeout_at(since + time_limit, changed).await.is_err() {
                return Err(SendError::TooManyConnections {
                    limit: self.limits.max_connections,
                });
            }
        }
    }

    /// A permit for a request if there is room. `avoid` is a connection that has just refused it.
    pub(super) fn free_permit(&self, avoid: Option<&Rc<Connection>>) -> Option<RequestPermit> {
        if let Some((permit, sender)) = self.free_stream(avoid) {
            return Some(RequestPermit::Http2(permit, sender));
        }
        let generation = self.target.credentials().generation();
        let mut parked = self.pool.parked.borrow_mut();
        while let Some(unused) = parked.pop() {
            if unused.is_open() && unused.state.generation == generation {
                return Some(RequestPermit::Http1(unused.lease()));
            }
        }
        None
    }

    fn free_stream(&self, avoid: Option<&Rc<Connection>>) -> Option<(StreamPermit, SendRequest<Bytes>)> {
        let generation = self.target.credentials().generation();
        let mut shared = self.pool.shared.borrow_mut();
        loop {
            let usable = |connection: &&Rc<Connection>| avoid.is_none_or(|avoid| !Rc::ptr_eq(connection, avoid));
            let best = shared.iter().filter(usable).filter(|connection| connection.has_room());
            let best = Rc::clone(best.min_by_key(|connection| connection.active_streams())?);
            if let Some(sender) = best.sender().filter(|_| best.generation == generation) {
                // The server may have lowered its limit meanwhile.
                if best.has_room() {
                    return Some((best.take_permit(), sender));
                }
                continue;
            }
            shared.retain(|connection| !Rc::ptr_eq(connection, &best));
        }
    }

    /// Wakes a waiting request, because there is room.
    pub(super) fn room_made(&self) {
        if self.pool.waiting.get() > 0 {
            self.pool.changed.notify_one();
        }
    }

    /// Takes back an HTTP/1.1 connection.
    pub(super) fn park(&self, unused: IdleConnection) {
        if !self.pool.closing.get() {
            self.pool.parked.borrow_mut().push(unused);
            self.room_made();
        }
    }

    /// Opens as many connections as the waiting requests will fill, within the limit.
    fn open_for_waiting(self: &Rc<Self>) {
        let pool = &self.pool;
        let per_connection = pool.expected.get().unwrap_or(EXPECTED_STREAMS).max(1);
        let desired = pool.waiting.get().div_ceil(per_connection);
        while pool.opening.get() < desired && pool.opening.get() + pool.open.get() < self.limits.max_connections {
            pool.opening.set(pool.opening.get() + 1);
            let upstream = Rc::downgrade(self);
            let mut tasks = pool.tasks.borrow_mut();
            while tasks.try_join_next().is_some() {}
            // The task needs its own abort handle, and gets it before it first runs.
            let handle = Rc::new(Cell::new(None));
            let task = tasks.spawn_local(run_connection(upstream, Rc::clone(&handle)));
            handle.set(Some(task));
        }
        pool.sweeper.borrow_mut().get_or_insert_with(|| {
            let pause = self.limits.idle_timeout / SWEEPS_PER_IDLE_TIMEOUT;
            AbortOnDropHandle::new(tokio::task::spawn_local(close_idle_connections(
                Rc::downgrade(self),
                pause,
            )))
        });
    }

    fn opening_failed(&self, error: ConnectError) {
        tracing::debug!(%error, authority = %self.target.authority(), "failed to connect to server");
        self.pool.last_failure.replace(Some(Arc::new(error)));
        self.pool.failures.set(self.pool.failures.get() + 1);
    }

    /// Number of sweeps so far, for the begin of an idle time.
    pub(super) fn sweeps(&self) -> u64 {
        self.pool.sweeps.get()
    }

    fn close_unused(&self) {
        let sweeps = self.sweeps() + 1;
        self.pool.sweeps.set(sweeps);
        self.pool
            .parked
            .borrow_mut()
            .retain(|unused| unused.is_open() && !is_idle_time_over(unused.idle_since, sweeps));
        let mut shared = self.pool.shared.borrow_mut();
        let generation = self.target.credentials().generation();
        shared.retain(|connection| connection.is_open() && connection.generation == generation);
        let mut left = shared.len();
        let is_unused = |connection: &Rc<Connection>| {
            let since = connection.idle_since();
            since.is_some_and(|since| is_idle_time_over(since, sweeps))
        };
        // The newest are retired first: when there are few requests, they collect on the oldest.
        let mut index = shared.len();
        while index > 0 && left > 1 {
            index -= 1;
            if shared.get(index).is_some_and(is_unused) {
                shared.remove(index);
                left -= 1;
            }
        }
    }

    /// Takes no more requests; those in flight go on. Returns when the last has ended, so the caller bounds the wait.
    pub(super) async fn drain(&self) {
        self.pool.closing.set(true);
        self.pool.shared.borrow_mut().clear();
        self.pool.parked.borrow_mut().clear();
        self.pool.changed.notify_waiters();
        let mut tasks = self.pool.tasks.take();
        self.pool.sweeper.take();
        while tasks.join_next().await.is_some() {}
    }

    pub(super) fn open_streams(&self) -> usize {
        let shared = self.pool.shared.borrow();
        shared.iter().map(|connection| connection.active_streams()).sum()
    }
}

/// Opens one connection, offers it, and drives it to its end. Owned by the pool's task set.
async fn run_connection(upstream: Weak<Upstream>, own: Rc<Cell<Option<AbortHandle>>>) {
    let Some(pool) = upstream.upgrade() else { return };
    let opening = Opening {
        upstream: Weak::clone(&upstream),
    };
    let limit = pool.limits.connect_timeout;
    let handshaken = timeout(limit, connect_and_handshake(&pool)).await.unwrap_or_else(|_| {
        let authority = pool.target.authority().to_string();
        Err(ConnectError::Timeout {
            authority,
            timeout: limit,
        })
    });
    let handshaken = match handshaken {
        Ok(_) if pool.pool.closing.get() => return,
        Ok(handshaken) => handshaken,
        Err(error) => return pool.opening_failed(error),
    };
    pool.pool.opened.set(pool.pool.opened.get() + 1);
    let _open = Open::new(&pool);
    match handshaken {
        Handshaken::Http2(established) => {
            let Established {
                connection,
                driver,
                keepalive,
            } = *established;
            pool.pool.expected.set(Some(connection.limit()));
            pool.pool.shared.borrow_mut().push(connection);
            let unread = Rc::clone(&pool.limits.unread);
            drop((opening, pool));
            drive_http2(driver, keepalive, &unread, own.take()).await;
        }
        Handshaken::Http1(unused, drive) => {
            pool.pool.expected.set(Some(1));
            if let Some(task) = own.take() {
                // The cell is empty, because the connection is new.
                let _ = unused.state.driver.set(task);
            }
            pool.park(unused);
            drop((opening, pool));
            drive.await;
        }
    }
}

/// Runs until the connection ends, or the server is found dead and the task ends itself.
async fn drive_http2(
    mut driver: http2::Driver,
    keepalive: Keepalive,
    unread: &UnreadResponses,
    own: Option<AbortHandle>,
) {
    // Runs in its own task, so that the driver need not check timers each time it is woken.
    let _watch = AbortOnDropHandle::new(tokio::task::spawn_local(async move {
        keepalive.until_dead().await;
        tracing::warn!("server stopped answering pings; closing the connection");
        if let Some(task) = own {
            task.abort();
        }
    }));
    let driven = poll_fn(|cx| {
        let driven = Pin::new(&mut driver).poll(cx);
        unread.bound();
        driven
    });
    if let Err(error) = driven.await {
        tracing::debug!(%error, "HTTP/2 connection to a server ended");
    }
}

enum Handshaken<D> {
    Http2(Box<Established>),
    Http1(IdleConnection, D),
}

async fn connect_and_handshake(
    pool: &Rc<Upstream>,
) -> Result<Handshaken<impl Future<Output = ()> + use<>>, ConnectError> {
    let opened = connect::open_connection(&pool.target, &pool.limits).await?;
    match opened.protocol {
        Protocol::Http2 => http2::establish(opened.stream, opened.generation, pool)
            .await
            .map(|established| Handshaken::Http2(Box::new(established))),
        Protocol::Http1 => {
            let (unused, drive) = http1::establish(opened.stream, opened.generation, pool).await?;
            Ok(Handshaken::Http1(unused, drive))
        }
    }
}

/// A connection being opened. When it is dropped, successful or not, waiting requests check again.
struct Opening {
    upstream: Weak<Upstream>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(upstream) = self.upstream.upgrade() {
            upstream.pool.opening.set(upstream.pool.opening.get().saturating_sub(1));
            upstream.pool.changed.notify_waiters();
        }
    }
}

/// An open connection; dropping it makes room under the limit.
#[derive(Debug)]
pub(super) struct Open {
    upstream: Weak<Upstream>,
}

impl Open {
    pub(super) fn new(upstream: &Rc<Upstream>) -> Self {
        upstream.pool.open.set(upstream.pool.open.get() + 1);
        Self {
            upstream: Rc::downgrade(upstream),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(upstream) = self.upstream.upgrade() {
            upstream.pool.open.set(upstream.pool.open.get().saturating_sub(1));
            upstream.room_made();
        }
    }
}

/// Whether an idle time is over in a sweep: `since` sweeps were made before it began, and `sweeps` by now. The first sweep may come as soon
/// as it has begun, so only the pauses between sweeps count.
const fn is_idle_time_over(since: u64, sweeps: u64) -> bool {
    sweeps.saturating_sub(since) > SWEEPS_PER_IDLE_TIMEOUT as u64
}

async fn close_idle_connections(upstream: Weak<Upstream>, pause: Duration) {
    let mut ticks = interval_at(Instant::now() + pause, pause);
    // Sweeps measure time, so none may be made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(upstream) = upstream.upgrade() else { return };
        upstream.close_unused();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_connection_is_closed_when_all_pauses_of_an_idle_timeout_have_passed() {
        for (since, closing) in [(0, 4), (7, 11)] {
            let is_kept_until_then = (since..closing).all(|sweeps| !is_idle_time_over(since, sweeps));
            assert!(is_kept_until_then && is_idle_time_over(since, closing), "{since}");
        }
    }
}
