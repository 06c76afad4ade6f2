//! The live plugin instances of one worker thread: one per chain entry, kept between requests, replaced after a fault.
//!
//! Flow: `prepare` starts a new chain's instances before it comes into force; `call` takes an instance for one call. Guarantees: a fault
//! destroys that instance only, and the next call gets a fresh one; an entry in quarantine is not called. Leaves the consequences of a
//! fault (fail closed or open) to `phases`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::handle::ChainHandle;
use super::metrics::CallMetrics;
use super::quarantine::Admission;
use super::reuse::{AuditDraw, LookUp, RememberedCall, RememberedCalls, ReuseSettings, unix_ms};
use super::snapshot::{Entry, EntryId, Snapshot};
use crate::plugin::request_view::RequestView;
use crate::plugin::verdict::{Crossing, RequestVerdict};
use crate::wasm::{self, Engine, Fault, Instance, Trace};

pub(crate) struct Instances {
    engine: Arc<Engine>,
    chain: Arc<ChainHandle>,
    /// A chain has a few entries, which are compared sooner than an identity is hashed.
    cells: RefCell<BTreeMap<EntryId, InstanceCell>>,
    reuse: Option<AuditDraw>,
}

struct InstanceCell {
    entry: Weak<Entry>,
    /// `None` after a fault, and during a call.
    instance: Option<Instance>,
    remembered: RememberedCalls,
    metrics: CallMetrics,
}

/// The phase of a call, for its counter.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    Request,
    Response,
    Objects,
    Complete,
    Crossed,
    /// A query without effects; not counted as a call.
    Recheck,
}

/// Why a call returned no result.
#[derive(Debug)]
pub(crate) enum CallError {
    Fault(Fault),
    /// The entry failed too often and is not called for a while.
    Quarantined,
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Quarantined => f.write_str("quarantined after repeated faults; see /status"),
        }
    }
}

impl Instances {
    pub(crate) fn new(engine: Arc<Engine>, chain: Arc<ChainHandle>, reuse: ReuseSettings) -> Self {
        Self {
            engine,
            chain,
            cells: RefCell::default(),
            reuse: reuse.is_on.then(|| AuditDraw::new(reuse.audited_one_in)),
        }
    }

    /// Starts an instance for each entry that has none, and forgets entries that no chain and no request holds any more, and all verdicts.
    ///
    /// # Errors
    /// Returns the name of the first entry whose plugin does not start on this thread, with the fault.
    pub(crate) fn prepare(&self, snapshot: &Snapshot) -> Result<(), (String, Fault)> {
        self.forget_retired();
        for cell in self.cells.borrow_mut().values_mut() {
            cell.remembered.clear();
        }
        for entry in snapshot.entries() {
            if self.is_ready(entry) {
                continue;
            }
            let started = self.start(entry).or_else(|fault| match fault {
                Fault::ProcessMemory { .. } if self.make_room(|id| snapshot.has_entry(id)) => self.start(entry),
                fault => Err(fault),
            });
            self.give_back(entry, started.map_err(|fault| (entry.name.clone(), fault))?);
        }
        Ok(())
    }

    /// Forgets entries that no chain and no request holds any more.
    pub(crate) fn forget_retired(&self) {
        self.cells.borrow_mut().retain(|_, cell| cell.entry.strong_count() > 0);
    }

    /// Whether the entry has an instance. An equal entry of an earlier chain may have left it.
    fn is_ready(&self, entry: &Arc<Entry>) -> bool {
        let mut cells = self.cells.borrow_mut();
        let Some(cell) = cells.get_mut(&entry.id).filter(|cell| cell.instance.is_some()) else {
            return false;
        };
        cell.entry = Arc::downgrade(entry);
        true
    }

    /// Ends the instances of entries that are not kept, and returns whether there were any. A request that still needs one starts it again.
    /// Their verdicts end with them, because an audit compares calls of one instance: the first call of another may draw the seed of a hash
    /// map.
    pub(crate) fn make_room(&self, is_kept: impl Fn(EntryId) -> bool) -> bool {
        let mut cells = self.cells.borrow_mut();
        let others = cells.iter_mut().filter(|(id, _)| !is_kept(**id));
        let ended = others.filter_map(|(_, cell)| {
            cell.remembered.clear();
            cell.instance.take()
        });
        ended.count() > 0
    }

    fn start(&self, entry: &Entry) -> Result<Instance, Fault> {
        Instance::start(&self.engine, &entry.plugin, &entry.config, &entry.state).map(|(instance, _)| instance)
    }

    /// The entry's verdict on a request: a remembered one if that can be repeated, or that of a call, which may be remembered. `now` is the
    /// current time, if the caller has just read it; a call of the plugin, which takes time, removes it.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn on_request(
        &self,
        entry: &Arc<Entry>,
        request: &Rc<RequestView>,
        now: &Cell<Option<Instant>>,
    ) -> Result<Rc<RequestVerdict>, CallError> {
        let admission = self.admit(entry)?;
        let is_impure = entry.reuse.is_impure();
        if is_impure {
            // Another thread may have found that.
            self.forget_verdicts(entry);
        }
        let Some(draw) = self.reuse.as_ref().filter(|_| !is_impure) else {
            now.set(None);
            return self.call_admitted(entry, admission, Phase::Request, |instance| {
                instance.on_request(request, false).map(Rc::new)
            });
        };
        let (mut audited, mut is_recorded) = (None, false);
        // A probe, or the call after a fault, is to show whether calls work again.
        if admission == Admission::Call
            && !entry.quarantine.is_failing()
            && let Some(cell) = self.cells.borrow_mut().get_mut(&entry.id)
        {
            match cell.remembered.look_up(request, &entry.state, draw, now.get()) {
                LookUp::Repeated(verdict) => {
                    cell.metrics.reused.inc();
                    return Ok(verdict);
                }
                LookUp::Audit(call) => {
                    cell.metrics.audited.inc();
                    (audited, is_recorded) = (Some(call), true);
                }
                LookUp::Unknown => is_recorded = cell.remembered.records_next_call(),
            }
        }
        now.set(None);
        let called_ms = if is_recorded { unix_ms(&entry.state) } else { 0 };
        let (verdict, trace) = self.call_admitted(entry, admission, Phase::Request, |instance| {
            if is_recorded {
                instance.begin_trace();
            }
            let verdict = instance.on_request(request, false)?;
            Ok((Rc::new(verdict), instance.take_trace()))
        })?;
        if let Some(trace) = trace {
            self.learn(entry, *trace, &verdict, audited.as_deref(), called_ms);
        }
        Ok(verdict)
    }

    fn forget_verdicts(&self, entry: &Entry) {
        if let Some(cell) = self.cells.borrow_mut().get_mut(&entry.id) {
            cell.remembered.clear();
        }
    }

    /// Remembers a call. If it contradicts what is remembered, nothing of this entry is repeated any more, on any thread.
    fn learn(
        &self,
        entry: &Entry,
        trace: Trace,
        verdict: &Rc<RequestVerdict>,
        audited: Option<&RememberedCall>,
        called_ms: u64,
    ) {
        let mut cells = self.cells.borrow_mut();
        let Some(cell) = cells.get_mut(&entry.id) else { return };
        let learnt = cell.remembered.learn(trace, verdict, audited, called_ms, &entry.state);
        if let Err(impure) = learnt {
            cell.remembered.clear();
            let fault = Fault::Impure {
                origin: Box::new(origin_of(entry)),
                contradiction: impure.contradiction,
            };
            self.chain.record_impure(entry, &fault);
        }
    }

    /// Calls the entry's instance.
    ///
    /// # Errors
    /// The fault has already been counted and recorded in the entry's quarantine.
    pub(crate) fn call<R>(
        &self,
        entry: &Arc<Entry>,
        phase: Phase,
        call: impl FnOnce(&mut Instance) -> Result<R, Fault>,
    ) -> Result<R, CallError> {
        let admission = self.admit(entry)?;
        self.call_admitted(entry, admission, phase, call)
    }

    /// Tells the plugin which tallies have reached a threshold. If it does not learn of them, the next outcome beyond a threshold leads to
    /// another call.
    pub(crate) fn on_crossed(&self, entry: &Arc<Entry>, crossings: &[Crossing]) {
        let called = self.call(entry, Phase::Crossed, |instance| instance.on_crossed(crossings));
        if called.is_err() {
            entry.state.report_again(crossings);
        }
    }

    /// Counts outcomes that the entry has no room to count.
    pub(crate) fn count_uncounted_outcomes(&self, entry: &Entry, number: u64) {
        if let Some(cell) = self.cells.borrow().get(&entry.id) {
            cell.metrics.uncounted_outcomes.inc_by(number);
        }
    }

    /// Number of verdicts of all entries that were repeated. Entries of one name have one counter.
    #[cfg(test)]
    pub(super) fn repeated_verdicts(&self) -> u64 {
        let cells = self.cells.borrow();
        let counts = cells.values().filter_map(|cell| {
            let entry = cell.entry.upgrade()?;
            Some((entry.name.clone(), cell.metrics.reused.get()))
        });
        let by_name: std::collections::BTreeMap<_, _> = counts.collect();
        by_name.values().sum()
    }

    fn admit(&self, entry: &Entry) -> Result<Admission, CallError> {
        let admission = entry.quarantine.admit(Instant::now);
        if admission == Admission::Quarantined {
            if let Some(cell) = self.cells.borrow().get(&entry.id) {
                cell.metrics.skips.inc();
            }
            return Err(CallError::Quarantined);
        }
        Ok(admission)
    }

    fn call_admitted<R>(
        &self,
        entry: &Arc<Entry>,
        admission: Admission,
        phase: Phase,
        call: impl FnOnce(&mut Instance) -> Result<R, Fault>,
    ) -> Result<R, CallError> {
        let idle = self
            .cells
            .borrow_mut()
            .get_mut(&entry.id)
            .and_then(|cell| cell.instance.take());
        let call_start = Instant::now();
        let (mut instance, ready_at) = match idle {
            Some(instance) => (instance, call_start),
            None => {
                let started = self.start(entry);
                let instance =
                    started.map_err(|fault| self.record_failure(entry, admission, call_start.elapsed(), fault))?;
                (instance, Instant::now())
            }
        };
        let result = call(&mut instance);
        let spent = ready_at.elapsed();
        match result {
            Ok(value) => {
                self.give_back(entry, instance);
                entry.quarantine.record_ok(admission, Instant::now);
                self.count(entry.id, phase, spent.as_secs_f64());
                Ok(value)
            }
            Err(fault) => Err(self.record_failure(entry, admission, call_start.elapsed(), fault)),
        }
    }

    /// Records a fault of the entry because its verdict cannot be applied.
    pub(crate) fn invalid(&self, entry: &Entry, what: String) -> CallError {
        let origin = Box::new(origin_of(entry));
        self.record_failure(entry, Admission::Call, Duration::ZERO, Fault::Invalid { origin, what })
    }

    fn record_failure(&self, entry: &Entry, admission: Admission, time_lost: Duration, fault: Fault) -> CallError {
        self.forget_verdicts(entry);
        self.chain.record_fault(entry, admission, time_lost, &fault);
        CallError::Fault(fault)
    }

    fn give_back(&self, entry: &Arc<Entry>, instance: Instance) {
        let mut cells = self.cells.borrow_mut();
        let cell = cells.entry(entry.id).or_insert_with(|| InstanceCell {
            entry: Arc::downgrade(entry),
            instance: None,
            remembered: RememberedCalls::default(),
            metrics: self.chain.metrics().call_metrics(&entry.name),
        });
        cell.instance = Some(instance);
    }

    fn count(&self, id: EntryId, phase: Phase, seconds: f64) {
        if let Some(cell) = self.cells.borrow().get(&id) {
            match phase {
                Phase::Request => cell.metrics.requests.inc(),
                Phase::Response => cell.metrics.responses.inc(),
                Phase::Objects => cell.metrics.objects.inc(),
                Phase::Complete => cell.metrics.completions.inc(),
                Phase::Crossed => cell.metrics.crossings.inc(),
                Phase::Recheck => return,
            };
            cell.metrics.seconds.inc_by(seconds);
        }
    }
}

/// A call of `on-request`.
fn origin_of(entry: &Entry) -> wasm::Origin {
    wasm::Origin {
        digest: entry.plugin.digest.clone(),
        entry: entry.name.clone(),
        phase: wasm::Phase::OnRequest,
    }
}
