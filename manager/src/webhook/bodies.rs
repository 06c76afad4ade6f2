//! Memory for bodies of reviews: what has arrived is counted, not what is announced.
//!
//! Guarantees: all bodies together stay below a bound, those of one source below half of it. While others wait, a body that has taken longer
//! than [`SLOW`] to arrive is given up, so that nobody holds the bound by sending slowly.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connections::Source;

/// API servers send a body in one go.
const SLOW: Duration = Duration::from_millis(500);
/// What a request costs before its body arrives, and the least that one which is being decided does: reading it takes several times
/// its size.
const HEAD: usize = 16 << 10;
const LEAST: usize = 256 << 10;

/// All bodies.
#[derive(Debug)]
pub(super) struct Bodies {
    most: usize,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    used: usize,
    by_id: BTreeMap<u64, Body>,
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
    fn of_source(&self, source: Source) -> usize {
        let own = self.by_id.values().filter(|body| body.source == source);
        own.map(|body| body.bytes).sum()
    }

    /// The slowest body that has not arrived yet, apart from one's own.
    fn slow(&self, id: u64, may_go: impl Fn(&Body) -> bool) -> Option<&Body> {
        let mut others = self
            .by_id
            .iter()
            .filter(|(other, _)| **other != id)
            .map(|(_, body)| body);
        // Identities rise with time.
        others.find(|body| !body.is_complete && body.since.elapsed() > SLOW && may_go(body))
    }
}

impl Bodies {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::default(),
            freed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a request whose head has arrived. `None`: there are too many already.
    pub(super) fn begin(&self, source: Source) -> Option<Place<'_>> {
        let mut state = self.state();
        if state.used + HEAD > self.most || state.of_source(source) + HEAD > self.most / 2 {
            return None;
        }
        let given_up = CancellationToken::new();
        let body = Body {
            source,
            bytes: HEAD,
            since: Instant::now(),
            is_complete: false,
            given_up: given_up.clone(),
        };
        let id = state.next;
        state.next += 1;
        state.used += HEAD;
        state.by_id.insert(id, body);
        drop(state);
        Some(Place {
            bodies: self,
            id,
            source,
            given_up,
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
        let half = self.bodies.most / 2;
        let is_over_half = state.of_source(self.source) + bytes > half;
        if !is_over_half && state.used + bytes <= self.bodies.most {
            state.used += bytes;
            if let Some(body) = state.by_id.get_mut(&self.id) {
                body.bytes += bytes;
            }
            return true;
        }
        let slow = state.slow(self.id, |body| !is_over_half || body.source == self.source);
        if let Some(slow) = slow {
            slow.given_up.cancel();
        }
        false
    }

    /// The body is all there, and is decided next.
    pub(super) async fn complete(&self) {
        let has = {
            let mut state = self.bodies.state();
            state.by_id.get_mut(&self.id).map_or(LEAST, |body| {
                body.is_complete = true;
                body.bytes
            })
        };
        self.take(LEAST.saturating_sub(has)).await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.bodies.state();
        if let Some(body) = state.by_id.remove(&self.id) {
            state.used = state.used.saturating_sub(body.bytes);
        }
        drop(state);
        self.bodies.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4 << 20;

    fn source(last: u8) -> Source {
        Source::of([10, 0, 0, last].into())
    }

    fn is_given_up(place: &Place<'_>) -> bool {
        place.given_up.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_body_makes_room_for_others() {
        let bodies = Bodies::new(MOST);
        let slow = [1, 2].map(|last| bodies.begin(source(last)).unwrap());
        for place in &slow {
            place.take(MOST / 2 - 2 * HEAD).await;
        }
        let quick = bodies.begin(source(3)).unwrap();
        let begun = Instant::now();
        let arrives = async {
            quick.take(1 << 20).await;
            quick.complete().await;
        };
        let [first, second] = slow;
        let gives_way = async {
            first.given_up().await;
            drop(first);
        };
        tokio::join!(arrives, gives_way);
        assert!(begun.elapsed() < SLOW * 3, "{:?}", begun.elapsed());
        assert!(!is_given_up(&second), "one was enough");
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_is_complete_or_quick_stays() {
        let bodies = Bodies::new(MOST);
        let complete = bodies.begin(source(1)).unwrap();
        complete.take(MOST / 2 - 3 * HEAD).await;
        complete.complete().await;
        tokio::time::advance(SLOW * 2).await;
        let quick = bodies.begin(source(2)).unwrap();
        quick.take(MOST / 2 - 3 * HEAD).await;
        let waits = bodies.begin(source(3)).unwrap();
        assert!(!waits.try_take(1 << 20));
        assert!(!is_given_up(&complete) && !is_given_up(&quick));
        drop(quick);
        assert!(waits.try_take(1 << 20));
    }

    #[tokio::test]
    async fn source_has_half_of_the_bound() {
        let bodies = Bodies::new(MOST);
        let one = bodies.begin(source(1)).unwrap();
        assert!(!one.try_take(MOST / 2));
        assert!(one.try_take(MOST / 2 - HEAD));
        assert!(bodies.begin(source(1)).is_none());
        let other = bodies.begin(source(2)).unwrap();
        assert!(other.try_take(MOST / 4));
        drop((one, other));
        assert_eq!(bodies.state().used, 0);
    }
}
