//! Counts outcomes of requests in tallies, by the rules of verdicts, without a call of the plugin.

use tokio::time::Instant;

use super::{EntryState, Keys, StateError, Value};
use crate::lock::lock_unpoisoned;
use crate::plugin::tally::{Judged, Tally};
use crate::plugin::verdict::{CellWrite, Crossing, OutcomeRule};

/// A tally, and the state of the cells that it belongs to.
#[derive(Debug, Default)]
pub(super) struct StoredTally {
    tally: Tally,
    cells: Vec<CellWrite>,
    /// [`Keys::changes`] when `cells` were last found to be current: until the next change they still are.
    checked_at: Option<u64>,
    /// The highest entry id under which an outcome was counted.
    newest_entry_id: u64,
}

#[cfg(test)]
impl StoredTally {
    /// The counts, and the writes that they belong to. The entry id is left out: two sidecars number entries differently.
    pub(super) fn describe(&self) -> String {
        let writes: Vec<u64> = self.cells.iter().map(|cell| cell.write).collect();
        format!("{:?} {writes:?}", self.tally)
    }
}

/// Effects of counting an outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CountedOutcome {
    /// The tallies that reached a threshold.
    pub(crate) crossings: Vec<Crossing>,
    /// Number of rules that could not count, because the entry has no room for a tally.
    pub(crate) uncounted: u64,
}

impl StoredTally {
    pub(super) fn is_empty(&mut self, now_ms: u64) -> bool {
        self.tally.is_empty(now_ms)
    }

    /// Whether the cells of the rule are known to be as they were under its request.
    fn is_current(&self, rule: &OutcomeRule, changes: u64) -> bool {
        self.checked_at == Some(changes) && self.cells == rule.cells
    }

    /// Gives the tally the cells of a rule, which are current.
    fn fit_cells(&mut self, cells: &[CellWrite], checked_at: u64) {
        if self.cells != cells {
            let writes = self.cells.iter().map(|cell| cell.write);
            if !writes.eq(cells.iter().map(|cell| cell.write)) {
                // The rule's cells are as they are now, so the tally is of an earlier state.
                self.tally = Tally::default();
            }
            self.cells = cells.to_vec();
        }
        self.checked_at = Some(checked_at);
    }
}

impl EntryState {
    /// Counts an outcome, in one atomic step. `judge` says how a rule counts it; `None`: not at all. An outcome of a request that was let
    /// through under another state of a rule's cells is not counted by that rule. `now` returns the current time; it is called if a rule
    /// counts.
    ///
    /// `entry_id` is the id of the entry that gave the rules; an entry gets a new, higher id with each change of its settings, plugin or
    /// limits. Once a rule under a higher id has counted in a tally, outcomes under lower ids are not counted there: their thresholds and
    /// windows may be obsolete.
    pub(crate) fn count_outcome(
        &self,
        rules: &[OutcomeRule],
        entry_id: u64,
        now: impl FnOnce() -> Instant,
        judge: impl Fn(&OutcomeRule) -> Option<Judged>,
    ) -> CountedOutcome {
        let mut counted = CountedOutcome::default();
        let mut judged = rules.iter().filter_map(|rule| Some((rule, judge(rule)?))).peekable();
        if judged.peek().is_none() {
            return counted;
        }
        let now_ms = self.clock.monotonic_ms_at(now());
        let mut keys = lock_unpoisoned(&self.keys);
        for (rule, judged) in judged {
            match keys.count_outcome(rule, entry_id, judged, now_ms) {
                Ok(crossing) => counted.crossings.extend(crossing),
                Err(_) => counted.uncounted += 1,
            }
        }
        counted
    }

    /// Reports crossings again at the next outcome beyond a threshold: the plugin did not learn of them.
    pub(crate) fn report_again(&self, crossings: &[Crossing]) {
        let mut keys = lock_unpoisoned(&self.keys);
        for crossing in crossings {
            if let Some(Value::Tally(stored)) = keys.values.get_mut(&crossing.tally) {
                stored.tally.report_again();
            }
        }
    }
}

impl Keys {
    fn count_outcome(
        &mut self,
        rule: &OutcomeRule,
        entry_id: u64,
        judged: Judged,
        now_ms: u64,
    ) -> Result<Option<Crossing>, StateError> {
        let stored = match self.values.get_mut(&rule.tally) {
            // The usual case: only the tally is looked up.
            Some(Value::Tally(stored)) if stored.is_current(rule, self.changes) => {
                if entry_id < stored.newest_entry_id {
                    return Ok(None);
                }
                stored
            }
            _ => match self.current_tally(rule, entry_id, now_ms)? {
                Some(stored) => stored,
                None => return Ok(None),
            },
        };
        stored.newest_entry_id = entry_id;
        let Some((crossed, counts)) = stored.tally.count(&rule.counting, judged, now_ms) else {
            return Ok(None);
        };
        Ok(Some(Crossing {
            tally: rule.tally.clone(),
            versions: rule.cells.iter().map(|cell| self.version_of(&cell.key)).collect(),
            crossed,
            counts,
        }))
    }

    /// The tally of a rule, for the rule's cells; `None` if the rule does not count in it any more.
    fn current_tally(
        &mut self,
        rule: &OutcomeRule,
        entry_id: u64,
        now_ms: u64,
    ) -> Result<Option<&mut StoredTally>, StateError> {
        // Before the tally is added, which is a change, too: its key may be that of a cell.
        let changes = self.changes;
        let is_current = |cell: &CellWrite| self.write_of(&cell.key) == Some(cell.write);
        if !rule.cells.iter().all(is_current) {
            return Ok(None);
        }
        let fresh = || Value::Tally(StoredTally::default());
        let Value::Tally(stored) = self.value(&rule.tally, now_ms, fresh)? else {
            return Err(StateError::WrongKind);
        };
        if entry_id < stored.newest_entry_id {
            return Ok(None);
        }
        stored.fit_cells(&rule.cells, changes);
        Ok(Some(stored))
    }

    /// The version of a cell; 0 if it does not exist.
    fn version_of(&self, key: &str) -> u64 {
        match self.values.get(key) {
            Some(Value::Cell(cell, _)) => cell.version,
            _ => 0,
        }
    }
}
