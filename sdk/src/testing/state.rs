//! The arithmetic of the host's shared state, for one entry: buckets, counters, windows and cells as `wit/host.wit` defines
//! them. Time comes in as an argument.

use std::collections::{BTreeMap, VecDeque};

use super::kept_verdict::KeptRule;
use super::tally::{Counts, Crossed, Judged, Tally};
use crate::{Admission, Ask, Bucket, Cell, Claim, Grant, Place, Shortage, StateError};

/// Bounds of the contract (`wit/host.wit`, interface `state`).
const MAX_KEYS: usize = 1024;
const MAX_VALUE: usize = 4096;
const MAX_KEY: usize = 640;
const MAX_SLOTS: u32 = 64;
const MAX_CLAIMS: usize = 64;
const MAX_READ_KEYS: usize = 64;
const MAX_WAIT_MS: u32 = 60_000;

/// Everything that one entry keeps.
#[derive(Clone, Debug, Default)]
pub(super) struct State(BTreeMap<String, Slot>);

#[derive(Clone, Debug)]
enum Slot {
    Bucket(Level),
    Counter(i64),
    Places(u32),
    Window(Window),
    Cell(Cell),
    Tally(StoredTally),
}

/// A tally, with the settings and the states of cells that it belongs to.
#[derive(Clone, Debug, Default)]
struct StoredTally {
    tally: Tally,
    /// How often each of its rule's cells had been changed.
    changes: Vec<u64>,
    /// The latest settings under which an outcome was counted, by their number.
    newest_settings: u64,
}

/// Fill level of a bucket. One token is `interval_ms` parts, so that a millisecond brings back exactly `limit` parts.
#[derive(Clone, Copy, Debug)]
struct Level {
    bucket: Bucket,
    /// Below 0 when tokens were granted ahead of time.
    parts: i128,
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
    fn filled(bucket: Bucket, now_ms: u64) -> Self {
        Self {
            bucket,
            parts: capacity(bucket),
            at_ms: now_ms,
        }
    }

    /// The level at `now_ms`: filled by the rule it had, then kept in proportion under `bucket`.
    fn advanced(self, bucket: Bucket, now_ms: u64) -> Self {
        let elapsed = i128::from(now_ms.saturating_sub(self.at_ms));
        let before = capacity(self.bucket).max(1);
        let parts = (self.parts + elapsed * i128::from(self.bucket.limit)).min(before);
        Self {
            bucket,
            parts: in_proportion(parts, capacity(bucket), before),
            at_ms: now_ms,
        }
    }

    /// Milliseconds until so many tokens are there, rounded up.
    fn wait_ms(self, tokens: u64) -> u64 {
        let missing = (i128::from(tokens) * i128::from(self.bucket.interval_ms) - self.parts).max(0);
        let limit = i128::from(self.bucket.limit);
        u64::try_from((missing + limit - 1) / limit).unwrap_or(u64::MAX)
    }
}

fn capacity(bucket: Bucket) -> i128 {
    i128::from(bucket.burst) * i128::from(bucket.interval_ms)
}

/// `parts * to / from`; the product of two full capacities needs all 128 bits.
fn in_proportion(parts: i128, to: i128, from: i128) -> i128 {
    let scaled = parts.unsigned_abs() * to.unsigned_abs() / from.unsigned_abs().max(1);
    let scaled = i128::try_from(scaled).unwrap_or(i128::MAX);
    if parts < 0 { -scaled } else { scaled }
}

/// Tokens that all asks together want of a bucket.
fn total_tokens(asks: &[Ask], key: &str) -> u64 {
    let same = asks.iter().filter(|ask| ask.claim.key == key);
    same.map(|ask| u64::from(ask.claim.tokens)).sum()
}

/// Refuses what could never be granted.
fn check_asks(asks: &[Ask], places: &[Place]) -> Result<(), StateError> {
    if asks.len() > MAX_CLAIMS || places.len() > MAX_CLAIMS {
        return Err(StateError::Invalid);
    }
    for Ask { claim, max_wait_ms } in asks {
        check_key(&claim.key)?;
        let Bucket {
            limit,
            interval_ms,
            burst,
        } = claim.bucket;
        let is_impossible = total_tokens(asks, &claim.key) > u64::from(burst) || *max_wait_ms > MAX_WAIT_MS;
        if limit == 0 || interval_ms == 0 || burst == 0 || is_impossible {
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

fn index_number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
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
        let asks: Vec<Ask> = claims
            .iter()
            .map(|claim| Ask {
                claim: claim.clone(),
                max_wait_ms: 0,
            })
            .collect();
        match self.admit(&asks, &[], now_ms)? {
            Admission::Granted(_) => Ok(Grant::Granted),
            Admission::Short(shortage) => Ok(Grant::WaitMs(shortage.wait_ms)),
            Admission::Full(_) => Err(StateError::Invalid),
        }
    }

    /// Takes every token and every place, or nothing.
    pub(super) fn admit(&mut self, asks: &[Ask], places: &[Place], now_ms: u64) -> Result<Admission, StateError> {
        check_asks(asks, places)?;
        for (index, place) in places.iter().enumerate() {
            let requested = places.iter().filter(|other| other.key == place.key).count();
            let Slot::Places(held) = self.slot_mut(&place.key, now_ms, || Slot::Places(0))? else {
                return Err(StateError::WrongKind);
            };
            if u64::from(*held) + requested as u64 > u64::from(place.max) {
                return Ok(Admission::Full(index_number(index)));
            }
        }
        let mut longest = 0;
        let mut short: Option<Shortage> = None;
        for (index, Ask { claim, max_wait_ms }) in asks.iter().enumerate() {
            let slot = self.slot_mut(&claim.key, now_ms, || Slot::Bucket(Level::filled(claim.bucket, now_ms)))?;
            let Slot::Bucket(level) = slot else {
                return Err(StateError::WrongKind);
            };
            *level = level.advanced(claim.bucket, now_ms);
            let wait_ms = level.wait_ms(total_tokens(asks, &claim.key));
            longest = longest.max(wait_ms);
            if wait_ms > u64::from(*max_wait_ms) && short.is_none_or(|known| wait_ms > known.wait_ms) {
                short = Some(Shortage {
                    ask: index_number(index),
                    wait_ms,
                });
            }
        }
        if let Some(short) = short {
            return Ok(Admission::Short(short));
        }
        for Ask { claim, .. } in asks {
            if let Some(Slot::Bucket(level)) = self.0.get_mut(&claim.key) {
                level.parts -= i128::from(claim.tokens) * i128::from(claim.bucket.interval_ms);
            }
        }
        for place in places {
            if let Some(Slot::Places(held)) = self.0.get_mut(&place.key) {
                *held += 1;
            }
        }
        Ok(Admission::Granted(u32::try_from(longest).unwrap_or(MAX_WAIT_MS)))
    }

    /// Places of this key that are held.
    pub(super) fn places(&self, key: &str) -> u32 {
        match self.0.get(key) {
            Some(Slot::Places(held)) => *held,
            _ => 0,
        }
    }

    /// Gives a place back.
    pub(super) fn free_place(&mut self, key: &str) {
        if let Some(Slot::Places(held)) = self.0.get_mut(key) {
            *held = held.saturating_sub(1);
        }
    }

    /// Adds to a counter. `max` bounds only what rises: a counter above a lowered one can still fall.
    pub(super) fn add(
        &mut self,
        key: &str,
        delta: i64,
        max: Option<i64>,
        now_ms: u64,
    ) -> Result<Option<i64>, StateError> {
        let Slot::Counter(value) = self.slot_mut(key, now_ms, || Slot::Counter(0))? else {
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
        let Slot::Window(window) = self.slot_mut(key, now_ms, || Slot::Window(fresh()))? else {
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

    pub(super) fn get(&self, key: &str) -> Result<Option<Cell>, StateError> {
        check_key(key)?;
        match self.0.get(key) {
            None => Ok(None),
            Some(Slot::Cell(cell)) => Ok(Some(cell.clone())),
            Some(_) => Err(StateError::WrongKind),
        }
    }

    /// Writes another value to each cell that was not read, and returns their keys.
    pub(super) fn change_unread_cells(&mut self, is_read: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut changed = Vec::new();
        for (key, slot) in &mut self.0 {
            if let Slot::Cell(cell) = slot
                && !is_read(key)
            {
                cell.value.push(b'x');
                cell.version = cell.version.saturating_add(1);
                changed.push(key.clone());
            }
        }
        changed
    }

    /// Reads cells, in the order of the keys.
    pub(super) fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Cell>>, StateError> {
        if keys.len() > MAX_READ_KEYS {
            return Err(StateError::Invalid);
        }
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// The value of a counter; 0 if the key holds none.
    pub(super) fn counter(&self, key: &str) -> i64 {
        match self.0.get(key) {
            Some(Slot::Counter(value)) => *value,
            _ => 0,
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
        *self.slot_mut(key, now_ms, || Slot::Counter(0))? = Slot::Cell(Cell {
            value: value.to_vec(),
            version,
        });
        Ok(Some(version))
    }

    /// Counts an outcome by a rule whose cells are as they were. A tally of an earlier state of the cells starts anew. Once an
    /// outcome was counted under later settings, those under earlier ones are not.
    pub(super) fn count_outcome(
        &mut self,
        rule: &KeptRule,
        judged: Judged,
        now_ms: u64,
    ) -> Result<Option<(Crossed, Counts)>, StateError> {
        let fresh = || Slot::Tally(StoredTally::default());
        let Slot::Tally(stored) = self.slot_mut(&rule.tally, now_ms, fresh)? else {
            return Err(StateError::WrongKind);
        };
        if rule.settings < stored.newest_settings {
            return Ok(None);
        }
        stored.newest_settings = rule.settings;
        let changes: Vec<u64> = rule.cells.iter().map(|(_, changes)| *changes).collect();
        if stored.changes != changes {
            stored.tally = Tally::default();
            stored.changes = changes;
        }
        Ok(stored.tally.count(&rule.counting, judged, now_ms))
    }

    /// Removes a key of any kind. Returns whether it held a cell.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        matches!(self.0.remove(key), Some(Slot::Cell(_)))
    }

    fn slot_mut(&mut self, key: &str, now_ms: u64, fresh: impl FnOnce() -> Slot) -> Result<&mut Slot, StateError> {
        check_key(key)?;
        if self.0.len() >= MAX_KEYS && !self.0.contains_key(key) {
            // A slot that holds nothing equals a missing key, so it makes room.
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
            Self::Places(held) => *held == 0,
            Self::Window(window) => window.sum(now_ms) == 0,
            Self::Cell(_) => false,
            Self::Tally(stored) => stored.tally.is_empty(now_ms),
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
