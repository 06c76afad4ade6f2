//! Memory that requests reserve: for their heads, and for bodies that are read whole for an edit. Bounded for each connection and in total,
//! so that no client can use up the container's memory.
//!
//! Bodies that are passed on frame by frame count with the bytes that may arrive before they are read (`connection::IncomingBody`), and
//! with the bytes that are kept for a retry. Responses count elsewhere: unread ones in `upstream::UnreadAnswers`, unwritten ones in
//! `connection::Unsent`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Uri};

/// Limit of one connection. A controller with 500 watches over HTTP/2 and a token of 16 KiB stays below it, as do two writes of the largest
/// objects at once.
pub(crate) const PER_CONNECTION: usize = 8 << 20;

/// Limit of all connections together. While a request is edited and sent its bytes exist up to three times; a container has 256 MiB by
/// default.
pub(crate) const IN_ALL: usize = 32 << 20;

/// Bytes that a header field counts in addition to its own (RFC 9113 §6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// The limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OverBound {
    #[error("the requests of this connection hold more than {PER_CONNECTION} bytes; send fewer at a time")]
    Connection,
    #[error("the requests of all clients hold more than {IN_ALL} bytes; try again")]
    InAll,
}

/// Memory that all connections together reserve. Shared by all threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestMemory(Arc<AtomicUsize>);

impl RequestMemory {
    /// Reserves bytes. Returns whether there was room for them.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.take_below(bytes, IN_ALL)
    }

    fn take_below(&self, bytes: usize, bound: usize) -> bool {
        let taken = self.0.fetch_add(bytes, Ordering::Relaxed);
        let fits = taken.saturating_add(bytes) <= bound;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Memory that the requests of one connection reserve.
#[derive(Debug, Default)]
pub(crate) struct ConnectionMemory {
    all: RequestMemory,
    held: Cell<usize>,
}

impl ConnectionMemory {
    pub(crate) const fn of(all: RequestMemory) -> Self {
        Self {
            all,
            held: Cell::new(0),
        }
    }

    /// Reserves bytes. [`Self::give_back`] must follow.
    ///
    /// # Errors
    /// There is no room for them.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), OverBound> {
        let held = self.held.get().saturating_add(bytes);
        if held > PER_CONNECTION {
            return Err(OverBound::Connection);
        }
        if !self.all.take(bytes) {
            return Err(OverBound::InAll);
        }
        self.held.set(held);
        Ok(())
    }

    /// Reserves bytes if half of both limits is enough, so that non-essential bytes leave the rest to requests.
    pub(crate) fn take_dispensable(&self, bytes: usize) -> bool {
        let held = self.held.get().saturating_add(bytes);
        let has_room = held <= PER_CONNECTION / 2 && self.all.take_below(bytes, IN_ALL / 2);
        if has_room {
            self.held.set(held);
        }
        has_room
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.held.set(self.held.get().saturating_sub(bytes));
        self.all.give_back(bytes);
    }
}

/// Bytes that a request head counts.
pub(crate) fn head_size(uri: &Uri, headers: &HeaderMap) -> usize {
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    let fields = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD);
    target + fields.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_can_not_reserve_memory_of_all_connections() {
        let all = RequestMemory::default();
        let (first, second) = (ConnectionMemory::of(all.clone()), ConnectionMemory::of(all));
        first.take(PER_CONNECTION).unwrap();
        assert_eq!(first.take(1), Err(OverBound::Connection));
        second.take(PER_CONNECTION).unwrap();
        first.give_back(1);
        first.take(1).unwrap();
    }

    #[test]
    fn memory_of_all_connections_is_bounded_and_reusable_after_release() {
        let all = RequestMemory::default();
        let connection = || ConnectionMemory::of(all.clone());
        let full: Vec<_> = (0..IN_ALL / PER_CONNECTION).map(|_| connection()).collect();
        for one in &full {
            one.take(PER_CONNECTION).unwrap();
        }
        let late = connection();
        assert_eq!(late.take(1), Err(OverBound::InAll));
        full[0].give_back(10);
        late.take(10).unwrap();
        assert_eq!(late.take(1), Err(OverBound::InAll), "a refusal takes nothing");
    }

    #[test]
    fn head_counts_its_target_and_each_field() {
        let mut headers = HeaderMap::new();
        headers.append("accept", "a".parse().unwrap());
        headers.append("accept", "bc".parse().unwrap());
        assert_eq!(
            head_size(&Uri::from_static("/p?q"), &headers),
            4 + (6 + 1 + 32) + (6 + 2 + 32)
        );
    }
}
