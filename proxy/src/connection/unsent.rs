//! Bytes of responses that were handed to HTTP/2 for one client and not written yet.
//!
//! Each stream has its own limit, and a client may open a thousand. At the connection's limit its responses are not read further, which
//! stops their servers; they continue as the client reads. Bytes count until they are written or their stream has ended.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

/// Limit of one connection: sixty frames of the largest kind, so that a client that leaves a few streams unread does not notice it.
const MOST_UNSENT: usize = 4 << 20;

#[derive(Debug, Default)]
pub(crate) struct Unsent {
    bytes: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

/// Bytes that count until they are dropped.
struct HandedOver {
    data: Bytes,
    unsent: Arc<Unsent>,
}

impl Unsent {
    /// Ready when a response may hand over more.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // A client can cause any number of polls of one response.
        if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        drop(waiting);
        // Room may have been freed just before this response registered.
        if self.has_room() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Acquire) < MOST_UNSENT
    }

    pub(crate) fn count(self: &Arc<Self>, data: Bytes) -> Bytes {
        self.bytes.fetch_add(data.len(), Ordering::AcqRel);
        Bytes::from_owner(HandedOver {
            data,
            unsent: Arc::clone(self),
        })
    }
}

impl AsRef<[u8]> for HandedOver {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        let unsent = &self.unsent;
        let before = unsent.bytes.fetch_sub(self.data.len(), Ordering::AcqRel);
        if before < MOST_UNSENT || before - self.data.len() >= MOST_UNSENT {
            return;
        }
        let waiting = std::mem::take(&mut *unsent.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for waker in waiting {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_has_room_again_when_bytes_are_written() {
        let unsent = Arc::new(Unsent::default());
        let cx = Context::from_waker(Waker::noop());
        let half = || unsent.count(Bytes::from(vec![0; MOST_UNSENT / 2]));
        let first = half();
        assert!(unsent.poll_room(&cx).is_ready());
        let second = half();
        assert!(unsent.poll_room(&cx).is_pending());
        let part = first.slice(..1);
        drop(first);
        assert!(unsent.poll_room(&cx).is_pending(), "a part of it is still there");
        drop(part);
        assert!(unsent.poll_room(&cx).is_ready() && unsent.waiting.lock().unwrap().is_empty());
        drop(second);
        assert_eq!(unsent.bytes.load(Ordering::Relaxed), 0);
    }
}
