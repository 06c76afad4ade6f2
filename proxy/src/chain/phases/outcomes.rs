//! Remarks of verdicts about the rest of a request: which later phases their plugins want, and how its outcome is counted.
//!
//! Guarantees: an outcome is counted once by each rule, at the response head or at the end. Counting calls no plugin unless a tally
//! reaches a threshold.

use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;

use super::Plugins;
use crate::chain::{Entry, EntryId};
use crate::plugin::verdict::{Outcome, OutcomeRule, Phases, RequestVerdict};
use crate::wasm::CountedOutcome;

/// Remarks of verdicts about the rest of a request. The first one is kept in place: most requests have no other, and allocate nothing.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    first: Option<Remark>,
    others: Vec<Remark>,
}

/// The remark of one entry's verdict.
#[derive(Debug)]
struct Remark {
    entry: EntryId,
    later: Phases,
    outcomes: Option<Rc<[OutcomeRule]>>,
}

impl Remarks {
    fn push(&mut self, remark: Remark) {
        if self.first.is_none() {
            self.first = Some(remark);
        } else {
            self.others.push(remark);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Remark> {
        self.first.iter().chain(&self.others)
    }

    fn remark_of(&self, entry: EntryId) -> Option<&Remark> {
        self.iter().find(|remark| remark.entry == entry)
    }
}

impl Plugins {
    /// Keeps what the verdict of an entry says about the rest of the request.
    pub(super) fn note_remark(&self, entry: &Entry, verdict: &RequestVerdict) {
        let (subscribed, later) = (entry.subscription.phases, verdict.later);
        let leaves_out = subscribed.response && !later.response || subscribed.complete && !later.complete;
        if leaves_out || verdict.outcomes.is_some() {
            self.remarks.borrow_mut().push(Remark {
                entry: entry.id,
                later,
                outcomes: verdict.outcomes.clone(),
            });
        }
    }

    /// The later phases that the entry wants for this request, of those that it subscribes to.
    pub(super) fn later_phases(&self, entry: &Entry) -> Phases {
        let remarks = self.remarks.borrow();
        remarks.remark_of(entry.id).map_or(Phases::ALL, |remark| remark.later)
    }

    fn outcome_rules(&self, entry: &Entry) -> Option<Rc<[OutcomeRule]>> {
        self.remarks.borrow().remark_of(entry.id)?.outcomes.clone()
    }

    /// Whether any entry counts the outcome of the request.
    fn is_counted(&self) -> bool {
        self.remarks.borrow().iter().any(|remark| remark.outcomes.is_some())
    }

    /// Counts the response head by the rules of an entry that judge heads.
    pub(super) fn count_head(&self, entry: &Arc<Entry>, status: u16) {
        if let Some(rules) = self.outcome_rules(entry) {
            let judge = |rule: &OutcomeRule| rule.counting.judge_head(status);
            let counted = entry
                .state
                .count_outcome(&rules, entry.id.number(), Instant::now, judge);
            self.report(entry, &counted);
        }
    }

    /// Counts the response head by the rules of all entries, last first.
    pub(super) fn count_head_for_all(&self, status: u16) {
        if self.is_counted() {
            for entry in self.snapshot.matched_entries(self.matched).rev() {
                self.count_head(entry, status);
            }
        }
    }

    /// Counts the end of the request, at `at`, by the rules of all entries.
    pub(super) fn count_end(&self, outcome: &Outcome, at: Instant) {
        if !self.is_counted() {
            return;
        }
        let end = outcome.end();
        let judge = |rule: &OutcomeRule| rule.counting.judge_end(&end);
        for entry in self.snapshot.matched_entries(self.matched) {
            if let Some(rules) = self.outcome_rules(entry) {
                let counted = entry.state.count_outcome(&rules, entry.id.number(), || at, judge);
                self.report(entry, &counted);
            }
        }
    }

    fn report(&self, entry: &Arc<Entry>, counted: &CountedOutcome) {
        if counted.uncounted > 0 {
            self.instances.count_uncounted_outcomes(entry, counted.uncounted);
        }
        if !counted.crossings.is_empty() {
            self.instances.on_crossed(entry, &counted.crossings);
        }
    }
}

#[cfg(test)]
mod tests;
