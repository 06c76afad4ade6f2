use ctrlmesh_contract::status::Status;
use ctrlmesh_manager_planner::samples;

use super::super::*;

fn sidecar(pod: &str, shard: &str) -> Sidecar {
    Sidecar {
        pod: pod.to_owned(),
        uid: format!("uid-{pod}"),
        ip: Some("10.0.0.1".to_owned()),
        is_scheduled: true,
        labels: [("shard".to_owned(), shard.to_owned())].into(),
        ..Sidecar::default()
    }
}

fn config(shard: &str, unreachable: serde_json::Value) -> ShardingConfig {
    let mut config: ShardingConfig = serde_json::from_value(samples::shard(shard, &[])).unwrap();
    config.spec.unreachable_pods = serde_json::from_value(unreachable).unwrap();
    config
}

fn fleet() -> Fleet {
    let silent = |pod: &str| {
        (
            pod.to_owned(),
            Report::Unavailable("can't be reached: no route".to_owned()),
        )
    };
    Fleet {
        sidecars: vec![sidecar("a", "s0"), sidecar("b", "s0"), sidecar("c", "s1")],
        reports: [
            silent("a"),
            silent("c"),
            ("b".to_owned(), Report::Status(Box::<Status>::default())),
        ]
        .into(),
        failures: [("a".to_owned(), 2), ("c".to_owned(), 2)].into(),
        ..Fleet::default()
    }
}

fn silent_pods_after(
    before: &SilentPods,
    awaited: &BTreeMap<String, BTreeSet<String>>,
    fleet: &Fleet,
    now: Instant,
) -> SilentPods {
    let states = PodStates::default();
    super::super::update_silence(before, awaited, Pods { fleet, states: &states }, now)
}

/// Silent since then, after so many polls in a row without a response.
fn silence(pod: &str, since: Instant, failures: u32) -> (String, Silence) {
    (format!("uid-{pod}"), Silence { since, failures })
}

fn awaited_pods() -> BTreeMap<String, BTreeSet<String>> {
    let pods = ["uid-a", "uid-b", "uid-c"].map(str::to_owned);
    [("shard-selector/s0".to_owned(), pods.into())].into()
}

#[test]
fn silence_counts_from_the_first_failed_poll() {
    let (start, mut fleet) = (Instant::now(), fleet());
    assert!(
        silent_pods_after(&SilentPods::new(), &BTreeMap::new(), &fleet, start).is_empty(),
        "nobody waits"
    );
    let first = silent_pods_after(&SilentPods::new(), &awaited_pods(), &fleet, start);
    assert_eq!(first, [silence("a", start, 2), silence("c", start, 2)].into());
    let later = start + Duration::from_secs(1);
    fleet.failures.insert("a".to_owned(), 4);
    assert_eq!(silent_pods_after(&first, &awaited_pods(), &fleet, later), first);
    // It answers once: all over again.
    fleet.reports.insert("a".to_owned(), Report::Status(Box::default()));
    let answered = silent_pods_after(&first, &awaited_pods(), &fleet, later);
    assert_eq!(answered, [silence("c", start, 2)].into());
    fleet.sidecars[2].is_scheduled = false;
    assert!(
        silent_pods_after(&answered, &awaited_pods(), &fleet, later).is_empty(),
        "it does not run"
    );
    // A pod that is given up stays so, though nobody waits for it.
    let (fleet, mut states) = (self::fleet(), PodStates::default());
    states.given_up.insert("a".to_owned());
    let pods = Pods {
        fleet: &fleet,
        states: &states,
    };
    assert_eq!(
        super::super::update_silence(&first, &BTreeMap::new(), pods, later),
        [silence("a", start, 2)].into()
    );
}

#[test]
fn silence_starts_anew_when_pod_is_replaced_or_has_answered() {
    let (start, fleet) = (Instant::now(), fleet());
    let first = silent_pods_after(&SilentPods::new(), &awaited_pods(), &fleet, start);
    let later = start + Duration::from_secs(59);
    let mut again = fleet.clone();
    again.sidecars[0].uid = "uid-c".to_owned();
    again.sidecars[2].uid = "uid-d".to_owned();
    let anew = silent_pods_after(&first, &awaited_pods(), &again, later);
    assert_eq!(anew, [silence("c", start, 2)].into(), "by UID, not by name");
    again.sidecars[0].uid = "uid-b".to_owned();
    again.sidecars.truncate(1);
    assert_eq!(
        silent_pods_after(&first, &awaited_pods(), &again, later),
        [silence("b", later, 2)].into()
    );
    let mut answered = fleet;
    answered.failures.insert("a".to_owned(), 1);
    let anew = silent_pods_after(&first, &awaited_pods(), &answered, later);
    assert_eq!(anew, [silence("a", later, 1), silence("c", start, 2)].into());
}

#[test]
fn pod_is_given_up_only_after_failed_polls() {
    let (start, mut fleet) = (Instant::now(), fleet());
    let silent = silent_pods_after(&SilentPods::new(), &awaited_pods(), &fleet, start);
    let proceed = serde_json::json!({ "policy": "Proceed", "afterSeconds": 1 });
    let configs = [config("s0", proceed.clone()), config("s1", proceed)];
    let given_up = |fleet: &Fleet, seconds| {
        let given_up = super::super::pods_given_up(&silent, fleet, &configs, start + Duration::from_secs(seconds));
        given_up.into_iter().collect::<Vec<_>>()
    };
    assert!(given_up(&fleet, 900).is_empty(), "nobody was asked since");
    fleet.failures.extend([("a".to_owned(), 4), ("c".to_owned(), 5)]);
    assert_eq!(given_up(&fleet, 900), ["c"], "three polls had no response");
    assert!(given_up(&fleet, 0).is_empty(), "it is not time yet");
    // A pod without an address can't be polled.
    fleet.sidecars[0].ip = None;
    assert_eq!(given_up(&fleet, 900), ["a", "c"]);
}

#[test]
fn pod_is_given_up_by_the_policy_of_its_shard() {
    let (start, mut fleet) = (Instant::now(), fleet());
    let silent = silent_pods_after(&SilentPods::new(), &awaited_pods(), &fleet, start);
    fleet.failures.extend([("a".to_owned(), 5), ("c".to_owned(), 5)]);
    let given_up = |unreachable: serde_json::Value, seconds| {
        let configs = [config("s0", unreachable), config("s1", serde_json::Value::Null)];
        let now = start + Duration::from_secs(seconds);
        super::super::pods_given_up(&silent, &fleet, &configs, now)
            .into_iter()
            .collect::<Vec<_>>()
    };
    let proceed = serde_json::json!({ "policy": "Proceed", "afterSeconds": 5 });
    assert!(given_up(proceed.clone(), 4).is_empty());
    assert_eq!(
        given_up(proceed, 5),
        ["a"],
        "not b, which answers, and not c of another shard"
    );
    assert!(given_up(serde_json::json!({ "policy": "Wait" }), 90000).is_empty());
    assert!(given_up(serde_json::Value::Null, 90000).is_empty());
    let proceed = serde_json::json!({ "policy": "Proceed" });
    assert!(given_up(proceed.clone(), 59).is_empty());
    assert_eq!(given_up(proceed, 60), ["a"]);
    // A pod that no shard selects any more is waited for.
    assert!(super::super::pods_given_up(&silent, &fleet, &[], start + Duration::from_secs(90000)).is_empty());
}

#[test]
fn holder_is_described_with_the_pods_that_are_waited_for() {
    let (fleet, mut states) = (fleet(), PodStates::default());
    states.quiet.insert("c".to_owned());
    let pods = Pods {
        fleet: &fleet,
        states: &states,
    };
    let text = describe_holder("shard-selector/s0", &awaited_pods(), &[], pods);
    assert_eq!(text, "s0 (a can't be reached: no route, b has done so and is settling)");
    assert_eq!(describe_holder("shard-selector/s1", &awaited_pods(), &[], pods), "s1");
}
