use ctrlmesh_contract::names::labels::KEEPS_LIMITS;
use ctrlmesh_contract::{LabelSelector, Operator, Requirement};
use ctrlmesh_manager_planner::hand_over::restart_policy::Stale;
use ctrlmesh_manager_planner::samples;

use super::super::*;

/// A pod of the shard; `keeps`: it sees what it saw before.
fn pod(name: &str, keeps: bool) -> Sidecar {
    let keeps = keeps.then(|| (KEEPS_LIMITS.to_owned(), "before".to_owned()));
    Sidecar {
        pod: name.to_owned(),
        uid: format!("uid-{name}"),
        ip: Some("10.0.0.1".to_owned()),
        is_scheduled: true,
        shard_pods: keeps.as_ref().map(|_| 3),
        labels: keeps.into_iter().collect(),
        is_ready: true,
        owner: Some("StatefulSet left".to_owned()),
        ..Sidecar::default()
    }
}

fn eviction() -> Evict {
    let kept = Requirement {
        key: KEEPS_LIMITS.to_owned(),
        operator: Operator::In,
        values: vec!["before".to_owned()],
    };
    Evict {
        entry: "shard-selector/a".to_owned(),
        pods: LabelSelector::default(),
        stale: Stale::Keeping(LabelSelector {
            match_expressions: vec![kept],
            ..LabelSelector::default()
        }),
    }
}

fn entry() -> Entry {
    samples::entry("shard-selector/a")
}

fn current_report() -> Report {
    Report::Status(Box::new(samples::running(0, &[entry()])))
}

/// Three pods that answer.
fn fleet(pods: [Sidecar; 3]) -> Fleet {
    let reports = pods.iter().map(|pod| (pod.pod.clone(), current_report()));
    Fleet {
        fresh: pods.iter().map(|pod| pod.pod.clone()).collect(),
        reports: reports.collect(),
        sidecars: pods.to_vec(),
        ..Fleet::default()
    }
}

fn chain() -> Chain {
    Chain {
        namespace: "demo".to_owned(),
        generation: 7,
        entries: vec![entry()],
    }
}

/// The next step for these pods, `seconds` after 1970.
fn step_at(seconds: i64, restarts: &mut Restarts, fleet: &Fleet) -> String {
    let now = Timestamp::from_second(seconds).unwrap();
    match restarts.step(&eviction(), &chain(), fleet, now) {
        RestartStep::Evict => next_to_evict(&stale_pods(&eviction(), fleet), fleet, Some("a_1"))
            .unwrap()
            .pod
            .clone(),
        RestartStep::Wait(message) => message,
        RestartStep::Count(count) => format!("count {count}"),
        RestartStep::Done => "done".to_owned(),
    }
}

fn next(fleet: &Fleet) -> String {
    step_at(0, &mut Restarts::default(), fleet)
}

#[test]
fn leader_is_evicted_last_and_silent_pods_before_it() {
    let mut pods = fleet([pod("a", true), pod("b", true), pod("c", true)]);
    assert_eq!(next(&pods), "b");
    pods.reports
        .insert("b".to_owned(), Report::Unavailable("does not answer".to_owned()));
    assert_eq!(next(&pods), "c");
    let pods = fleet([pod("a", true), pod("b", false), pod("c", false)]);
    assert_eq!(next(&pods), "a");
    assert_eq!(
        next(&fleet([pod("a", false), pod("b", false), pod("c", false)])),
        "done"
    );
    // The name of one begins like the other's.
    let pods = fleet([pod("a", true), pod("a-1", true), pod("a_", true)]);
    let kept = stale_pods(&eviction(), &pods);
    assert_eq!(next_to_evict(&kept, &pods, Some("a-1_6f")).unwrap().pod, "a");
    assert_eq!(next_to_evict(&kept[..2], &pods, Some("a")).unwrap().pod, "a-1");
}

#[test]
fn next_eviction_waits_until_the_replacement_acknowledges() {
    let whole = fleet([pod("a", true), pod("b", false), pod("c", true)]);
    assert_eq!(next(&whole), "c");
    let mut ending = whole.clone();
    ending.sidecars[2].is_ending = true;
    assert_eq!(next(&ending), "waiting for c to end");
    let mut restarts = Restarts::default();
    restarts.evicted.insert("uid-c".to_owned());
    assert_eq!(
        step_at(0, &mut restarts, &whole),
        "waiting for c to end",
        "and that is not seen yet"
    );
    let mut starts = whole.clone();
    starts.sidecars[1].ip = None;
    assert_eq!(next(&starts), "b does not run the chain yet");
    let mut lags = whole.clone();
    lags.reports.insert("b".to_owned(), Report::Status(Box::default()));
    assert_eq!(next(&lags), "b does not run the chain yet");
    // One that is to go does not have to be well.
    let mut ill = whole;
    ill.reports.remove("a");
    assert_eq!(next(&ill), "c");
}

#[test]
fn no_pod_is_evicted_while_a_replacement_is_missing() {
    let whole = fleet([pod("a", true), pod("b", false), pod("c", true)]);
    let mut lacks = whole.clone();
    lacks.sidecars.remove(1);
    let mut restarts = Restarts::default();
    let message = step_at(0, &mut restarts, &lacks);
    assert_eq!(
        message,
        "2 of 3 pods exist since 1970-01-01T00:00:00Z, and no other is evicted until all do: see the events of StatefulSet left. If \
         the shard is meant to have fewer: kubectl annotate pods -n demo a c ctrlmesh.kusionstack.io/shard-pods-"
    );
    for later in [61, 3600, 1_000_000] {
        assert_eq!(step_at(later, &mut restarts, &lacks), message);
    }
    let mut starts = whole.clone();
    starts.sidecars[1].ip = None;
    assert_eq!(step_at(70, &mut restarts, &starts), "b does not run the chain yet");
    assert_eq!(
        step_at(80, &mut restarts, &lacks),
        message,
        "it was not whole in between"
    );
    assert_eq!(step_at(90, &mut restarts, &whole), "c");
    let later = step_at(100, &mut restarts, &lacks);
    assert!(later.contains("since 1970-01-01T00:01:40Z"), "{later}");
}

#[test]
fn shard_has_fewer_pods_once_the_annotation_is_removed() {
    let mut pods = fleet([pod("a", true), pod("b", false), pod("c", true)]);
    pods.sidecars.remove(1);
    pods.sidecars[0].shard_pods = None;
    assert!(next(&pods).starts_with("2 of 3"), "one says still that there are more");
    pods.sidecars[1].shard_pods = None;
    assert_eq!(next(&pods), "count 2", "those are missed from now on");
    pods.sidecars.iter_mut().for_each(|pod| pod.shard_pods = Some(2));
    assert_eq!(next(&pods), "c");
    pods.sidecars.remove(1);
    assert!(next(&pods).starts_with("1 of 2"));
}

#[test]
fn grown_shard_is_counted_before_an_eviction() {
    let mut pods = fleet([pod("a", true), pod("b", false), pod("c", true)]);
    pods.sidecars.iter_mut().for_each(|pod| pod.shard_pods = Some(2));
    assert_eq!(next(&pods), "count 3");
}

#[test]
fn next_eviction_waits_until_all_others_are_ready() {
    let mut pods = fleet([pod("a", true), pod("b", false), pod("c", false)]);
    pods.sidecars[1].is_ready = false;
    assert_eq!(next(&pods), "b is not ready");
    pods.sidecars[2].is_ready = false;
    assert_eq!(next(&pods), "b is not ready, c is not ready");
    // Those that were not ready before: they go before one that is, also if one of them leads.
    let mut pods = fleet([pod("a", true), pod("b", true), pod("c", true)]);
    pods.sidecars[2].is_ready = false;
    assert_eq!(next(&pods), "c");
    pods.sidecars[0].is_ready = false;
    assert_eq!(next(&pods), "c");
    pods.sidecars[2].is_ready = true;
    assert_eq!(next(&pods), "a");
}

fn action() -> RestartAction {
    RestartAction {
        evict: eviction(),
        step: RestartStep::Evict,
        lock: Some("lock---a".to_owned()),
        origin: None,
    }
}

fn response(code: u16, message: &str) -> EvictionError {
    EvictionError {
        code: Some(code),
        message: message.to_owned(),
    }
}

#[test]
fn no_pod_is_evicted_while_the_leader_is_unknown() {
    let pods = fleet([pod("a", true), pod("b", true), pod("c", false)]);
    let next_pod = |holder| action().pod_to_evict(&pods, holder).map(|sidecar| sidecar.pod.clone());
    assert_eq!(next_pod(Ok(None)).unwrap(), "a");
    assert_eq!(next_pod(Ok(Some("a_1".to_owned()))).unwrap(), "b");
    let error = "leases is forbidden".to_owned();
    assert_eq!(
        next_pod(Err(error.clone())).unwrap_err(),
        RestartResult::UnknownLeader { error }
    );
}

#[test]
fn pod_that_is_gone_or_was_replaced_is_no_refused_eviction() {
    for code in [404, 409] {
        let result = RestartResult::of_eviction(&pod("a", true), Err(response(code, "not found")));
        assert_eq!(result, RestartResult::Ending { pod: "a".to_owned() });
        assert_eq!(result.reason().code, Reason::RESTARTING);
    }
    let result = RestartResult::of_eviction(&pod("a", true), Err(response(429, "budget")));
    assert_eq!(result.reason().code, Reason::EVICTION_REFUSED);
}

/// A situation in which the next pod is not evicted yet, and the message in the condition.
fn restart_message(situation: &str, change: impl FnOnce(&mut Fleet)) -> String {
    let mut pods = fleet([pod("a", true), pod("b", false), pod("c", true)]);
    change(&mut pods);
    format!("{situation}:\n  {}\n", next(&pods))
}

#[test]
fn messages_of_restarts_match_snapshot() {
    let messages = [
        restart_message("evicted pod is ending", |pods| pods.sidecars[2].is_ending = true),
        restart_message("replacement is missing", |pods| drop(pods.sidecars.remove(1))),
        restart_message("replacement has no address", |pods| pods.sidecars[1].ip = None),
        restart_message("replacement is not ready", |pods| pods.sidecars[1].is_ready = false),
    ];
    insta::assert_snapshot!(messages.concat());
}

#[test]
fn reasons_of_restart_results_match_snapshot() {
    let a = pod("a", true);
    let gone = fleet([pod("a", false), pod("b", false), pod("c", false)]);
    let unreadable = Err("leases is forbidden (HTTP 403)".to_owned());
    let budget = "Cannot evict pod as it would violate the pod's disruption budget.";
    let counted = |error: Option<&str>| RestartResult::Counted {
        count: 3,
        error: error.map(str::to_owned),
    };
    let results = [
        ("pods are counted", counted(None)),
        ("pods can't be annotated", counted(Some("pods is forbidden (HTTP 403)"))),
        (
            "lock can't be read",
            action().pod_to_evict(&gone, unreadable).unwrap_err(),
        ),
        (
            "no stale pod is left",
            action().pod_to_evict(&gone, Ok(None)).unwrap_err(),
        ),
        ("pod is evicted", RestartResult::of_eviction(&a, Ok(()))),
        (
            "pod is gone",
            RestartResult::of_eviction(&a, Err(response(404, "not found"))),
        ),
        (
            "budget forbids the eviction",
            RestartResult::of_eviction(&a, Err(response(429, budget))),
        ),
    ];
    let text: Vec<String> = results
        .iter()
        .map(|(situation, result)| {
            let Reason { code, message } = result.reason();
            format!("{situation}:\n  {code}: {message}\n")
        })
        .collect();
    insta::assert_snapshot!(text.concat());
}
