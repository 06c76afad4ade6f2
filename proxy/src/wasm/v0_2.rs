//! The host's implementation of `ctrlmesh:plugin@0.2`: the functions that a guest imports, each short and bounded. Those that 0.1 has
//! already serve plugins of that version, too (`v0_1.rs`).
//!
//! Leaves their effects to `state.rs`, `plugin_metrics.rs` and `plugin_log.rs`, and a guest's results to `v0_2/convert.rs`.

use wasmtime::component::{HasSelf, Linker, Resource};

use super::bindings::v0_2::Plugin;
use super::bindings::v0_2::ctrlmesh::plugin::{clock, exchange, log, metrics, random, report, state, types};
use super::host_state::{HostState, RequestHandle, ResponseHandle};
use super::plugin_log::Level;
use super::reads::{ReuseObstacle, Step};
use super::state::{Admission, Ask, Cell, Claim, EntryState, Grant, Place, Rule, StateError};
use crate::plugin::request_view::Part;

pub(crate) mod convert;

/// Adds the imports of the plugin's world to the linker.
pub(crate) fn add_to_linker(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    Plugin::add_to_linker::<_, HasSelf<HostState>>(linker, |host| host)
}

impl types::Host for HostState {}

impl clock::Host for HostState {
    fn unix_ms(&mut self) -> u64 {
        u64::try_from(self.read_clock().since_epoch().as_millis()).unwrap_or(u64::MAX)
    }

    fn monotonic_ns(&mut self) -> u64 {
        self.read_clock().monotonic_ns()
    }
}

impl random::Host for HostState {
    fn next(&mut self) -> u64 {
        self.end_trace(ReuseObstacle::Random);
        self.entry.clock().random()
    }
}

impl log::Host for HostState {
    fn write(&mut self, level: log::Level, message: String) {
        if self.recheck {
            return;
        }
        self.end_trace(ReuseObstacle::Write);
        let level = match level {
            log::Level::Debug => Level::Debug,
            log::Level::Info => Level::Info,
            log::Level::Warn => Level::Warn,
            log::Level::Error => Level::Error,
        };
        self.entry.log().write(level, &message);
    }
}

impl metrics::Host for HostState {
    fn count(&mut self, name: String, label: String, by: u64) {
        if !self.recheck {
            self.record_count(&name, &label, by);
            self.entry.series().count(&name, &label, by);
        }
    }

    fn gauge(&mut self, name: String, label: String, value: f64) {
        if !self.recheck {
            self.end_trace(ReuseObstacle::Write);
            self.entry.series().gauge(&name, &label, value);
        }
    }

    fn count_all(&mut self, counted: Vec<metrics::Counted>) {
        if !self.recheck {
            for each in &counted {
                self.record_count(&each.name, &each.label, each.by);
            }
            let updates = counted.iter().map(|each| (&*each.name, &*each.label, each.by));
            self.entry.series().count_all(updates);
        }
    }
}

/// During a recheck every call answers as if it took effect (`take` grants), and nothing changes. A call that fails, or changes state
/// otherwise than by `admit` and `increment`, is not remembered.
impl state::Host for HostState {
    fn take(&mut self, claims: Vec<state::Claim>) -> Result<state::Grant, state::Error> {
        self.end_trace(ReuseObstacle::Write);
        let claims: Vec<Claim> = claims.into_iter().map(claim_from_wit).collect();
        if self.recheck {
            let asks: Vec<Ask> = claims.into_iter().map(Ask::available_now).collect();
            return EntryState::check_admission(&asks, &[])
                .map(|()| state::Grant::Granted)
                .map_err(error_to_wit);
        }
        match self.entry.take(claims) {
            Ok(Grant::Granted) => Ok(state::Grant::Granted),
            Ok(Grant::WaitMs(wait)) => Ok(state::Grant::WaitMs(wait)),
            Err(refused) => Err(error_to_wit(refused)),
        }
    }

    fn admit(&mut self, asks: Vec<state::Ask>, places: Vec<state::Place>) -> Result<state::Admission, state::Error> {
        let asks: Vec<Ask> = asks.into_iter().map(ask_from_wit).collect();
        let places: Vec<Place> = places.into_iter().map(place_from_wit).collect();
        if self.recheck {
            return EntryState::check_admission(&asks, &places)
                .map(|()| state::Admission::Granted(0))
                .map_err(error_to_wit);
        }
        let Some(request) = self.request.as_ref().filter(|_| self.may_hold) else {
            return Err(state::Error::Invalid);
        };
        let admitted = self.entry.admit(&asks, &places);
        if let Some(trace) = &mut self.trace {
            match admitted {
                Ok((Admission::Granted { wait_ms: 0 }, _)) => trace.record_grant(&asks, &places),
                Ok(_) | Err(_) => trace.end(ReuseObstacle::Admission),
            }
        }
        let (admission, held) = admitted.map_err(error_to_wit)?;
        if !held.is_empty() {
            request.state.hold(held);
        }
        Ok(match admission {
            Admission::Granted { wait_ms } => state::Admission::Granted(saturating_u32(wait_ms)),
            Admission::Short { ask, wait_ms } => state::Admission::Short(state::Shortage {
                ask: saturating_u32(ask as u64),
                wait_ms,
            }),
            Admission::Full { place } => state::Admission::Full(saturating_u32(place as u64)),
        })
    }

    fn add(&mut self, key: String, delta: i64, max: Option<i64>) -> Result<Option<i64>, state::Error> {
        if self.recheck {
            self.entry.peek_add(&key, delta, max)
        } else {
            self.end_trace(ReuseObstacle::Write);
            self.entry.add(&key, delta, max)
        }
        .map_err(error_to_wit)
    }

    fn increment(&mut self, key: String, by: u64) {
        if self.recheck {
            return;
        }
        if let Some(trace) = &mut self.trace {
            trace.record_increment(&key, by);
        }
        self.entry.increment(&key, by);
    }

    fn window_add(&mut self, key: String, length_ms: u32, slots: u32, amount: u64) -> Result<u64, state::Error> {
        if self.recheck {
            self.entry.peek_window(&key, length_ms, slots, amount)
        } else {
            self.end_trace(ReuseObstacle::Write);
            self.entry.window_add(&key, length_ms, slots, amount)
        }
        .map_err(error_to_wit)
    }

    fn get(&mut self, key: String) -> Result<Option<state::Cell>, state::Error> {
        match self.entry.get_with_write(&key) {
            Ok((found, write)) => {
                self.record_cell(key, write);
                Ok(found.map(cell_to_wit))
            }
            Err(failed) => Err(self.failed_read(failed)),
        }
    }

    fn get_all(&mut self, keys: Vec<String>) -> Result<Vec<Option<state::Cell>>, state::Error> {
        match self.entry.get_all_with_writes(&keys) {
            Ok(cells) => {
                for (key, (_, write)) in keys.into_iter().zip(&cells) {
                    self.record_cell(key, *write);
                }
                Ok(cells.into_iter().map(|(found, _)| found.map(cell_to_wit)).collect())
            }
            Err(failed) => Err(self.failed_read(failed)),
        }
    }

    fn compare_and_swap(&mut self, key: String, expected: u64, value: Vec<u8>) -> Result<Option<u64>, state::Error> {
        if self.recheck {
            self.entry.peek_swap(&key, expected, &value)
        } else {
            self.end_trace(ReuseObstacle::Write);
            self.entry.compare_and_swap(&key, expected, value)
        }
        .map_err(error_to_wit)
    }

    fn remove(&mut self, key: String) {
        if !self.recheck {
            self.end_trace(ReuseObstacle::Write);
            self.entry.remove(&key);
        }
    }
}

impl HostState {
    /// A read that failed depends on more than a cell, so the call is not remembered.
    fn failed_read(&mut self, failed: StateError) -> state::Error {
        self.end_trace(ReuseObstacle::Changed);
        error_to_wit(failed)
    }
}

impl report::Host for HostState {
    fn put(&mut self, key: String, json: String) {
        self.end_trace(ReuseObstacle::Write);
        if !self.recheck && !self.entry.reports().put(key, &json) {
            self.entry.series().drop_update();
        }
    }

    fn remove(&mut self, key: String) {
        if !self.recheck {
            self.end_trace(ReuseObstacle::Write);
            self.entry.reports().remove(&key);
        }
    }

    fn show_counters(&mut self, key: String, fields: Vec<(String, String)>) {
        if self.recheck {
            return;
        }
        self.end_trace(ReuseObstacle::Write);
        if !self.is_configuring || !self.entry.reports().show_counters(key, fields) {
            self.entry.series().drop_update();
        }
    }

    fn name_rule(&mut self, name: String, decides: report::Part) {
        let part = match decides {
            report::Part::Delay => Part::Delay,
            report::Part::Action => Part::Action,
        };
        let request = self.request.as_ref().filter(|_| !self.recheck);
        let Some(request) = request else { return };
        let is_named = request.state.name_rule(&name, part);
        if !is_named {
            self.end_trace(ReuseObstacle::TooMuch);
            self.entry.series().drop_update();
        } else if let Some(trace) = &mut self.trace {
            trace.record_rule(&name, part);
        }
    }
}

fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn ask_from_wit(ask: state::Ask) -> Ask {
    Ask {
        claim: claim_from_wit(ask.claim),
        max_wait_ms: ask.max_wait_ms,
    }
}

fn place_from_wit(place: state::Place) -> Place {
    Place {
        key: place.key,
        max: place.max,
    }
}

fn cell_to_wit(cell: Cell) -> state::Cell {
    state::Cell {
        value: cell.value,
        version: cell.version,
    }
}

fn claim_from_wit(claim: state::Claim) -> Claim {
    let state::Bucket {
        limit,
        interval_ms,
        burst,
    } = claim.bucket;
    Claim {
        key: claim.key,
        rule: Rule {
            limit,
            interval_ms,
            burst,
        },
        tokens: claim.tokens,
    }
}

const fn error_to_wit(error: StateError) -> state::Error {
    match error {
        StateError::TooManyKeys => state::Error::TooManyKeys,
        StateError::TooLarge => state::Error::TooLarge,
        StateError::WrongKind => state::Error::WrongKind,
        StateError::Invalid => state::Error::Invalid,
    }
}

impl exchange::Host for HostState {}

/// A handle is valid only during the call that lent it, so it always refers to the current request. Every accessor goes through
/// [`HostState::read`].
impl exchange::HostRequest for HostState {
    fn facts(&mut self, handle: Resource<RequestHandle>) -> exchange::Facts {
        let same = || Resource::new_borrow(handle.rep());
        exchange::Facts {
            traffic: self.traffic(same()),
            verb: self.verb(same()),
            group: self.group(same()),
            version: self.version(same()),
            resource: self.resource(same()),
            subresource: self.subresource(same()),
            namespace: self.namespace(same()),
            name: self.name(same()),
        }
    }

    fn traffic(&mut self, _: Resource<RequestHandle>) -> exchange::Traffic {
        self.read(Step::Traffic);
        convert::request_traffic(self.request.as_deref())
    }

    fn verb(&mut self, _: Resource<RequestHandle>) -> exchange::Verb {
        self.read(Step::Verb);
        convert::request_verb(self.request.as_deref())
    }

    fn group(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Group)
    }

    fn version(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Version)
    }

    fn resource(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Resource)
    }

    fn subresource(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Subresource)
    }

    fn namespace(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Namespace)
    }

    fn name(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Name)
    }

    fn header(&mut self, _: Resource<RequestHandle>, name: String) -> Option<String> {
        self.read(Step::Header(&name)).into_text()
    }

    fn query(&mut self, _: Resource<RequestHandle>, name: String) -> Option<String> {
        self.read(Step::Query(&name)).into_text()
    }

    fn label_selector(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Query("labelSelector"))
    }

    fn field_selector(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Query("fieldSelector"))
    }

    fn user_agent(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Header("user-agent"))
    }

    fn method(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Method)
    }

    fn path(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Path)
    }

    fn host(&mut self, _: Resource<RequestHandle>) -> String {
        self.read_text(Step::Host)
    }

    fn port(&mut self, _: Resource<RequestHandle>) -> u16 {
        u16::try_from(self.read(Step::Port).number()).unwrap_or_default()
    }

    fn size(&mut self, _: Resource<RequestHandle>) -> Option<u64> {
        self.read(Step::Header("content-length")).into_text()?.parse().ok()
    }

    fn is_leader_lock(&mut self, _: Resource<RequestHandle>) -> bool {
        self.read(Step::IsLeaderLock).number() != 0
    }

    fn is_recheck(&mut self, _: Resource<RequestHandle>) -> bool {
        self.read(Step::IsRecheck).number() != 0
    }

    /// Not recorded: in `on-request`, which is called once for a request, it is 0 until the same call sets it.
    fn note(&mut self, _: Resource<RequestHandle>) -> u64 {
        let request = self.request.as_ref();
        request.map_or(0, |request| request.state.note(self.entry_id()))
    }

    fn set_note(&mut self, _: Resource<RequestHandle>, value: u64) {
        if let Some(request) = self.request.as_ref().filter(|_| !self.recheck) {
            request.state.set_note(self.entry_id(), value);
            if let Some(trace) = &mut self.trace {
                trace.record_note(value);
            }
        }
    }

    fn drop(&mut self, _: Resource<RequestHandle>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl exchange::HostResponseHead for HostState {
    fn status(&mut self, _: Resource<ResponseHandle>) -> u16 {
        self.response.as_ref().map_or(0, |response| response.status.as_u16())
    }

    fn header(&mut self, _: Resource<ResponseHandle>, name: String) -> Option<String> {
        self.response_header(&name)
    }

    fn drop(&mut self, _: Resource<ResponseHandle>) -> wasmtime::Result<()> {
        Ok(())
    }
}
