//! A host in memory: time stands still until a test moves it, random numbers come from a seed, logs and metrics are kept.

use std::cell::{Cell as Mutable, RefCell};
use std::collections::BTreeMap;

use super::kept_verdict::{CellLog, KeptRule};
use super::state::State;
use super::tally::{Counts, Crossed, Judged};
use crate::{Admission, Ask, Cell, Claim, Counted, Grant, Host, Level, Part, Place, StateError};

/// 2026-01-01T00:00:00Z: any fixed moment would do.
const START_UNIX_MS: u64 = 1_767_225_600_000;

/// Bounds of the contract (`wit/host.wit`, interface `metrics`).
const MAX_SERIES: usize = 256;
const MAX_NAME: usize = 64;
const MAX_LABEL: usize = 320;
const MAX_COUNTED: usize = 64;
/// And of interface `report`.
const MAX_REPORTS: usize = 64;
const MAX_REPORT_KEY: usize = 64;
const MAX_REPORT: usize = 4096;
const MAX_FIELDS: usize = 16;

#[derive(Clone, Copy, Debug)]
enum Value {
    Counter(u64),
    Gauge(f64),
}

/// A plugin report under one key of `/status`.
#[derive(Clone, Debug)]
enum Report {
    Json(serde_json::Value),
    /// Names of fields, each with the key of its counter.
    Counters(Vec<(String, String)>),
}

/// Calls of another instance, made while this one is between two calls to the host.
type Other = Box<dyn FnOnce(&FakeHost)>;

/// The function that runs before the next report. It is wrapped because functions have no `Debug`.
#[derive(Default)]
struct Interruption(Mutable<Option<Other>>);

impl std::fmt::Debug for Interruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Interruption").finish_non_exhaustive()
    }
}

/// A fake host. Cheap to make, one per test; several plugin instances may share it, as they share a real one.
#[derive(Debug)]
pub struct FakeHost {
    elapsed_ms: Mutable<u64>,
    random: Mutable<u64>,
    logs: RefCell<Vec<(Level, String)>>,
    series: RefCell<BTreeMap<(String, String), Value>>,
    dropped: Mutable<u64>,
    state: RefCell<State>,
    reports: RefCell<BTreeMap<String, Report>>,
    is_configuring: Mutable<bool>,
    settings: RefCell<String>,
    /// How often the settings have changed.
    settings_number: Mutable<u64>,
    named: RefCell<Vec<(String, Part)>>,
    before_report: Interruption,
    pub(super) cell_log: CellLog,
    pub(super) uncounted: Mutable<u64>,
}

impl Default for FakeHost {
    fn default() -> Self {
        Self::seeded(0)
    }
}

impl FakeHost {
    /// A host whose random numbers follow from this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self {
            elapsed_ms: Mutable::new(0),
            random: Mutable::new(seed),
            logs: RefCell::default(),
            series: RefCell::default(),
            dropped: Mutable::new(0),
            state: RefCell::default(),
            reports: RefCell::default(),
            is_configuring: Mutable::new(false),
            settings: RefCell::default(),
            settings_number: Mutable::new(0),
            named: RefCell::default(),
            before_report: Interruption::default(),
            cell_log: CellLog::default(),
            uncounted: Mutable::new(0),
        }
    }

    /// A host with the same state, time and random numbers, but without anything that a plugin has left behind.
    pub(super) fn copy(&self) -> Self {
        let copy = Self::seeded(self.random.get());
        copy.elapsed_ms.set(self.elapsed_ms.get());
        copy.state.replace(self.state.borrow().clone());
        copy
    }

    /// Writes another value to each cell that was not read, and returns their keys.
    pub(super) fn change_unread_cells(&self, is_read: &dyn Fn(&str) -> bool) -> Vec<String> {
        self.state.borrow_mut().change_unread_cells(is_read)
    }

    /// Moves the monotonic clock and the wall clock forward.
    pub fn advance_ms(&self, ms: u64) {
        self.elapsed_ms.set(self.elapsed_ms.get().saturating_add(ms));
    }

    /// Log lines of the plugin with their levels, oldest first.
    #[must_use]
    pub fn logs(&self) -> Vec<(Level, String)> {
        self.logs.borrow().clone()
    }

    /// The value of a counter; 0 if it was never touched.
    #[must_use]
    pub fn counter(&self, name: &str, label: &str) -> u64 {
        match self.series.borrow().get(&(name.to_owned(), label.to_owned())) {
            Some(Value::Counter(sum)) => *sum,
            Some(Value::Gauge(_)) | None => 0,
        }
    }

    /// The value of a gauge, if it was ever set.
    #[must_use]
    pub fn gauge_value(&self, name: &str, label: &str) -> Option<f64> {
        match self.series.borrow().get(&(name.to_owned(), label.to_owned())) {
            Some(Value::Gauge(value)) => Some(*value),
            Some(Value::Counter(_)) | None => None,
        }
    }

    /// Updates of metrics, reports and counters that a host drops: a bad name, too long a label, too many series, a counter
    /// used as a gauge, a report that is no JSON, an increment that has no room.
    #[must_use]
    pub fn dropped_updates(&self) -> u64 {
        self.dropped.get()
    }

    /// Number of places of this key that requests hold.
    #[must_use]
    pub fn held_places(&self, key: &str) -> u32 {
        self.state.borrow().places(key)
    }

    /// A request that held a place of this key is over: the host gives it back.
    pub fn free_place(&self, key: &str) {
        self.state.borrow_mut().free_place(key);
    }

    /// The plugin report under this key of `/status`, if there is one.
    #[must_use]
    pub fn report(&self, key: &str) -> Option<serde_json::Value> {
        match self.reports.borrow().get(key)? {
            Report::Json(value) => Some(value.clone()),
            Report::Counters(fields) => {
                let state = self.state.borrow();
                let field = |(name, key): &(String, String)| (name.clone(), state.counter(key).into());
                Some(serde_json::Value::Object(fields.iter().map(field).collect()))
            }
        }
    }

    /// Begins a chain with these settings of the plugin. Outcome rules of later verdicts belong to them. Other text counts as other
    /// settings; a sidecar goes by the values.
    pub(super) fn begin_settings(&self, json: &str) {
        if self.settings.replace(json.to_owned()) != json {
            self.settings_number.set(self.settings_number.get() + 1);
        }
    }

    pub(super) fn settings_number(&self) -> u64 {
        self.settings_number.get()
    }

    /// Calls a function as the host calls `configure`: reports of counters can be set up.
    pub(super) fn while_configuring<R>(&self, call: impl FnOnce() -> R) -> R {
        self.is_configuring.set(true);
        let result = call();
        self.is_configuring.set(false);
        self.cell_log.forget_reads();
        result
    }

    /// Counts an outcome in the tally of a rule.
    pub(super) fn count_in_tally(
        &self,
        rule: &KeptRule,
        judged: Judged,
    ) -> Result<Option<(Crossed, Counts)>, StateError> {
        let now_ms = self.elapsed_ms.get();
        self.state.borrow_mut().count_outcome(rule, judged, now_ms)
    }

    /// The version of a cell; 0 if it does not exist.
    pub(super) fn cell_version(&self, key: &str) -> u64 {
        let cell = self.state.borrow().get(key);
        cell.ok().flatten().map_or(0, |cell| cell.version)
    }

    fn set_report(&self, key: &str, report: Report) {
        let mut reports = self.reports.borrow_mut();
        let has_room = reports.len() < MAX_REPORTS || reports.contains_key(key);
        if has_room && key.len() <= MAX_REPORT_KEY {
            reports.insert(key.to_owned(), report);
        } else {
            self.drop_updates(1);
        }
    }

    fn drop_updates(&self, number: usize) {
        self.dropped.set(self.dropped.get() + number as u64);
    }

    /// The rules that the plugin has named since this was last asked, each with the part of the verdict that it decides.
    #[must_use]
    pub fn take_named_rules(&self) -> Vec<(String, Part)> {
        self.named.take()
    }

    /// Does this right before the plugin's next report is put or removed: what another instance of it, on another thread,
    /// may do between two calls to the host.
    pub fn interrupt_next_report(&self, other: impl FnOnce(&FakeHost) + 'static) {
        self.before_report.0.set(Some(Box::new(other)));
    }

    fn run_interruption(&self) {
        if let Some(other) = self.before_report.0.take() {
            other(self);
        }
    }

    fn update(&self, name: &str, label: &str, value: Value) {
        let mut series = self.series.borrow_mut();
        let key = (name.to_owned(), label.to_owned());
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let fits = !name.is_empty() && name.len() <= MAX_NAME && label.len() <= MAX_LABEL && name.bytes().all(is_name);
        let has_room = series.len() < MAX_SERIES;
        match (series.get_mut(&key), value) {
            (Some(Value::Counter(sum)), Value::Counter(by)) => *sum = sum.saturating_add(by),
            (Some(Value::Gauge(last)), Value::Gauge(value)) => *last = value,
            (None, value) if fits && has_room => {
                series.insert(key, value);
            }
            _ => self.drop_updates(1),
        }
    }
}

impl Host for FakeHost {
    fn unix_ms(&self) -> u64 {
        START_UNIX_MS.saturating_add(self.elapsed_ms.get())
    }

    fn monotonic_ns(&self) -> u64 {
        self.elapsed_ms.get().saturating_mul(1_000_000)
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): a few lines, and good enough to draw percentages.
    fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn log(&self, level: Level, message: &str) {
        self.logs.borrow_mut().push((level, message.to_owned()));
    }

    fn count(&self, name: &str, label: &str, by: u64) {
        self.update(name, label, Value::Counter(by));
    }

    fn count_all(&self, counted: &[Counted]) {
        for Counted { name, label, by } in counted.iter().take(MAX_COUNTED) {
            self.update(name, label, Value::Counter(*by));
        }
        self.drop_updates(counted.len().saturating_sub(MAX_COUNTED));
    }

    fn gauge(&self, name: &str, label: &str, value: f64) {
        self.update(name, label, Value::Gauge(value));
    }

    fn take(&self, claims: &[Claim]) -> Result<Grant, StateError> {
        self.state.borrow_mut().take(claims, self.elapsed_ms.get())
    }

    fn admit(&self, asks: &[Ask], places: &[Place]) -> Result<Admission, StateError> {
        self.state.borrow_mut().admit(asks, places, self.elapsed_ms.get())
    }

    fn put_report(&self, key: &str, json: &str) {
        self.run_interruption();
        match serde_json::from_str(json) {
            Ok(value) if json.len() <= MAX_REPORT => self.set_report(key, Report::Json(value)),
            _ => self.drop_updates(1),
        }
    }

    fn remove_report(&self, key: &str) {
        self.run_interruption();
        self.reports.borrow_mut().remove(key);
    }

    fn show_counters(&self, key: &str, fields: &[(String, String)]) {
        let bytes: usize = fields.iter().map(|(field, counter)| field.len() + counter.len()).sum();
        if self.is_configuring.get() && fields.len() <= MAX_FIELDS && bytes <= MAX_REPORT {
            self.set_report(key, Report::Counters(fields.to_vec()));
        } else {
            self.drop_updates(1);
        }
    }

    fn name_rule(&self, name: &str, decides: Part) {
        self.named.borrow_mut().push((name.to_owned(), decides));
    }

    fn add(&self, key: &str, delta: i64, max: Option<i64>) -> Result<Option<i64>, StateError> {
        self.state.borrow_mut().add(key, delta, max, self.elapsed_ms.get())
    }

    fn increment(&self, key: &str, by: u64) {
        let now_ms = self.elapsed_ms.get();
        let by = i64::try_from(by).unwrap_or(i64::MAX);
        let added = self.state.borrow_mut().add(key, by, None, now_ms);
        if added.is_err() {
            self.drop_updates(1);
        }
    }

    fn window_add(&self, key: &str, length_ms: u32, slots: u32, amount: u64) -> Result<u64, StateError> {
        self.state
            .borrow_mut()
            .window_add(key, (length_ms, slots), amount, self.elapsed_ms.get())
    }

    fn get(&self, key: &str) -> Result<Option<Cell>, StateError> {
        self.cell_log.note_read(key);
        self.state.borrow().get(key)
    }

    fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Cell>>, StateError> {
        keys.iter().for_each(|key| self.cell_log.note_read(key));
        self.state.borrow().get_all(keys)
    }

    fn compare_and_swap(&self, key: &str, expected: u64, value: &[u8]) -> Result<Option<u64>, StateError> {
        let now_ms = self.elapsed_ms.get();
        let written = self.state.borrow_mut().compare_and_swap(key, expected, value, now_ms);
        if matches!(written, Ok(Some(_))) {
            self.cell_log.note_change(key);
        }
        written
    }

    fn remove(&self, key: &str) {
        if self.state.borrow_mut().remove(key) {
            self.cell_log.note_change(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_numbers_and_another_seed_others() {
        let draw = |seed| {
            let host = FakeHost::seeded(seed);
            [host.random(), host.random(), host.random()]
        };
        assert_eq!(draw(7), draw(7));
        assert!(draw(7)[0] != draw(7)[1] && draw(7)[1] != draw(7)[2]);
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn both_clocks_move_by_hand_only() {
        let host = FakeHost::default();
        let (wall, mono) = (host.unix_ms(), host.monotonic_ns());
        assert_eq!((host.unix_ms(), host.monotonic_ns()), (wall, mono));
        host.advance_ms(5);
        assert_eq!((host.unix_ms() - wall, host.monotonic_ns() - mono), (5, 5_000_000));
    }

    #[test]
    fn metrics_that_a_host_drops_are_counted() {
        let host = FakeHost::default();
        host.count("good_1", "a", 2);
        host.count("good_1", "a", 3);
        host.gauge("level", "", 1.5);
        assert_eq!(
            (host.counter("good_1", "a"), host.gauge_value("level", "")),
            (5, Some(1.5))
        );
        assert_eq!(host.dropped_updates(), 0);
        host.count("Bad", "", 1);
        host.count("", "", 1);
        host.gauge("good_1", "a", 1.0);
        host.count("good_1", &"x".repeat(MAX_LABEL + 1), 1);
        assert_eq!(host.dropped_updates(), 4);
        for label in 0..MAX_SERIES {
            host.count("many", &label.to_string(), 1);
        }
        assert_eq!(host.dropped_updates(), 6);
        host.count_all(&vec![Counted::new("good_1", "a", 1); MAX_COUNTED + 1]);
        assert_eq!((host.counter("good_1", "a"), host.dropped_updates()), (69, 7));
    }

    #[test]
    fn report_shows_current_values_of_counters() {
        let host = FakeHost::default();
        let fields = [
            ("hits".to_owned(), "h".to_owned()),
            ("none".to_owned(), "cell".to_owned()),
        ];
        host.show_counters("rule", &fields);
        assert_eq!((host.report("rule"), host.dropped_updates()), (None, 1));
        host.while_configuring(|| host.show_counters("rule", &fields));
        host.compare_and_swap("cell", 0, b"text").unwrap();
        host.add("h", 3, None).unwrap();
        host.increment("h", 2);
        assert_eq!(host.report("rule"), Some(serde_json::json!({"hits": 5, "none": 0})));
        host.increment("cell", 1);
        assert_eq!(host.dropped_updates(), 2);
        host.increment("h", u64::MAX);
        assert_eq!(host.add("h", 0, None), Ok(Some(i64::MAX)));
        host.remove_report("rule");
        assert_eq!(host.report("rule"), None);
    }
}
