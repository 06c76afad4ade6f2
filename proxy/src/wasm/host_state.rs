//! The host's state for one instance: the current request, its limits, its printed output. Independent of the interface version; the
//! functions that a guest calls are in the files of the versions (`v0_2.rs`) and in `wasi.rs`.

use std::rc::Rc;
use std::sync::Arc;

use wasmtime::ResourceLimiter;

use super::clock::Clock;
use super::deadline::Deadline;
use super::memory::{Charge, OverLimit};
use super::reads::{ReuseObstacle, Seen, Step, Trace, visible_header};
use super::state::EntryState;
use super::stdio::Stdio;
use crate::plugin::request_view::{RequestView, ResponseView};
use crate::plugin::verdict::CellWrite;

/// After this many reads of cells in a call no further cell can be named by its outcome rules. Built-in plugins read two cells for each of
/// 24 rules, up to three times and again after each write.
const MAX_CELL_READS: usize = 256;
/// Maximum number of core instances in a component: its module, the shims of the component encoder, WASI's adapter.
const MAX_CORE_INSTANCES: usize = 16;
/// Maximum number of linear memories in a component.
const MAX_MEMORIES: usize = 4;
/// Maximum number of tables in a component.
const MAX_TABLES: usize = 8;
/// Maximum number of elements in all tables together: function pointers; large Rust guests have some hundreds.
const MAX_TABLE_ELEMENTS: usize = 10_000;

/// Type of the handle of the current request. There is one at a time, so a handle needs no number and no table.
#[expect(
    unreachable_pub,
    reason = "the generated bindings re-export it from a public module of a private one"
)]
pub struct RequestHandle;
/// Type of the handle of the current response.
#[expect(unreachable_pub, reason = "as above")]
pub struct ResponseHandle;

pub(crate) struct HostState {
    pub(crate) request: Option<Rc<RequestView>>,
    pub(crate) response: Option<Rc<ResponseView>>,
    /// Whether the call is a recheck: state, log and metrics have no effect.
    pub(crate) recheck: bool,
    /// Whether the call is `on-request`, the only one in which places can be taken.
    pub(crate) may_hold: bool,
    /// Whether the call is `configure`, the only one in which a report of counters can be set up.
    pub(crate) is_configuring: bool,
    pub(crate) entry: Arc<EntryState>,
    pub(crate) limits: Limits,
    pub(crate) deadline: Deadline,
    pub(crate) stdio: Stdio,
    /// Reads and effects of the call, if they are recorded.
    pub(crate) trace: Option<Box<Trace>>,
    /// The cells that the last `on-request` has read, in its order.
    pub(crate) cells: Vec<CellWrite>,
    /// Number of WASI handles that the guest holds.
    pub(crate) wasi_handles: u32,
}

impl HostState {
    /// `memory_bytes` limits the instance's linear memory. `charge` is its account in the memory of all plugins.
    pub(crate) fn new(entry: Arc<EntryState>, memory_bytes: usize, charge: Charge, deadline: Deadline) -> Self {
        Self {
            request: None,
            response: None,
            recheck: false,
            may_hold: false,
            is_configuring: false,
            entry,
            limits: Limits {
                memory_bytes,
                memory_used: 0,
                table_elements: 0,
                charge,
                is_started: false,
                refused: None,
            },
            deadline,
            stdio: Stdio::default(),
            trace: None,
            cells: Vec::new(),
            wasi_handles: 0,
        }
    }

    /// Shows the guest a value of the current request; [`Seen::Absent`] without one. Every accessor of a request goes through here.
    pub(crate) fn read(&mut self, step: Step<&str>) -> Seen<'_> {
        let Some(request) = self.request.as_deref() else {
            return Seen::Absent;
        };
        let seen = step.evaluate(request, self.recheck);
        if let Some(trace) = &mut self.trace {
            trace.record_read(step, &seen);
        }
        seen
    }

    /// A text of the current request; empty if there is none.
    pub(crate) fn read_text(&mut self, step: Step<&str>) -> String {
        self.read(step).into_text().unwrap_or_default()
    }

    /// The clock, for a call that reads it.
    pub(crate) fn read_clock(&mut self) -> &Clock {
        if let Some(trace) = &mut self.trace {
            trace.record_clock();
        }
        self.entry.clock()
    }

    pub(crate) fn record_count(&mut self, name: &str, label: &str, by: u64) {
        if let Some(trace) = &mut self.trace {
            trace.record_count(name, label, by);
        }
    }

    /// Records that a cell was read, with the number of the write that it is from.
    pub(crate) fn record_cell(&mut self, key: String, write: u64) {
        if let Some(trace) = &mut self.trace {
            trace.record_read(Step::Cell(key.as_str()), &Seen::Number(write));
        }
        if !self.may_hold {
            return;
        }
        if self.cells.len() < MAX_CELL_READS {
            self.cells.push(CellWrite { key, write });
        } else if let Some(known) = self.cells.iter_mut().rfind(|known| known.key == key) {
            // An outcome rule belongs to the last read of its cells.
            known.write = write;
        }
    }

    /// Notes that the call can't be repeated, and why.
    pub(crate) fn end_trace(&mut self, obstacle: ReuseObstacle) {
        if let Some(trace) = &mut self.trace {
            trace.end(obstacle);
        }
    }

    /// First value of a response header, if it is text and no secret.
    pub(crate) fn response_header(&self, name: &str) -> Option<String> {
        visible_header(&self.response.as_ref()?.headers, name).map(str::to_owned)
    }

    /// Logs the guest's printed output, unless the call was a recheck.
    pub(crate) fn end_call(&mut self) {
        self.request = None;
        self.response = None;
        self.stdio
            .flush(if self.recheck { None } else { Some(self.entry.log()) });
        self.recheck = false;
        self.may_hold = false;
        self.is_configuring = false;
    }

    /// Identifies the entry in the state of a request.
    pub(crate) fn entry_id(&self) -> usize {
        Arc::as_ptr(&self.entry).addr()
    }
}

/// Limits of an instance.
pub(crate) struct Limits {
    pub(crate) memory_bytes: usize,
    memory_used: usize,
    table_elements: usize,
    charge: Charge,
    /// Whether the instance has started. Memory that it takes from then on counts as growth.
    pub(crate) is_started: bool,
    /// Set when the instance was denied memory. If it traps afterwards, this is the reason.
    pub(crate) refused: Option<MemoryRefusal>,
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryRefusal {
    Entry,
    /// The limit of all plugins together.
    Process(OverLimit),
}

impl Limits {
    /// Bytes of linear memory in use.
    pub(crate) const fn memory_used(&self) -> usize {
        self.memory_used
    }

    /// Bytes of memories and tables that are charged.
    pub(crate) const fn charged_bytes(&self) -> usize {
        self.charge.bytes()
    }

    /// Charges `more` bytes to the memory of all plugins, unless the entry's own limit forbids it.
    fn charge(&mut self, more: usize, fits_entry: bool) -> bool {
        let charged = if !fits_entry {
            Err(MemoryRefusal::Entry)
        } else if self.is_started {
            self.charge.grow(more).map_err(MemoryRefusal::Process)
        } else {
            self.charge.take(more).map_err(MemoryRefusal::Process)
        };
        self.refused = charged.err().or(self.refused);
        charged.is_ok()
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        // The growth will fail anyway and must not be charged, because nothing would release it before the instance ends.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let more = desired.saturating_sub(current);
        let used = self.memory_used.saturating_add(more);
        if !self.charge(more, used <= self.memory_bytes) {
            return Ok(false);
        }
        self.memory_used = used;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let more = desired.saturating_sub(current);
        let elements = self.table_elements.saturating_add(more);
        if !self.charge(more.saturating_mul(size_of::<usize>()), elements <= MAX_TABLE_ELEMENTS) {
            return Ok(false);
        }
        self.table_elements = elements;
        Ok(true)
    }

    fn instances(&self) -> usize {
        MAX_CORE_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wasm::memory::GuestMemory;
    use crate::wasm::state::StateStore;

    #[test]
    fn later_reads_of_known_cells_count_however_many_cells_were_read() {
        let entry = StateStore::with_clock(Clock::manual()).entry("e");
        let (deadline, _) = Deadline::start(Duration::from_secs(1));
        let mut host = HostState::new(entry, 1 << 20, GuestMemory::unlimited().account(), deadline);
        host.record_cell("k".to_owned(), 1);
        assert!(host.cells.is_empty(), "it was read in another phase");
        host.may_hold = true;
        for _ in 0..2 {
            host.record_cell("k".to_owned(), 1);
        }
        for number in 2..MAX_CELL_READS {
            host.record_cell(format!("other {number}"), 1);
        }
        host.record_cell("k".to_owned(), 2);
        host.record_cell("unknown".to_owned(), 2);
        let last_write = |key: &str| host.cells.iter().rfind(|cell| cell.key == key).map(|cell| cell.write);
        assert_eq!((last_write("k"), last_write("unknown")), (Some(2), None));
        assert_eq!(host.cells.len(), MAX_CELL_READS);
    }
}
