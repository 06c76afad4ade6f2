use ctrlmesh_contract::status::{Refused, Status};
use ctrlmesh_manager_planner::samples;

use super::super::*;

fn entries() -> [Entry; 1] {
    [samples::entry("shard-selector/a")]
}

/// A pod that runs nothing, or does not answer.
fn fleet(uid: &str, nudged: Option<u64>, status: Option<Status>) -> Fleet {
    let sidecar = Sidecar {
        pod: "operator-0".to_owned(),
        uid: uid.to_owned(),
        ip: Some("10.0.0.1".to_owned()),
        nudged,
        ..Sidecar::default()
    };
    let report = status.map_or(Report::Unavailable("starts".to_owned()), |status| {
        Report::Status(Box::new(status))
    });
    Fleet {
        reports: [(sidecar.pod.clone(), report)].into(),
        sidecars: vec![sidecar],
        ..Fleet::default()
    }
}

fn fleet_behind(nudged: Option<u64>) -> Fleet {
    fleet("uid", nudged, Some(Status::default()))
}

/// Nudges the pods that are due after these seconds. Returns how often each was nudged before, and the seconds until the next.
fn nudge_due_pods(history: &mut NudgeHistory, fleet: &Fleet, start: Instant, seconds: u64) -> (Vec<u32>, Option<u64>) {
    let now = start + Duration::from_secs(seconds);
    let (due, next) = due_nudges(history, fleet, &entries(), 7, now);
    for nudge in &due {
        record_nudge(history, nudge, 7, now);
    }
    let times = due.iter().map(|nudge| nudge.again).collect();
    (times, next.map(|next| next.as_secs()))
}

#[test]
fn pod_is_nudged_once_until_the_cache_should_show_it() {
    let (mut history, start) = (NudgeHistory::new(), Instant::now());
    let made_again = fleet("another", None, Some(Status::default()));
    assert_eq!(
        nudge_due_pods(&mut history, &fleet_behind(Some(6)), start, 0),
        (vec![0], None)
    );
    assert_eq!(
        nudge_due_pods(&mut history, &fleet_behind(Some(6)), start, 4),
        (vec![], None),
        "not seen yet"
    );
    assert_eq!(
        nudge_due_pods(&mut history, &fleet_behind(Some(6)), start, 5),
        (vec![0], None),
        "it never was"
    );
    assert_eq!(
        nudge_due_pods(&mut history, &made_again, start, 6),
        (vec![0], None),
        "another of this name"
    );
    let silent = |nudged| fleet("uid", nudged, None);
    let mut history = NudgeHistory::new();
    assert_eq!(
        nudge_due_pods(&mut history, &silent(Some(6)), start, 0),
        (vec![0], None)
    );
    assert_eq!(
        nudge_due_pods(&mut history, &silent(Some(7)), start, 900),
        (vec![], None)
    );
}

#[test]
fn nudge_is_repeated_three_times_while_pod_answers_without_the_chain() {
    let (mut history, start) = (NudgeHistory::new(), Instant::now());
    assert_eq!(
        nudge_due_pods(&mut history, &fleet_behind(Some(6)), start, 0),
        (vec![0], None)
    );
    let fleet = fleet_behind(Some(7));
    assert_eq!(nudge_due_pods(&mut history, &fleet, start, 1), (vec![], Some(2)));
    assert_eq!(nudge_due_pods(&mut history, &fleet, start, 3), (vec![1], None));
    assert_eq!(nudge_due_pods(&mut history, &fleet, start, 3), (vec![], Some(10)));
    assert_eq!(nudge_due_pods(&mut history, &fleet, start, 13), (vec![2], None));
    assert_eq!(nudge_due_pods(&mut history, &fleet, start, 42), (vec![], Some(1)));
    assert_eq!(nudge_due_pods(&mut history, &fleet, start, 43), (vec![3], None));
    assert_eq!(nudge_due_pods(&mut history, &fleet, start, 900), (vec![], None));
}

#[test]
fn next_manager_continues_nudges() {
    let (mut history, start) = (NudgeHistory::new(), Instant::now());
    let mut fleet = fleet_behind(Some(7));
    fleet.sidecars[0].renudged = Some((7, 2));
    assert_eq!(nudge_due_pods(&mut history, &fleet, start, 0), (vec![], Some(30)));
    assert_eq!(nudge_due_pods(&mut history, &fleet, start, 30), (vec![3], None));
    fleet.sidecars[0].renudged = Some((6, 3));
    assert_eq!(
        nudge_due_pods(&mut NudgeHistory::new(), &fleet, start, 0),
        (vec![], Some(3)),
        "of an earlier chain"
    );
    fleet.sidecars[0].renudged = Some((7, u32::MAX));
    assert_eq!(
        nudge_due_pods(&mut NudgeHistory::new(), &fleet, start, 0),
        (vec![], None)
    );
}

#[test]
fn sidecar_that_refused_the_chain_is_not_nudged_again() {
    let (mut history, start) = (NudgeHistory::new(), Instant::now());
    let refused = Refused {
        generation: Some(7),
        reason: "TooLarge".to_owned(),
        message: "too large".to_owned(),
        when: "now".to_owned(),
    };
    let status = Status {
        refused: Some(refused),
        ..Status::default()
    };
    let fleet = fleet("uid", Some(7), Some(status));
    for seconds in [0, 900] {
        assert_eq!(nudge_due_pods(&mut history, &fleet, start, seconds), (vec![], None));
    }
}
