//! Reads the bodies of reviews, and limits the memory for them. Bytes that have arrived count, not those that are announced.
//!
//! Guarantees: all bodies together stay below a limit, those of one source below half of it. At the limit, a new body replaces one
//! that is not being decided yet, from the source with the most of these: first one that has not arrived, then the one that has
//! waited for its decision for the shortest time. So a source that holds places with announced bodies, or sends reviews faster than
//! they are decided, loses them, and an API server does not. A body that is being decided keeps its place until it is answered.
//! While others wait, a body that has taken longer than [`SLOW_BODY_TIME`] to arrive is given up, so that slow senders cannot hold the
//! memory.
//!
//! Caveat: a body that is given up is no longer counted, and its memory is freed when its task runs next.

mod shares;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::StreamExt as _;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connections::Source;
use crate::cluster::lock_unpoisoned;
use shares::Shares;

/// Time within which a body should arrive. API servers send a body in one go.
const SLOW_BODY_TIME: Duration = Duration::from_millis(500);
/// An API server accepts objects of up to 3 MiB; an update's review has two of them.
const MAX_BODY: usize = 7 << 20;
/// Bytes that a request counts before its body arrives.
const HEAD_BYTES: usize = 16 << 10;
/// Maximum reviews that are decided at a time. A parsed object takes several times the size of its body, so these are limited
/// separately.
const MAX_DECISIONS: usize = 128;
/// Maximum for one source, so that the reviews of two sources can't block a third.
const MAX_DECISIONS_OF_SOURCE: usize = 32;

#[derive(Debug)]
pub(super) struct Bodies {
    most: usize,
    state: Mutex<State>,
    freed: Notify,
    decisions: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    used: usize,
    /// Ids increase with time.
    by_id: BTreeMap<u64, Body>,
    shares: Shares,
}

#[derive(Debug)]
struct Body {
    source: Source,
    bytes: usize,
    since: Instant,
    is_complete: bool,
    given_up: CancellationToken,
}

impl State {
    fn insert(&mut self, body: Body) -> u64 {
        let id = self.next;
        self.next += 1;
        self.used += body.bytes;
        self.shares.of_mut(body.source).add_body(id, body.bytes);
        self.by_id.insert(id, body);
        id
    }

    fn remove(&mut self, id: u64) -> Option<Body> {
        let body = self.by_id.remove(&id)?;
        self.used = self.used.saturating_sub(body.bytes);
        self.shares.remove_body(body.source, id, body.bytes);
        Some(body)
    }

    fn give_up(&mut self, id: u64) {
        if let Some(body) = self.remove(id) {
            body.given_up.cancel();
        }
    }

    /// The oldest body, other than `id`, that is slow to arrive.
    fn slowest_body(&self, id: u64, may_go: impl Fn(&Body) -> bool) -> Option<u64> {
        let others = self.by_id.iter().filter(|(other, _)| **other != id);
        let mut arriving = others.filter(|(_, body)| !body.is_complete);
        let slow = arriving.find(|(_, body)| body.since.elapsed() > SLOW_BODY_TIME && may_go(body));
        slow.map(|(id, _)| *id)
    }
}

impl Bodies {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::default(),
            freed: Notify::new(),
            decisions: Arc::new(Semaphore::new(MAX_DECISIONS)),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        lock_unpoisoned(&self.state)
    }

    fn is_over_half(&self, state: &State, source: Source, bytes: usize) -> bool {
        state.shares.bytes_of(source) + bytes > self.most / 2
    }

    /// Reserves a place for a request whose head has arrived. `None`: all places are taken by bodies that are being decided, or by
    /// as many of this source as of any other.
    pub(super) fn begin_body(&self, source: Source) -> Option<BodyPermit<'_>> {
        let mut state = self.lock_state();
        loop {
            let given_up = if self.is_over_half(&state, source, HEAD_BYTES) {
                state.shares.oldest_arriving_of(source)?
            } else if state.used + HEAD_BYTES > self.most {
                state.shares.first_to_go_for(source)?
            } else {
                break;
            };
            state.give_up(given_up);
        }
        let given_up = CancellationToken::new();
        let id = state.insert(Body {
            source,
            bytes: HEAD_BYTES,
            since: Instant::now(),
            is_complete: false,
            given_up: given_up.clone(),
        });
        let decisions = state.shares.of_mut(source).decisions();
        drop(state);
        Some(BodyPermit {
            bodies: self,
            id,
            source,
            given_up,
            decisions,
        })
    }
}

/// The memory that one body takes.
#[derive(Debug)]
pub(super) struct BodyPermit<'b> {
    bodies: &'b Bodies,
    id: u64,
    source: Source,
    given_up: CancellationToken,
    decisions: Arc<Semaphore>,
}

/// A permit to decide a review.
#[derive(Debug)]
pub(super) struct DecisionPermit {
    _of_source: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl BodyPermit<'_> {
    /// Waits until this body must give its place to others.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// Counts bytes that have arrived. Waits until there is room for them.
    pub(super) async fn take(&self, bytes: usize) {
        loop {
            let freed = self.bodies.freed.notified();
            let mut freed = std::pin::pin!(freed);
            // From here on notifications are not missed, even before the first poll.
            freed.as_mut().enable();
            if self.try_take(bytes) {
                return;
            }
            // Other bodies may become slow although nothing is freed.
            let _ = tokio::time::timeout(SLOW_BODY_TIME, freed).await;
        }
    }

    fn try_take(&self, bytes: usize) -> bool {
        let mut state = self.bodies.lock_state();
        loop {
            if !state.by_id.contains_key(&self.id) {
                return false;
            }
            let is_over_half = self.bodies.is_over_half(&state, self.source, bytes);
            if !is_over_half && state.used + bytes <= self.bodies.most {
                break;
            }
            let slow = state.slowest_body(self.id, |body| !is_over_half || body.source == self.source);
            // Without an attack there is room soon: bodies of one API server wait for each other.
            let of_larger_source = || state.shares.first_to_go_of_larger(self.source);
            let Some(given_up) = slow.or_else(|| if is_over_half { None } else { of_larger_source() }) else {
                return false;
            };
            state.give_up(given_up);
        }
        state.used += bytes;
        state.shares.of_mut(self.source).add_bytes(self.id, bytes);
        if let Some(body) = state.by_id.get_mut(&self.id) {
            body.bytes += bytes;
        }
        true
    }

    /// Marks the body as complete. It waits for its decision then.
    pub(super) fn complete(&self) {
        let mut state = self.bodies.lock_state();
        let Some(body) = state.by_id.get_mut(&self.id) else {
            return;
        };
        body.is_complete = true;
        state.shares.of_mut(self.source).mark_complete(self.id);
    }

    /// Waits for a permit to decide: in the order of arrival, first within its source. The body keeps its place then. `None`: it
    /// must give its place to others, or the server stops.
    pub(super) async fn wait_to_decide(&self) -> Option<DecisionPermit> {
        tokio::select! {
            permit = self.wait_for_turn() => permit.filter(|_| self.is_settled()),
            () = self.given_up() => None,
        }
    }

    /// Makes the body keep its place. Returns false if it was given up before.
    fn is_settled(&self) -> bool {
        let mut state = self.bodies.lock_state();
        let is_there = state.by_id.contains_key(&self.id);
        if is_there {
            state.shares.of_mut(self.source).mark_settled(self.id);
        }
        is_there
    }

    async fn wait_for_turn(&self) -> Option<DecisionPermit> {
        let of_source = self.decisions.clone().acquire_owned().await.ok()?;
        let of_all = self.bodies.decisions.clone().acquire_owned().await.ok()?;
        Some(DecisionPermit {
            _of_source: of_source,
            _of_all: of_all,
        })
    }
}

impl Drop for BodyPermit<'_> {
    fn drop(&mut self) {
        let _ = self.bodies.lock_state().remove(self.id);
        self.bodies.freed.notify_waiters();
    }
}

/// The response to a request that is not a review.
pub(super) type NoReview = (StatusCode, String);

pub(super) fn too_many() -> NoReview {
    let problem = "too many reviews at once, or this one arrives too slowly; try again".to_owned();
    (StatusCode::SERVICE_UNAVAILABLE, problem)
}

/// Reads a body, and counts it as it arrives.
pub(super) async fn read_body(
    body: axum::body::Body,
    permit: &BodyPermit<'_>,
    deadline: Duration,
) -> Result<Vec<u8>, NoReview> {
    let reading = async {
        let mut bytes = Vec::new();
        let mut parts = body.into_data_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|error| {
                let problem = format!("the body can't be read: {error}");
                (StatusCode::BAD_REQUEST, problem)
            })?;
            if bytes.len() + part.len() > MAX_BODY {
                let problem = format!("the body is larger than {MAX_BODY} bytes");
                return Err((StatusCode::PAYLOAD_TOO_LARGE, problem));
            }
            permit.take(part.len()).await;
            bytes.extend_from_slice(&part);
        }
        permit.complete();
        Ok(bytes)
    };
    tokio::select! {
        read = tokio::time::timeout(deadline, reading) => read.map_err(|_| {
            let problem = format!("the body did not arrive in {deadline:?}");
            (StatusCode::REQUEST_TIMEOUT, problem)
        })?,
        () = permit.given_up() => Err(too_many()),
    }
}
