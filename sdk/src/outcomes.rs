//! Constructors for rules by which the host counts outcomes. Their meaning is defined in `wit/types.wit`.

use crate::{ConnectionFailures, OutcomeRule, OutcomeWindow, StatusRange};

impl OutcomeRule {
    /// A rule that counts in the tally of this key. A failure is a response with 429 or 5xx, or a failure of the connection. Add
    /// a threshold: [`window`](Self::window) or [`consecutive_failures`](Self::consecutive_failures).
    pub fn new(tally: impl Into<String>) -> Self {
        Self {
            tally: tally.into(),
            cells: Vec::new(),
            at_head: false,
            failing_statuses: vec![
                StatusRange { first: 429, last: 429 },
                StatusRange { first: 500, last: 599 },
            ],
            failing_connections: ConnectionFailures::all(),
            slower_than_us: None,
            window: None,
            consecutive_failures: None,
        }
    }

    /// Binds the tally to a cell that this call has read: when the cell is written or removed, the tally starts empty, and
    /// requests from before are not counted. At most 4.
    #[must_use]
    pub fn cell(mut self, key: impl Into<String>) -> Self {
        self.cells.push(key.into());
        self
    }

    /// Whether the response head is counted instead of the end of the request, as for a watch. Default: no. A 101, with which a
    /// tunnel begins, is always counted at its head.
    #[must_use]
    pub fn at_head(mut self, at_head: bool) -> Self {
        self.at_head = at_head;
        self
    }

    /// The statuses that are failures, as first and last status of each range.
    #[must_use]
    pub fn failing_statuses(mut self, ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let range = |(first, last)| StatusRange { first, last };
        self.failing_statuses = ranges.into_iter().map(range).collect();
        self
    }

    /// The failures of the connection that are failures of the request.
    #[must_use]
    pub fn failing_connections(mut self, failures: ConnectionFailures) -> Self {
        self.failing_connections = failures;
        self
    }

    /// A request is slow if its response head takes longer.
    #[must_use]
    pub fn slower_than_us(mut self, slower_than_us: u64) -> Self {
        self.slower_than_us = Some(slower_than_us);
        self
    }

    /// Thresholds for shares of failed and slow requests.
    #[must_use]
    pub fn window(mut self, window: OutcomeWindow) -> Self {
        self.window = Some(window);
        self
    }

    /// A threshold for failures in a row.
    #[must_use]
    pub fn consecutive_failures(mut self, failures: u32) -> Self {
        self.consecutive_failures = Some(failures);
        self
    }
}
