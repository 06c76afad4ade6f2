//! The state of one entry: its keys, each a bucket, a counter, places, a window or a cell. Buckets and places are taken in
//! `entry/admission.rs`.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use super::bucket::Bucket;
use super::window::Window;
use super::{
    Cell, Clock, MAX_CLAIMS, MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES, PluginLog, SeriesSet, StateError, lock,
};
use crate::wasm::reports::Reports;

mod admission;

/// State, metrics and log of an entry. Shared by its instances on all threads.
#[derive(Debug)]
pub struct EntryState {
    clock: Clock,
    keys: Mutex<Keys>,
    series: SeriesSet,
    reports: Reports,
    log: PluginLog,
}

#[derive(Debug, Default)]
struct Keys {
    values: HashMap<String, Value>,
    /// When the keys that hold nothing were last looked for.
    swept_ms: Option<u64>,
}

#[derive(Debug)]
enum Value {
    Bucket(Bucket),
    Counter(i64),
    /// Places that requests in flight hold.
    Places(u32),
    Window(Window),
    Cell(Cell),
}

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

    /// The clock of this entry.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    #[must_use]
    pub const fn series(&self) -> &SeriesSet {
        &self.series
    }

    /// What the entry shows in `/status`.
    #[must_use]
    pub(crate) const fn reports(&self) -> &Reports {
        &self.reports
    }

    #[must_use]
    pub const fn log(&self) -> &PluginLog {
        &self.log
    }

    /// Adds to a counter and returns its new value, or none if it would rise above `max`. It never falls below 0.
    ///
    /// # Errors
    /// [`StateError`]; nothing was added then.
    pub fn add(&self, key: &str, delta: i64, max: Option<i64>) -> Result<Option<i64>, StateError> {
        check_key(key)?;
        let now = self.clock.monotonic_ms();
        let mut keys = lock(&self.keys);
        match keys.value(key, now, || Value::Counter(0))? {
            Value::Counter(value) => {
                let sum = bounded_sum(*value, delta, max);
                *value = sum.unwrap_or(*value);
                Ok(sum)
            }
            _ => Err(StateError::WrongKind),
        }
    }

    /// What [`EntryState::add`] would return, without doing it.
    pub(crate) fn peek_add(&self, key: &str, delta: i64, max: Option<i64>) -> Result<Option<i64>, StateError> {
        check_key(key)?;
        match lock(&self.keys).values.get(key) {
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
        let mut keys = lock(&self.keys);
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

    /// What [`EntryState::window_add`] would return, without doing it.
    pub(crate) fn peek_window(&self, key: &str, length_ms: u32, slots: u32, amount: u64) -> Result<u64, StateError> {
        check_key(key)?;
        let now = self.clock.monotonic_ms();
        Window::check(length_ms, slots)?;
        let mut window = Window::new(length_ms, slots, now);
        match lock(&self.keys).values.get(key) {
            Some(Value::Window(known)) if known.has_shape(length_ms, slots) => window = known.clone(),
            Some(Value::Window(_)) | None => {}
            Some(_) => return Err(StateError::WrongKind),
        }
        Ok(window.add(amount, now))
    }

    /// Reads a cell.
    ///
    /// # Errors
    /// When the key is too long or holds something else.
    pub fn get(&self, key: &str) -> Result<Option<Cell>, StateError> {
        check_key(key)?;
        match lock(&self.keys).values.get(key) {
            Some(Value::Cell(cell)) => Ok(Some(cell.clone())),
            Some(_) => Err(StateError::WrongKind),
            None => Ok(None),
        }
    }

    /// Writes a cell if its version is still `expected` (0: it does not exist yet), and returns the new version.
    ///
    /// # Errors
    /// [`StateError`]; nothing was written then.
    pub fn compare_and_swap(&self, key: &str, expected: u64, value: Vec<u8>) -> Result<Option<u64>, StateError> {
        check_key(key)?;
        check_value(&value)?;
        let now = self.clock.monotonic_ms();
        let mut keys = lock(&self.keys);
        let Some(version) = keys.next_version(key, expected)? else {
            return Ok(None);
        };
        keys.make_room(now, [key])?;
        keys.values.insert(key.to_owned(), Value::Cell(Cell { value, version }));
        Ok(Some(version))
    }

    /// What [`EntryState::compare_and_swap`] would return, without doing it.
    pub(crate) fn peek_swap(&self, key: &str, expected: u64, value: &[u8]) -> Result<Option<u64>, StateError> {
        check_key(key)?;
        check_value(value)?;
        lock(&self.keys).next_version(key, expected)
    }

    /// Forgets a key of any kind.
    pub fn remove(&self, key: &str) {
        lock(&self.keys).values.remove(key);
    }
}

impl Keys {
    fn value(&mut self, key: &str, now_ms: u64, fresh: impl FnOnce() -> Value) -> Result<&mut Value, StateError> {
        if !self.values.contains_key(key) {
            self.make_room(now_ms, [key])?;
            self.values.insert(key.to_owned(), fresh());
        }
        // It is there now.
        self.values.get_mut(key).ok_or(StateError::Invalid)
    }

    /// The version that a cell gets if it is written now; none if it is not at `expected`.
    fn next_version(&self, key: &str, expected: u64) -> Result<Option<u64>, StateError> {
        let version = match self.values.get(key) {
            Some(Value::Cell(cell)) => cell.version,
            Some(_) => return Err(StateError::WrongKind),
            None => 0,
        };
        Ok((version == expected).then(|| version.saturating_add(1)))
    }

    /// Makes room for those of the keys that are new: a full bucket, a counter at 0, places that nobody holds
    /// and an empty window are the same as
    /// none, so they go first.
    fn make_room<'a>(
        &mut self,
        now_ms: u64,
        keys: impl IntoIterator<Item = &'a str> + Clone,
    ) -> Result<(), StateError> {
        if self.values.len() + 2 * MAX_CLAIMS <= MAX_KEYS {
            return Ok(());
        }
        let total = |values: &HashMap<String, Value>| {
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
        // At most once a millisecond: a plugin that asks in vain must not pay, or make others pay, for each search.
        if self.swept_ms != Some(now_ms) {
            self.swept_ms = Some(now_ms);
            self.values.retain(|_, value| match value {
                Value::Bucket(bucket) => !bucket.is_full(now_ms),
                Value::Counter(value) => *value != 0,
                Value::Places(held) => *held != 0,
                Value::Window(window) => !window.is_empty(now_ms),
                Value::Cell(_) => true,
            });
        }
        if total(&self.values) <= MAX_KEYS {
            Ok(())
        } else {
            Err(StateError::TooManyKeys)
        }
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

/// `max` bounds only what rises: a counter that is above a lowered `max` must still be able to fall.
fn bounded_sum(value: i64, delta: i64, max: Option<i64>) -> Option<i64> {
    let sum = value.saturating_add(delta).max(0);
    match max {
        Some(max) if delta > 0 && sum > max => None,
        _ => Some(sum),
    }
}
