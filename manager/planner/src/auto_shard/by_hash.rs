//! The limits of the shards of a root with a key: each shard has some of the virtual ranges of a hash.

use ctrlmesh_contract::names::labels::NO_OBJECT_KEY;
use ctrlmesh_manager_api::sharding_config::{Auto, Limit, ResourceGroup, Root};

use crate::divide_ranges::divide_ranges;
use crate::label_set::no_object;
use crate::range_set::RangeSet;

/// The limits of each shard, in the order of their numbers.
pub(super) fn limits_by_hash(spec: &Root, (auto, shards): (&Auto, i32), key: &str) -> Vec<Vec<Limit>> {
    let equal = usize::try_from(shards).map_or_else(|_| Vec::new(), |shards| vec![1; shards]);
    let weights = if auto.weights.is_empty() {
        equal
    } else {
        let weight = |weight: &i32| u32::try_from(*weight).unwrap_or_default();
        auto.weights.iter().map(weight).collect()
    };
    let ranges = divide_ranges(&weights);
    let limits = |(shard, ranges): (usize, &RangeSet)| -> Vec<Limit> {
        let divided = spec.resource_selector.iter().map(|limit| Limit {
            relate_resources: limit.relate_resources.clone(),
            except_resources: excepted_resources(spec, limit),
            selector: limit.selector.clone(),
            hash_ranges: Some(ranges.of_key(key)),
        });
        divided.chain(limit_of_singletons(spec, key, shard)).collect()
    };
    ranges.iter().enumerate().map(limits).collect()
}

/// Resources that a limit names by a wildcard, but that are not divided. Validation refuses to name a resource in two lists.
fn excepted_resources(spec: &Root, limit: &Limit) -> Vec<ResourceGroup> {
    let mut groups = limit.relate_resources.iter();
    let has_wildcard = groups.any(|group| group.api_groups.iter().chain(&group.resources).any(|name| name == "*"));
    let whole = spec.whole.iter().chain(&spec.singletons);
    whole.filter(|_| has_wildcard).cloned().collect()
}

/// `None`: there are no singletons. The first shard has a limit too, although it hides nothing: a hand-over then knows which resources
/// a new first shard must not show yet, and a sidecar what to hide from a leader that comes from another shard.
fn limit_of_singletons(spec: &Root, key: &str, shard: usize) -> Option<Limit> {
    if spec.singletons.is_empty() {
        return None;
    }
    let limit = Limit {
        relate_resources: spec.singletons.clone(),
        ..Limit::default()
    };
    Some(if shard == 0 {
        let hash_ranges = Some(RangeSet::ALL.of_key(key));
        Limit { hash_ranges, ..limit }
    } else {
        Limit {
            selector: Some(no_object(NO_OBJECT_KEY)),
            ..limit
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use crate::auto_shard::{LabelKeys, auto_shard};
    use crate::find_overlaps;
    use crate::object_set::ObjectSet;
    use crate::settings;
    use crate::validate::{Object, check_object, read};
    use crate::view::{resource_classes, visible_objects};
    use ctrlmesh_manager_api::ShardingConfig;
    use ctrlmesh_manager_api::sharding_config::{Limit, NamedGets};
    use ctrlmesh_wire::objects::VIRTUAL_RANGES;

    fn root(weights: &[i32]) -> ShardingConfig {
        let spec = json!({
            "controller": {"leaderElectionName": "lock"},
            "root": {
                "prefix": "demo",
                "targetStatefulSet": "operator",
                "key": "owner",
                "auto": {"shardingSize": weights.len(), "everyShardReplicas": 2, "weights": weights},
                "resourceSelector": [
                    {"relateResources": [{"apiGroups": ["example.com"], "resources": ["*"]}]},
                    {"relateResources": [{"apiGroups": ["apps"], "resources": ["deployments"]}], "selector": {"matchLabels": {"a": "b"}}},
                ],
                "whole": [{"apiGroups": ["example.com"], "resources": ["classes"]}],
                "singletons": [{"apiGroups": ["example.com"], "resources": ["clusters"]}],
            },
        });
        match read(&crate::samples::object("ShardingConfig", "demo-root", &spec)) {
            Ok(Object::ShardingConfig(config)) => *config,
            other => panic!("{other:?}"),
        }
    }

    fn shards(weights: &[i32]) -> Vec<ShardingConfig> {
        auto_shard(&root(weights), &[], &LabelKeys::default()).unwrap()
    }

    /// The objects of a resource that each shard sees. The resource is given as text.
    fn seen(shards: &[ShardingConfig], resource: &str) -> Vec<Option<ObjectSet>> {
        let limits = || shards.iter().flat_map(|shard| shard.spec.limits.iter().flatten());
        let classes = resource_classes(limits());
        let class = classes.iter().find(|class| class.to_string() == resource).unwrap();
        let limits = shards.iter().map(|shard| shard.spec.limits.iter().flatten());
        limits.map(|limits| visible_objects(limits, class)).collect()
    }

    /// The shard that sees the objects of each range. Panics if it is not exactly one.
    fn owners(shards: &[ShardingConfig]) -> Vec<usize> {
        let sets = seen(shards, "other resources of \"example.com\"");
        let owner = |range| {
            let sees = |set: &Option<ObjectSet>| set.as_ref().is_some_and(|set| set.allows_range("owner", range));
            let mut owners = sets.iter().enumerate().filter(|(_, set)| sees(set));
            let (owner, _) = owners.next().unwrap();
            assert!(owners.next().is_none(), "{range} has two owners");
            owner
        };
        (0..VIRTUAL_RANGES).map(owner).collect()
    }

    #[test]
    fn shards_have_names_pods_and_ranges() {
        let shards = shards(&[1, 1, 1]);
        let text = |shard: &ShardingConfig, pointer: &str| -> Value {
            serde_json::to_value(shard)
                .unwrap()
                .pointer(pointer)
                .cloned()
                .unwrap_or_default()
        };
        let first = "/spec/limits/0";
        assert_eq!(text(&shards[2], "/metadata/name"), "demo-3-normal");
        assert_eq!(
            text(&shards[2], "/spec/selector/matchExpressions/0/values"),
            json!(["operator-4", "operator-5"])
        );
        assert_eq!(
            text(&shards[2], &format!("{first}/hashRanges")),
            json!({"key": "owner", "ranges": ["341-681"]})
        );
        let excepted = json!([
            {"apiGroups": ["example.com"], "resources": ["classes"]},
            {"apiGroups": ["example.com"], "resources": ["clusters"]},
        ]);
        assert_eq!(text(&shards[2], &format!("{first}/exceptResources")), excepted);
        assert_eq!(text(&shards[2], "/spec/limits/1/exceptResources"), json!(null));
        assert_eq!(
            text(&shards[2], "/spec/limits/1/selector"),
            json!({"matchLabels": {"a": "b"}})
        );
    }

    #[test]
    fn shards_have_the_named_gets_of_their_root() {
        let mut root = root(&[1, 1]);
        root.spec.named_gets = NamedGets::Forbidden;
        for shard in auto_shard(&root, &[], &LabelKeys::default()).unwrap() {
            assert_eq!(settings::shard_selector(&shard)["namedGets"], "Forbidden");
        }
        let unset = settings::shard_selector(&shards(&[1])[0]);
        assert_eq!(unset.get("namedGets"), None);
    }

    #[test]
    fn every_shard_sees_whole_resources_and_the_first_alone_singletons() {
        let shards = shards(&[1, 1, 1]);
        let all = || Some(ObjectSet::default());
        assert_eq!(seen(&shards, "example.com/clusters"), [all(), None, None]);
        // It hides nothing, and makes sure that the resource is a class of its own.
        let groups = json!([{"apiGroups": ["example.com"], "resources": ["classes"]}]);
        let probe: Limit = serde_json::from_value(json!({"relateResources": groups})).unwrap();
        let limits = shards.iter().flat_map(|shard| shard.spec.limits.iter().flatten());
        let classes = resource_classes(limits.chain([&probe]));
        let class = classes.iter().find(|class| class.to_string() == "example.com/classes");
        for shard in &shards {
            let limits = shard.spec.limits.iter().flatten();
            assert_eq!(visible_objects(limits, class.unwrap()), all());
        }
    }

    #[test]
    fn shards_neither_overlap_nor_leave_objects_out() {
        let namespaces = ["a", "b"].map(str::to_owned);
        // Without the other label selector: objects without the label are in no shard, as the root says.
        let mut shards = shards(&[3, 1, 2]);
        for shard in &mut shards {
            shard.spec.limits.as_mut().unwrap().remove(1);
        }
        assert_eq!(find_overlaps(&shards, &namespaces, &LabelKeys::default()), []);
        shards.remove(1);
        let orphaned = find_overlaps(&shards, &namespaces, &LabelKeys::default());
        assert!(!orphaned.is_empty(), "the ranges of the second shard are in none");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn each_object_is_in_one_shard_and_moves_only_to_a_new_one(
            weights in prop::collection::vec(1..=100_i32, 1..16),
            more in 1..=100_i32,
        ) {
            let before = owners(&shards(&weights));
            let new = weights.len();
            let made = shards(&[weights, vec![more]].concat());
            for (old, owner) in before.into_iter().zip(owners(&made)) {
                prop_assert!(owner == old || owner == new);
            }
            for shard in made {
                let findings = check_object(&Object::ShardingConfig(Box::new(shard)), &LabelKeys::default());
                prop_assert!(findings.is_accepted(), "{}", findings.mistakes);
                prop_assert!(findings.warnings.list().is_empty(), "{}", findings.warnings);
            }
        }
    }
}
