//! What exchanges about one lock say of who holds it. Pure: times come in.
//!
//! The controller leads from the moment on when it *asked* for a write that made it the holder, and for as long as the lock then
//! says: an answer may come late, and whoever waits for the lock counts from no earlier. Exchanges cross each other, so
//! one counts by when it was asked, never by when it was answered; resource versions have no order.

use std::time::SystemTime;

use ctrlmesh_contract::status::LeaderElection;
use ctrlmesh_wire::LockRecord;
use tokio::time::Instant;

use crate::timestamp::rfc3339;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) resource: &'static str,
    pub(super) namespace: String,
    /// As the controller knows it.
    pub(super) name: String,
    /// As the API server knows it.
    pub(super) renamed: String,
}

/// When something was asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) at: Instant,
    /// The same, to be shown.
    pub(super) wall: SystemTime,
}

/// One lock, as heard.
#[derive(Debug)]
pub(super) struct Election {
    pub(super) lock: Lock,
    /// Who holds it, by what was heard last.
    holder: String,
    term: Option<Term>,
    /// Holder and renewal that were shown last.
    shown: Option<(String, String)>,
    /// When the write was asked for that counted last.
    written: Option<Instant>,
    /// A read that was asked for before this may show what was before.
    known_from: Option<Instant>,
}

/// What the controller has written of itself.
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

    /// The controller has written the lock, which says this since.
    pub(super) fn wrote(&mut self, record: LockRecord, asked: Asked, answered: Instant) {
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
        // It has held on to it.
        let before = before.filter(|term| term.holder == record.holder && asked.at < term.until);
        self.term = Some(Term {
            holder: record.holder,
            since: before.map_or(asked.wall, |term| term.since),
            until,
            transitions: record.transitions,
        });
    }

    /// Whether a write has left a record as it was shown before: somebody's who is not in this pod, as far as is known.
    fn is_anothers(&self, record: &LockRecord) -> bool {
        let is_own = self.term.as_ref().is_some_and(|term| term.holder == record.holder);
        let shown = self.shown.as_ref();
        let is_as_shown = shown.is_some_and(|(holder, time)| (holder, time) == (&record.holder, &record.renew_time));
        is_as_shown && !is_own && !record.holder.is_empty()
    }

    /// The API server has shown the lock as it was at some time since it was asked.
    pub(super) fn read(&mut self, record: LockRecord, asked: Instant) {
        if self.known_from.is_none_or(|from| asked >= from) {
            self.known_from = Some(asked);
            self.take(record);
        }
    }

    /// A watch or a cache has shown the lock as it once was: later than what the controller has written if it has changed hands
    /// more often.
    pub(super) fn saw(&mut self, record: LockRecord) {
        let is_later = |term: &Term| {
            let both = record.transitions.zip(term.transitions);
            both.is_some_and(|(shown, written)| shown > written)
        };
        if self.term.as_ref().is_none_or(is_later) {
            self.take(record);
        }
    }

    fn take(&mut self, record: LockRecord) {
        if self.term.as_ref().is_some_and(|term| term.holder != record.holder) {
            self.term = None;
        }
        self.holder.clone_from(&record.holder);
        self.shown = Some((record.holder, record.renew_time));
    }

    /// The controller has deleted the lock.
    pub(super) fn deleted(&mut self, asked: Asked, answered: Instant) {
        self.wrote(LockRecord::default(), asked, answered);
    }

    /// Since when the controller leads, if it does now.
    fn leads_since(&self, now: Instant) -> Option<SystemTime> {
        let term = self.term.as_ref().filter(|term| now < term.until)?;
        Some(term.since)
    }

    /// Which election is forgotten first: one in which the controller does not lead, and of which nothing was heard for longest.
    pub(super) fn worth(&self, now: Instant) -> (bool, Option<Instant>) {
        (self.leads_since(now).is_some(), self.known_from)
    }

    /// As `/status` shows it.
    pub(super) fn told(&self, now: Instant) -> LeaderElection {
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
