//! Takes tokens and places for one request: all of them or none, in one atomic step.
//!
//! A taken place is a [`HeldPlace`], which releases it when dropped; its owner decides how long that is (`request/exchange.rs`: as long as
//! the request).

use std::cell::LazyCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use tokio::time::Instant;

use super::super::bucket::Bucket;
use super::super::{Admission, Ask, Claim, Grant, Increment, MAX_CLAIMS, MAX_WAIT_MS, Place, StateError};
use super::{EntryState, Keys, Value, check_key};
use crate::lock::lock_unpoisoned;
use crate::plugin::held_place::HeldPlace;

/// The decision, and the places that were taken with it.
type Decision = (Admission, Vec<HeldPlace>);

/// The state of an entry while a verdict is repeated. It is locked from the first cell that is read until tokens and places are taken and
/// counters incremented, so that no cell is written in between, and each cell is looked up once. What a plugin reads of the request after a
/// cell is compared under the lock as well: 64 steps at most, in a query that was parsed once.
#[derive(Debug)]
pub(crate) struct Repetition<'s> {
    entry: &'s EntryState,
    /// The current time, if the caller has just read it.
    now: Option<Instant>,
    /// Locked when it is first needed: most plugins read facts of the request first, and some have no state.
    keys: Option<MutexGuard<'s, Keys>>,
}

impl EntryState {
    /// Takes tokens from all buckets or from none. Claims on the same key add up.
    ///
    /// # Errors
    /// [`StateError`]; nothing was taken then.
    pub fn take(&self, claims: impl IntoIterator<Item = Claim>) -> Result<Grant, StateError> {
        let asks: Vec<Ask> = claims.into_iter().map(Ask::available_now).collect();
        Ok(match self.admit(&asks, &[])?.0 {
            Admission::Short { wait_ms, .. } => Grant::WaitMs(wait_ms),
            Admission::Granted { .. } | Admission::Full { .. } => Grant::Granted,
        })
    }

    /// Takes all tokens and all places, or nothing. The places are held until the second half of the result is dropped.
    ///
    /// # Errors
    /// [`StateError`]; nothing was taken then.
    pub(crate) fn admit(&self, asks: &[Ask], places: &[Place]) -> Result<Decision, StateError> {
        Self::check_admission(asks, places)?;
        let mut keys = lock_unpoisoned(&self.keys);
        keys.decide_and_take(asks, places, self.clock.monotonic_ms())
    }

    /// Refuses requests that could never be granted. Changes nothing.
    pub(crate) fn check_admission(asks: &[Ask], places: &[Place]) -> Result<(), StateError> {
        if asks.len() > MAX_CLAIMS || places.len() > MAX_CLAIMS {
            return Err(StateError::Invalid);
        }
        for Ask { claim, max_wait_ms } in asks {
            check_key(&claim.key)?;
            claim.rule.check()?;
            if total_tokens(asks, &claim.key) > u64::from(claim.rule.burst) || *max_wait_ms > MAX_WAIT_MS {
                return Err(StateError::Invalid);
            }
        }
        for place in places {
            check_key(&place.key)?;
            if place.max == 0 {
                return Err(StateError::Invalid);
            }
        }
        Ok(())
    }

    /// Begins to look for a verdict to repeat. Locks nothing yet. `now` is the current time, if the caller has just read it; otherwise the
    /// clock is read if it is needed.
    pub(crate) fn repetition(&self, now: Option<Instant>) -> Repetition<'_> {
        Repetition {
            entry: self,
            now,
            keys: None,
        }
    }

    /// Whether anyone holds the lock of the keys.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.keys.try_lock().is_err()
    }
}

impl Repetition<'_> {
    /// The number of the write that [`EntryState::get_with_write`] would return; `None` if the key holds another kind of value.
    pub(crate) fn write_of(&mut self, key: &str) -> Option<u64> {
        self.locked_keys().write_of(key)
    }

    /// Number of changes of the state so far. While it stays the same, so does [`Self::write_of`] each key.
    pub(crate) fn changes(&mut self) -> u64 {
        self.locked_keys().changes
    }

    /// Takes the tokens and places of a remembered call and increments its counters, in one atomic step with the reads of cells. Returns
    /// `None` if not all tokens and places are there now; nothing was taken or incremented then. `asks` may not wait.
    pub(crate) fn take(mut self, asks: &[Ask], places: &[Place], increments: &[Increment]) -> Option<Vec<HeldPlace>> {
        debug_assert!(asks.iter().all(|ask| ask.max_wait_ms == 0), "a wait is no repetition");
        if asks.is_empty() && places.is_empty() && increments.is_empty() {
            return Some(Vec::new());
        }
        let (entry, now) = (self.entry, self.now);
        let now_ms = LazyCell::new(|| match now {
            Some(now) => entry.clock.monotonic_ms_at(now),
            None => entry.clock.monotonic_ms(),
        });
        let keys = self.locked_keys();
        let mut held = Vec::new();
        if !(asks.is_empty() && places.is_empty()) {
            match keys.decide_and_take(asks, places, *now_ms) {
                Ok((Admission::Granted { .. }, taken)) => held = taken,
                Ok((Admission::Short { .. } | Admission::Full { .. }, _)) | Err(_) => return None,
            }
        }
        let increments = increments.iter();
        let failed = increments.filter(|each| keys.increment(&each.key, each.by, || *now_ms).is_err());
        let failed = failed.count();
        drop(self);
        // As in a call, which does not learn of it either.
        (0..failed).for_each(|_| entry.series.drop_update());
        Some(held)
    }

    fn locked_keys(&mut self) -> &mut Keys {
        let mutex = &self.entry.keys;
        self.keys.get_or_insert_with(|| lock_unpoisoned(mutex))
    }
}

impl Keys {
    fn decide_and_take(&mut self, asks: &[Ask], places: &[Place], now_ms: u64) -> Result<Decision, StateError> {
        // Most plugins take tokens from one bucket: if it exists, its key is looked up once.
        if let ([ask], []) = (asks, places)
            && let Some(Value::Bucket(bucket)) = self.values.get_mut(&ask.claim.key)
        {
            return Ok((take_from_bucket(bucket, ask, now_ms), Vec::new()));
        }
        let requested = asks.iter().map(|ask| ask.claim.key.as_str());
        self.make_room(now_ms, requested.chain(places.iter().map(|place| place.key.as_str())))?;
        if let Some(index) = self.full_place(places, now_ms)? {
            return Ok((Admission::Full { place: index }, Vec::new()));
        }
        let admission = self.check_buckets(asks, now_ms)?;
        let held = match admission {
            Admission::Granted { .. } => self.charge(asks, places),
            Admission::Short { .. } | Admission::Full { .. } => Vec::new(),
        };
        Ok((admission, held))
    }

    /// The first place that is not free.
    fn full_place(&mut self, places: &[Place], now_ms: u64) -> Result<Option<usize>, StateError> {
        for (index, place) in places.iter().enumerate() {
            let requested = places.iter().filter(|other| other.key == place.key).count();
            let fresh = || Value::Places(Arc::default());
            let Value::Places(held) = self.value(&place.key, now_ms, fresh)? else {
                return Err(StateError::WrongKind);
            };
            if held.load(Ordering::Relaxed) as usize + requested > place.max as usize {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Refills the buckets and returns whether all asks can be granted.
    fn check_buckets(&mut self, asks: &[Ask], now_ms: u64) -> Result<Admission, StateError> {
        let mut longest = 0;
        let mut short: Option<(u64, usize)> = None;
        for (at, Ask { claim, max_wait_ms }) in asks.iter().enumerate() {
            let fresh = || Value::Bucket(Bucket::new(claim.rule, now_ms));
            let Value::Bucket(bucket) = self.value(&claim.key, now_ms, fresh)? else {
                return Err(StateError::WrongKind);
            };
            bucket.advance(claim.rule, now_ms);
            let wait = bucket.wait_ms(total_tokens(asks, &claim.key));
            longest = longest.max(wait);
            if wait > u64::from(*max_wait_ms) && short.is_none_or(|(known, _)| wait > known) {
                short = Some((wait, at));
            }
        }
        Ok(match short {
            Some((wait_ms, ask)) => Admission::Short { ask, wait_ms },
            None => Admission::Granted { wait_ms: longest },
        })
    }

    fn charge(&mut self, asks: &[Ask], places: &[Place]) -> Vec<HeldPlace> {
        for Ask { claim, .. } in asks {
            if let Some(Value::Bucket(bucket)) = self.values.get_mut(&claim.key) {
                bucket.take(u64::from(claim.tokens));
            }
        }
        let held = places.iter().filter_map(|place| match self.values.get(&place.key) {
            Some(Value::Places(held)) => Some(HeldPlace::take(held)),
            _ => None,
        });
        held.collect()
    }
}

/// Takes the tokens of the only ask of a request.
fn take_from_bucket(bucket: &mut Bucket, Ask { claim, max_wait_ms }: &Ask, now_ms: u64) -> Admission {
    let tokens = u64::from(claim.tokens);
    bucket.advance(claim.rule, now_ms);
    let wait_ms = bucket.wait_ms(tokens);
    if wait_ms > u64::from(*max_wait_ms) {
        return Admission::Short { ask: 0, wait_ms };
    }
    bucket.take(tokens);
    Admission::Granted { wait_ms }
}

/// Number of tokens that all asks together need from a bucket.
fn total_tokens(asks: &[Ask], key: &str) -> u64 {
    asks.iter()
        .filter(|ask| ask.claim.key == key)
        .map(|ask| u64::from(ask.claim.tokens))
        .sum()
}
