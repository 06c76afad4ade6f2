use ctrlmesh_contract::Settings;
use ctrlmesh_contract::status::Status;
use ctrlmesh_manager_planner::samples;
use serde_json::json;

use super::super::*;

const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-01-01T00:00:10Z";

fn entry(name: &str, shard: &str) -> Entry {
    Entry {
        settings: Settings::new(json!({ "leaderElectionName": "lock", "shard": shard })),
        ..samples::entry(name)
    }
}

/// A sidecar's report of a lock that its controller has held since this time.
fn held_lock(lock: &str, since: &str) -> LeaderElection {
    LeaderElection {
        lock: lock.to_owned(),
        holder: "me".to_owned(),
        leads: true,
        since: Some(since.to_owned()),
        ..LeaderElection::default()
    }
}

fn report_with(elections: &[LeaderElection]) -> Report {
    Report::Status(Box::new(Status {
        leader_elections: elections.to_vec(),
        ..Status::default()
    }))
}

fn no_report() -> Report {
    Report::Unavailable("does not answer".to_owned())
}

fn fleet(reports: &[(&str, Report)]) -> Fleet {
    let sidecar = |(pod, _): &(&str, Report)| Sidecar {
        pod: (*pod).to_owned(),
        ip: Some("10.0.0.1".to_owned()),
        ..Sidecar::default()
    };
    let report_of = |(pod, report): &(&str, Report)| ((*pod).to_owned(), report.clone());
    Fleet {
        sidecars: reports.iter().map(sidecar).collect(),
        reports: reports.iter().map(report_of).collect(),
        ..Fleet::default()
    }
}

fn leader(pod: &str, since: &str) -> LeaderStatus {
    LeaderStatus {
        pod_name: pod.to_owned(),
        holder_identity: "me".to_owned(),
        since: since.to_owned(),
    }
}

fn of_left(fleet: &Fleet) -> Option<LeaderStatus> {
    leader_of(&[&entry("shard-selector/left", "left")], fleet, None)
}

#[test]
fn holder_of_the_shards_own_lock_leads() {
    let standby = LeaderElection {
        leads: false,
        since: None,
        ..held_lock("lock---left", LATE)
    };
    let others = [held_lock("lock---right", LATE), held_lock("lock", LATE), standby];
    assert_eq!(of_left(&fleet(&[("left-1", report_with(&others))])), None);
    let mut reports = vec![
        ("left-0", report_with(&[held_lock("lock---left", EARLY)])),
        ("left-1", report_with(&others)),
        ("left-2", no_report()),
    ];
    assert_eq!(of_left(&fleet(&reports)), Some(leader("left-0", EARLY)));
    reports.remove(0);
    assert_eq!(of_left(&fleet(&reports)), None, "its pod is gone");
    let gone = Fleet {
        sidecars: Vec::new(),
        ..fleet(&[("left-0", report_with(&[held_lock("lock---left", EARLY)]))])
    };
    assert_eq!(of_left(&gone), None);
}

#[test]
fn later_of_two_claimed_leaders_leads() {
    for (first, second, expected) in [(EARLY, LATE, "left-1"), (LATE, EARLY, "left-0"), (LATE, LATE, "left-1")] {
        let both = fleet(&[
            ("left-0", report_with(&[held_lock("lock---left", first)])),
            ("left-1", report_with(&[held_lock("lock---left", second)])),
        ]);
        assert_eq!(of_left(&both), Some(leader(expected, LATE)));
    }
}

#[test]
fn leadership_with_an_invalid_time_is_ignored() {
    let untold = LeaderElection {
        since: None,
        ..held_lock("lock---left", "")
    };
    let broken = [held_lock("lock---left", "yesterday"), untold];
    assert_eq!(of_left(&fleet(&[("left-0", report_with(&broken))])), None);
}

#[test]
fn pods_that_leave_a_shard_elect_by_their_own_lock() {
    let (left, leavers) = (
        entry("shard-selector/left", "left"),
        entry("shard-selector/left/left", "left-left"),
    );
    let leaver = fleet(&[("left-0", report_with(&[held_lock("lock---left-left", EARLY)]))]);
    assert_eq!(leader_of(&[&left, &leavers], &leaver, None), None);
    assert_eq!(lock_name(&leavers).as_deref(), Some("lock---left-left"));
    let without = samples::entry("shard-selector/left");
    assert_eq!(lock_name(&without), None);
    assert_eq!(lock_name(&entry("fault-inject/left", "left")), None);
}

#[test]
fn leader_in_status_stays_until_its_pod_has_answered_or_is_lost() {
    let before = json!(leader("left-0", EARLY));
    let own = entry("shard-selector/left", "left");
    let leader_in = |fleet: &Fleet| leader_of(&[&own], fleet, Some(&before));
    let mut unpolled = fleet(&[("left-0", no_report())]);
    assert_eq!(leader_in(&unpolled), Some(leader("left-0", EARLY)));
    for (failures, stands) in [
        (0, true),
        (FAILED_POLLS_UNTIL_VOID - 1, true),
        (FAILED_POLLS_UNTIL_VOID, false),
    ] {
        unpolled.failures.insert("left-0".to_owned(), failures);
        assert_eq!(leader_in(&unpolled).is_some(), stands, "{failures}");
    }
    assert_eq!(leader_in(&fleet(&[("left-0", report_with(&[]))])), None, "it says no");
    assert_eq!(leader_in(&fleet(&[("left-1", no_report())])), None, "it is gone");
    let mut new = fleet(&[("left-0", no_report())]);
    new.sidecars[0].ip = None;
    assert_eq!(leader_in(&new), None, "another pod of its name");
    let other = fleet(&[
        ("left-0", no_report()),
        ("left-1", report_with(&[held_lock("lock---left", LATE)])),
    ]);
    assert_eq!(leader_in(&other), Some(leader("left-1", LATE)));
    let again = fleet(&[("left-0", no_report())]);
    assert_eq!(leader_of(&[], &again, Some(&before)), None, "the shard has no lock");
    assert_eq!(leader_of(&[&own], &again, Some(&json!({ "podName": "left-0" }))), None);
}
