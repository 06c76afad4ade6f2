//! The functions of the host that a plugin may call, as a trait. Calling a WIT import outside of a component aborts the
//! process, so native tests bring a host of their own (`testing::FakeHost`).

use crate::bindings::ctrlmesh::plugin::{clock, log, metrics, random, report, state};
use crate::{Admission, Ask, Cell, Claim, Counted, Grant, Level, Part, Place, StateError};

/// The host's side of the contract. Every function is one call out of the component (well under a microsecond).
pub trait Host {
    /// Wall clock: milliseconds since 1970-01-01T00:00:00Z.
    fn unix_ms(&self) -> u64;
    /// Nanoseconds from an arbitrary start; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// A random number. Not for secrets.
    fn random(&self) -> u64;
    /// Writes to the sidecar's log. The rate of lines is bounded: lines above it are counted and not written.
    fn log(&self, level: Level, message: &str);
    /// Adds to the counter `ctrlmesh_plugin_<name>_total`. `name`: lower-case letters, digits and `_`.
    fn count(&self, name: &str, label: &str, by: u64);
    /// Adds to several counters in one call: at most 64; more are dropped and counted.
    fn count_all(&self, counted: &[Counted]);
    /// Sets the gauge `ctrlmesh_plugin_<name>`.
    fn gauge(&self, name: &str, label: &str, value: f64);

    /// Takes tokens from every bucket or from none.
    ///
    /// # Errors
    ///
    /// [`StateError`], as for all functions below: too many keys, too large, a key of another kind, a senseless number.
    fn take(&self, claims: &[Claim]) -> Result<Grant, StateError>;

    /// Takes tokens and places for the request in hand: all of them or none. The host gives the places back when the
    /// request is over. Only in [`Plugin::on_request`](crate::Plugin::on_request).
    ///
    /// # Errors
    ///
    /// See [`Host::take`].
    fn admit(&self, asks: &[Ask], places: &[Place]) -> Result<Admission, StateError>;

    /// Shows a JSON value under this key in the sidecar's `/status`.
    fn put_report(&self, key: &str, json: &str);

    /// Takes a report away.
    fn remove_report(&self, key: &str);

    /// Shows counters of the state under this key in the sidecar's `/status`: the names of fields, each with the key of its
    /// counter (see [`Host::add`] and [`Host::increment`]), read when somebody looks. At most 16 fields. Only in
    /// [`Plugin::configure`](crate::Plugin::configure).
    fn show_counters(&self, key: &str, fields: &[(String, String)]);

    /// Names the rule that decides a part of the verdict which the call in hand returns: the sidecar shows it with what was
    /// done, in its access log and in `/status`. At most 8 names a call, 64 bytes a name.
    fn name_rule(&self, name: &str, decides: Part);

    /// Adds to a counter that starts at 0 and returns the new value; `None` if it would exceed `max`. Never below 0.
    ///
    /// # Errors
    ///
    /// See [`Host::take`].
    fn add(&self, key: &str, delta: i64, max: Option<i64>) -> Result<Option<i64>, StateError>;

    /// Adds to the same kind of counter, which stops at [`i64::MAX`], and returns nothing. So a host may do it again with a
    /// verdict that is marked as reusable, unlike [`Host::add`]. What that would refuse with an error is dropped and counted.
    fn increment(&self, key: &str, by: u64);

    /// Adds to the current slot of a sliding window of `slots` parts over `length_ms`; returns the sum over the window.
    ///
    /// # Errors
    ///
    /// See [`Host::take`].
    fn window_add(&self, key: &str, length_ms: u32, slots: u32, amount: u64) -> Result<u64, StateError>;

    /// Reads a small value.
    ///
    /// # Errors
    ///
    /// See [`Host::take`].
    fn get(&self, key: &str) -> Result<Option<Cell>, StateError>;

    /// Reads small values, all at one moment, in the order of the keys. At most 64.
    ///
    /// # Errors
    ///
    /// See [`Host::take`].
    fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Cell>>, StateError>;

    /// Writes a small value if its version is still `expected` (0: not there yet). Returns the new version, or `None` if
    /// somebody was faster.
    ///
    /// # Errors
    ///
    /// See [`Host::take`].
    fn compare_and_swap(&self, key: &str, expected: u64, value: &[u8]) -> Result<Option<u64>, StateError>;

    /// Forgets a key of any kind.
    fn remove(&self, key: &str);

    /// [`Host::log`] at level debug.
    fn debug(&self, message: &str) {
        self.log(Level::Debug, message);
    }

    /// [`Host::log`] at level info.
    fn info(&self, message: &str) {
        self.log(Level::Info, message);
    }

    /// [`Host::log`] at level warn: somebody should look.
    fn warn(&self, message: &str) {
        self.log(Level::Warn, message);
    }

    /// [`Host::log`] at level error.
    fn error(&self, message: &str) {
        self.log(Level::Error, message);
    }
}

/// The real host: the component's imports.
pub(crate) struct Imports;

impl Host for Imports {
    fn unix_ms(&self) -> u64 {
        clock::unix_ms()
    }

    fn monotonic_ns(&self) -> u64 {
        clock::monotonic_ns()
    }

    fn random(&self) -> u64 {
        random::next()
    }

    fn log(&self, level: Level, message: &str) {
        log::write(level, message);
    }

    fn count(&self, name: &str, label: &str, by: u64) {
        metrics::count(name, label, by);
    }

    fn count_all(&self, counted: &[Counted]) {
        metrics::count_all(counted);
    }

    fn gauge(&self, name: &str, label: &str, value: f64) {
        metrics::gauge(name, label, value);
    }

    fn take(&self, claims: &[Claim]) -> Result<Grant, StateError> {
        state::take(claims)
    }

    fn admit(&self, asks: &[Ask], places: &[Place]) -> Result<Admission, StateError> {
        state::admit(asks, places)
    }

    fn put_report(&self, key: &str, json: &str) {
        report::put(key, json);
    }

    fn remove_report(&self, key: &str) {
        report::remove(key);
    }

    fn show_counters(&self, key: &str, fields: &[(String, String)]) {
        report::show_counters(key, fields);
    }

    fn name_rule(&self, name: &str, decides: Part) {
        report::name_rule(name, decides);
    }

    fn add(&self, key: &str, delta: i64, max: Option<i64>) -> Result<Option<i64>, StateError> {
        state::add(key, delta, max)
    }

    fn increment(&self, key: &str, by: u64) {
        state::increment(key, by);
    }

    fn window_add(&self, key: &str, length_ms: u32, slots: u32, amount: u64) -> Result<u64, StateError> {
        state::window_add(key, length_ms, slots, amount)
    }

    fn get(&self, key: &str) -> Result<Option<Cell>, StateError> {
        state::get(key)
    }

    fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Cell>>, StateError> {
        state::get_all(keys)
    }

    fn compare_and_swap(&self, key: &str, expected: u64, value: &[u8]) -> Result<Option<u64>, StateError> {
        state::compare_and_swap(key, expected, value)
    }

    fn remove(&self, key: &str) {
        state::remove(key);
    }
}
