//! The chain in force, shared by the whole process. Requests load it from here, the chain watch stores a new one, and `/status`
//! reads its state.
//!
//! Leaves loading to `source.rs` and `reload.rs`.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, Guard};
use ctrlmesh_contract::status::{ChainStatus, EntryState, EntryStatus, InFlight, Pod, Refused, ReuseStatus, Status};
use ctrlmesh_contract::support::Support;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::compiling::CompileProgress;
use super::error::Error;
use super::in_flight::{Counter, InFlightCounts, InFlightGuard, Kind};
use super::metrics::Metrics;
use super::quarantine::{Admission, QuarantineState};
use super::retirement::Retirements;
use super::snapshot::{Entry, Snapshot};
use crate::lock::lock_unpoisoned;
use crate::timestamp::rfc3339;
use crate::wasm::Fault;

/// The chain in force. Shared by all threads.
pub struct ChainHandle {
    current: ArcSwap<Snapshot>,
    /// Counts of earlier chains that still have requests in flight. Locked by the thread that changes the chain and by readers of the
    /// status, so that both see one state; never by a request.
    earlier: Mutex<Vec<Arc<InFlightCounts>>>,
    changes: watch::Sender<u64>,
    record: ArcSwap<Record>,
    metrics: Metrics,
    pod: Pod,
    required: Required,
    compiling: CompileProgress,
    retirements: Retirements,
    /// Whether another process has served this pod before.
    is_follower: AtomicBool,
}

/// Condition for serving requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Required {
    /// Requests are served without a chain.
    Nothing,
    Chain,
    /// A chain that has an entry of this name for the pod ([`Snapshot::has_entry`]), if it is the pod's first chain.
    Entry(String),
}

/// State that only `/status` reads.
#[derive(Debug, Clone, Default)]
struct Record {
    since: Option<SystemTime>,
    refused: Option<Refused>,
}

impl ChainHandle {
    /// A handle without a chain yet. [`Self::is_ready`] becomes true once `required` is met.
    #[must_use]
    pub fn new(pod: Pod, required: Required, metrics: Metrics) -> Self {
        Self {
            current: ArcSwap::from_pointee(Snapshot::without_document()),
            earlier: Mutex::default(),
            changes: watch::Sender::new(0),
            record: ArcSwap::default(),
            metrics,
            pod,
            required,
            compiling: CompileProgress::default(),
            retirements: Retirements::default(),
            is_follower: AtomicBool::new(false),
        }
    }

    pub(super) const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Progress of compiling a new chain's plugins; the code that compiles updates it.
    #[must_use]
    pub const fn compiling(&self) -> &CompileProgress {
        &self.compiling
    }

    /// Notifies of entries that are gone; the code that builds entries adds a guard to each.
    #[must_use]
    pub const fn retirements(&self) -> &Retirements {
        &self.retirements
    }

    /// Notes that another process served this pod until just now: its last writes are reported as long as the API server may still carry
    /// them out.
    pub fn follow_another(&self) {
        self.is_follower.store(true, Ordering::Release);
        self.lock_earlier().push(InFlightCounts::left_behind());
    }

    /// The chain in force, for a short read: cheap, and not to be kept across an `await`.
    pub fn load(&self) -> Guard<Arc<Snapshot>> {
        self.current.load()
    }

    /// The chain in force, as a reference that may be kept.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// The chain in force, for a request that counts as in flight under it until the guard is dropped.
    ///
    /// [`Self::status`] misses no request, on whatever thread. A request counts itself and then checks again which chain is in force; a new
    /// chain is swapped in before `status` reads the counts. Both sides have a fence between the two steps, so at least one of them sees
    /// the other's first step: either the request sees the new chain and begins under that, or `status` sees the request.
    pub(crate) fn begin_request(&self, counter: &Counter, kind: Kind) -> (Guard<Arc<Snapshot>>, InFlightGuard) {
        self.enter_with(counter, kind, || ())
    }

    /// `between` is called after each read of the chain in force, before the request is counted under it.
    fn enter_with(
        &self,
        counter: &Counter,
        kind: Kind,
        mut between: impl FnMut(),
    ) -> (Guard<Arc<Snapshot>>, InFlightGuard) {
        let mut snapshot = self.load();
        loop {
            between();
            let in_flight_guard = counter.count(&snapshot.in_flight_counts, kind);
            fence(Ordering::SeqCst);
            let now = self.load();
            if Arc::ptr_eq(&now, &snapshot) {
                return (snapshot, in_flight_guard);
            }
            snapshot = now;
        }
    }

    /// The chain in force, and the requests in flight under earlier ones.
    fn in_force(&self) -> (Arc<Snapshot>, InFlight) {
        let mut earlier = self.lock_earlier();
        (self.current(), sum_in_flight(&mut earlier))
    }

    fn lock_earlier(&self) -> MutexGuard<'_, Vec<Arc<InFlightCounts>>> {
        lock_unpoisoned(&self.earlier)
    }

    /// Notifies each time that another chain comes into force.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether a chain is in force, or none is required.
    #[must_use]
    pub fn has_chain(&self) -> bool {
        self.required == Required::Nothing || self.load().document.is_some()
    }

    /// Whether requests may be served. Checked at the start only: an entry that disappears later does not revoke it.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.has_chain()
            && match &self.required {
                Required::Entry(name) => self.is_follower.load(Ordering::Acquire) || self.load().has_entry_named(name),
                Required::Nothing | Required::Chain => true,
            }
    }

    /// Waits until requests may be served.
    pub async fn wait_until_ready(&self) {
        self.wait_until(Self::is_ready).await;
    }

    /// Waits for the first chain.
    pub async fn first_chain(&self) {
        self.wait_until(Self::has_chain).await;
    }

    async fn wait_until(&self, is_over: impl Fn(&Self) -> bool) {
        let mut changes = self.subscribe();
        while !is_over(self) {
            // The sender lives as long as `self`, so this ends with a change only.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Puts a chain into force. Requests that began under another one keep it.
    pub(super) fn apply(&self, snapshot: Arc<Snapshot>) {
        let (generation, entries) = (snapshot.generation, snapshot.entries().len());
        // Dropped after the lock, with the entries that nobody else holds.
        let _before = {
            let mut earlier = self.lock_earlier();
            let before = self.current.swap(Arc::clone(&snapshot));
            earlier.push(Arc::clone(&before.in_flight_counts));
            sum_in_flight(&mut earlier);
            before
        };
        self.metrics.chain_applied(&snapshot);
        self.record.store(Arc::new(Record {
            since: Some(SystemTime::now()),
            refused: None,
        }));
        self.changes.send_modify(|count| *count += 1);
        info!(generation, entries, "chain in force");
    }

    /// Clears the last refusal, because the files match the chain in force again.
    pub(super) fn clear_refusal(&self) {
        self.record.rcu(|record| Record {
            refused: None,
            ..Record::clone(record)
        });
    }

    /// Records that a document was refused.
    pub(super) fn refuse(&self, generation: Option<u64>, error: &Error) {
        let refused = Refused {
            generation,
            reason: error.reason().to_owned(),
            message: error.to_string(),
            when: rfc3339(SystemTime::now()),
        };
        let known = self
            .record
            .load()
            .refused
            .as_ref()
            .is_some_and(|known| known.message == refused.message);
        self.record.rcu(|record| Record {
            refused: Some(refused.clone()),
            ..Record::clone(record)
        });
        self.metrics.count_refusal(error.reason());
        if known {
            // Another attempt failed in the same way.
            debug!(%error, "chain still refused");
            return;
        }
        let in_force = self.load().generation;
        let reason = error.reason();
        if in_force == 0 {
            warn!(%error, reason, generation, "chain refused; there is no earlier one to keep, so no requests are served");
        } else {
            warn!(%error, reason, generation, in_force, "chain refused; keeping the last good one");
        }
    }

    /// Records that a call failed after it had kept its thread for `time_lost`. Quarantines the entry if it has failed too often.
    pub fn record_fault(&self, entry: &Entry, admission: Admission, time_lost: Duration, fault: &Fault) {
        self.metrics.count_fault(&entry.name, fault.kind());
        let (now, text) = (Instant::now(), fault.to_string());
        let quarantined = entry.quarantine.record_fault(admission, now, time_lost, &text);
        warn!(entry = entry.name, plugin = %entry.digest, error = %fault, "plugin call failed");
        if let Some(length) = quarantined {
            self.metrics.count_quarantine(&entry.name);
            let seconds = length.as_secs();
            let policy = entry.on_failure.name();
            warn!(entry = entry.name, plugin = %entry.digest, seconds, policy, "entry quarantined");
        }
    }

    /// Records that a plugin contradicted one of its reusable verdicts. It counts as a fault, but neither costs the instance nor leads to
    /// quarantine, because the call itself succeeded.
    pub(super) fn record_impure(&self, entry: &Entry, fault: &Fault) {
        self.metrics.count_fault(&entry.name, fault.kind());
        if entry.reuse.set_impure(&fault.to_string()) {
            warn!(entry = entry.name, plugin = %entry.digest, error = %fault, "verdicts of the entry are not repeated any more");
        }
    }

    /// The part of `/status` about the chain.
    #[must_use]
    pub fn status(&self) -> Status {
        let ((snapshot, earlier), record) = (self.in_force(), self.record.load());
        let (now, wall) = (Instant::now(), SystemTime::now());
        Status {
            pod: self.pod.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            compiling: self.compiling.status(),
            supports: Some(Support::current()),
            chain: ChainStatus {
                generation: snapshot.generation,
                digest: snapshot.document,
                since: record.since.map(rfc3339).unwrap_or_default(),
                disabled: self.required == Required::Nothing,
                entries: snapshot
                    .entries()
                    .iter()
                    .map(|entry| entry_status(entry, &self.metrics, now, wall))
                    .collect(),
                other_entries: u64::try_from(snapshot.other_entries).unwrap_or(u64::MAX),
                without_labels: snapshot.without_labels,
                earlier,
                stale_caches: Vec::new(),
            },
            refused: record.refused.clone(),
            counts: self.metrics.current_counts(),
            api_traffic: None,
            not_ready: Vec::new(),
            leader_elections: Vec::new(),
            touched: Vec::new(),
        }
    }
}

/// Sums the requests in flight under earlier chains, and forgets chains that have none.
fn sum_in_flight(all_counts: &mut Vec<Arc<InFlightCounts>>) -> InFlight {
    // The fence between swapping each chain and reading its counts; see `enter`.
    fence(Ordering::SeqCst);
    let mut all = InFlight::default();
    all_counts.retain(|in_flight_counts| {
        let sum = in_flight_counts.sum();
        all.writes += sum.writes;
        all.lists += sum.lists;
        all.watches += sum.watches;
        !sum.is_none()
    });
    all
}

fn entry_status(entry: &Entry, metrics: &Metrics, now: Instant, wall: SystemTime) -> EntryStatus {
    let (state, until) = match entry.quarantine.state(now) {
        QuarantineState::Active => (EntryState::Active, None),
        QuarantineState::Failing => (EntryState::Failed, None),
        QuarantineState::Quarantined { until } => (EntryState::Quarantined, Some(rfc3339(wall + (until - now)))),
    };
    EntryStatus {
        name: entry.name.clone(),
        plugin: entry.digest,
        settings_hash: entry.settings_hash.clone(),
        state,
        faults: entry.quarantine.faults(),
        error: entry.quarantine.last_fault(),
        until,
        reports: entry.state.rendered_reports(),
        reuse: reuse_status(entry, metrics),
    }
}

fn reuse_status(entry: &Entry, metrics: &Metrics) -> Option<ReuseStatus> {
    let (reused, audited) = metrics.reuse_counts(&entry.name);
    let status = ReuseStatus {
        reused,
        audited,
        impure: entry.reuse.first_contradiction().map(str::to_owned),
    };
    Some(status).filter(|status| *status != ReuseStatus::default())
}

#[cfg(test)]
mod tests;
