//! Remarks of verdicts about the rest of a request: which later phases their plugins want, and how its outcome is counted.
//!
//! Guarantees: an outcome is counted once by each rule, at the response head or at the end. Counting calls no plugin unless a tally
//! reaches a threshold.

use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;

use super::Plugins;
use super::short_list::ShortList;
use crate::chain::{Entry, EntryId};
use crate::plugin::verdict::{Outcome, OutcomeRule, Phases, RequestVerdict};
use crate::wasm::CountedOutcome;

/// The remark of one entry's verdict.
#[derive(Debug)]
pub(super) struct Remark {
    entry: EntryId,
    later: Phases,
    outcomes: Option<Rc<[OutcomeRule]>>,
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
        let remark = remarks.iter().find(|remark| remark.entry == entry.id);
        remark.map_or(Phases::ALL, |remark| remark.later)
    }

    /// The entries that count the outcome of the request, in the order of the chain, with their rules.
    fn counting_entries(&self) -> ShortList<(&Arc<Entry>, Rc<[OutcomeRule]>)> {
        let mut counting = ShortList::default();
        for remark in self.remarks.borrow().iter() {
            let mut entries = self.snapshot.entries().iter();
            if let Some(rules) = &remark.outcomes
                && let Some(entry) = entries.find(|entry| entry.id == remark.entry)
            {
                counting.push((entry, Rc::clone(rules)));
            }
        }
        counting
    }

    /// Counts the response head by the rules of an entry that judge heads.
    pub(super) fn count_head(&self, entry: &Arc<Entry>, status: u16) {
        let remarks = self.remarks.borrow();
        let remark = remarks.iter().find(|remark| remark.entry == entry.id);
        let rules = remark.and_then(|remark| remark.outcomes.clone());
        drop(remarks);
        if let Some(rules) = rules {
            self.count_head_by(entry, &rules, status);
        }
    }

    /// Counts the response head by the rules of all entries, last first.
    pub(super) fn count_head_for_all(&self, status: u16) {
        for (entry, rules) in self.counting_entries().iter().rev() {
            self.count_head_by(entry, rules, status);
        }
    }

    fn count_head_by(&self, entry: &Arc<Entry>, rules: &[OutcomeRule], status: u16) {
        let judge = |rule: &OutcomeRule| rule.counting.judge_head(status);
        let id = entry.id.number();
        self.report(entry, &entry.state.count_outcome(rules, id, Instant::now, judge));
    }

    /// Counts the end of the request, at `at`, by the rules of all entries.
    pub(super) fn count_end(&self, outcome: &Outcome, at: Instant) {
        let counting = self.counting_entries();
        if counting.is_empty() {
            return;
        }
        let end = outcome.end();
        let judge = |rule: &OutcomeRule| rule.counting.judge_end(&end);
        for (entry, rules) in counting.iter() {
            let id = entry.id.number();
            self.report(entry, &entry.state.count_outcome(rules, id, || at, judge));
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
