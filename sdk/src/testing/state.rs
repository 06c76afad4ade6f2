//! The arithmetic of the host's shared state, for one entry: buckets, counters, windows and cells as `wit/host.wit` defines
//! them. Time comes in as an argument.

use std::collections::{BTreeMap, VecDeque};

use crate::{Bucket, Cell, Claim, Grant, StateError};

/// Bounds of the contract (`wit/host.wit`, interface `state`).
const MAX_KEYS: usize = 1024;
const MAX_VALUE: usize = 4096;
const MAX_KEY: usize = 640;
const MAX_SLOTS: u32 = 64;
const MAX_CLAIMS: usize = 64;

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
    bucket: Bucket,
    parts: u128,
    at_ms: u64,
}

#[derive(Clone, Debug)]
struct Window {
    length_ms: u32,
    slots: u32,
    /// (slot number since the start of time, sum), oldest first.
    sums: VecDeque<(u64, u64)>,
}

impl Level {
    fn full(bucket: Bucket, now_ms: u64) -> Self {
        Self {
            bucket,
            parts: capacity(bucket),
            at_ms: now_ms,
        }
    }

    /// The level at `now_ms`: filled by the rule it had, then kept in proportion under `bucket`.
    fn advanced(self, bucket: Bucket, now_ms: u64) -> Self {
        let elapsed = u128::from(now_ms.saturating_sub(self.at_ms));
        let before = capacity(self.bucket).max(1);
        let parts = (self.parts + elapsed * u128::from(self.bucket.limit)).min(before);
        Self {
            bucket,
            parts: parts * capacity(bucket) / before,
            at_ms: now_ms,
        }
    }
}

fn capacity(bucket: Bucket) -> u128 {
    u128::from(bucket.burst) * u128::from(bucket.interval_ms)
}

impl Window {
    /// Slots are equal parts of the length, also where it does not divide evenly.
    fn slot_at(&self, now_ms: u64) -> u64 {
        let number = u128::from(now_ms) * u128::from(self.slots) / u128::from(self.length_ms.max(1));
        u64::try_from(number).unwrap_or(u64::MAX)
    }

    fn sum(&mut self, now_ms: u64) -> u64 {
        let (current, slots) = (self.slot_at(now_ms), u64::from(self.slots));
        self.sums.retain(|(slot, _)| slot.saturating_add(slots) > current);
        self.sums.iter().fold(0, |total, (_, sum)| total.saturating_add(*sum))
    }
}

impl State {
    /// Takes from every bucket or from none; claims on one key add up.
    pub(super) fn take(&mut self, claims: &[Claim], now_ms: u64) -> Result<Grant, StateError> {
        let total = |key: &str| {
            claims
                .iter()
                .filter(|claim| claim.key == key)
                .map(|claim| u64::from(claim.tokens))
                .sum()
        };
        if claims.len() > MAX_CLAIMS {
            return Err(StateError::Invalid);
        }
        for claim in claims {
            check_key(&claim.key)?;
            let Bucket {
                limit,
                interval_ms,
                burst,
            } = claim.bucket;
            let total: u64 = total(&claim.key);
            if limit == 0 || interval_ms == 0 || burst == 0 || total > u64::from(burst) {
                return Err(StateError::Invalid);
            }
        }
        let mut wait_ms = 0;
        for claim in claims {
            let slot = self.slot(&claim.key, now_ms, || Slot::Bucket(Level::full(claim.bucket, now_ms)))?;
            let Slot::Bucket(level) = slot else {
                return Err(StateError::WrongKind);
            };
            *level = level.advanced(claim.bucket, now_ms);
            let total: u64 = total(&claim.key);
            let missing = (u128::from(total) * u128::from(claim.bucket.interval_ms)).saturating_sub(level.parts);
            wait_ms = wait_ms.max(missing.div_ceil(u128::from(claim.bucket.limit)));
        }
        if wait_ms > 0 {
            return Ok(Grant::WaitMs(u64::try_from(wait_ms).unwrap_or(u64::MAX)));
        }
        for claim in claims {
            if let Some(Slot::Bucket(level)) = self.0.get_mut(&claim.key) {
                level.parts = level
                    .parts
                    .saturating_sub(u128::from(claim.tokens) * u128::from(claim.bucket.interval_ms));
            }
        }
        Ok(Grant::Granted)
    }

    /// Adds to a counter. `max` bounds only what rises: a counter above a lowered one can still fall.
    pub(super) fn add(
        &mut self,
        key: &str,
        delta: i64,
        max: Option<i64>,
        now_ms: u64,
    ) -> Result<Option<i64>, StateError> {
        let Slot::Counter(value) = self.slot(key, now_ms, || Slot::Counter(0))? else {
            return Err(StateError::WrongKind);
        };
        let sum = value.saturating_add(delta).max(0);
        if delta > 0 && max.is_some_and(|max| sum > max) {
            return Ok(None);
        }
        *value = sum;
        Ok(Some(sum))
    }

    /// Adds to a sliding window. A window whose shape has changed starts anew.
    pub(super) fn window_add(
        &mut self,
        key: &str,
        (length_ms, slots): (u32, u32),
        amount: u64,
        now_ms: u64,
    ) -> Result<u64, StateError> {
        if slots == 0 || slots > MAX_SLOTS || length_ms == 0 {
            return Err(StateError::Invalid);
        }
        let fresh = || Window {
            length_ms,
            slots,
            sums: VecDeque::new(),
        };
        let Slot::Window(window) = self.slot(key, now_ms, || Slot::Window(fresh()))? else {
            return Err(StateError::WrongKind);
        };
        if (window.length_ms, window.slots) != (length_ms, slots) {
            *window = fresh();
        }
        let current = window.slot_at(now_ms);
        match window.sums.back_mut() {
            Some((slot, sum)) if *slot == current => *sum = sum.saturating_add(amount),
            _ => window.sums.push_back((current, amount)),
        }
        Ok(window.sum(now_ms))
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
        now_ms: u64,
    ) -> Result<Option<u64>, StateError> {
        if value.len() > MAX_VALUE {
            return Err(StateError::TooLarge);
        }
        if self.get(key)?.map_or(0, |cell| cell.version) != expected {
            return Ok(None);
        }
        let version = expected.saturating_add(1);
        *self.slot(key, now_ms, || Slot::Counter(0))? = Slot::Cell(Cell {
            value: value.to_vec(),
            version,
        });
        Ok(Some(version))
    }

    /// Forgets a key.
    pub(super) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    fn slot(&mut self, key: &str, now_ms: u64, fresh: impl FnOnce() -> Slot) -> Result<&mut Slot, StateError> {
        check_key(key)?;
        if self.0.len() >= MAX_KEYS && !self.0.contains_key(key) {
            // What holds nothing is the same as a key that is not there.
            self.0.retain(|_, slot| !slot.is_idle(now_ms));
        }
        if self.0.len() >= MAX_KEYS && !self.0.contains_key(key) {
            return Err(StateError::TooManyKeys);
        }
        Ok(self.0.entry(key.to_owned()).or_insert_with(fresh))
    }
}

impl Slot {
    fn is_idle(&mut self, now_ms: u64) -> bool {
        match self {
            Self::Bucket(level) => level.advanced(level.bucket, now_ms).parts == capacity(level.bucket),
            Self::Counter(value) => *value == 0,
            Self::Window(window) => window.sum(now_ms) == 0,
            Self::Cell(_) => false,
        }
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
