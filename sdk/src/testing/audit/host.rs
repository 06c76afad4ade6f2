//! A host that records what a plugin does with it.

use std::cell::RefCell;

use crate::testing::host::FakeHost;
use crate::testing::trace::{Read, Trace, cell_text};
use crate::{Admission, Ask, Cell, Claim, Counted, Grant, Host, Level, Part, Place, StateError};

pub(super) struct RecordedHost<'a> {
    host: &'a FakeHost,
    trace: &'a RefCell<Trace>,
}

impl<'a> RecordedHost<'a> {
    pub(super) const fn new(host: &'a FakeHost, trace: &'a RefCell<Trace>) -> Self {
        Self { host, trace }
    }

    /// Records a function that is not repeated with a verdict, and returns the host.
    fn use_once(&self, function: &'static str) -> &FakeHost {
        self.trace.borrow_mut().use_once(function);
        self.host
    }

    fn record_cell(&self, key: &str, cell: Option<&Cell>) {
        let read = Read::Cell(key.to_owned());
        self.trace.borrow_mut().record_read(read, cell.map(cell_text));
    }
}

impl Host for RecordedHost<'_> {
    fn unix_ms(&self) -> u64 {
        self.trace.borrow_mut().record_clock();
        self.host.unix_ms()
    }

    fn monotonic_ns(&self) -> u64 {
        self.trace.borrow_mut().record_clock();
        self.host.monotonic_ns()
    }

    fn random(&self) -> u64 {
        self.use_once("random").random()
    }

    fn log(&self, level: Level, message: &str) {
        self.use_once("log").log(level, message);
    }

    fn count(&self, name: &str, label: &str, by: u64) {
        self.trace
            .borrow_mut()
            .effects
            .counts
            .push(Counted::new(name, label, by));
        self.host.count(name, label, by);
    }

    fn count_all(&self, counted: &[Counted]) {
        self.trace.borrow_mut().effects.counts.extend_from_slice(counted);
        self.host.count_all(counted);
    }

    fn gauge(&self, name: &str, label: &str, value: f64) {
        self.use_once("gauge").gauge(name, label, value);
    }

    fn take(&self, claims: &[Claim]) -> Result<Grant, StateError> {
        self.use_once("take").take(claims)
    }

    fn admit(&self, asks: &[Ask], places: &[Place]) -> Result<Admission, StateError> {
        let admitted = self.host.admit(asks, places);
        let mut trace = self.trace.borrow_mut();
        match admitted {
            Ok(Admission::Granted(0)) => trace.record_grant(asks, places),
            Ok(_) | Err(_) => trace.record_obstacle(),
        }
        admitted
    }

    fn put_report(&self, key: &str, json: &str) {
        self.use_once("put_report").put_report(key, json);
    }

    fn remove_report(&self, key: &str) {
        self.use_once("remove_report").remove_report(key);
    }

    fn show_counters(&self, key: &str, fields: &[(String, String)]) {
        self.use_once("show_counters").show_counters(key, fields);
    }

    fn name_rule(&self, name: &str, decides: Part) {
        self.trace.borrow_mut().effects.rules.push((name.to_owned(), decides));
        self.host.name_rule(name, decides);
    }

    fn add(&self, key: &str, delta: i64, max: Option<i64>) -> Result<Option<i64>, StateError> {
        self.use_once("add").add(key, delta, max)
    }

    fn increment(&self, key: &str, by: u64) {
        let increment = (key.to_owned(), by);
        self.trace.borrow_mut().effects.increments.push(increment);
        self.host.increment(key, by);
    }

    fn window_add(&self, key: &str, length_ms: u32, slots: u32, amount: u64) -> Result<u64, StateError> {
        self.use_once("window_add").window_add(key, length_ms, slots, amount)
    }

    fn get(&self, key: &str) -> Result<Option<Cell>, StateError> {
        let found = self.host.get(key);
        match &found {
            Ok(cell) => self.record_cell(key, cell.as_ref()),
            Err(_) => self.trace.borrow_mut().record_obstacle(),
        }
        found
    }

    fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Cell>>, StateError> {
        let found = self.host.get_all(keys);
        match &found {
            Ok(cells) => {
                for (key, cell) in keys.iter().zip(cells) {
                    self.record_cell(key, cell.as_ref());
                }
            }
            Err(_) => self.trace.borrow_mut().record_obstacle(),
        }
        found
    }

    fn compare_and_swap(&self, key: &str, expected: u64, value: &[u8]) -> Result<Option<u64>, StateError> {
        self.use_once("compare_and_swap").compare_and_swap(key, expected, value)
    }

    fn remove(&self, key: &str) {
        self.use_once("remove").remove(key);
    }
}
