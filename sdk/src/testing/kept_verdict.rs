//! What a host keeps of a verdict until its request is over, and the cells that a call has read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::tally::CountingRule;
use crate::Phases;

/// The parts of a verdict that a host keeps until the request is over.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptVerdict {
    pub(super) later: Phases,
    pub(super) rules: Vec<KeptRule>,
    /// Keys of the annotations that the verdict asks for; `None` if it does not ask about objects.
    pub(super) asked_annotations: Option<BTreeSet<String>>,
}

/// An outcome rule, with the cells as the call read them, and the settings under which it was given.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptRule {
    pub(super) tally: String,
    /// Keys, and how often each had been changed when it was read last.
    pub(super) cells: Vec<(String, u64)>,
    pub(super) counting: CountingRule,
    /// How often the settings had changed.
    pub(super) settings: u64,
}

/// Cells that were changed, and cells that were read.
#[derive(Debug, Default)]
pub(super) struct CellLog {
    /// How often each cell was written or removed.
    changes: RefCell<BTreeMap<String, u64>>,
    /// Cells that the call for a verdict on a request has read, with how often each had been changed at its last read.
    reads: RefCell<BTreeMap<String, u64>>,
}

impl CellLog {
    pub(super) fn note_change(&self, key: &str) {
        *self.changes.borrow_mut().entry(key.to_owned()).or_default() += 1;
    }

    pub(super) fn note_read(&self, key: &str) {
        let changes = self.changes_of(key);
        self.reads.borrow_mut().insert(key.to_owned(), changes);
    }

    /// Returns the reads, and forgets them.
    pub(super) fn take_reads(&self) -> BTreeMap<String, u64> {
        self.reads.take()
    }

    /// Outcome rules can name only cells that are read from now on: another call begins.
    pub(super) fn forget_reads(&self) {
        self.reads.borrow_mut().clear();
    }

    pub(super) fn changes_of(&self, key: &str) -> u64 {
        self.changes.borrow().get(key).copied().unwrap_or_default()
    }
}
