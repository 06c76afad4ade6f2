use ctrlmesh_manager_planner::samples::{entry, running};
use k8s_openapi::jiff::Timestamp;

use super::*;

fn fleet(nudged: Option<u64>, report: Report) -> Fleet {
    let sidecar = Sidecar {
        pod: "operator-0".to_owned(),
        ip: Some("10.0.0.1".to_owned()),
        nudged,
        ..Sidecar::default()
    };
    Fleet {
        sidecars: vec![sidecar],
        reports: BTreeMap::from([("operator-0".to_owned(), report)]),
        fresh: BTreeSet::from(["operator-0".to_owned()]),
        ..Fleet::default()
    }
}

#[test]
fn report_older_than_the_chain_does_not_acknowledge_it() {
    let entries = [entry("shard-selector/a")];
    let mut fleet = fleet(None, Report::Status(Box::new(running(7, &entries))));
    fleet.sidecars[0].is_scheduled = true;
    let runs_chain = |fleet: &Fleet| fleet.runs_chain(&fleet.sidecars[0], &entries);
    assert!(runs_chain(&fleet));
    fleet.fresh.clear();
    assert!(!runs_chain(&fleet));
}

#[test]
fn pod_is_behind_when_it_does_not_run_its_entries() {
    let entries = [entry("shard-selector/a")];
    let is_behind = |status: Option<Status>| {
        let report = status.map_or(Report::Unavailable("starts".to_owned()), |status| {
            Report::Status(Box::new(status))
        });
        let mut fleet = fleet(None, report);
        let is_behind = fleet.lagging_sidecars(&entries).next().is_some();
        fleet.unpolled.insert("operator-0".to_owned());
        assert!(fleet.lagging_sidecars(&entries).next().is_none(), "nobody knows");
        is_behind
    };
    assert!(is_behind(Some(running(6, &[]))));
    assert!(is_behind(None), "it does not answer");
    assert!(!is_behind(Some(running(6, &entries))), "it is not concerned");
}

#[test]
fn nudges_are_read_from_annotations() {
    let of = |renudged: &str| {
        let mut pod = Pod::default();
        let annotations = [
            (annotations::CHAIN_GENERATION, "7"),
            (annotations::CHAIN_BUMP, renudged),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        pod.metadata.annotations = Some(annotations.into());
        let sidecar = Sidecar::from_pod(&pod).unwrap();
        (sidecar.nudged, sidecar.renudged)
    };
    assert_eq!(of("7.2"), (Some(7), Some((7, 2))));
    assert_eq!(of("soon"), (Some(7), None));
}

#[test]
fn report_of_an_unwritten_generation_is_not_believed() {
    let last_report = |generation| LastReport {
        report: Report::Status(Box::new(running(generation, &[]))),
        polled_at: Some(std::time::Instant::now()),
        failures: 0,
        is_fresh: true,
    };
    let last_reports = BTreeMap::from([
        ("a".to_owned(), last_report(u64::MAX)),
        ("b".to_owned(), last_report(9)),
    ]);
    let fleet = Fleet::from_reports(Vec::new(), &last_reports, 1 << 20);
    assert_eq!(fleet.generation(), 9);
    assert!(matches!(&fleet.reports["a"], Report::Unavailable(problem) if problem.contains("no manager has written")));
}

#[test]
fn lag_and_unsettled_reasons_cover_each_state_of_a_pod() {
    let entries = [entry("shard-selector/a")];
    let why = |status: Status| {
        let fleet = fleet(None, Report::Status(Box::new(status)));
        let lag = fleet.lag_reason(&fleet.sidecars[0], &entries, 7);
        (lag, fleet.unsettled_reason(&fleet.sidecars[0], &entries))
    };
    let mut busy = running(7, &entries);
    busy.chain.earlier.watches = 2;
    assert_eq!(
        why(busy),
        (
            Some(LagReason::Busy),
            "has not given up 2 of its watches from before".to_owned()
        )
    );
    let cache = |resource: &str, refused_watches, given_up| StaleCache {
        client: "operator/v1".to_owned(),
        resource: resource.to_owned(),
        refused_watches,
        given_up,
        ..StaleCache::default()
    };
    let mut stale = running(7, &entries);
    stale.chain.earlier.caches = 2;
    stale.chain.stale_caches = vec![
        cache("configmaps", 7, false),
        cache("pods", 1, false),
        cache("secrets", 400, true),
    ];
    let message = "has not given up 2 of its caches from before: configmaps of operator/v1, which repeats an expired watch \
                   and does not list, pods of operator/v1";
    assert_eq!(why(stale), (Some(LagReason::Busy), message.to_owned()));
    assert_eq!(
        why(running(6, &[])),
        (
            Some(LagReason::Behind),
            "still runs generation 6 of the chain".to_owned()
        )
    );
    assert_eq!(
        why(running(7, &entries)),
        (None, "has done so and is settling".to_owned())
    );
    let silent = fleet(None, Report::Unavailable("does not answer in time".to_owned()));
    assert_eq!(
        silent.lag_reason(&silent.sidecars[0], &entries, 7),
        Some(LagReason::Silent)
    );
    let why = silent.unsettled_reason(&silent.sidecars[0], &entries);
    assert_eq!(why, "does not answer in time");
}

#[test]
fn pod_readiness_and_owner_come_from_kubelet_and_controller_reference() {
    let sidecar = |ready: &str, controller: bool| {
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "left-0", "ownerReferences": [
                { "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "1" },
                { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "left-6b7", "uid": "2", "controller": controller },
            ] },
            "status": { "conditions": [
                { "type": "ContainersReady", "status": "True" },
                { "type": "Ready", "status": ready },
            ] },
        }))
        .unwrap();
        strip_pod(&mut pod);
        Sidecar::from_pod(&pod).unwrap()
    };
    assert!(sidecar("True", true).is_ready);
    assert_eq!(sidecar("True", true).owner.as_deref(), Some("ReplicaSet left-6b7"));
    for unready in ["False", "Unknown"] {
        assert!(!sidecar(unready, true).is_ready);
    }
    assert_eq!(sidecar("True", false).owner, None);
}

#[test]
fn running_since_is_the_start_of_the_oldest_container_but_the_sidecar() {
    let started = |name: &str, state: &serde_json::Value| serde_json::json!({"name": name, "state": state, "image": "", "imageID": "", "ready": true, "restartCount": 0});
    let running =
        |at: i64| serde_json::json!({"running": {"startedAt": Timestamp::from_second(at).unwrap().to_string()}});
    let of = |statuses: serde_json::Value| {
        let pod: Pod = serde_json::from_value(serde_json::json!({"status": {"containerStatuses": statuses}})).unwrap();
        running_since(&pod)
    };
    let others = serde_json::json!([
        started("ctrlmesh-proxy", &running(10)),
        started("manager", &running(30)),
        started("helper", &running(20)),
        started("waits", &serde_json::json!({"waiting": {}})),
    ]);
    assert_eq!(of(others), Some(20));
    assert_eq!(of(serde_json::json!([started("ctrlmesh-proxy", &running(10))])), None);
}
