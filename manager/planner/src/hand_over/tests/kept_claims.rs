//! Claims follow pods into other shards, and targets of shards are kept.

use std::time::Duration;

use super::*;
use crate::hand_over::shard::CONSISTENT_READS;

/// The intersection of two selectors becomes one selector, because a sidecar accepts only limits of a certain size.
#[test]
fn combined_limits_do_not_grow() {
    let many = |from: usize| -> Vec<usize> { (from..from + 300).collect() };
    let (first, second) = (shard(0, &many(0)), shard(0, &many(200)));
    let limits = |entry: &Entry| limits_of(entry.settings.value());
    let old = Shard::from_entry(&second).unwrap().1;
    let narrowed = moves::narrowed_limits(&old, Some(&limits(&first)));
    assert_eq!(narrowed, limits(&shard(0, &many(200)[..100])));
    // If one selector can't express it and several are too long, nothing is seen for a while.
    let long = |key: &str| {
        let mut limits = limits(&first);
        let values: Vec<String> = (0..900).map(|number| format!("{key}-{number}")).collect();
        limits[0].selector = serde_json::from_value(json!({"matchExpressions": [
            {"key": key, "operator": "In", "values": values}]}))
        .unwrap();
        limits
    };
    let shard = Shard {
        limits: long("a"),
        ..old
    };
    let narrowed = moves::narrowed_limits(&shard, Some(&long("b")));
    assert_eq!(narrowed.len(), 1);
    assert!(json!(narrowed).to_string().len() < 500, "{}", json!(narrowed));
}

/// Limits that name all resources of a group and the same resources of all groups are compared exactly.
#[test]
fn shards_that_name_same_resources_differently_wait_for_each_other() {
    let of = |id, rule: serde_json::Value, buckets: &[usize]| {
        let mut entry = shard(id, buckets);
        let mut settings = entry.settings.value().clone();
        settings["limits"][0]["relateResources"] = json!([rule]);
        entry.settings = Settings::new(settings);
        entry
    };
    let (all_of_group, of_all_groups) = (
        json!({"apiGroups": ["apps"], "resources": ["*"]}),
        json!({"apiGroups": ["*"], "resources": ["deployments"]}),
    );
    let both =
        |left: &[usize], right: &[usize]| [of(0, all_of_group.clone(), left), of(1, of_all_groups.clone(), right)];
    let mut cluster = with_pods(0..2, &both(&[0, 1], &[2]));
    assert_eq!(cluster.step(&both(&[0], &[1, 2])).len(), 1);
}

struct RolledBack(Vec<Known>);

impl FleetState for RolledBack {
    fn pods(&self) -> impl Iterator<Item = Pod<'_>> {
        self.0.pods()
    }

    fn is_rolled_back(&self) -> bool {
        true
    }
}

/// Someone has put back an earlier chain, which does not say what pods show.
#[test]
fn rolled_back_chain_resets_all_views() {
    let earlier = entries_of_owners(&[Some(0), Some(0), Some(1)]);
    let mut cluster = with_pods(0..2, &entries_of_owners(&[Some(0), Some(1), Some(1)]));
    cluster.last.clone_from(&earlier);
    let fleet = RolledBack(cluster.fleet());
    let next = plan(&cluster.last, &Claims::default(), goal(&earlier, &NONE), &fleet);
    (cluster.last, cluster.claims) = (next.entries, next.claims);
    let seen = |entries: &[Entry]| -> Vec<(usize, usize)> {
        let all = (0..2).flat_map(|pod| (0..3).map(move |bucket| (pod, bucket)));
        all.filter(|(pod, bucket)| sees(entries, *pod, *bucket)).collect()
    };
    assert_eq!(seen(&cluster.last), []);
    cluster.running.insert(0, cluster.last.clone());
    cluster.step(&earlier);
    assert!(!sees(&cluster.last, 0, 1), "the other pod shows it still");
    for _ in 0..3 {
        let last = cluster.last.clone();
        cluster
            .running
            .values_mut()
            .for_each(|running| running.clone_from(&last));
        cluster.step(&earlier);
    }
    assert_eq!(seen(&cluster.last), [(0, 0), (0, 1), (1, 2)]);
}

/// A pod's claim follows it into a shard of another name, and when its labels change.
#[test]
fn pod_that_moved_to_another_shard_is_waited_for() {
    let mut cluster = with_pods(0..3, &entries_of_owners(&[Some(0), Some(1), Some(2)]));
    // The shard gets another name, and its bucket goes elsewhere.
    let renamed = Entry {
        pod_selector: pods_of(0),
        ..shard(3, &[0])
    };
    let target = [
        shard(1, &[1]),
        shard(2, &[0, 2]),
        Entry {
            settings: shard(3, &[5]).settings,
            ..renamed
        },
    ];
    cluster.step(&target);
    cluster.sync(2);
    let waiting = cluster.step(&target);
    assert!(waiting.contains_key("shard-selector/s2"), "{waiting:?}");
    assert_eq!(cluster.owners(0), [0]);
    sync_all_pods(&mut cluster);
    assert!(cluster.step(&target).is_empty());
    sync_all_pods(&mut cluster);
    assert_eq!(cluster.owners(0), [2]);
}

/// A shard that is refused during a hand-over keeps its target.
#[test]
fn target_of_hand_over_is_remembered() {
    let mut cluster = with_pods(0..2, &entries_of_owners(&[Some(0), Some(0), Some(1)]));
    let target = entries_of_owners(&[Some(0), Some(1), Some(1)]);
    assert_eq!(cluster.step(&target).len(), 1);
    assert!(!sees(&cluster.last, 1, 1));
    let targets = cluster.claims.with_target_limits(&cluster.last);
    assert!(sees(&targets, 1, 1));
    sync_all_pods(&mut cluster);
    assert!(cluster.step(&targets).is_empty() && sees(&cluster.last, 1, 1));
}

/// A shard that gained objects has consistent lists until its pods have seen them; the next change ends that.
#[test]
fn lists_are_consistent_until_the_change_after_the_next() {
    let mut cluster = with_pods(0..3, &entries_of_owners(&[Some(0), Some(0), Some(1), Some(2)]));
    let is_consistent = |cluster: &Cluster| {
        let gained = cluster.last.iter().find(|entry| entry.name == "shard-selector/s1");
        gained.unwrap().settings.value().get(CONSISTENT_READS).is_some()
    };
    let target = entries_of_owners(&[Some(0), Some(1), Some(1), Some(2)]);
    cluster.step(&target);
    sync_all_pods(&mut cluster);
    cluster.step(&target);
    assert!(is_consistent(&cluster));
    // Its pod has not seen it yet.
    let next = entries_of_owners(&[Some(0), Some(1), Some(1), None]);
    cluster.step(&next);
    assert!(is_consistent(&cluster));
    sync_all_pods(&mut cluster);
    cluster.step(&next);
    assert!(is_consistent(&cluster), "nothing has changed");
    cluster.step(&entries_of_owners(&[Some(0), Some(1), Some(1), Some(2)]));
    assert!(!is_consistent(&cluster));
}

/// The settle time that counts for a pod of shard 0, in seconds.
fn settle_seconds(claims: &Claims, entries: &[Entry]) -> Option<u64> {
    let labels = labels_of(9);
    let times = claims.settle_times("uid-0", &labels, entries);
    times.map(|time| time.unwrap_or_default().as_secs()).max()
}

/// The pod moves to shard 9. What its shard asked for before counts until the pod has given up what it showed.
#[test]
fn settle_time_of_losing_shard_counts_until_its_pods_have_given_up_its_objects() {
    let seconds = |of: &[(usize, u64)]| -> BTreeMap<String, Duration> {
        let time = |(id, seconds): &(usize, u64)| (format!("shard-selector/s{id}"), Duration::from_secs(*seconds));
        of.iter().map(time).collect()
    };
    let (first, moved) = ([shard(0, &[0])], [shard(0, &[]), shard(9, &[0])]);
    let relabelled = [shard(0, &[0]), shard(9, &[1])];
    for (what, next, times) in [
        ("selector edit", &moved, seconds(&[(0, 60), (9, 0)])),
        ("relabelling", &relabelled, seconds(&[(0, 60), (9, 0)])),
        ("time and selector in one edit", &moved, seconds(&[(0, 1), (9, 0)])),
        ("unreadable object", &moved, seconds(&[(9, 0)])),
    ] {
        let pass = |last: &[Entry],
                    claims: &Claims,
                    desired: &[Entry],
                    times: &BTreeMap<String, Duration>,
                    fleet: &Vec<Known>| {
            let goal = Goal {
                settle: SettleTimes {
                    default: Duration::from_secs(2),
                    by_entry: times,
                },
                ..goal(desired, &NONE)
            };
            let plan = plan(last, claims, goal, fleet);
            let claims: Claims = serde_json::from_str(&serde_json::to_string(&plan.claims).unwrap()).unwrap();
            (plan.entries, claims)
        };
        let mut fleet = with_pods(0..1, &first).fleet();
        let (entries, claims) = pass(&first, &Claims::default(), &first, &seconds(&[(0, 60)]), &fleet);
        assert!(!Claims::default().cover(&claims), "{what}: it is stored");
        (fleet[0].labels, fleet[0].is_quiet) = (labels_of(9), false);
        let (entries, claims) = pass(&entries, &claims, next, &times, &fleet);
        assert_eq!(settle_seconds(&claims, &entries), Some(60), "{what}");
        let (entries, claims) = pass(&entries, &claims, next, &times, &fleet);
        assert_eq!(settle_seconds(&claims, &entries), Some(60), "{what}: later");
        (fleet[0].running, fleet[0].is_quiet) = (names(&entries, &labels_of(9)), true);
        let (entries, claims) = pass(&entries, &claims, next, &times, &fleet);
        let (entries, claims) = pass(&entries, &claims, next, &times, &fleet);
        assert_eq!(
            settle_seconds(&claims, &entries),
            Some(0),
            "{what}: it has given them up"
        );
    }
}

#[test]
fn claims_without_settle_times_are_read() {
    let old = r#"{"shown":{"shard-selector/s0":[{"named":["uid-0"],"limits":[]}]}}"#;
    let claims: Claims = serde_json::from_str(old).unwrap();
    let labels = labels_of(9);
    let times: Vec<_> = claims.settle_times("uid-0", &labels, &[]).collect();
    assert_eq!(times, [None], "the default");
}

/// Managers of earlier versions read and write the field as `wanted`.
#[test]
fn target_limits_keep_their_stored_name() {
    let mut claims = Claims::default();
    claims.set_targets(&[shard(0, &[0])]);
    let stored = serde_json::to_value(&claims).unwrap();
    assert!(stored["wanted"]["shard-selector/s0"].is_array(), "{stored}");
    assert_eq!(serde_json::from_value::<Claims>(stored).unwrap(), claims);
}
