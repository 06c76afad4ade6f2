//! Memory that requests reserve: for their heads, and for bodies that are read whole for an edit. Bounded for each connection and in total,
//! so that no client can use up the container's memory.
//!
//! Bodies that are passed on frame by frame count with the bytes that may arrive before they are read (`connection::IncomingBody`), and
//! with the bytes that are kept for a retry. Responses count elsewhere: unread ones in `upstream::UnreadResponses`, unwritten ones in
//! `connection::Unsent`. The bounds come from `memory_shares`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::unsent::ResponseMemory;
use crate::memory_shares::ClientShares;

/// Limit of one connection. A controller with 350 watches over HTTP/2 and a token of 16 KiB stays below it, as do two writes of the largest
/// objects at once.
const MOST_PER_CONNECTION: usize = 8 << 20;

/// The API server's limit for a body, with its head and window.
const LARGEST_WRITE: usize = (3 << 20) + (512 << 10);

/// Bytes that a header field counts in addition to its own. An entry of `HeaderMap` has 104, its vector has room for up to twice as many
/// entries, names are allocations, and plugins get a copy: 430 were measured.
const FIELD_OVERHEAD: usize = 512;

/// The limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OverBound {
    #[error("the requests of this connection hold more than {0} bytes; send fewer at a time")]
    Connection(usize),
    #[error("the requests of all clients hold more than {0} bytes; try again")]
    InAll(usize),
}

/// Memory of all clients. Shared by all threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientMemory {
    pub(crate) requests: RequestMemory,
    pub(crate) responses: ResponseMemory,
}

/// Memory that all connections together reserve. Shared by all threads.
#[derive(Debug, Clone)]
pub(crate) struct RequestMemory(Arc<Reserved>);

#[derive(Debug)]
struct Reserved {
    bytes: AtomicUsize,
    bound: usize,
}

impl Default for RequestMemory {
    fn default() -> Self {
        Self::within(ClientShares::unlimited(1).requests)
    }
}

impl RequestMemory {
    /// Memory with this bound.
    pub(crate) fn within(bound: usize) -> Self {
        let bytes = AtomicUsize::new(0);
        Self(Arc::new(Reserved { bytes, bound }))
    }

    pub(crate) fn bound(&self) -> usize {
        self.0.bound
    }

    pub(crate) fn reserved(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// The limit of one connection: it may not use up a low bound, but a write of the largest object must have room.
    fn per_connection(&self) -> usize {
        let half = (self.bound() / 2).max(self.bound().min(LARGEST_WRITE));
        MOST_PER_CONNECTION.min(half)
    }

    /// Bound of bodies: an eighth is left for heads, so that requests without a body have room while others upload.
    fn bound_of_bodies(&self) -> usize {
        self.bound() - self.bound() / 8
    }

    /// Reserves bytes of a head. Returns whether there was room for them.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.take_below(bytes, self.bound())
    }

    fn take_below(&self, bytes: usize, bound: usize) -> bool {
        let taken = self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = taken.saturating_add(bytes) <= bound;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Memory that the requests of one connection reserve.
#[derive(Debug, Default)]
pub(crate) struct ConnectionMemory {
    all: RequestMemory,
    held: Cell<usize>,
}

impl ConnectionMemory {
    pub(crate) const fn counted_in(all: RequestMemory) -> Self {
        Self {
            all,
            held: Cell::new(0),
        }
    }

    /// Reserves bytes of a body. [`Self::give_back`] must follow.
    ///
    /// # Errors
    /// There is no room for them.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), OverBound> {
        self.take_below(bytes, self.all.bound_of_bodies())
    }

    /// Reserves bytes of a head. [`Self::give_back`] must follow.
    ///
    /// # Errors
    /// There is no room for them.
    pub(crate) fn take_head(&self, bytes: usize) -> Result<(), OverBound> {
        self.take_below(bytes, self.all.bound())
    }

    fn take_below(&self, bytes: usize, in_all: usize) -> Result<(), OverBound> {
        let held = self.held.get().saturating_add(bytes);
        let bound = self.all.per_connection();
        if held > bound {
            return Err(OverBound::Connection(bound));
        }
        if !self.all.take_below(bytes, in_all) {
            return Err(OverBound::InAll(in_all));
        }
        self.held.set(held);
        Ok(())
    }

    /// Reserves bytes if half of both limits is enough, so that non-essential bytes leave the rest to requests.
    pub(crate) fn take_dispensable(&self, bytes: usize) -> bool {
        let held = self.held.get().saturating_add(bytes);
        let has_room = held <= self.all.per_connection() / 2 && self.all.take_below(bytes, self.all.bound() / 2);
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
    let fields = headers.iter().map(|(name, value)| field_size(name, value));
    target_size(uri) + fields.sum::<usize>()
}

/// The part of [`head_size`] that the target counts.
pub(crate) fn target_size(uri: &Uri) -> usize {
    uri.path_and_query().map_or(0, |target| target.as_str().len())
}

/// The part of [`head_size`] that a field counts.
pub(crate) fn field_size(name: &HeaderName, value: &HeaderValue) -> usize {
    name.as_str().len() + value.len() + FIELD_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    const PER_CONNECTION: usize = MOST_PER_CONNECTION;
    const IN_ALL: usize = ClientShares::unlimited(1).requests;
    const BODIES: usize = IN_ALL / 8 * 7;

    #[test]
    fn connection_can_not_reserve_memory_of_all_connections() {
        let all = RequestMemory::default();
        let (first, second) = (
            ConnectionMemory::counted_in(all.clone()),
            ConnectionMemory::counted_in(all),
        );
        first.take(PER_CONNECTION).unwrap();
        assert_eq!(first.take(1), Err(OverBound::Connection(PER_CONNECTION)));
        second.take(PER_CONNECTION).unwrap();
        first.give_back(1);
        first.take(1).unwrap();
    }

    #[test]
    fn memory_of_all_connections_is_bounded_and_reusable_after_release() {
        let all = RequestMemory::default();
        let connection = || ConnectionMemory::counted_in(all.clone());
        let full: Vec<_> = (0..7).map(|_| connection()).collect();
        for one in &full {
            one.take(BODIES / 7).unwrap();
        }
        let late = connection();
        assert_eq!(late.take(1), Err(OverBound::InAll(BODIES)));
        full[0].give_back(10);
        late.take(10).unwrap();
        assert_eq!(late.take(1), Err(OverBound::InAll(BODIES)), "a refusal takes nothing");
        late.take_head(IN_ALL - BODIES).unwrap();
        assert_eq!(late.take_head(1), Err(OverBound::InAll(IN_ALL)));
    }

    #[test]
    fn low_bound_leaves_room_for_largest_write_of_one_connection() {
        for (bound, expected) in [(4 << 20, LARGEST_WRITE), (8 << 20, 4 << 20), (24 << 20, PER_CONNECTION)] {
            let memory = ConnectionMemory::counted_in(RequestMemory::within(bound));
            memory.take(expected).unwrap();
            assert_eq!(memory.take(1), Err(OverBound::Connection(expected)));
        }
    }

    #[test]
    fn head_counts_its_target_and_each_field() {
        let mut headers = HeaderMap::new();
        headers.append("accept", "a".parse().unwrap());
        headers.append("accept", "bc".parse().unwrap());
        assert_eq!(
            head_size(&Uri::from_static("/p?q"), &headers),
            4 + (6 + 1 + 512) + (6 + 2 + 512)
        );
    }
}
