//! The state of one entry: keys that each hold a bucket, a counter, places, a window, a cell or a tally. `entry/admission.rs` takes tokens
//! and places, `entry/outcomes.rs` counts in tallies.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::bucket::Bucket;
use super::window::Window;
use super::{
    Cell, Clock, MAX_CLAIMS, MAX_KEY_BYTES, MAX_KEYS, MAX_READ_KEYS, MAX_VALUE_BYTES, PluginLog, SeriesSet, StateError,
};
use crate::lock::lock_unpoisoned;
use crate::wasm::reports::Reports;
use outcomes::StoredTally;

pub(crate) use outcomes::CountedOutcome;

mod admission;
mod outcomes;

/// Removals of cells that are remembered one by one.
const MAX_REMOVALS: usize = 32;

/// State, metrics and log of an entry. Shared by its instances on all threads.
#[derive(Debug)]
pub struct EntryState {
    clock: Clock,
    keys: Mutex<Keys>,
    series: SeriesSet,
    reports: Reports,
    log: PluginLog,
}

/// The values by key. A repeated verdict mostly looks keys up, and SipHash took a third of its time.
///
/// Keys may contain text that clients choose: user agents, namespaces. foldhash has a random seed, but its documentation does not claim to
/// withstand clients that find out the seed, for example by measuring times, and choose keys that collide. The worst that they achieve is
/// that a look-up compares all [`MAX_KEYS`] keys of the entry.
type KeyMap = HashMap<String, Value, foldhash::fast::RandomState>;

#[derive(Debug, Default)]
struct Keys {
    values: KeyMap,
    /// Number of writes and removals of cells so far.
    writes: u64,
    removals: Removals,
    /// Number of times that a key was added, removed, or written as a cell. While it stays the same, so does [`Keys::write_of`] each key.
    changes: u64,
    /// When empty keys were last searched for.
    swept_ms: Option<u64>,
}

#[derive(Debug)]
enum Value {
    Bucket(Bucket),
    Counter(i64),
    /// Number of places that requests in flight hold. It grows only while the keys are locked.
    Places(Arc<AtomicU32>),
    Window(Window),
    /// A cell, and the number of the write that it is from. Versions of a cell start anew after a removal; numbers of writes never do.
    Cell(Cell, u64),
    Tally(StoredTally),
}

/// The writes that removed cells: of the last cells one by one, of earlier ones only the last.
#[derive(Debug, Default)]
struct Removals {
    /// Oldest first.
    recent: VecDeque<(String, u64)>,
    earlier: u64,
}

/// A cell, and the number of the write that it, or its absence, is from.
type CellAndWrite = (Option<Cell>, u64);

impl EntryState {
    pub(super) fn new(name: &str, clock: Clock) -> Self {
        Self {
            log: PluginLog::new(name, clock.clone()),
            clock,
            keys: Mutex::default(),
            series: SeriesSet::default(),
            reports: Reports::default(),
        }
    }

    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    #[must_use]
    pub const fn series(&self) -> &SeriesSet {
        &self.series
    }

    /// The entry's reports in `/status`.
    #[must_use]
    pub(crate) const fn reports(&self) -> &Reports {
        &self.reports
    }

    #[must_use]
    pub const fn log(&self) -> &PluginLog {
        &self.log
    }

    /// Adds to a counter and returns its new value, or `None` if it would rise above `max`. It never falls below 0.
    ///
    /// # Errors
    /// [`StateError`]; nothing was added then.
    pub fn add(&self, key: &str, delta: i64, max: Option<i64>) -> Result<Option<i64>, StateError> {
        check_key(key)?;
        let now = self.clock.monotonic_ms();
        let mut keys = lock_unpoisoned(&self.keys);
        match keys.value(key, now, || Value::Counter(0))? {
            Value::Counter(value) => {
                let sum = bounded_sum(*value, delta, max);
                *value = sum.unwrap_or(*value);
                Ok(sum)
            }
            _ => Err(StateError::WrongKind),
        }
    }

    /// Adds to a counter, which stops at [`i64::MAX`]. What [`EntryState::add`] would refuse with an error is counted as a dropped update.
    pub(crate) fn increment(&self, key: &str, by: u64) {
        let now_ms = || self.clock.monotonic_ms();
        let incremented = lock_unpoisoned(&self.keys).increment(key, by, now_ms);
        if incremented.is_err() {
            self.series.drop_update();
        }
    }

    /// The result that [`EntryState::add`] would return, without the effect.
    pub(crate) fn peek_add(&self, key: &str, delta: i64, max: Option<i64>) -> Result<Option<i64>, StateError> {
        check_key(key)?;
        match lock_unpoisoned(&self.keys).values.get(key) {
            Some(Value::Counter(value)) => Ok(bounded_sum(*value, delta, max)),
            Some(_) => Err(StateError::WrongKind),
            None => Ok(bounded_sum(0, delta, max)),
        }
    }

    /// Adds to the current slot of a window and returns the sum over the window.
    ///
    /// # Errors
    /// [`StateError`]; nothing was added then.
    pub fn window_add(&self, key: &str, length_ms: u32, slots: u32, amount: u64) -> Result<u64, StateError> {
        check_key(key)?;
        let now = self.clock.monotonic_ms();
        Window::check(length_ms, slots)?;
        let mut keys = lock_unpoisoned(&self.keys);
        match keys.value(key, now, || Value::Window(Window::new(length_ms, slots, now)))? {
            Value::Window(window) => {
                if !window.has_shape(length_ms, slots) {
                    *window = Window::new(length_ms, slots, now);
                }
                Ok(window.add(amount, now))
            }
            _ => Err(StateError::WrongKind),
        }
    }

    /// The result that [`EntryState::window_add`] would return, without the effect.
    pub(crate) fn peek_window(&self, key: &str, length_ms: u32, slots: u32, amount: u64) -> Result<u64, StateError> {
        check_key(key)?;
        let now = self.clock.monotonic_ms();
        Window::check(length_ms, slots)?;
        let mut window = Window::new(length_ms, slots, now);
        match lock_unpoisoned(&self.keys).values.get(key) {
            Some(Value::Window(known)) if known.has_shape(length_ms, slots) => window = known.clone(),
            Some(Value::Window(_)) | None => {}
            Some(_) => return Err(StateError::WrongKind),
        }
        Ok(window.add(amount, now))
    }

    /// Reads a cell.
    ///
    /// # Errors
    /// The key is too long or holds another kind of value.
    pub fn get(&self, key: &str) -> Result<Option<Cell>, StateError> {
        self.get_with_write(key).map(|(cell, _)| cell)
    }

    /// Reads a cell, and the number of the write that it, or its absence, is from: equal as long as nobody writes it.
    pub(crate) fn get_with_write(&self, key: &str) -> Result<CellAndWrite, StateError> {
        lock_unpoisoned(&self.keys).cell(key)
    }

    /// Reads cells at one moment, in the order of the keys.
    ///
    /// # Errors
    /// As [`EntryState::get`], for any of the keys; or there are too many.
    pub(crate) fn get_all_with_writes(&self, keys: &[String]) -> Result<Vec<CellAndWrite>, StateError> {
        if keys.len() > MAX_READ_KEYS {
            return Err(StateError::Invalid);
        }
        let stored = lock_unpoisoned(&self.keys);
        keys.iter().map(|key| stored.cell(key)).collect()
    }

    /// The reports in `/status`.
    #[must_use]
    pub(crate) fn rendered_reports(&self) -> BTreeMap<String, serde_json::Value> {
        self.reports
            .render(|key| match lock_unpoisoned(&self.keys).values.get(key) {
                Some(Value::Counter(value)) => *value,
                _ => 0,
            })
    }

    /// Writes a cell if its version is still `expected` (0: it does not exist yet), and returns the new version.
    ///
    /// # Errors
    /// [`StateError`]; nothing was written then.
    pub fn compare_and_swap(&self, key: &str, expected: u64, value: Vec<u8>) -> Result<Option<u64>, StateError> {
        check_key(key)?;
        check_value(&value)?;
        let now = self.clock.monotonic_ms();
        let mut keys = lock_unpoisoned(&self.keys);
        let Some(version) = keys.next_version(key, expected)? else {
            return Ok(None);
        };
        keys.make_room(now, [key])?;
        let write = keys.next_write();
        keys.insert(key, Value::Cell(Cell { value, version }, write));
        Ok(Some(version))
    }

    /// The result that [`EntryState::compare_and_swap`] would return, without the effect.
    pub(crate) fn peek_swap(&self, key: &str, expected: u64, value: &[u8]) -> Result<Option<u64>, StateError> {
        check_key(key)?;
        check_value(value)?;
        lock_unpoisoned(&self.keys).next_version(key, expected)
    }

    /// All keys with their values, as text.
    #[cfg(test)]
    pub(crate) fn dump(&self) -> std::collections::BTreeMap<String, String> {
        let keys = lock_unpoisoned(&self.keys);
        let values = keys.values.iter();
        let describe = |value: &Value| match value {
            Value::Tally(tally) => tally.describe(),
            other => format!("{other:?}"),
        };
        values.map(|(key, value)| (key.clone(), describe(value))).collect()
    }

    /// Removes a key of any kind.
    pub fn remove(&self, key: &str) {
        let mut keys = lock_unpoisoned(&self.keys);
        keys.changes += 1;
        if let Some(Value::Cell(..)) = keys.values.remove(key) {
            let write = keys.next_write();
            keys.removals.record(key, write);
        }
    }
}

impl Keys {
    fn value(&mut self, key: &str, now_ms: u64, fresh: impl FnOnce() -> Value) -> Result<&mut Value, StateError> {
        if !self.values.contains_key(key) {
            self.make_room(now_ms, [key])?;
            self.insert(key, fresh());
        }
        // The key exists now.
        self.values.get_mut(key).ok_or(StateError::Invalid)
    }

    fn insert(&mut self, key: &str, value: Value) {
        self.changes += 1;
        self.values.insert(key.to_owned(), value);
    }

    /// Reads the clock only for a counter that does not exist.
    fn increment(&mut self, key: &str, by: u64, now_ms: impl FnOnce() -> u64) -> Result<(), StateError> {
        check_key(key)?;
        // The key of a counter that exists is looked up once.
        let counter = match self.values.get_mut(key) {
            Some(counter) => counter,
            None => self.value(key, now_ms(), || Value::Counter(0))?,
        };
        let Value::Counter(value) = counter else {
            return Err(StateError::WrongKind);
        };
        *value = value.saturating_add_unsigned(by);
        Ok(())
    }

    fn next_write(&mut self) -> u64 {
        self.writes = self.writes.saturating_add(1);
        self.writes
    }

    fn cell(&self, key: &str) -> Result<CellAndWrite, StateError> {
        check_key(key)?;
        match self.values.get(key) {
            Some(Value::Cell(cell, write)) => Ok((Some(cell.clone()), *write)),
            Some(_) => Err(StateError::WrongKind),
            None => Ok((None, self.removals.write_of(key))),
        }
    }

    fn write_of(&self, key: &str) -> Option<u64> {
        match self.values.get(key) {
            Some(Value::Cell(_, write)) => Some(*write),
            Some(_) => None,
            None => Some(self.removals.write_of(key)),
        }
    }

    /// The version that a cell gets if it is written now; `None` if its version is not `expected`.
    fn next_version(&self, key: &str, expected: u64) -> Result<Option<u64>, StateError> {
        let version = match self.values.get(key) {
            Some(Value::Cell(cell, _)) => cell.version,
            Some(_) => return Err(StateError::WrongKind),
            None => 0,
        };
        Ok((version == expected).then(|| version.saturating_add(1)))
    }

    /// Makes room for the new ones of the keys. A full bucket, a counter at 0, places that nobody holds, an empty window and an empty tally
    /// are equal to a missing key, so they are removed first.
    fn make_room<'a>(
        &mut self,
        now_ms: u64,
        keys: impl IntoIterator<Item = &'a str> + Clone,
    ) -> Result<(), StateError> {
        if self.values.len() + 2 * MAX_CLAIMS <= MAX_KEYS {
            return Ok(());
        }
        let total = |values: &KeyMap| {
            let new: HashSet<&str> = keys
                .clone()
                .into_iter()
                .filter(|key| !values.contains_key(*key))
                .collect();
            values.len() + new.len()
        };
        if total(&self.values) <= MAX_KEYS {
            return Ok(());
        }
        // At most once a millisecond: repeated failing calls of a plugin must not make it, or others, pay for a search each time.
        if self.swept_ms != Some(now_ms) {
            self.swept_ms = Some(now_ms);
            self.changes += 1;
            self.values.retain(|_, value| match value {
                Value::Bucket(bucket) => !bucket.is_full(now_ms),
                Value::Counter(value) => *value != 0,
                Value::Places(held) => held.load(Ordering::Relaxed) != 0,
                Value::Window(window) => !window.is_empty(now_ms),
                Value::Tally(tally) => !tally.is_empty(now_ms),
                Value::Cell(..) => true,
            });
        }
        if total(&self.values) <= MAX_KEYS {
            Ok(())
        } else {
            Err(StateError::TooManyKeys)
        }
    }
}

impl Removals {
    fn record(&mut self, key: &str, write: u64) {
        self.recent.retain(|(known, _)| known != key);
        if self.recent.len() == MAX_REMOVALS
            && let Some((_, earlier)) = self.recent.pop_front()
        {
            self.earlier = earlier;
        }
        self.recent.push_back((key.to_owned(), write));
    }

    /// The write that an absent cell is from: its own removal, or one that it may have been.
    fn write_of(&self, key: &str) -> u64 {
        let removal = self.recent.iter().find(|(known, _)| known == key);
        removal.map_or(self.earlier, |(_, write)| *write)
    }
}

const fn check_key(key: &str) -> Result<(), StateError> {
    if key.len() > MAX_KEY_BYTES {
        Err(StateError::TooLarge)
    } else {
        Ok(())
    }
}

const fn check_value(value: &[u8]) -> Result<(), StateError> {
    if value.len() > MAX_VALUE_BYTES {
        Err(StateError::TooLarge)
    } else {
        Ok(())
    }
}

/// `max` limits only increases: a counter above a lowered `max` must still be able to fall.
fn bounded_sum(value: i64, delta: i64, max: Option<i64>) -> Option<i64> {
    let sum = value.saturating_add(delta).max(0);
    match max {
        Some(max) if delta > 0 && sum > max => None,
        _ => Some(sum),
    }
}
