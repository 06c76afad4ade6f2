//! The decision on a table event, from those on the objects of its rows. Servers send one row.

use super::{EventDecision, EventType, FilterError};

/// The decision that all rows of an event share.
#[derive(Debug)]
pub(super) struct RowsDecision {
    event_type: EventType,
    common: Option<EventDecision>,
}

impl RowsDecision {
    pub(super) const fn new(event_type: EventType) -> Self {
        Self {
            event_type,
            common: None,
        }
    }

    /// Adds the decision on a row. False if it differs from that on another row, because the event has one type.
    pub(super) fn add(&mut self, decision: EventDecision) -> bool {
        let decision = match decision {
            // A bookmark of a table has a row of its own form, which only a server can make. A row without cells breaks
            // clients that print it.
            EventDecision::Bookmark | EventDecision::Tombstone => EventDecision::Drop,
            EventDecision::KeepAs(same_type) if same_type == self.event_type => EventDecision::Keep,
            decision => decision,
        };
        *self.common.get_or_insert(decision) == decision
    }

    /// # Errors
    /// When there was no row.
    pub(super) fn finish(self) -> Result<EventDecision, FilterError> {
        self.common.ok_or(FilterError::NoMetadata)
    }
}
