//! A place among the requests in flight (WIT `state.place`) that a request holds until it is over.
//!
//! Leaves to `wasm/state` how many there are for a key, and to whom they are granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A place that is taken. Dropping it releases the place.
#[derive(Debug)]
pub(crate) struct HeldPlace {
    /// Number of places that are taken. It is shared instead of found by the key, which may be removed meanwhile and mean other places.
    taken: Arc<AtomicU32>,
}

impl HeldPlace {
    /// Takes one of the places that are counted here. The caller has found one that is free.
    pub(crate) fn take(taken: &Arc<AtomicU32>) -> Self {
        taken.fetch_add(1, Ordering::Relaxed);
        Self {
            taken: Arc::clone(taken),
        }
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
