//! The host's implementation of `ctrlmesh:plugin@0.2`: the functions that a guest imports, each short and bounded. Those that 0.1 has
//! already serve plugins of that version, too (`v0_1.rs`).
//!
//! Leaves their effects to `state.rs`, `series.rs` and `plugin_log.rs`, and a guest's results to `v0_2/convert.rs`.

use aws_lc_rs::rand;
use wasmtime::component::{HasSelf, Linker, Resource};

use super::bindings::v0_2::Plugin;
use super::bindings::v0_2::ctrlmesh::plugin::{clock, exchange, log, metrics, random, report, state, types};
use super::host::{HostState, RequestHandle, ResponseHandle};
use super::plugin_log::Level;
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
        u64::try_from(self.entry.clock().since_epoch().as_millis()).unwrap_or(u64::MAX)
    }

    fn monotonic_ns(&mut self) -> u64 {
        self.entry.clock().monotonic_ns()
    }
}

impl random::Host for HostState {
    fn next(&mut self) -> u64 {
        let mut bytes = [0; 8];
        // The system's generator fails only before it is seeded, at boot; the interface says "not for secrets".
        let _ = rand::fill(&mut bytes);
        u64::from_ne_bytes(bytes)
    }
}

impl log::Host for HostState {
    fn write(&mut self, level: log::Level, message: String) {
        if self.recheck {
            return;
        }
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
            self.entry.series().count(&name, &label, by);
        }
    }

    fn gauge(&mut self, name: String, label: String, value: f64) {
        if !self.recheck {
            self.entry.series().gauge(&name, &label, value);
        }
    }

    fn count_all(&mut self, counted: Vec<metrics::Counted>) {
        if !self.recheck {
            let updates = counted.iter().map(|each| (&*each.name, &*each.label, each.by));
            self.entry.series().count_all(updates);
        }
    }
}

/// During a recheck every call answers as if it took effect (`take` grants), and nothing changes.
impl state::Host for HostState {
    fn take(&mut self, claims: Vec<state::Claim>) -> Result<state::Grant, state::Error> {
        let claims: Vec<Claim> = claims.into_iter().map(claim).collect();
        if self.recheck {
            let asks: Vec<Ask> = claims.into_iter().map(Ask::available_now).collect();
            return EntryState::check_admission(&asks, &[])
                .map(|()| state::Grant::Granted)
                .map_err(error);
        }
        match self.entry.take(claims) {
            Ok(Grant::Granted) => Ok(state::Grant::Granted),
            Ok(Grant::WaitMs(wait)) => Ok(state::Grant::WaitMs(wait)),
            Err(refused) => Err(error(refused)),
        }
    }

    fn admit(&mut self, asks: Vec<state::Ask>, places: Vec<state::Place>) -> Result<state::Admission, state::Error> {
        let asks: Vec<Ask> = asks.into_iter().map(ask).collect();
        let places: Vec<Place> = places.into_iter().map(place).collect();
        if self.recheck {
            return EntryState::check_admission(&asks, &places)
                .map(|()| state::Admission::Granted(0))
                .map_err(error);
        }
        let Some(request) = self.request.as_ref().filter(|_| self.may_hold) else {
            return Err(state::Error::Invalid);
        };
        let (admission, held) = self.entry.admit(&asks, &places).map_err(error)?;
        request.memory.hold(held);
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
            self.entry.add(&key, delta, max)
        }
        .map_err(error)
    }

    fn window_add(&mut self, key: String, length_ms: u32, slots: u32, amount: u64) -> Result<u64, state::Error> {
        if self.recheck {
            self.entry.peek_window(&key, length_ms, slots, amount)
        } else {
            self.entry.window_add(&key, length_ms, slots, amount)
        }
        .map_err(error)
    }

    fn get(&mut self, key: String) -> Result<Option<state::Cell>, state::Error> {
        Ok(self.entry.get(&key).map_err(error)?.map(cell))
    }

    fn get_all(&mut self, keys: Vec<String>) -> Result<Vec<Option<state::Cell>>, state::Error> {
        let cells = self.entry.get_all(&keys).map_err(error)?;
        Ok(cells.into_iter().map(|found| found.map(cell)).collect())
    }

    fn compare_and_swap(&mut self, key: String, expected: u64, value: Vec<u8>) -> Result<Option<u64>, state::Error> {
        if self.recheck {
            self.entry.peek_swap(&key, expected, &value)
        } else {
            self.entry.compare_and_swap(&key, expected, value)
        }
        .map_err(error)
    }

    fn remove(&mut self, key: String) {
        if !self.recheck {
            self.entry.remove(&key);
        }
    }
}

impl report::Host for HostState {
    fn put(&mut self, key: String, json: String) {
        if !self.recheck && !self.entry.reports().put(key, &json) {
            self.entry.series().drop_update();
        }
    }

    fn remove(&mut self, key: String) {
        if !self.recheck {
            self.entry.reports().remove(&key);
        }
    }

    fn show_counters(&mut self, key: String, fields: Vec<(String, String)>) {
        if self.recheck {
            return;
        }
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
        if request.is_some_and(|request| !request.memory.name_rule(&name, part)) {
            self.entry.series().drop_update();
        }
    }
}

fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn ask(ask: state::Ask) -> Ask {
    Ask {
        claim: claim(ask.claim),
        max_wait_ms: ask.max_wait_ms,
    }
}

fn place(place: state::Place) -> Place {
    Place {
        key: place.key,
        max: place.max,
    }
}

fn cell(cell: Cell) -> state::Cell {
    state::Cell {
        value: cell.value,
        version: cell.version,
    }
}

fn claim(claim: state::Claim) -> Claim {
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

const fn error(error: StateError) -> state::Error {
    match error {
        StateError::TooManyKeys => state::Error::TooManyKeys,
        StateError::TooLarge => state::Error::TooLarge,
        StateError::WrongKind => state::Error::WrongKind,
        StateError::Invalid => state::Error::Invalid,
    }
}

impl exchange::Host for HostState {}

/// A handle is valid only during the call that lent it, so it always refers to the current request.
impl exchange::HostRequest for HostState {
    fn facts(&mut self, _: Resource<RequestHandle>) -> exchange::Facts {
        convert::facts(self.request.as_deref())
    }

    fn traffic(&mut self, _: Resource<RequestHandle>) -> exchange::Traffic {
        convert::traffic(self.request.as_deref())
    }

    fn verb(&mut self, _: Resource<RequestHandle>) -> exchange::Verb {
        convert::verb(self.request.as_deref())
    }

    fn group(&mut self, _: Resource<RequestHandle>) -> String {
        self.fact(|request| &request.group)
    }

    fn version(&mut self, _: Resource<RequestHandle>) -> String {
        self.fact(|request| &request.version)
    }

    fn resource(&mut self, _: Resource<RequestHandle>) -> String {
        self.fact(|request| &request.resource)
    }

    fn subresource(&mut self, _: Resource<RequestHandle>) -> String {
        self.fact(|request| &request.subresource)
    }

    fn namespace(&mut self, _: Resource<RequestHandle>) -> String {
        self.fact(|request| &request.namespace)
    }

    fn name(&mut self, _: Resource<RequestHandle>) -> String {
        self.fact(|request| &request.name)
    }

    fn header(&mut self, _: Resource<RequestHandle>, name: String) -> Option<String> {
        self.request_header(&name)
    }

    fn query(&mut self, _: Resource<RequestHandle>, name: String) -> Option<String> {
        HostState::query(self, &name)
    }

    fn label_selector(&mut self, _: Resource<RequestHandle>) -> String {
        HostState::query(self, "labelSelector").unwrap_or_default()
    }

    fn field_selector(&mut self, _: Resource<RequestHandle>) -> String {
        HostState::query(self, "fieldSelector").unwrap_or_default()
    }

    fn user_agent(&mut self, _: Resource<RequestHandle>) -> String {
        self.request_header("user-agent").unwrap_or_default()
    }

    fn method(&mut self, _: Resource<RequestHandle>) -> String {
        self.request
            .as_ref()
            .map(|request| request.method.to_string())
            .unwrap_or_default()
    }

    fn path(&mut self, _: Resource<RequestHandle>) -> String {
        let decode = |path| {
            percent_encoding::percent_decode_str(path)
                .decode_utf8_lossy()
                .into_owned()
        };
        self.request
            .as_ref()
            .map(|request| decode(request.uri.path()))
            .unwrap_or_default()
    }

    fn host(&mut self, _: Resource<RequestHandle>) -> String {
        self.fact(|request| &request.host)
    }

    fn port(&mut self, _: Resource<RequestHandle>) -> u16 {
        self.request.as_ref().map_or(0, |request| request.port)
    }

    fn size(&mut self, _: Resource<RequestHandle>) -> Option<u64> {
        self.request_header("content-length")?.parse().ok()
    }

    fn is_leader_lock(&mut self, _: Resource<RequestHandle>) -> bool {
        self.request
            .as_ref()
            .is_some_and(|request| request.is_leader_lock.get())
    }

    fn is_recheck(&mut self, _: Resource<RequestHandle>) -> bool {
        self.recheck
    }

    fn note(&mut self, _: Resource<RequestHandle>) -> u64 {
        let request = self.request.as_ref();
        request.map_or(0, |request| request.memory.note(self.entry_id()))
    }

    fn set_note(&mut self, _: Resource<RequestHandle>, value: u64) {
        if let Some(request) = self.request.as_ref().filter(|_| !self.recheck) {
            request.memory.set_note(self.entry_id(), value);
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
