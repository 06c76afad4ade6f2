//! Memory for bodies of reviews: what has arrived is counted, not what is announced.
//!
//! Guarantees: all bodies together stay below a bound, those of one source below half of it. At the bound a new body takes the place of one
//! that is not being decided yet, of the source that has the most of these: first one that has not arrived, then the newest that waits for its
//! turn. So a source that holds places with announced bodies, or sends reviews faster than they are decided, loses them, and an API server
//! does not. A body that is being decided keeps its place until it is answered. While others wait, a body that has taken longer than [`SLOW`] to
//! arrive is given up, so that nobody holds the bound by sending slowly.
//!
//! Caveat: a body that is given up is no longer counted, and its memory is freed when its task runs next.

mod shares;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connections::Source;
use shares::Shares;

/// API servers send a body in one go.
const SLOW: Duration = Duration::from_millis(500);
/// What a request costs before its body arrives.
const HEAD: usize = 16 << 10;
/// Reviews that are decided at the same time. An object that was read takes several times the size of its body, so these are bounded apart.
const DECISIONS: usize = 128;
/// The same of one source, so that the reviews of two can't keep a third waiting.
const DECISIONS_OF_SOURCE: usize = 32;

/// All bodies.
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
    /// Identities rise with time.
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
        self.shares.of_mut(body.source).begin(id, body.bytes);
        self.by_id.insert(id, body);
        id
    }

    fn remove(&mut self, id: u64) -> Option<Body> {
        let body = self.by_id.remove(&id)?;
        self.used = self.used.saturating_sub(body.bytes);
        self.shares.end(body.source, id, body.bytes);
        Some(body)
    }

    fn give_up(&mut self, id: u64) {
        if let Some(body) = self.remove(id) {
            body.given_up.cancel();
        }
    }

    /// The oldest body that is slow to arrive, apart from one's own.
    fn slow(&self, id: u64, may_go: impl Fn(&Body) -> bool) -> Option<u64> {
        let others = self.by_id.iter().filter(|(other, _)| **other != id);
        let mut arriving = others.filter(|(_, body)| !body.is_complete);
        let slow = arriving.find(|(_, body)| body.since.elapsed() > SLOW && may_go(body));
        slow.map(|(id, _)| *id)
    }
}

impl Bodies {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::default(),
            freed: Notify::new(),
            decisions: Arc::new(Semaphore::new(DECISIONS)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over_half(&self, state: &State, source: Source, bytes: usize) -> bool {
        state.shares.bytes_of(source) + bytes > self.most / 2
    }

    /// For a request whose head has arrived. `None`: all places are taken by bodies that are being decided, or by as many of this source
    /// as of any other.
    pub(super) fn begin(&self, source: Source) -> Option<Place<'_>> {
        let mut state = self.state();
        loop {
            let given_up = if self.is_over_half(&state, source, HEAD) {
                state.shares.oldest_arriving_of(source)?
            } else if state.used + HEAD > self.most {
                state.shares.first_to_go_for(source)?
            } else {
                break;
            };
            state.give_up(given_up);
        }
        let given_up = CancellationToken::new();
        let id = state.insert(Body {
            source,
            bytes: HEAD,
            since: Instant::now(),
            is_complete: false,
            given_up: given_up.clone(),
        });
        let decisions = state.shares.of_mut(source).decisions();
        drop(state);
        Some(Place {
            bodies: self,
            id,
            source,
            given_up,
            decisions,
        })
    }
}

/// What one body takes.
#[derive(Debug)]
pub(super) struct Place<'b> {
    bodies: &'b Bodies,
    id: u64,
    source: Source,
    given_up: CancellationToken,
    decisions: Arc<Semaphore>,
}

/// A review may be decided.
#[derive(Debug)]
pub(super) struct DecisionPermit {
    _of_source: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Place<'_> {
    /// Waits until this body must make room for others.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// So many bytes more have arrived. Waits until there is room for them.
    pub(super) async fn take(&self, bytes: usize) {
        loop {
            let freed = self.bodies.freed.notified();
            let mut freed = std::pin::pin!(freed);
            // From here on it is told, also of what happens before it waits.
            freed.as_mut().enable();
            if self.try_take(bytes) {
                return;
            }
            // Others become slow while nothing is freed.
            let _ = tokio::time::timeout(SLOW, freed).await;
        }
    }

    fn try_take(&self, bytes: usize) -> bool {
        let mut state = self.bodies.state();
        loop {
            if !state.by_id.contains_key(&self.id) {
                return false;
            }
            let is_over_half = self.bodies.is_over_half(&state, self.source, bytes);
            if !is_over_half && state.used + bytes <= self.bodies.most {
                break;
            }
            let slow = state.slow(self.id, |body| !is_over_half || body.source == self.source);
            // Without an attack there is room soon: bodies of an API server wait for each other.
            let crowd = || state.shares.first_to_go_of_larger(self.source);
            let Some(given_up) = slow.or_else(|| if is_over_half { None } else { crowd() }) else {
                return false;
            };
            state.give_up(given_up);
        }
        state.used += bytes;
        state.shares.of_mut(self.source).grow(self.id, bytes);
        if let Some(body) = state.by_id.get_mut(&self.id) {
            body.bytes += bytes;
        }
        true
    }

    /// The body is all there, and waits for its turn.
    pub(super) fn complete(&self) {
        let mut state = self.bodies.state();
        let Some(body) = state.by_id.get_mut(&self.id) else {
            return;
        };
        body.is_complete = true;
        state.shares.of_mut(self.source).complete(self.id);
    }

    /// Waits for its turn: in the order of arrival, first within its source. From then on it keeps its place. `None`: it must make room for
    /// others, or the server ends.
    pub(super) async fn decide(&self) -> Option<DecisionPermit> {
        tokio::select! {
            permit = self.turn() => permit.filter(|_| self.is_settled()),
            () = self.given_up() => None,
        }
    }

    /// Keeps its place, unless it is given up already.
    fn is_settled(&self) -> bool {
        let mut state = self.bodies.state();
        let is_there = state.by_id.contains_key(&self.id);
        if is_there {
            state.shares.of_mut(self.source).settle(self.id);
        }
        is_there
    }

    async fn turn(&self) -> Option<DecisionPermit> {
        let of_source = self.decisions.clone().acquire_owned().await.ok()?;
        let of_all = self.bodies.decisions.clone().acquire_owned().await.ok()?;
        Some(DecisionPermit {
            _of_source: of_source,
            _of_all: of_all,
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let _ = self.bodies.state().remove(self.id);
        self.bodies.freed.notify_waiters();
    }
}
