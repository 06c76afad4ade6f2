//! Progress of the first pass over the objects of all kinds: the texts that are reported at its beginning and end. Pure.

use std::collections::BTreeSet;
use std::fmt;

/// Counts of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) seen: u64,
    /// Objects whose labels were written.
    pub(super) written: u64,
    /// Objects whose labels could not be written.
    pub(super) failed: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} objects seen, {} labelled, {} failed",
            self.seen, self.written, self.failed
        )
    }
}

/// A report of a kind's follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// Every object was checked.
    Done(String, Tally),
    /// The objects can't be read, and why.
    Unreadable(String, String),
    /// Every object was checked, but none may be written.
    Unwritable(String),
}

/// The kinds whose objects were not all checked yet.
#[derive(Debug, Default)]
pub(super) struct Progress {
    open: BTreeSet<String>,
    /// The kinds of the cluster are not known yet.
    is_undecided: bool,
    unreadable: Vec<String>,
    unwritable: Vec<String>,
    kinds: usize,
    total: Tally,
}

impl Progress {
    /// This kind is followed already, and others will be.
    pub(super) fn new(kind: &str) -> Self {
        Self {
            open: [kind.to_owned()].into(),
            is_undecided: true,
            kinds: 1,
            ..Self::default()
        }
    }

    /// These kinds are followed from now on. Returns the text to report.
    pub(super) fn add_kinds(&mut self, kinds: &[String]) -> String {
        if !self.is_undecided && self.open.is_empty() {
            *self = Self::default();
        }
        self.is_undecided = false;
        self.kinds += kinds.len();
        self.open.extend(kinds.iter().cloned());
        format!("checking every object of {}", kinds.join(", "))
    }

    /// A kind is not followed any more. Returns the text to report if it was the last one.
    pub(super) fn remove_kind(&mut self, kind: &str) -> Option<String> {
        self.close(kind)
    }

    /// Records a report. Returns the text to report if this was the last kind.
    pub(super) fn record_report(&mut self, report: Report) -> Option<String> {
        match report {
            Report::Done(kind, tally) => {
                if self.open.contains(&kind) {
                    self.total.seen += tally.seen;
                    self.total.written += tally.written;
                    self.total.failed += tally.failed;
                }
                self.close(&kind)
            }
            Report::Unreadable(kind, error) => {
                if self.open.contains(&kind) {
                    self.unreadable.push(format!("{kind} ({error})"));
                }
                self.close(&kind)
            }
            Report::Unwritable(kind) => {
                if self.open.contains(&kind) {
                    self.unwritable.push(kind.clone());
                }
                self.close(&kind)
            }
        }
    }

    /// Whether nothing is left to be retried.
    pub(super) fn is_clean(&self) -> bool {
        self.unreadable.is_empty() && self.unwritable.is_empty() && self.total.failed == 0
    }

    fn close(&mut self, kind: &str) -> Option<String> {
        let was_open = self.open.remove(kind);
        if !was_open || !self.open.is_empty() || self.is_undecided {
            return None;
        }
        let mut said = format!("checked every object of {} kinds: {}", self.kinds, self.total);
        if self.total.failed > 0 {
            said.push_str(", which is tried again");
        }
        if !self.unreadable.is_empty() {
            said.push_str("; could not read ");
            said.push_str(&self.unreadable.join(", "));
            said.push_str("; grant the manager list, watch and patch on them");
        }
        if !self.unwritable.is_empty() {
            said.push_str("; may not write ");
            said.push_str(&self.unwritable.join(", "));
            said.push_str("; grant the manager patch on them");
        }
        Some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done_report(kind: &str, seen: u64, written: u64, failed: u64) -> Report {
        Report::Done(kind.into(), Tally { seen, written, failed })
    }

    #[test]
    fn end_of_backfill_is_reported_once_with_totals() {
        let mut progress = Progress::default();
        assert_eq!(
            progress.add_kinds(&["pods".into(), "services".into()]),
            "checking every object of pods, services"
        );
        assert_eq!(progress.record_report(done_report("pods", 5, 4, 0)), None);
        let said = progress.record_report(done_report("services", 2, 1, 0)).unwrap();
        assert_eq!(
            said,
            "checked every object of 2 kinds: 7 objects seen, 5 labelled, 0 failed"
        );
        assert!(progress.is_clean());
        assert_eq!(
            progress.record_report(done_report("services", 2, 1, 0)),
            None,
            "a later pass of one kind"
        );
    }

    #[test]
    fn end_of_backfill_waits_for_kinds() {
        let mut progress = Progress::new("namespaces");
        assert_eq!(progress.record_report(done_report("namespaces", 3, 1, 0)), None);
        progress.add_kinds(&["pods".into()]);
        let said = progress.record_report(done_report("pods", 5, 4, 0)).unwrap();
        assert_eq!(
            said,
            "checked every object of 2 kinds: 8 objects seen, 5 labelled, 0 failed"
        );
    }

    #[test]
    fn progress_reports_failures() {
        let mut progress = Progress::default();
        progress.add_kinds(&["pods".into(), "secrets".into(), "services".into()]);
        progress.record_report(Report::Unreadable("secrets".into(), "forbidden".into()));
        assert_eq!(progress.record_report(done_report("pods", 5, 3, 2)), None);
        let said = progress.remove_kind("services").unwrap();
        assert!(
            said.contains("2 failed, which is tried again; could not read secrets (forbidden)"),
            "{said}"
        );
        assert!(!progress.is_clean());
        progress.add_kinds(&["services".into()]);
        assert!(progress.is_clean(), "a new pass begins anew");
        let said = progress.record_report(Report::Unwritable("services".into())).unwrap();
        assert!(
            said.ends_with("; may not write services; grant the manager patch on them"),
            "{said}"
        );
        assert!(!progress.is_clean());
    }
}
