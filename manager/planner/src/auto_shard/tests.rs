//! Shards of a root: their names and pods, and that every object is in one shard.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::validate::{Object, check_object};

fn root(spec: &serde_json::Value) -> ShardingConfig {
    let document = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": {"name": "demo-root", "namespace": "operators", "uid": "u-1"},
        "spec": {"controller": {"leaderElectionName": "lock"}, "root": spec},
    });
    serde_json::from_value(document).unwrap()
}

fn spec(canary: &serde_json::Value, shards: i32, pods: i32) -> serde_json::Value {
    let resources = json!([{"relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}]}]);
    let mut spec = json!({
        "prefix": "demo",
        "targetStatefulSet": "operator",
        "auto": {"shardingSize": shards, "everyShardReplicas": pods},
        "resourceSelector": resources,
    });
    if !canary.is_null() {
        spec["canary"] = canary.clone();
    }
    spec
}

fn shards(spec: &serde_json::Value, namespaces: &[String]) -> Vec<ShardingConfig> {
    auto_shard(&root(spec), namespaces, &LabelKeys::default()).unwrap()
}

fn labels_of(namespace: &str) -> BTreeMap<String, String> {
    let keys = LabelKeys::default();
    [
        (keys.namespace, namespace.to_owned()),
        (keys.shard_hash, shard_hash(namespace).to_string()),
    ]
    .into()
}

#[test]
fn shards_have_the_policies_of_their_root() {
    let mut root = root(&spec(&json!(null), 2, 1));
    let policies =
        json!({"reshard": "Restart", "settleSeconds": 60, "unreachablePods": {"policy": "Proceed", "afterSeconds": 9}});
    let mut edited = serde_json::to_value(&root.spec).unwrap();
    edited
        .as_object_mut()
        .unwrap()
        .extend(policies.as_object().unwrap().clone());
    root.spec = serde_json::from_value(edited).unwrap();
    let shards = auto_shard(&root, &[], &LabelKeys::default()).unwrap();
    assert_eq!(shards.len(), 2);
    for shard in shards {
        let spec = serde_json::to_value(&shard.spec).unwrap();
        for (field, policy) in policies.as_object().unwrap() {
            assert_eq!(spec[field], *policy, "{field}");
        }
    }
}

/// Names of the shards that see objects of a namespace.
fn owner_names(shards: &[ShardingConfig], namespace: &str) -> Vec<String> {
    let labels = labels_of(namespace);
    let sees = |shard: &&ShardingConfig| {
        let limits = shard.spec.limits.as_deref().unwrap();
        limits
            .iter()
            .all(|limit| limit.selector.as_ref().unwrap().matches(&labels))
    };
    shards
        .iter()
        .filter(sees)
        .map(|shard| shard.metadata.name.clone().unwrap())
        .collect()
}

fn pods(shard: &ShardingConfig) -> Vec<String> {
    let expressions = &shard.spec.selector.as_ref().unwrap().match_expressions;
    let pods = expressions
        .iter()
        .find(|it| it.key == labels::STATEFUL_SET_POD_NAME)
        .unwrap();
    pods.values.clone()
}

#[test]
fn shards_have_names_and_pods_of_kusionstack() {
    let shards = shards(&spec(&json!({"replicas": 1, "inNamespaces": ["ns-canary"]}), 2, 2), &[]);
    let names: Vec<_> = shards
        .iter()
        .map(|shard| (shard.metadata.name.clone().unwrap(), pods(shard).join(" ")))
        .collect();
    assert_eq!(
        names,
        [
            ("demo-0-canary".to_owned(), "operator-0".to_owned()),
            ("demo-1-normal".to_owned(), "operator-1 operator-2".to_owned()),
            ("demo-2-normal".to_owned(), "operator-3 operator-4".to_owned()),
        ]
    );
    let child = &shards[1];
    assert_eq!(child.spec.controller.as_ref().unwrap().leader_election_name, "lock");
    assert_eq!(
        child.metadata.labels.as_ref().unwrap()[labels::AUTO_SHARDING_ROOT],
        "demo-root"
    );
    assert_eq!(child.metadata.namespace.as_deref(), Some("operators"));
    assert_eq!(child.metadata.owner_references.as_ref().unwrap()[0].uid, "u-1");
}

#[test]
fn root_needs_no_canary() {
    for canary in [json!(null), json!({"replicas": 0, "inNamespaces": ["ns-canary"]})] {
        let shards = shards(&spec(&canary, 2, 2), &[]);
        assert_eq!(
            shards.iter().map(pods).collect::<Vec<_>>().concat(),
            ["operator-0", "operator-1", "operator-2", "operator-3"]
        );
        assert_eq!(owner_names(&shards, "ns-canary").len(), 1);
    }
}

#[test]
fn canary_gets_both_its_namespaces_and_buckets() {
    let canary =
        json!({"replicas": 1, "inNamespaces": ["ns-canary"], "inShardHash": [shard_hash("default").to_string()]});
    let namespaces = ["default", "ns-canary", "kube-system"].map(str::to_owned);
    let shards = shards(&spec(&canary, 2, 2), &namespaces);
    assert_eq!(owner_names(&shards, "default"), ["demo-0-canary"]);
    assert_eq!(owner_names(&shards, "ns-canary"), ["demo-0-canary"]);
    assert_eq!(owner_names(&shards, "kube-system"), ["demo-2-normal"]);
    // Adding 32 letters leads to the same bucket; this namespace is not known.
    let unknown = "default-ABC";
    let same_bucket = (0..32)
        .map(|n| format!("{unknown}{}", char::from(b'a' + n % 26)))
        .find(|it| shard_hash(it) == 5);
    assert_eq!(owner_names(&shards, &same_bucket.unwrap()), Vec::<String>::new());
}

#[test]
fn buckets_are_divided_evenly_for_every_number_of_shards() {
    assert_eq!(u32::try_from(MAX_SHARDS), Ok(BUCKETS));
    for shards in 1..=MAX_SHARDS {
        let batches: Vec<Vec<String>> = (0..shards).map(|id| buckets_of(id, shards)).collect();
        let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert!(
            sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1,
            "{sizes:?}"
        );
        let all: Vec<String> = (0..32).map(|bucket| bucket.to_string()).collect();
        assert_eq!(batches.concat(), all);
    }
    // Where KusionStack divided evenly, the buckets are the same.
    assert_eq!(buckets_of(1, 4), ["8", "9", "10", "11", "12", "13", "14", "15"]);
}

#[test]
fn invalid_root_error_names_field() {
    let mistake_paths = |spec: &serde_json::Value| {
        let mistakes = auto_shard(&root(spec), &[], &LabelKeys::default()).unwrap_err();
        mistakes
            .list()
            .iter()
            .map(|mistake| mistake.path.clone())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        mistake_paths(&spec(&json!(null), 33, 0)),
        "spec.root.auto.shardingSize spec.root.auto.everyShardReplicas"
    );
    assert_eq!(
        mistake_paths(&spec(&json!({"replicas": -1}), 2, 2)),
        "spec.root.canary.replicas spec.root.canary"
    );
    assert_eq!(
        mistake_paths(&spec(&json!({"replicas": 1, "inShardHash": ["32"]}), 2, 2)),
        "spec.root.canary.inShardHash[0]"
    );
    let mut without = spec(&json!(null), 2, 2);
    without.as_object_mut().unwrap().remove("auto");
    assert_eq!(mistake_paths(&without), "spec.root.auto");
}

#[test]
fn disabled_root_has_no_shards() {
    let mut disabled = spec(&json!(null), 2, 2);
    disabled["disable"] = true.into();
    assert_eq!(shards(&disabled, &[]), []);
}

#[test]
fn shard_hash_changes_with_any_field_of_root() {
    let hashes = |root: &ShardingConfig| -> Vec<String> {
        let shards = auto_shard(root, &[], &LabelKeys::default()).unwrap();
        let annotations = shards.into_iter().map(|shard| shard.metadata.annotations.unwrap());
        annotations
            .map(|mut it| it.remove(annotations::AUTO_SHARDING_HASH).unwrap())
            .collect()
    };
    let one = root(&spec(&json!(null), 2, 2));
    let mut other = one.clone();
    other.spec.controller.as_mut().unwrap().leader_election_name = "other".to_owned();
    assert_eq!(hashes(&one), hashes(&one.clone()));
    for (old, new) in hashes(&one).into_iter().zip(hashes(&other)) {
        assert_ne!(old, new);
    }
}

prop_compose! {
    fn canary()(
        replicas in 0..4_i32,
        names in prop::collection::btree_set("ns-[a-e]{1,2}", 0..4),
        buckets in prop::collection::btree_set(0..32_u32, 0..6),
    ) -> serde_json::Value {
        let buckets: Vec<String> = buckets.iter().map(u32::to_string).collect();
        if names.is_empty() && buckets.is_empty() {
            json!(null)
        } else {
            json!({"replicas": replicas, "inNamespaces": names, "inShardHash": buckets})
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn each_object_and_each_pod_is_in_one_shard(
        canary in canary(),
        desired_shards in 1..=32_i32,
        replicas in 1..4_i32,
        namespaces in prop::collection::btree_set("ns-[a-e]{1,3}|[a-z]{1,12}", 1..20),
    ) {
        let namespaces: Vec<String> = namespaces.into_iter().collect();
        let spec = spec(&canary, desired_shards, replicas);
        let made = shards(&spec, &namespaces);
        for namespace in &namespaces {
            prop_assert_eq!(owner_names(&made, namespace).len(), 1, "{}", namespace);
        }
        // While no namespace is known, no object has two owners.
        let unknown = shards(&spec, &[]);
        for namespace in &namespaces {
            prop_assert!(owner_names(&unknown, namespace).len() <= 1);
        }
        let mut pods: Vec<String> = made.iter().flat_map(pods).collect();
        let count = pods.len();
        pods.sort();
        pods.dedup();
        prop_assert_eq!(pods.len(), count);
        for shard in made {
            let findings = check_object(&Object::ShardingConfig(Box::new(shard)), &LabelKeys::default());
            prop_assert!(findings.is_accepted(), "{}", findings.mistakes);
        }
    }
}
