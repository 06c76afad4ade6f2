//! Hand-overs of shards with ranges of a hash, and between hashes and labels.

use ctrlmesh_contract::names::labels::SHARD_HASH;
use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_api::sharding_config::ResourceGroup;

use super::*;
use crate::auto_shard::{LabelKeys, auto_shard};
use crate::hand_over::limits::limits_hiding_everything;
use crate::hand_over::shard::hidden_from_leavers;
use crate::object_set::ObjectSet;
use crate::{settings, view};

/// The property of an object that decides to which shard it belongs.
#[derive(Clone, Copy, Debug)]
enum Division {
    Labels,
    Uid,
    Owner,
}

/// The entries of a root. With a key, every shard sees all ReplicaSets, and the first one alone all DaemonSets.
fn entries_of(division: Division, shards: usize) -> Vec<Entry> {
    let mut root = json!({
        "prefix": "p",
        "targetStatefulSet": "t",
        "auto": {"shardingSize": shards, "everyShardReplicas": 1},
        "resourceSelector": [{"relateResources": [{"apiGroups": ["apps"], "resources": ["*"]}]}],
    });
    let key = match division {
        Division::Labels => None,
        Division::Uid => Some("uid"),
        Division::Owner => Some("owner"),
    };
    if let Some(key) = key {
        root["key"] = key.into();
        root["whole"] = json!([{"apiGroups": ["apps"], "resources": ["replicasets"]}]);
        root["singletons"] = json!([{"apiGroups": ["apps"], "resources": ["daemonsets"]}]);
    }
    let spec = json!({"controller": {"leaderElectionName": "lock"}, "root": root});
    let root: ShardingConfig = serde_json::from_value(samples::object("ShardingConfig", "root", &spec)).unwrap();
    let children = auto_shard(&root, &[], &LabelKeys::default()).unwrap();
    let entry = |(id, child): (usize, &ShardingConfig)| Entry {
        pod_selector: pods_of(id),
        order: 2000,
        settings: Settings::new(settings::shard_selector(child)),
        ..samples::entry(&format!("shard-selector/s{id}"))
    };
    children.iter().enumerate().map(entry).collect()
}

/// The objects of a resource of `apps` that a pod shows.
fn shown_by(cluster: &Cluster, pod: usize, resource: &str) -> Option<ObjectSet> {
    let own = cluster.running[&pod]
        .iter()
        .filter(|entry| entry.pod_selector.matches(&labels_of(pod)));
    let mut limits: Vec<Limit> = own.flat_map(|entry| limits_of(entry.settings.value())).collect();
    // It hides nothing, and makes sure that the resource is a class of its own.
    let group = ResourceGroup {
        api_groups: vec!["apps".to_owned()],
        resources: vec![resource.to_owned()],
    };
    limits.push(Limit {
        relate_resources: vec![group],
        ..Limit::default()
    });
    let classes = view::resource_classes(limits.iter());
    let name = format!("apps/{resource}");
    let class = classes.iter().find(|class| class.to_string() == name).unwrap();
    view::visible_objects(limits.iter(), class)
}

#[derive(Clone, Copy, Debug)]
struct Object {
    bucket: u32,
    uid: u16,
    owner: u16,
}

fn objects() -> Vec<Object> {
    let ranges = [0_u16, 300, 600, 1000];
    let mut objects = Vec::new();
    for bucket in [0, 31] {
        for uid in ranges {
            objects.extend(ranges.map(|owner| Object { bucket, uid, owner }));
        }
    }
    objects
}

fn has(set: &Option<ObjectSet>, object: Object) -> bool {
    set.as_ref().is_some_and(|set| {
        set.allows_value(SHARD_HASH, &object.bucket.to_string())
            && set.allows_range("uid", object.uid)
            && set.allows_range("owner", object.owner)
    })
}

/// The number of pods that show each object that no two shards may have.
fn owner_counts(cluster: &Cluster) -> Vec<(&'static str, Object, usize)> {
    let mut counts = Vec::new();
    for resource in ["deployments", "daemonsets"] {
        let pods = cluster.running.keys();
        let sets: Vec<Option<ObjectSet>> = pods.map(|pod| shown_by(cluster, *pod, resource)).collect();
        let count = |object| sets.iter().filter(|set| has(set, object)).count();
        counts.extend(objects().into_iter().map(|object| (resource, object, count(object))));
    }
    counts
}

#[test]
fn new_shard_gets_ranges_when_both_others_have_given_them_up() {
    let mut cluster = with_pods(0..3, &entries_of(Division::Owner, 2));
    cluster.running.remove(&2);
    let target = entries_of(Division::Owner, 3);
    let waiting = cluster.step(&target);
    assert_eq!(waiting.keys().collect::<Vec<_>>(), ["shard-selector/s2"]);
    assert_eq!(waiting["shard-selector/s2"].len(), 2, "both give up a part");
    assert_eq!(cluster.last[..2], target[..2], "nothing is given to them");
    cluster.running.insert(2, cluster.last.clone());
    for losing in [0, 1] {
        assert_eq!(shown_by(&cluster, 2, "deployments"), None);
        assert_eq!(shown_by(&cluster, 2, "replicasets"), Some(ObjectSet::default()));
        cluster.sync(losing);
        assert_eq!(cluster.step(&target).is_empty(), losing == 1);
    }
    sync_all_pods(&mut cluster);
    let third = shown_by(&cluster, 2, "deployments").unwrap();
    assert!([341, 681].into_iter().all(|range| third.allows_range("owner", range)));
    assert!(
        [0, 340, 682, 1023]
            .into_iter()
            .all(|range| !third.allows_range("owner", range))
    );
}

#[test]
fn singletons_change_shards_in_two_steps() {
    let first = entries_of(Division::Owner, 2);
    let mut cluster = with_pods(0..2, &first);
    let target = with_exchanged_limits(&first);
    let owners = |cluster: &Cluster| -> Vec<usize> {
        let pods = 0..2;
        pods.filter(|pod| shown_by(cluster, *pod, "daemonsets").is_some())
            .collect()
    };
    assert_eq!(owners(&cluster), [0]);
    cluster.step(&target);
    cluster.sync(1);
    cluster.step(&target);
    assert_eq!(owners(&cluster), [0], "the first has not acknowledged");
    cluster.sync(0);
    assert_eq!(owners(&cluster), Vec::<usize>::new());
    cluster.step(&target);
    sync_all_pods(&mut cluster);
    assert_eq!(owners(&cluster), [1]);
}

/// Without a condition, a sidecar would leave the limit of the singletons out.
#[test]
fn narrowed_shard_keeps_a_condition_for_resources_that_it_sees_whole() {
    let mut cluster = with_pods(0..2, &entries_of(Division::Owner, 2));
    assert!(!cluster.step(&entries_of(Division::Uid, 2)).is_empty());
    let limits = limits_of(cluster.last[0].settings.value());
    let mut singletons = limits.iter().filter(|limit| {
        let mut groups = limit.relate_resources.iter();
        groups.any(|group| group.resources == ["daemonsets"])
    });
    let ranges = singletons.next().unwrap().hash_ranges.clone().unwrap();
    assert_eq!(
        (ranges.key.as_str(), ranges.ranges),
        ("owner", vec!["0-1023".to_owned()])
    );
    assert_eq!(singletons.next(), None, "one limit for both keys");
}

/// The hash ranges of the limit of deployments, and whether it has a selector.
fn limit_of_deployments(entry: &Entry) -> (Option<serde_json::Value>, bool) {
    let limits = limits_of(entry.settings.value());
    let mut limits = limits.iter().filter(|limit| {
        let mut groups = limit.relate_resources.iter();
        groups.any(|group| group.resources == ["*"])
    });
    let limit = limits.next().unwrap();
    let has_selector = limit.selector.as_ref().is_some_and(|selector| !selector.is_empty());
    (limit.hash_ranges.as_ref().map(|hash| json!(hash)), has_selector)
}

/// By its key, a sidecar knows that the shard may not write the objects either.
#[test]
fn shard_that_shows_nothing_yet_keeps_its_key_without_ranges() {
    let no_ranges = json!({"key": "owner", "ranges": []});
    let expected = (Some(no_ranges), true);
    let entries = entries_of(Division::Owner, 3);
    for entry in &entries {
        let unbegun = unbegun_entry(entry);
        assert!(is_unbegun(&unbegun));
        assert_eq!(limit_of_deployments(&unbegun), expected);
    }
    let mut cluster = with_pods(0..2, &entries_of(Division::Owner, 2));
    cluster.step(&entries);
    assert_eq!(cluster.last[2].name, "shard-selector/s2");
    assert_eq!(
        limit_of_deployments(&cluster.last[2]),
        expected,
        "the others have not given anything up"
    );
}

#[test]
fn shard_without_an_object_of_both_divisions_keeps_its_key_without_ranges() {
    let first = entries_of(Division::Owner, 2);
    let mut cluster = with_pods(0..2, &first);
    // Both shards exchange their ranges.
    let target = with_exchanged_limits(&first);
    cluster.step(&target);
    for entry in &cluster.last {
        let no_ranges = json!({"key": "owner", "ranges": []});
        assert_eq!(limit_of_deployments(entry), (Some(no_ranges), true), "{}", entry.name);
    }
}

/// Its controller may still write by name until it has been replaced.
#[test]
fn pods_of_deleted_shard_keep_the_key_without_ranges() {
    let mut cluster = with_pods(0..2, &entries_of(Division::Owner, 2));
    for _ in 0..2 {
        cluster.step(&entries_of(Division::Owner, 1));
        sync_all_pods(&mut cluster);
    }
    let own = cluster
        .last
        .iter()
        .filter(|entry| entry.pod_selector.matches(&labels_of(1)));
    let own: Vec<_> = own.map(limit_of_deployments).collect();
    assert!(!own.is_empty());
    for limit in own {
        assert_eq!(limit, (Some(json!({"key": "owner", "ranges": []})), true));
    }
}

/// With a key, the limit would refuse writes of every kind, such as those of other locks.
#[test]
fn pods_that_leave_shard_of_all_resources_get_no_key() {
    let own = entries_of(Division::Owner, 1).remove(0);
    let mut settings = own.settings.value().clone();
    settings["limits"] = json!([{"hashRanges": {"key": "uid", "ranges": ["0-511"]}}]);
    let entry = Entry {
        settings: Settings::new(settings),
        ..own
    };
    let lock = Shard::from_entry(&entry).unwrap().1.lock;
    let hidden = hidden_from_leavers(lock.as_deref(), &entry.pod_selector, std::slice::from_ref(&entry), &[]);
    assert_eq!(hidden, limits_hiding_everything(&[]));
}

/// The entries with the limits of those at the other end of the list.
fn with_exchanged_limits(entries: &[Entry]) -> Vec<Entry> {
    let with_limits_of = |(own, other): (&Entry, &Entry)| {
        let mut settings = own.settings.value().clone();
        settings["limits"] = other.settings.value()["limits"].clone();
        Entry {
            settings: Settings::new(settings),
            ..own.clone()
        }
    };
    entries.iter().zip(entries.iter().rev()).map(with_limits_of).collect()
}

/// The entries of the same root without `spec.controller`.
fn without_locks(entries: Vec<Entry>) -> Vec<Entry> {
    let without_lock = |entry: Entry| {
        let mut settings = entry.settings.value().clone();
        let fields = settings.as_object_mut().unwrap();
        fields.remove("leaderElectionName");
        fields.remove("shard");
        Entry {
            settings: Settings::new(settings),
            ..entry
        }
    };
    entries.into_iter().map(without_lock).collect()
}

fn assert_no_two_owners(cluster: &Cluster) {
    for (resource, object, count) in owner_counts(cluster) {
        assert!(count <= 1, "{count} pods show {resource} {object:?}");
    }
}

#[test]
fn first_lock_may_come_with_the_key() {
    // Whichever pod acknowledges first.
    for order in [[0, 1], [1, 0]] {
        let mut cluster = with_pods(0..2, &without_locks(entries_of(Division::Labels, 2)));
        let target = entries_of(Division::Owner, 2);
        for pod in order {
            assert!(!cluster.step(&target).is_empty());
            cluster.sync(pod);
            assert_no_two_owners(&cluster);
        }
        for _ in 0..4 {
            cluster.step(&target);
            sync_all_pods(&mut cluster);
            assert_no_two_owners(&cluster);
        }
        assert!(cluster.claims.is_empty());
        assert!(owner_counts(&cluster).iter().all(|(_, _, count)| *count == 1));
    }
}

/// No desired shard selects the pod that loses the objects, so its earlier entry without a lock alone tells what it shows.
#[test]
fn pod_without_lock_that_leaves_its_shard_is_waited_for_by_shards_with_one() {
    let mut cluster = with_pods(0..2, &without_locks(entries_of(Division::Labels, 2)));
    let mut target = entries_of(Division::Owner, 2);
    target[0].pod_selector = pods_of(2);
    for _ in 0..2 {
        cluster.step(&target);
        cluster.sync(1);
        assert_no_two_owners(&cluster);
    }
    cluster.running.insert(2, cluster.last.clone());
    for _ in 0..4 {
        cluster.step(&target);
        sync_all_pods(&mut cluster);
        assert_no_two_owners(&cluster);
    }
    assert!(owner_counts(&cluster).iter().all(|(_, _, count)| *count == 1));
}

#[test]
fn shards_of_a_root_have_its_prefix() {
    let set = |name: &str| set_of(&entry_of_shard(name)).map(str::to_owned);
    for name in ["a-b-0-canary", "a-b-12-normal", "a-b-1-normal/left/0"] {
        assert_eq!(set(name).as_deref(), Some("a-b"), "{name}");
    }
    for name in ["a-b", "a-normal", "a-b-normal"] {
        assert_eq!(set(name), None, "{name}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Someone edits the root.
    Divide(Division, usize),
    /// A sidecar loads the last chain.
    Sync(usize),
    Pass,
}

fn steps() -> impl Strategy<Value = Step> {
    let division = prop_oneof![
        1 => Just(Division::Labels),
        1 => Just(Division::Uid),
        4 => Just(Division::Owner),
    ];
    prop_oneof![
        1 => (division, 1..=SHARDS).prop_map(|(division, shards)| Step::Divide(division, shards)),
        5 => (0..SHARDS).prop_map(Step::Sync),
        4 => Just(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(model_config(32))]

    /// Whatever the objects are divided by, and however many shards there are: no object is shown by two pods, and in the end one
    /// shows it.
    #[test]
    fn object_never_has_two_owners_whatever_divides_it(sequence in prop::collection::vec(steps(), 1..40)) {
        let mut desired = entries_of(Division::Owner, SHARDS);
        let mut cluster = with_pods(0..SHARDS, &desired);
        for step in sequence {
            match step {
                Step::Divide(division, shards) => desired = entries_of(division, shards),
                Step::Sync(pod) => cluster.sync(pod),
                Step::Pass => drop(cluster.step(&desired)),
            }
            for (resource, object, count) in owner_counts(&cluster) {
                prop_assert!(count <= 1, "{count} pods show {resource} {object:?}");
            }
        }
        for _ in 0..5 {
            cluster.step(&desired);
            sync_all_pods(&mut cluster);
        }
        for (resource, object, count) in owner_counts(&cluster) {
            prop_assert_eq!(count, 1, "{} {:?}", resource, object);
        }
        prop_assert!(cluster.claims.is_empty());
    }
}
