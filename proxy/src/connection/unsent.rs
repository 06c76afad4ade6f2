//! Bytes of responses that were given to a client's connection and not written yet, bounded for each connection and for all together.
//!
//! At a bound, responses are not read further, which stops their servers; they continue as clients read. A connection may only take more if
//! as much stays free for the others as it has (as plugins share memory, ADR 0031), and an eighth of the bound is for those that have written
//! everything. So connections that read nothing leave room for those that read, until `connection::ResponseReaders` closes them.
//!
//! HTTP/2 drops bytes when they are written or their stream ends, so these count until they are dropped. HTTP/1.1 writes in order: written
//! bytes are subtracted, without an allocation for each frame.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::lock::lock_unpoisoned;
use crate::memory_shares::ClientShares;

/// Limit of one connection: sixty frames of the largest kind, so that a client that leaves a few streams unread does not notice it.
const MOST_PER_CONNECTION: usize = 4 << 20;

/// Memory for the unsent responses of all connections. Shared by all threads.
#[derive(Debug, Clone)]
pub(crate) struct ResponseMemory(Arc<InAll>);

#[derive(Debug)]
struct InAll {
    bound: usize,
    bytes: AtomicUsize,
    /// Some connection in `waiting` can continue if less than this is unsent; 0 if none waits.
    wake_below: AtomicUsize,
    waiting: Mutex<Vec<Weak<Unsent>>>,
    /// Notified when a response finds no room.
    exhausted: Notify,
}

impl Default for ResponseMemory {
    fn default() -> Self {
        Self::within(ClientShares::unlimited(1).unsent)
    }
}

impl ResponseMemory {
    /// Memory with this bound.
    pub(crate) fn within(bound: usize) -> Self {
        Self(Arc::new(InAll {
            bound,
            bytes: AtomicUsize::new(0),
            wake_below: AtomicUsize::new(0),
            waiting: Mutex::default(),
            exhausted: Notify::new(),
        }))
    }

    pub(crate) fn bound(&self) -> usize {
        self.0.bound
    }

    pub(crate) fn unsent(&self) -> usize {
        self.0.bytes.load(Ordering::SeqCst)
    }

    /// Ready after a response has found no room. Reports no earlier ones.
    pub(super) fn exhausted(&self) -> Notified<'_> {
        self.0.exhausted.notified()
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Weak<Unsent>>> {
        lock_unpoisoned(&self.0.waiting)
    }

    /// Wakes the connections that have room again. Called without a lock, because the end of a woken response may release bytes.
    fn wake(&self) {
        self.0.wake_below.store(0, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.waiting());
        for unsent in waiting.iter().filter_map(Weak::upgrade) {
            unsent.is_listed.store(false, Ordering::SeqCst);
            if unsent.has_room() {
                unsent.wake();
            } else {
                unsent.wait_for_others();
            }
        }
    }
}

/// Unsent bytes of one connection.
#[derive(Debug)]
pub(crate) struct Unsent {
    all: ResponseMemory,
    bytes: AtomicUsize,
    /// Whether bytes were written or dropped since [`Self::take_progress`].
    has_progressed: AtomicBool,
    has_waiting: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
    /// Whether this waits for other connections too.
    is_listed: AtomicBool,
}

/// Counts the bytes that one response gives to its connection.
#[derive(Debug, Clone)]
pub(crate) struct UnsentCounter {
    unsent: Arc<Unsent>,
    is_http1: bool,
}

/// Bytes that count as unsent until they are dropped.
struct UnsentBytes {
    data: Bytes,
    unsent: Arc<Unsent>,
}

impl Unsent {
    pub(super) fn counted_in(all: ResponseMemory) -> Self {
        Self {
            all,
            bytes: AtomicUsize::new(0),
            has_progressed: AtomicBool::new(false),
            has_waiting: AtomicBool::new(false),
            waiting: Mutex::default(),
            is_listed: AtomicBool::new(false),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Whether bytes were written or dropped since the last call.
    pub(super) fn take_progress(&self) -> bool {
        self.has_progressed.swap(false, Ordering::Relaxed)
    }

    /// Ready when the connection may take more bytes of a response.
    fn poll_room(self: &Arc<Self>, cx: &Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting();
        // A client can cause any number of polls of one response.
        if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        drop(waiting);
        self.has_waiting.store(true, Ordering::SeqCst);
        self.wait_for_others();
        // Room may have been made just before this response registered.
        if self.has_room() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Counts bytes of HTTP/2 until they are dropped.
    fn count(self: &Arc<Self>, data: Bytes) -> Bytes {
        self.add(data.len());
        Bytes::from_owner(UnsentBytes {
            data,
            unsent: Arc::clone(self),
        })
    }

    /// Counts bytes of HTTP/1.1 until [`Self::written`] or [`Self::flushed`].
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.all.0.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Notes that HTTP/1.1 has written bytes. Heads and the framing of chunks are written as well, so what stays may be slightly less than
    /// is there.
    pub(super) fn written(&self, bytes: usize) {
        self.release(bytes.min(self.bytes()));
    }

    /// Notes that HTTP/1.1 has written everything.
    pub(super) fn flushed(&self) {
        self.release(self.bytes());
    }

    fn has_room(&self) -> bool {
        let own = self.bytes();
        own < MOST_PER_CONNECTION && self.all.unsent() < self.room_below(own)
    }

    /// The total below which this connection may take more.
    fn room_below(&self, own: usize) -> usize {
        let bound = self.all.bound();
        if own == 0 {
            return bound;
        }
        // An eighth is for connections that have written everything: each gets a frame of it at a time.
        (bound - bound / 8).saturating_sub(own)
    }

    /// Has [`ResponseMemory::wake`] called when this connection has room because of others.
    fn wait_for_others(self: &Arc<Self>) {
        if !self.is_listed.swap(true, Ordering::SeqCst) {
            self.all.waiting().push(Arc::downgrade(self));
        }
        let needed = self.room_below(self.bytes());
        self.all.0.wake_below.fetch_max(needed, Ordering::SeqCst);
        self.all.0.exhausted.notify_waiters();
        if self.has_room() {
            self.wake();
        }
    }

    fn release(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        let total = self.all.0.bytes.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        self.has_progressed.store(true, Ordering::Relaxed);
        if self.has_waiting.load(Ordering::SeqCst) && self.has_room() {
            self.wake();
        }
        if total < self.all.0.wake_below.load(Ordering::SeqCst) {
            self.all.wake();
        }
    }

    fn wake(&self) {
        self.has_waiting.store(false, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.waiting());
        for waker in waiting {
            waker.wake();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        lock_unpoisoned(&self.waiting)
    }
}

impl UnsentCounter {
    pub(super) fn new(unsent: &Arc<Unsent>, is_http1: bool) -> Self {
        Self {
            unsent: Arc::clone(unsent),
            is_http1,
        }
    }

    /// Ready when the connection may take more bytes of the response.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        self.unsent.poll_room(cx)
    }

    /// Counts bytes until they are written or dropped.
    pub(crate) fn count(&self, data: Bytes) -> Bytes {
        if self.is_http1 {
            self.unsent.add(data.len());
            return data;
        }
        self.unsent.count(data)
    }
}

impl Default for Unsent {
    fn default() -> Self {
        Self::counted_in(ResponseMemory::default())
    }
}

impl Drop for Unsent {
    /// Bytes of HTTP/1.1 end with their connection.
    fn drop(&mut self) {
        self.flushed();
    }
}

impl AsRef<[u8]> for UnsentBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        self.unsent.release(self.data.len());
    }
}

#[cfg(test)]
mod tests;
