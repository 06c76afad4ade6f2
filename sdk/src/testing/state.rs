//! The arithmetic of the host's shared state, for one entry: buckets, counters, windows and cells as `wit/host.wit` defines
//! them. Time comes in as an argument.

use std::collections::{BTreeMap, VecDeque};

use crate::{Bucket, Cell, Claim, Grant, StateError};

/// Bounds of the contract (`wit/host.wit`, interface `state`).
const MAX_KEYS: usize = 1024;
const MAX_VALUE: usize = 4096;
const MAX_KEY: usize = 256;
const MAX_SLOTS: u32 = 64;

/// Everything that one entry keeps.
#[derive(Debug, Default)]
pub(super) struct State(BTreeMap<String, Slot>);

#[derive(Clone, Debug)]
enum Slot {
    Bucket(Level),
    Counter(i64),
    Window(Window),
    Cell(Cell),
}

/// Fill level of a bucket. One token is `interval_ms` parts, so that a millisecond brings back exactly `limit` parts.
#[derive(Clone, Copy, Debug)]
struct Level {
    parts: u128,
    full: u128,
    at_ms: u64,
}

#[derive(Clone, Debug)]
struct Window {
    slot_ms: u64,
    slots: u64,
    /// (slot number since the start of time, sum), oldest first.
    sums: VecDeque<(u64, u64)>,
}

impl Level {
    /// The level at `now_ms` under `bucket`; a new bucket is full, a changed one keeps its proportion.
    fn refilled(before: Option<Self>, bucket: Bucket, now_ms: u64) -> Self {
        let full = u128::from(bucket.burst) * u128::from(bucket.interval_ms);
        let parts = before.map_or(full, |level| {
            let kept = if level.full == full {
                level.parts
            } else {
                level.parts * full / level.full.max(1)
            };
            kept + u128::from(now_ms.saturating_sub(level.at_ms)) * u128::from(bucket.limit)
        });
        Self {
            parts: parts.min(full),
            full,
            at_ms: now_ms,
        }
    }
}

impl State {
    /// Takes from every bucket or from none.
    pub(super) fn take(&mut self, claims: &[Claim], now_ms: u64) -> Result<Grant, StateError> {
        let mut after: BTreeMap<&str, Level> = BTreeMap::new();
        let mut wait_ms = 0;
        for claim in claims {
            let Bucket {
                limit,
                interval_ms,
                burst,
            } = claim.bucket;
            if limit == 0 || interval_ms == 0 || claim.tokens > burst {
                return Err(StateError::Invalid);
            }
            check_key(&claim.key)?;
            let before = match (after.get(claim.key.as_str()), self.0.get(&claim.key)) {
                (Some(level), _) | (None, Some(Slot::Bucket(level))) => Some(*level),
                (None, None) => None,
                (None, Some(_)) => return Err(StateError::WrongKind),
            };
            let mut level = Level::refilled(before, claim.bucket, now_ms);
            let wanted = u128::from(claim.tokens) * u128::from(interval_ms);
            let missing = wanted.saturating_sub(level.parts);
            wait_ms = wait_ms.max(missing.div_ceil(u128::from(limit)));
            level.parts = level.parts.saturating_sub(wanted);
            after.insert(&claim.key, level);
        }
        if wait_ms > 0 {
            return Ok(Grant::WaitMs(u64::try_from(wait_ms).unwrap_or(u64::MAX)));
        }
        let new_keys = after.keys().filter(|key| !self.0.contains_key(**key)).count();
        if self.0.len() + new_keys > MAX_KEYS {
            return Err(StateError::TooManyKeys);
        }
        self.0.extend(
            after
                .into_iter()
                .map(|(key, level)| (key.to_owned(), Slot::Bucket(level))),
        );
        Ok(Grant::Granted)
    }

    /// Adds to a counter.
    pub(super) fn add(&mut self, key: &str, delta: i64, max: Option<i64>) -> Result<Option<i64>, StateError> {
        let Slot::Counter(value) = self.slot(key, || Slot::Counter(0))? else {
            return Err(StateError::WrongKind);
        };
        let sum = value.saturating_add(delta).max(0);
        if max.is_some_and(|max| sum > max) {
            return Ok(None);
        }
        *value = sum;
        Ok(Some(sum))
    }

    /// Adds to a sliding window. A window whose shape has changed starts anew.
    pub(super) fn window_add(
        &mut self,
        key: &str,
        length_ms: u32,
        slots: u32,
        amount: u64,
        now_ms: u64,
    ) -> Result<u64, StateError> {
        if slots == 0 || slots > MAX_SLOTS || length_ms < slots {
            return Err(StateError::Invalid);
        }
        let fresh = Window {
            slot_ms: u64::from(length_ms / slots),
            slots: u64::from(slots),
            sums: VecDeque::new(),
        };
        let Slot::Window(window) = self.slot(key, || Slot::Window(fresh.clone()))? else {
            return Err(StateError::WrongKind);
        };
        if (window.slot_ms, window.slots) != (fresh.slot_ms, fresh.slots) {
            *window = fresh;
        }
        let current = now_ms / window.slot_ms;
        let slots = window.slots;
        window.sums.retain(|(slot, _)| slot + slots > current);
        match window.sums.back_mut() {
            Some((slot, sum)) if *slot == current => *sum = sum.saturating_add(amount),
            _ => window.sums.push_back((current, amount)),
        }
        Ok(window.sums.iter().fold(0, |total, (_, sum)| total.saturating_add(*sum)))
    }

    /// Reads a cell.
    pub(super) fn get(&self, key: &str) -> Result<Option<Cell>, StateError> {
        check_key(key)?;
        match self.0.get(key) {
            None => Ok(None),
            Some(Slot::Cell(cell)) => Ok(Some(cell.clone())),
            Some(_) => Err(StateError::WrongKind),
        }
    }

    /// Writes a cell if nobody was faster.
    pub(super) fn compare_and_swap(
        &mut self,
        key: &str,
        expected: u64,
        value: &[u8],
    ) -> Result<Option<u64>, StateError> {
        if value.len() > MAX_VALUE {
            return Err(StateError::TooLarge);
        }
        if self.get(key)?.map_or(0, |cell| cell.version) != expected {
            return Ok(None);
        }
        let version = expected + 1;
        *self.slot(key, || Slot::Counter(0))? = Slot::Cell(Cell {
            value: value.to_vec(),
            version,
        });
        Ok(Some(version))
    }

    /// Forgets a key.
    pub(super) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    fn slot(&mut self, key: &str, fresh: impl FnOnce() -> Slot) -> Result<&mut Slot, StateError> {
        check_key(key)?;
        if self.0.len() >= MAX_KEYS && !self.0.contains_key(key) {
            return Err(StateError::TooManyKeys);
        }
        Ok(self.0.entry(key.to_owned()).or_insert_with(fresh))
    }
}

fn check_key(key: &str) -> Result<(), StateError> {
    if key.len() > MAX_KEY {
        Err(StateError::TooLarge)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
