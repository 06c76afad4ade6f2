//! Finds what shards of one controller share, from files alone. The namespaces of the cluster are not known, so one name of each
//! bucket stands for all namespaces that no limit names.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::Mistake;
use ctrlmesh_contract::names::labels::IGNORE_VALIDATE;
use ctrlmesh_manager_api::ShardingConfig;

use super::{Overlap, OverlapKind, controller_key, limits, name, overlap_of};
use crate::auto_shard::LabelKeys;
use crate::label_set::LabelSet;
use crate::labels::has_label;
use crate::shard_hash::{BUCKETS, shard_hash};

/// Maximum warnings for a shard.
const MAX_WARNINGS: usize = 8;

/// Warns of objects and pods that a shard shares with other shards of its controller. `configs` come from all files; of several
/// with one name, the first counts. Objects that no shard sees are not reported, because the files may not contain all shards.
#[must_use]
pub fn shared_in_files(shard: &ShardingConfig, configs: &[ShardingConfig], keys: &LabelKeys) -> Vec<Mistake> {
    let Some(own) = controller_key(shard).filter(|_| !has_label(&shard.metadata, IGNORE_VALIDATE)) else {
        return Vec::new();
    };
    let mut names = BTreeSet::from([name(shard)]);
    let others = configs.iter().filter(|config| controller_key(config) == Some(own));
    let others = others.filter(|config| config.metadata.deletion_timestamp.is_none() && names.insert(name(config)));
    let shards: Vec<ShardingConfig> = [shard].into_iter().chain(others).cloned().collect();
    let objects = shared_objects(&shards, keys);
    let pods = shards.iter().skip(1).filter_map(|other| shared_pods(shard, other));
    pods.chain(objects).take(MAX_WARNINGS).collect()
}

/// A mistake if one of the two selectors selects all pods of the other. Selectors that only intersect are not reported, because no
/// pod may ever have both sets of labels.
fn shared_pods(shard: &ShardingConfig, other: &ShardingConfig) -> Option<Mistake> {
    let pods = |config: &ShardingConfig| config.spec.selector.as_ref().and_then(LabelSet::from_selector);
    let (own, others) = (pods(shard)?, pods(other)?);
    let whose = if own.difference(&others).is_empty() {
        "this shard"
    } else if others.difference(&own).is_empty() {
        "that shard"
    } else {
        return None;
    };
    let problem = format!(
        "selects pods that {other} selects, too: every pod of {whose}. A pod of two shards sees only what both show; let the selectors \
         exclude each other",
        other = name(other)
    );
    let path = "spec.selector".to_owned();
    Some(Mistake { path, problem })
}

/// Objects of the first shard that another one sees, too.
fn shared_objects(shards: &[ShardingConfig], keys: &LabelKeys) -> Vec<Mistake> {
    let Some(own) = shards.first() else { return Vec::new() };
    let of_buckets: BTreeMap<String, u32> = (0..BUCKETS).map(|bucket| (any_of_bucket(bucket), bucket)).collect();
    let named = shards.iter().flat_map(|shard| named_namespaces(shard, &keys.namespace));
    let namespaces: BTreeSet<String> = of_buckets.keys().cloned().chain(named).collect();
    let namespaces: Vec<String> = namespaces.into_iter().collect();
    let found = overlap_of(&name(own), shards, &namespaces, keys, &|| false);
    let shared = found.iter().filter(|overlap| overlap.kind == OverlapKind::Shared);
    let told = shared.map(|overlap| Mistake {
        path: "spec.limits".to_owned(),
        problem: format!(
            "{} of {} can be in both {}; let their selectors exclude each other",
            overlap.resource,
            place_text(overlap, namespaces.len(), &of_buckets),
            overlap.shards.join(", ")
        ),
    });
    told.collect()
}

fn place_text(overlap: &Overlap, all: usize, of_buckets: &BTreeMap<String, u32>) -> String {
    if overlap.namespaces == all {
        return "every namespace".to_owned();
    }
    let examples = overlap.examples.iter().map(|example| match of_buckets.get(example) {
        Some(bucket) => format!("bucket {bucket}"),
        None => format!("namespace {example}"),
    });
    let examples = examples.collect::<Vec<_>>().join(", ");
    match overlap.namespaces.saturating_sub(overlap.examples.len()) {
        0 => examples,
        more => format!("{examples} and {more} more"),
    }
}

/// A name in this bucket that no namespace has, because it contains an upper-case letter. Names sort in the order of their buckets.
fn any_of_bucket(bucket: u32) -> String {
    let names = ('@'..='_').map(|last| format!("{bucket:02}{last}"));
    let mut of_bucket = names.filter(|name| shard_hash(name) == bucket);
    of_bucket.next().unwrap_or_default()
}

/// Namespaces that limits of a shard name.
fn named_namespaces(shard: &ShardingConfig, key: &str) -> Vec<String> {
    let selectors = limits(shard).filter_map(|limit| limit.selector.as_ref());
    let values = selectors.flat_map(|selector| {
        let label = selector.match_labels.get(key).into_iter();
        let requirements = selector
            .match_expressions
            .iter()
            .filter(|requirement| requirement.key == key);
        label.chain(requirements.flat_map(|requirement| &requirement.values))
    });
    values.cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::shard_hash::is_bucket;

    fn shard(name: &str, pods: &Value, objects: &Value) -> ShardingConfig {
        let document = json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "metadata": {"name": name, "namespace": "demo"},
            "spec": {
                "controller": {"leaderElectionName": "lock"},
                "selector": {"matchLabels": pods},
                "limits": [{"relateResources": [{"apiGroups": [""], "resources": ["pods"]}], "selector": objects}],
            },
        });
        serde_json::from_value(document).unwrap()
    }

    fn in_buckets(buckets: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": LabelKeys::default().shard_hash, "operator": "In", "values": buckets}]})
    }

    fn in_namespaces(names: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": LabelKeys::default().namespace, "operator": "In", "values": names}]})
    }

    /// What the first shard shares with the others.
    fn overlap_warnings(configs: &[ShardingConfig]) -> Vec<String> {
        let found = shared_in_files(&configs[0], configs, &LabelKeys::default());
        found.iter().map(|it| format!("{}: {}", it.path, it.problem)).collect()
    }

    #[test]
    fn each_bucket_has_name_that_no_namespace_can_have() {
        let names: Vec<String> = (0..BUCKETS).map(any_of_bucket).collect();
        assert!(names.is_sorted(), "{names:?}");
        for (bucket, name) in (0..BUCKETS).zip(&names) {
            assert_eq!(shard_hash(name), bucket, "{name}");
            assert!(!ctrlmesh_wire::is_dns_subdomain(name), "{name}");
        }
        assert!(is_bucket("31") && !is_bucket(&BUCKETS.to_string()));
    }

    #[test]
    fn objects_in_common_buckets_and_namespaces_are_reported() {
        let left = shard("left", &json!({"shard": "left"}), &in_buckets(&["0", "5", "9"]));
        let right = |objects: &Value| shard("right", &json!({"shard": "right"}), objects);
        let told_beside = |objects: &Value| overlap_warnings(&[left.clone(), right(objects)]);
        assert_eq!(
            told_beside(&in_buckets(&["5", "9", "31"])),
            [
                "spec.limits: pods of bucket 5, bucket 9 can be in both left, right; let their selectors exclude each other"
            ]
        );
        assert_eq!(told_beside(&in_buckets(&["1", "2"])), Vec::<String>::new());
        // `default` is in bucket 5.
        assert_eq!(
            told_beside(&in_namespaces(&["default", "kube-system"])),
            [
                "spec.limits: pods of namespace default can be in both left, right; let their selectors exclude each other"
            ]
        );
        let all = shard("left", &json!({"shard": "left"}), &json!({}));
        assert_eq!(
            overlap_warnings(&[all, right(&json!({}))]),
            ["spec.limits: pods of every namespace can be in both left, right; let their selectors exclude each other"]
        );
    }

    #[test]
    fn pods_of_two_shards_are_reported_to_both() {
        let objects = |bucket: &str| in_buckets(&[bucket]);
        let [one, other] =
            [("left", "1"), ("right", "2")].map(|(name, bucket)| shard(name, &json!({"app": "a"}), &objects(bucket)));
        for (shards, of) in [([one.clone(), other.clone()], "right"), ([other, one.clone()], "left")] {
            let told = overlap_warnings(&shards);
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(
                told[0].starts_with(&format!("spec.selector: selects pods that {of} selects, too")),
                "{told:?}"
            );
        }
        let canary = shard("canary", &json!({"app": "a", "shard": "canary"}), &objects("2"));
        assert!(overlap_warnings(&[canary.clone(), one.clone()])[0].contains("every pod of this shard"));
        assert!(overlap_warnings(&[one.clone(), canary])[0].contains("every pod of that shard"));
        // A pod could have both labels, but usually has not.
        let apart = shard("apart", &json!({"shard": "apart"}), &objects("2"));
        assert_eq!(overlap_warnings(&[one, apart]), Vec::<String>::new());
    }

    #[test]
    fn shards_of_other_controllers_and_copies_of_a_shard_share_nothing() {
        let left = shard("left", &json!({"app": "a"}), &json!({}));
        let mut elsewhere = shard("right", &json!({"app": "a"}), &json!({}));
        elsewhere.metadata.namespace = Some("other".to_owned());
        let mut unlocked = shard("right", &json!({"app": "a"}), &json!({}));
        unlocked.spec.controller = None;
        let ignored = |mut config: ShardingConfig| {
            config.metadata.labels = Some([(IGNORE_VALIDATE.to_owned(), String::new())].into());
            config
        };
        let right = shard("right", &json!({"app": "a"}), &json!({}));
        for configs in [
            vec![left.clone(), left.clone()],
            vec![left.clone(), elsewhere],
            vec![left.clone(), unlocked.clone()],
            vec![unlocked, left.clone()],
            vec![ignored(left.clone()), right.clone()],
        ] {
            assert_eq!(overlap_warnings(&configs), Vec::<String>::new());
        }
        assert_eq!(overlap_warnings(&[left, right]).len(), 2);
    }
}
