//! Progress of the first pass over the objects of all kinds, and the Events about labelling. Pure.

use std::collections::BTreeSet;
use std::fmt;

use ctrlmesh_manager_planner::labels::kinds::ConfigError;

use crate::cluster::events::EventDraft;

/// The ConfigMap with the kinds is invalid. `has_list`: an earlier version of it is in force.
pub(super) fn config_refused(error: &ConfigError, has_list: bool) -> EventDraft {
    let in_force = if has_list {
        "the list before"
    } else {
        "the default list"
    };
    EventDraft::warning("ConfigRefused", format!("{error}; {in_force} is in force"))
}

/// These kinds are not labelled. Each has its reason.
pub(super) fn kinds_left_alone(kinds: &[String]) -> EventDraft {
    EventDraft::warning("KindsLeftAlone", format!("not labelled: {}", kinds.join("; ")))
}

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

    /// These kinds are followed from now on.
    pub(super) fn add_kinds(&mut self, kinds: &[String]) -> EventDraft {
        if !self.is_undecided && self.open.is_empty() {
            *self = Self::default();
        }
        self.is_undecided = false;
        self.kinds += kinds.len();
        self.open.extend(kinds.iter().cloned());
        let note = format!("checking every object of {}", kinds.join(", "));
        EventDraft::normal("LabellingStarted", note)
    }

    /// A kind is not followed any more. Returns an Event if it was the last one.
    pub(super) fn remove_kind(&mut self, kind: &str) -> Option<EventDraft> {
        self.close(kind)
    }

    /// Records a report. Returns an Event if this was the last kind.
    pub(super) fn record_report(&mut self, report: Report) -> Option<EventDraft> {
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
    fn is_clean(&self) -> bool {
        self.unreadable.is_empty() && self.unwritable.is_empty() && self.total.failed == 0
    }

    fn close(&mut self, kind: &str) -> Option<EventDraft> {
        let was_open = self.open.remove(kind);
        if !was_open || !self.open.is_empty() || self.is_undecided {
            return None;
        }
        let mut note = format!("checked every object of {} kinds: {}", self.kinds, self.total);
        if self.total.failed > 0 {
            note.push_str(", which is tried again");
        }
        if !self.unreadable.is_empty() {
            note.push_str("; could not read ");
            note.push_str(&self.unreadable.join(", "));
            note.push_str("; grant the manager list, watch and patch on them");
        }
        if !self.unwritable.is_empty() {
            note.push_str("; may not write ");
            note.push_str(&self.unwritable.join(", "));
            note.push_str("; grant the manager patch on them");
        }
        Some(if self.is_clean() {
            EventDraft::normal("LabellingFinished", note)
        } else {
            EventDraft::warning("LabellingIncomplete", note)
        })
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_planner::labels::kinds::{CONFIG_KEY, SelectedKinds};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;

    use super::*;

    fn done_report(kind: &str, seen: u64, written: u64, failed: u64) -> Report {
        Report::Done(kind.into(), Tally { seen, written, failed })
    }

    #[test]
    fn end_of_backfill_is_reported_once_with_totals() {
        let mut progress = Progress::default();
        assert_eq!(
            progress.add_kinds(&["pods".into(), "services".into()]).note,
            "checking every object of pods, services"
        );
        assert!(progress.record_report(done_report("pods", 5, 4, 0)).is_none());
        let said = progress.record_report(done_report("services", 2, 1, 0)).unwrap().note;
        assert_eq!(
            said,
            "checked every object of 2 kinds: 7 objects seen, 5 labelled, 0 failed"
        );
        assert!(progress.is_clean());
        assert!(
            progress.record_report(done_report("services", 2, 1, 0)).is_none(),
            "a later pass of one kind"
        );
    }

    #[test]
    fn end_of_backfill_waits_for_kinds() {
        let mut progress = Progress::new("namespaces");
        assert!(progress.record_report(done_report("namespaces", 3, 1, 0)).is_none());
        progress.add_kinds(&["pods".into()]);
        let said = progress.record_report(done_report("pods", 5, 4, 0)).unwrap().note;
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
        assert!(progress.record_report(done_report("pods", 5, 3, 2)).is_none());
        let said = progress.remove_kind("services").unwrap().note;
        assert!(
            said.contains("2 failed, which is tried again; could not read secrets (forbidden)"),
            "{said}"
        );
        assert!(!progress.is_clean());
        progress.add_kinds(&["services".into()]);
        assert!(progress.is_clean(), "a new pass begins anew");
        let said = progress
            .record_report(Report::Unwritable("services".into()))
            .unwrap()
            .note;
        assert!(
            said.ends_with("; may not write services; grant the manager patch on them"),
            "{said}"
        );
        assert!(!progress.is_clean());
    }
    fn read_config(text: &str) -> Result<SelectedKinds, ConfigError> {
        SelectedKinds::read(&[(CONFIG_KEY.to_owned(), text.to_owned())].into())
    }

    /// The kinds that can't be labelled, of a cluster that has nodes and bindings only.
    fn skipped_kinds(config: &str) -> Vec<String> {
        let resource = |kind: &str, namespaced, verb: &str| APIResource {
            kind: kind.to_owned(),
            name: kind.to_lowercase(),
            namespaced,
            verbs: vec![verb.to_owned()],
            ..APIResource::default()
        };
        let core = [resource("Node", false, "list"), resource("Binding", true, "create")];
        let kinds = read_config(config).unwrap();
        let skipped = kinds.group_versions().flat_map(|group_version| {
            let found: &[APIResource] = if group_version == "v1" { &core } else { &[] };
            kinds.select_resources(group_version, found).1
        });
        skipped.collect()
    }

    #[test]
    fn events_of_labelling_match_snapshot() {
        let refused = |text: &str, has_list| config_refused(&read_config(text).unwrap_err(), has_list);
        let mut events = vec![
            config_refused(&ConfigError::NoKey, false),
            config_refused(&ConfigError::Unreadable("unknown field `kinds`".to_owned()), true),
            refused("groupVersionKinds: {Apps/v1: [Deployment]}", true),
            refused("groupVersionKinds: {v1: [pods]}", true),
            kinds_left_alone(&skipped_kinds(
                "groupVersionKinds: {example.com/v1: ['*'], v1: [Node, Binding, Widget]}",
            )),
        ];
        let mut progress = Progress::default();
        events.push(progress.add_kinds(&["pods".into(), "services".into()]));
        events.extend(progress.record_report(done_report("pods", 5, 4, 0)));
        events.extend(progress.record_report(done_report("services", 2, 1, 0)));
        events.push(progress.add_kinds(&["jobs.batch".into(), "pods".into(), "secrets".into()]));
        events.extend(progress.record_report(done_report("pods", 5, 3, 2)));
        events.extend(progress.record_report(Report::Unreadable("secrets".into(), "forbidden".into())));
        events.extend(progress.record_report(Report::Unwritable("jobs.batch".into())));
        let lines: Vec<String> = events.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
