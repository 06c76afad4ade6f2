use ctrlmesh_manager_api::LabelSelector;
use ctrlmesh_manager_planner::hand_over::plan;
use ctrlmesh_manager_planner::samples;
use serde_json::json;

use super::*;
use crate::fleet::{Fleet, Sidecar};
use crate::pods::PodStates;

fn shard(name: &str, lock: Option<&str>, value: &str) -> Entry {
    let mut entry = samples::entry(&format!("shard-selector/{name}"));
    let resources = json!([{"apiGroups": [""], "resources": ["pods"]}]);
    let limits = json!([{"relateResources": resources, "selector": {"matchLabels": {"a": value}}}]);
    let settings = json!({"leaderElectionName": lock, "shard": name, "limits": limits});
    entry.settings = ctrlmesh_contract::Settings::new(settings);
    let pods: LabelSelector = serde_json::from_value(json!({"matchLabels": {"shard": name}})).unwrap();
    entry.pod_selector = pods;
    entry.origin = Some(ctrlmesh_contract::Origin {
        kind: "ShardingConfig".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        generation: 1,
    });
    entry
}

fn shards_a_and_b(a: &str, b: &str) -> [Entry; 2] {
    [shard("a", Some("lock"), a), shard("b", Some("lock"), b)]
}

fn labels(shard: &str) -> BTreeMap<String, String> {
    [("shard".to_owned(), shard.to_owned())].into()
}

/// A pod without a sidecar of this shard.
fn uninjected_fleet(shard: &str) -> Fleet {
    let mut fleet = Fleet::default();
    fleet.uninjected.pods.insert("old-0".to_owned(), labels(shard));
    fleet
}

/// The same, with a pod of each of these shards that has a sidecar.
fn fleet_beside(shards: &[&str]) -> Fleet {
    let sidecar = |shard: &&str| Sidecar {
        pod: format!("{shard}-0"),
        uid: format!("uid-{shard}-0"),
        labels: labels(shard),
        is_scheduled: true,
        ..Sidecar::default()
    };
    Fleet {
        sidecars: shards.iter().map(sidecar).collect(),
        ..uninjected_fleet("a")
    }
}

fn chain(entries: &[Entry]) -> Chain {
    Chain {
        namespace: "demo".to_owned(),
        generation: 7,
        entries: entries.to_vec(),
    }
}

/// The blocked shards. Pods that are gone have been gone for long.
fn blocked_shards_of(
    chain: &Chain,
    claims: &Claims,
    desired: &[Entry],
    objects: &CustomResources,
    fleet: &Fleet,
) -> BlockedShards {
    let states = PodStates::default();
    blocked_shards_with((chain, claims), desired, objects, Pods { fleet, states: &states })
}

fn blocked_shards_with(
    last: (&Chain, &Claims),
    desired: &[Entry],
    objects: &CustomResources,
    pods: Pods<'_>,
) -> BlockedShards {
    let (mut gate, now) = (BeginGate::default(), Instant::now());
    let gone = desired.iter().map(|entry| (entry.name.clone(), BeginBlocker::NoPods));
    gate.record(&gone.collect(), &[], now);
    blocked_shards(last, desired, objects, pods, &gate, now + MIN_GONE_TIME)
}

/// Names of the shards that wait.
fn blocked_names(last: &[Entry], claims: &Claims, desired: &[Entry], fleet: &Fleet) -> Vec<String> {
    let waiting = blocked_shards_of(&chain(last), claims, desired, &sharding_configs(&[]), fleet);
    waiting
        .keys()
        .map(|name| ctrlmesh_manager_planner::hand_over::shard_of(name).to_owned())
        .collect()
}

/// ShardingConfigs of the lock, selecting as [`shard`] does.
fn sharding_configs(names: &[&str]) -> CustomResources {
    let shards = names.iter().map(|name| samples::shard(name, &[]));
    CustomResources::parse(shards.collect(), Vec::new())
}

fn blocked_without_claims(last: &[Entry], desired: &[Entry], fleet: &Fleet) -> Vec<String> {
    blocked_names(last, &Claims::default(), desired, fleet)
}

fn plan_of(last: &[Entry], desired: &[Entry], fleet: &Fleet) -> ctrlmesh_manager_planner::hand_over::Plan {
    let none = BTreeSet::new();
    let goal = ctrlmesh_manager_planner::hand_over::Goal {
        desired,
        restarts: &none,
        deleted: &none,
        settle: ctrlmesh_manager_planner::hand_over::SettleTimes::default(),
    };
    let states = PodStates::default();
    plan(last, &Claims::default(), goal, &Pods { fleet, states: &states })
}

fn unbegun_entries(desired: &[Entry]) -> Vec<Entry> {
    desired.iter().map(unbegun_entry).collect()
}

#[test]
fn shards_of_a_controller_begin_when_all_its_pods_have_sidecars() {
    let desired = shards_a_and_b("1", "2");
    let waiting = blocked_shards_of(
        &chain(&[]),
        &Claims::default(),
        &desired,
        &sharding_configs(&[]),
        &uninjected_fleet("b"),
    );
    assert_eq!(waiting.len(), 2);
    let pods = BeginBlocker::Pods(["old-0".to_owned()].into());
    assert!(waiting.values().all(|why| *why == pods));
    // Another manager goes on, also after an edit.
    let last = plan_of(&[], &unbegun_entries(&desired), &fleet_beside(&["a", "b"])).entries;
    assert_eq!(last, unbegun_entries(&desired));
    for desired in [desired, shards_a_and_b("2", "3")] {
        assert_eq!(
            blocked_without_claims(&last, &desired, &uninjected_fleet("b")),
            ["a", "b"]
        );
        let with = |fleet: Fleet| Fleet {
            uninjected: fleet.uninjected,
            ..fleet_beside(&["b"])
        };
        assert!(
            blocked_without_claims(&last, &desired, &with(uninjected_fleet("c"))).is_empty(),
            "it is nobody's pod"
        );
        assert!(blocked_without_claims(&last, &desired, &with(Fleet::default())).is_empty());
    }
}

#[test]
fn blocked_shard_begins_with_a_pod_that_has_a_sidecar() {
    let desired = shards_a_and_b("1", "2");
    assert!(
        blocked_without_claims(&[], &desired, &Fleet::default()).is_empty(),
        "nobody was there"
    );
    // Scaled to zero and back, or one pod that is made again.
    let last = unbegun_entries(&desired);
    let mut fleet = Fleet::default();
    let why = blocked_shards_of(
        &chain(&last),
        &Claims::default(),
        &desired,
        &sharding_configs(&[]),
        &fleet,
    );
    assert!(why.values().all(|why| *why == BeginBlocker::NoPods), "{why:?}");
    assert_eq!(why.len(), 2);
    // A new shard of theirs waits with them.
    assert_eq!(blocked_without_claims(&last[..1], &desired, &fleet), ["a", "b"]);
    fleet.sidecars = fleet_beside(&["b"]).sidecars;
    fleet.sidecars[0].is_ending = true;
    assert_eq!(blocked_without_claims(&last, &desired, &fleet), ["a", "b"]);
    fleet.sidecars[0].is_ending = false;
    assert!(blocked_without_claims(&last, &desired, &fleet).is_empty());
    fleet.sidecars[0].labels = labels("c");
    assert_eq!(
        blocked_without_claims(&last, &desired, &fleet),
        ["a", "b"],
        "it is nobody's pod"
    );
}

#[test]
fn blocked_shard_waits_for_uninjected_pods_that_are_away_for_a_moment() {
    let (desired, begun) = (shards_a_and_b("1", "2"), Instant::now());
    let (last, mut gate) = (chain(&unbegun_entries(&desired)), BeginGate::default());
    let mut after = |seconds, desired: &[Entry], fleet: &Fleet| {
        let (claims, now) = (Claims::default(), begun + Duration::from_secs(seconds));
        let states = PodStates::default();
        let pods = Pods { fleet, states: &states };
        let waiting = blocked_shards((&last, &claims), desired, &sharding_configs(&[]), pods, &gate, now);
        gate.record(&waiting, &last.entries, now);
        waiting.into_values().collect::<Vec<_>>()
    };
    let gone = Fleet {
        uninjected: Fleet::default().uninjected,
        ..fleet_beside(&["a", "b"])
    };
    let pods = BeginBlocker::Pods(["old-0".to_owned()].into());
    assert_eq!(after(0, &desired, &uninjected_fleet("b")), [pods.clone(), pods.clone()]);
    assert_eq!(after(1, &desired, &gone), [BeginBlocker::Gone, BeginBlocker::Gone]);
    // It was made again, without a sidecar.
    assert_eq!(after(5, &desired, &uninjected_fleet("b")), [pods.clone(), pods]);
    assert_eq!(
        after(7, &desired, &Fleet::default()),
        [BeginBlocker::NoPods, BeginBlocker::NoPods]
    );
    assert_eq!(after(9, &desired, &gone), [BeginBlocker::Gone, BeginBlocker::Gone]);
    // One that joins them begins with them.
    let [a, b] = desired;
    let three = [a, b, shard("c", Some("lock"), "3")];
    assert_eq!(
        after(11, &three, &gone),
        [BeginBlocker::Gone, BeginBlocker::Gone, BeginBlocker::Gone]
    );
    assert!(after(12, &three, &gone).is_empty(), "five seconds after the seventh");
    assert!(after(13, &three, &gone).is_empty(), "the chain was not written");
}

#[test]
fn uninjected_pods_of_uncompiled_shards_block_their_siblings() {
    let desired = shards_a_and_b("1", "2");
    let blocked = |objects: &CustomResources| {
        blocked_shards_of(
            &chain(&[]),
            &Claims::default(),
            &desired,
            objects,
            &uninjected_fleet("c"),
        )
    };
    assert!(blocked(&sharding_configs(&["a", "b"])).is_empty());
    assert_eq!(blocked(&sharding_configs(&["a", "b", "c"])).len(), 2);
    let mut other = samples::shard("c", &[]);
    other["spec"]["controller"]["leaderElectionName"] = json!("another");
    assert!(blocked(&CustomResources::parse(vec![other], Vec::new())).is_empty());
}

#[test]
fn shard_that_joins_others_that_have_begun_is_not_blocked() {
    let last = [shard("a", Some("lock"), "1")];
    for pod in ["a", "b"] {
        assert!(blocked_without_claims(&last, &shards_a_and_b("3", "2"), &uninjected_fleet(pod)).is_empty());
    }
    // One that has waited with others does not go on to: it would leave what they give up to nobody.
    let [a, b] = shards_a_and_b("1", "2");
    assert!(blocked_without_claims(&[a.clone(), unbegun_entry(&b)], &[a, b], &uninjected_fleet("b")).is_empty());
}

#[test]
fn shard_narrowed_by_a_hand_over_has_begun() {
    let fleet = fleet_beside(&["a", "b"]);
    let (last, desired) = (shards_a_and_b("1", "2"), shards_a_and_b("2", "1"));
    let plan = plan_of(&last, &desired, &fleet);
    assert_eq!(plan.waiting.len(), 2, "both give up everything first");
    assert!(
        plan.entries
            .iter()
            .all(|entry| !last.contains(entry) && !desired.contains(entry))
    );
    assert!(blocked_without_claims(&plan.entries, &desired, &fleet).is_empty());
    // One that is new has nothing until the others have given it up, which may go away meanwhile.
    let desired = [shard("a", Some("lock"), "3"), shard("c", Some("lock"), "1")];
    let plan = plan_of(&last, &desired, &fleet);
    assert!(plan.waiting.contains_key("shard-selector/c"));
    let new: Vec<Entry> = plan
        .entries
        .into_iter()
        .filter(|entry| entry.name.ends_with("/c"))
        .collect();
    assert!(
        blocked_without_claims(
            &new,
            &desired[1..],
            &Fleet {
                uninjected: uninjected_fleet("c").uninjected,
                ..fleet
            }
        )
        .is_empty()
    );
}

#[test]
fn pods_that_leave_a_blocked_shard_do_not_let_it_begin() {
    let last = unbegun_entries(&shards_a_and_b("1", "2"));
    let fleet = fleet_beside(&["a", "b"]);
    let desired = [shard("a", Some("lock"), "1")];
    let plan = plan_of(&last, &unbegun_entries(&desired), &fleet);
    assert_eq!(plan.entries.len(), 2, "b's pods see nothing still");
    assert_eq!(blocked_without_claims(&plan.entries, &desired, &fleet), ["a"]);
    let plan = plan_of(&plan.entries, &unbegun_entries(&desired), &fleet);
    assert_eq!(blocked_without_claims(&plan.entries, &desired, &fleet), ["a"]);
}

#[test]
fn returning_shards_have_begun_while_a_pod_shows_them() {
    let (desired, fleet) = ([shard("a", Some("lock"), "1")], fleet_beside(&["a"]));
    let gone = plan_of(&desired, &[], &fleet);
    assert!(gone.entries.iter().all(|entry| lock_of(entry).is_none()));
    assert!(blocked_names(&gone.entries, &gone.claims, &desired, &fleet).is_empty());
    // Claims of entries whose shards had not begun let no shard begin.
    let waited = plan_of(&unbegun_entries(&desired), &[], &fleet);
    assert!(!waited.claims.is_empty());
    assert_eq!(blocked_names(&waited.entries, &waited.claims, &desired, &fleet), ["a"]);
    // Nor do claims that were merged because there were too many.
    let claim = json!({"named": ["uid-a-0"], "lock": "lock", "shard": "a", "limits": []});
    let merged: Claims = serde_json::from_value(json!({"shown": {"shard-selector/a": [claim]}})).unwrap();
    assert_eq!(blocked_names(&[], &merged, &desired, &fleet), ["a"]);
    let states = PodStates {
        quiet: ["a-0".to_owned()].into(),
        ..PodStates::default()
    };
    let pods = Pods {
        fleet: &fleet,
        states: &states,
    };
    let waiting = blocked_shards_with((&chain(&[]), &gone.claims), &desired, &sharding_configs(&[]), pods);
    assert_eq!(
        waiting.keys().collect::<Vec<_>>(),
        ["shard-selector/a"],
        "its pod shows all"
    );
}

#[test]
fn shards_that_sidecars_run_have_begun_when_the_chain_is_lost() {
    let desired = [shard("a", Some("lock"), "1")];
    let says = |generation, entry: &Entry| {
        let mut fleet = fleet_beside(&["a"]);
        let status = samples::running(generation, [entry]);
        fleet.reports.insert("a-0".to_owned(), Report::Status(Box::new(status)));
        fleet
    };
    let [now, before] = [unbegun_entry(&desired[0]), shard("a", Some("lock"), "0")];
    for generation in [7, 8] {
        assert!(blocked_without_claims(&[], &desired, &says(generation, &before)).is_empty());
        assert_eq!(blocked_without_claims(&[], &desired, &says(generation, &now)), ["a"]);
    }
    assert_eq!(
        blocked_without_claims(&[], &desired, &says(6, &before)),
        ["a"],
        "it is told to end that"
    );
    // The object has changed since.
    let mut other = shard("a", Some("lock"), "1");
    let mut settings = other.settings.value().clone();
    settings["limits"][0]["relateResources"][0]["resources"] = json!(["secrets"]);
    other.settings = ctrlmesh_contract::Settings::new(settings);
    assert_eq!(
        blocked_without_claims(std::slice::from_ref(&now), &[other], &says(7, &now)),
        ["a"]
    );
}

#[test]
fn controllers_begin_independently() {
    let of = |lock: Option<&str>, other: Option<&str>| [shard("a", lock, "1"), shard("b", other, "2")];
    for desired in [of(Some("lock"), Some("another")), of(None, None)] {
        assert_eq!(blocked_without_claims(&[], &desired, &uninjected_fleet("b")), ["b"]);
        assert_eq!(
            blocked_without_claims(&desired[..1], &desired, &uninjected_fleet("b")),
            ["b"]
        );
        assert!(blocked_without_claims(&desired, &desired, &uninjected_fleet("b")).is_empty());
    }
    // Another lock makes no other shard; another object does.
    let [a, b] = of(Some("old"), Some("lock"));
    let renamed = shard("a", Some("lock"), "1");
    assert!(blocked_without_claims(std::slice::from_ref(&a), &[renamed.clone(), b], &uninjected_fleet("b")).is_empty());
    let mut another = renamed;
    another.origin.as_mut().unwrap().uid = "uid-another".to_owned();
    assert_eq!(blocked_without_claims(&[a], &[another], &uninjected_fleet("a")), ["a"]);
}

#[test]
fn unbegun_shards_are_blocked_when_pods_are_unknown() {
    let mut fleet = Fleet::default();
    fleet.uninjected.unknown = Some("pods is forbidden".to_owned());
    let desired = [shard("a", Some("lock"), "1"), shard("b", Some("another"), "2")];
    let waiting = blocked_shards_of(
        &chain(&desired[..1]),
        &Claims::default(),
        &desired,
        &sharding_configs(&[]),
        &fleet,
    );
    assert_eq!(waiting.keys().collect::<Vec<_>>(), ["shard-selector/b"]);
    let Reason { code, message } = waiting["shard-selector/b"].reason();
    assert_eq!(code, "PodsUnknown");
    assert!(
        message.ends_with("the manager can't list pods here: pods is forbidden"),
        "{message}"
    );
}

#[test]
fn pods_are_listed_while_a_shard_may_be_blocked() {
    let [a, b] = shards_a_and_b("1", "2");
    assert!(!may_be_blocked(&sharding_configs(&[]), &[]));
    assert!(may_be_blocked(&sharding_configs(&["a"]), &[]));
    assert!(may_be_blocked(
        &sharding_configs(&["a", "b"]),
        &unbegun_entries(&[a.clone(), b.clone()])
    ));
    assert!(!may_be_blocked(
        &sharding_configs(&["a", "b"]),
        &[a.clone(), unbegun_entry(&b)]
    ));
    assert!(!may_be_blocked(
        &sharding_configs(&["a", "b"]),
        std::slice::from_ref(&a)
    ));
    assert!(may_be_blocked(
        &sharding_configs(&["a"]),
        &[shard("a", Some("another"), "1")]
    ));
    // Objects that can't be read.
    assert!(may_be_blocked(&sharding_configs(&[]), &[unbegun_entry(&a)]));
    assert!(!may_be_blocked(&sharding_configs(&[]), &[unbegun_entry(&a), b]));
}

#[test]
fn long_blocked_shards_are_rechecked_less_often() {
    let (begun, mut gate) = (Instant::now(), BeginGate::default());
    let on = |pod: &str| BlockedShards::from([("a".to_owned(), BeginBlocker::Pods([pod.to_owned()].into()))]);
    gate.record(&BlockedShards::new(), &[], begun);
    assert_eq!(gate.next_list_in(begun + FREQUENT_LIST_PERIOD), None);
    let begun = begun + FREQUENT_LIST_PERIOD;
    gate.record(&on("old-1"), &[], begun);
    assert_eq!(gate.next_list_in(begun), Some(LIST_INTERVAL));
    gate.record(&on("old-1"), &[], begun + FREQUENT_LIST_PERIOD);
    assert_eq!(
        gate.next_list_in(begun + FREQUENT_LIST_PERIOD),
        Some(LATER_LIST_INTERVAL)
    );
    gate.failed = Some((begun + FREQUENT_LIST_PERIOD, "no".to_owned()));
    assert_eq!(
        gate.list_error(begun + FREQUENT_LIST_PERIOD + LIST_INTERVAL),
        Some("no")
    );
    assert_eq!(
        gate.list_error(begun + FREQUENT_LIST_PERIOD + LATER_LIST_INTERVAL),
        None
    );
    gate.record(&on("old-0"), &[], begun + FREQUENT_LIST_PERIOD);
    assert_eq!(
        gate.next_list_in(begun + FREQUENT_LIST_PERIOD),
        Some(LIST_INTERVAL),
        "one is gone, and so may be the next"
    );
    assert_eq!(gate.list_error(begun + FREQUENT_LIST_PERIOD + LIST_INTERVAL), None);
    // An API server's message may contain a time.
    let unknown = |problem: &str| BlockedShards::from([("a".to_owned(), BeginBlocker::Unknown(problem.to_owned()))]);
    gate.record(&unknown("no at 1"), &[], begun);
    gate.record(&unknown("no at 2"), &[], begun + FREQUENT_LIST_PERIOD);
    assert_eq!(
        gate.next_list_in(begun + FREQUENT_LIST_PERIOD),
        Some(LATER_LIST_INTERVAL)
    );
}
