//! Derives who holds one lock from the exchanges about it. Pure: times are passed in.
//!
//! The controller leads from the moment at which it *requested* the write that made it the holder, for as long as the lock's record says: a
//! response may come late, and other candidates count from no earlier. Exchanges can cross each other, so they are ordered by the time of
//! the request, never by that of the response; resource versions have no order.

use std::time::SystemTime;

use ctrlmesh_contract::status::LeaderElection;
use ctrlmesh_wire::LockRecord;
use tokio::time::Instant;

use crate::timestamp::rfc3339;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) resource: &'static str,
    pub(super) namespace: String,
    /// Name that the controller uses.
    pub(super) name: String,
    /// Name at the API server.
    pub(super) renamed: String,
}

/// Time of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) at: Instant,
    /// `at` by the wall clock.
    pub(super) wall: SystemTime,
}

/// Observations of one lock.
#[derive(Debug)]
pub(super) struct Election {
    pub(super) lock: Lock,
    /// Holder according to the last observation.
    holder: String,
    term: Option<Term>,
    /// Holder and renewal time of the last record that was read.
    shown: Option<(String, String)>,
    /// Request time of the latest write that counted.
    written: Option<Instant>,
    /// A read that was requested before this may show an older state.
    known_from: Option<Instant>,
}

/// The controller's own leadership, as it wrote it.
#[derive(Debug)]
struct Term {
    holder: String,
    since: SystemTime,
    until: Instant,
    transitions: Option<i64>,
}

impl Election {
    pub(super) fn new(lock: Lock) -> Self {
        Self {
            lock,
            holder: String::new(),
            term: None,
            shown: None,
            written: None,
            known_from: None,
        }
    }

    /// The controller has written this record to the lock.
    pub(super) fn record_write(&mut self, record: LockRecord, asked: Asked, answered: Instant) {
        if self.written.is_some_and(|later| asked.at < later) {
            return;
        }
        if self.is_anothers(&record) {
            return self.read(record, asked.at);
        }
        self.written = Some(asked.at);
        self.known_from = Some(answered);
        let before = self.term.take();
        self.holder.clone_from(&record.holder);
        let Some(until) = asked.at.checked_add(record.lease_duration) else {
            return;
        };
        if record.holder.is_empty() {
            return;
        }
        // The controller has kept the lock without a gap.
        let before = before.filter(|term| term.holder == record.holder && asked.at < term.until);
        self.term = Some(Term {
            holder: record.holder,
            since: before.map_or(asked.wall, |term| term.since),
            until,
            transitions: record.transitions,
        });
    }

    /// Whether a write kept the record as it was read before. Then the record belongs to a holder outside this pod, as far as is known.
    fn is_anothers(&self, record: &LockRecord) -> bool {
        let is_own = self.term.as_ref().is_some_and(|term| term.holder == record.holder);
        let shown = self.shown.as_ref();
        let is_as_shown = shown.is_some_and(|(holder, time)| (holder, time) == (&record.holder, &record.renew_time));
        is_as_shown && !is_own && !record.holder.is_empty()
    }

    /// The API server has returned the record as it was at some time after the request.
    pub(super) fn read(&mut self, record: LockRecord, asked: Instant) {
        if self.known_from.is_none_or(|from| asked >= from) {
            self.known_from = Some(asked);
            self.set_record(record);
        }
    }

    /// A watch or a cache has returned a record of unknown age. It is newer than the controller's own write if the lock has changed hands
    /// more often.
    pub(super) fn record_read(&mut self, record: LockRecord) {
        let is_later = |term: &Term| {
            let both = record.transitions.zip(term.transitions);
            both.is_some_and(|(shown, written)| shown > written)
        };
        if self.term.as_ref().is_none_or(is_later) {
            self.set_record(record);
        }
    }

    fn set_record(&mut self, record: LockRecord) {
        if self.term.as_ref().is_some_and(|term| term.holder != record.holder) {
            self.term = None;
        }
        self.holder.clone_from(&record.holder);
        self.shown = Some((record.holder, record.renew_time));
    }

    /// The controller has deleted the lock.
    pub(super) fn record_deletion(&mut self, asked: Asked, answered: Instant) {
        self.record_write(LockRecord::default(), asked, answered);
    }

    /// Start of the controller's leadership, if it leads now.
    fn leads_since(&self, now: Instant) -> Option<SystemTime> {
        let term = self.term.as_ref().filter(|term| now < term.until)?;
        Some(term.since)
    }

    /// End of the time during which the controller may believe that it leads; `None` if it does not lead.
    pub(super) fn leads_until(&self, now: Instant) -> Option<Instant> {
        let term = self.term.as_ref().filter(|term| now < term.until)?;
        Some(term.until)
    }

    /// Order in which elections are forgotten: first those in which the controller does not lead, and of these the one that was not
    /// observed for longest.
    pub(super) fn retention_priority(&self, now: Instant) -> (bool, Option<Instant>) {
        (self.leads_since(now).is_some(), self.known_from)
    }

    /// The election for `/status`.
    pub(super) fn to_status(&self, now: Instant) -> LeaderElection {
        let since = self.leads_since(now);
        LeaderElection {
            resource: self.lock.resource.to_owned(),
            namespace: self.lock.namespace.clone(),
            name: self.lock.name.clone(),
            lock: self.lock.renamed.clone(),
            holder: self.holder.clone(),
            leads: since.is_some(),
            since: since.map(rfc3339),
        }
    }
}

#[cfg(test)]
mod tests;
