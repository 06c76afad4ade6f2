//! The number of shards of a root that follows the replicas of its StatefulSet: a root with a key and without `auto.shardingSize`.
//!
//! Guarantees:
//! - Between 1 and [`MAX_SHARDS`] shards, with enough pods for all replicas if there is such a number.
//! - The shards stay as they are while the replicas say nothing about them: without a StatefulSet, and with 0 replicas.

use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_api::sharding_config::{Auto, Root};
use ctrlmesh_manager_api::status::Reason;

use super::MAX_SHARDS;

/// What is known of the StatefulSet of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// It does not exist.
    Missing,
    Found {
        /// `spec.replicas`.
        replicas: i32,
        /// `spec.ordinals.start`: the number of the first pod.
        first_ordinal: i32,
    },
}

/// How many shards a root has that follows replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedSize {
    /// 0: there are none, and nothing says how many to make.
    pub shards: i32,
    /// Why the shards do not follow the replicas. `None`: they do.
    pub problem: Option<Reason>,
}

/// The number of shards that follows from a StatefulSet. `existing`: the number of shards that there are; 0 if there are none. `None`:
/// the root says the number itself, or makes no shards.
#[must_use]
pub fn follow_replicas(root: &Root, workload: Workload, existing: i32) -> Option<FollowedSize> {
    let auto = followed_auto(root)?;
    let name = &root.target_stateful_set;
    let kept = if existing > 0 {
        "the shards stay as they are"
    } else {
        "no shard is made"
    };
    let stays = |code, message: String| FollowedSize {
        shards: existing,
        problem: Some(Reason::new(code, message)),
    };
    Some(match workload {
        Workload::Missing => stays(
            Reason::STATEFUL_SET_MISSING,
            format!(
                "StatefulSet {name} does not exist in this namespace, so {kept}; create it, correct root.targetStatefulSet, or write \
                 root.auto.shardingSize"
            ),
        ),
        Workload::Found { first_ordinal, .. } if first_ordinal != 0 => stays(
            Reason::ORDINALS_START,
            format!(
                "StatefulSet {name} numbers its pods from {first_ordinal}, and shards select pods from number 0, so {kept}; remove \
                 spec.ordinals from the StatefulSet, or write root.auto.shardingSize"
            ),
        ),
        Workload::Found { replicas: ..=0, .. } => stays(
            Reason::SCALED_TO_ZERO,
            format!("StatefulSet {name} has 0 replicas, so {kept} until it is scaled up"),
        ),
        Workload::Found { replicas, .. } => size_of(auto, name, replicas),
    })
}

/// The size for at least one replica.
fn size_of(auto: &Auto, name: &str, replicas: i32) -> FollowedSize {
    let pods = auto.every_shard_replicas.max(1);
    let needed = (replicas - 1) / pods + 1;
    let problem = (needed > MAX_SHARDS).then(|| {
        let room = MAX_SHARDS.saturating_mul(pods);
        let message = format!(
            "StatefulSet {name} has {replicas} replicas, but at most {MAX_SHARDS} shards can be made, for {room} pods: pods from \
             {name}-{room} on are refused; scale the StatefulSet down, or raise root.auto.everyShardReplicas"
        );
        Reason::new(Reason::TOO_MANY_REPLICAS, message)
    });
    FollowedSize {
        shards: needed.min(MAX_SHARDS),
        problem,
    }
}

/// Whether the number of shards follows the replicas of the StatefulSet.
pub(crate) fn follows_replicas(root: &Root) -> bool {
    followed_auto(root).is_some()
}

fn followed_auto(root: &Root) -> Option<&Auto> {
    let auto = root.auto.as_ref()?;
    (root.key.is_some() && auto.sharding_size.is_none() && root.disable != Some(true)).then_some(auto)
}

/// The same root with a number of shards.
#[must_use]
pub fn with_shards(config: &ShardingConfig, shards: i32) -> ShardingConfig {
    let mut config = config.clone();
    if let Some(auto) = config.spec.root.as_mut().and_then(|root| root.auto.as_mut()) {
        auto.sharding_size = Some(shards);
    }
    config
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::auto_shard::{LabelKeys, auto_shard};

    fn root(changes: &[(&str, Value)]) -> ShardingConfig {
        let mut root = json!({
            "prefix": "demo",
            "targetStatefulSet": "operator",
            "key": "owner",
            "auto": {},
            "resourceSelector": [{"relateResources": [{"apiGroups": ["example.com"], "resources": ["widgets"]}]}],
        });
        for (field, value) in changes {
            root[*field] = value.clone();
        }
        let spec = json!({"controller": {"leaderElectionName": "lock"}, "root": root});
        serde_json::from_value(crate::samples::object("ShardingConfig", "root", &spec)).unwrap()
    }

    fn followed(config: &ShardingConfig, workload: Workload, existing: i32) -> Option<FollowedSize> {
        follow_replicas(config.spec.root.as_ref().unwrap(), workload, existing)
    }

    fn of_replicas(replicas: i32) -> Workload {
        Workload::Found {
            replicas,
            first_ordinal: 0,
        }
    }

    #[test]
    fn there_are_as_many_shards_as_replicas_need() {
        for (auto, sizes) in [
            (json!({}), [(1, 1), (2, 2), (3, 3), (32, 32)]),
            (json!({"everyShardReplicas": 3}), [(1, 1), (3, 1), (4, 2), (96, 32)]),
            (
                json!({"everyShardReplicas": 256}),
                [(1, 1), (256, 1), (257, 2), (8192, 32)],
            ),
        ] {
            let config = root(&[("auto", auto)]);
            for (replicas, shards) in sizes {
                // The number of existing shards does not matter.
                for existing in [0, 7] {
                    let expected = FollowedSize { shards, problem: None };
                    assert_eq!(
                        followed(&config, of_replicas(replicas), existing),
                        Some(expected),
                        "{replicas}"
                    );
                }
            }
        }
    }

    #[test]
    fn shards_have_the_pods_of_all_replicas() {
        let config = root(&[("auto", json!({"everyShardReplicas": 2}))]);
        let size = followed(&config, of_replicas(5), 0).unwrap();
        let shards = auto_shard(&with_shards(&config, size.shards), &[], &LabelKeys::default()).unwrap();
        let pods: Vec<String> = shards
            .iter()
            .flat_map(|shard| {
                shard.spec.selector.as_ref().unwrap().match_expressions[0]
                    .values
                    .clone()
            })
            .collect();
        let expected: Vec<String> = (0..6).map(|ordinal| format!("operator-{ordinal}")).collect();
        assert_eq!(pods, expected, "the last one would be the next replica");
        assert!(
            auto_shard(&config, &[], &LabelKeys::default()).is_err(),
            "nobody made the number known"
        );
    }

    #[test]
    fn shards_stay_as_they_are_while_replicas_say_nothing() {
        let shifted = Workload::Found {
            replicas: 5,
            first_ordinal: 1,
        };
        let config = root(&[]);
        for (workload, code) in [
            (Workload::Missing, "StatefulSetMissing"),
            (of_replicas(0), "ScaledToZero"),
            (shifted, "OrdinalsStart"),
        ] {
            for (existing, kept) in [(0, "so no shard is made"), (3, "so the shards stay as they are")] {
                let size = followed(&config, workload, existing).unwrap();
                let problem = size.problem.unwrap();
                assert_eq!((size.shards, problem.code), (existing, code));
                assert!(problem.message.contains(kept), "{}", problem.message);
                assert!(problem.message.contains("StatefulSet operator "), "{}", problem.message);
            }
        }
    }

    #[test]
    fn replicas_without_room_in_any_shard_are_named() {
        for (auto, replicas, first) in [
            (json!({}), 33, "operator-32"),
            (json!({}), i32::MAX, "operator-32"),
            (json!({"everyShardReplicas": 256}), i32::MAX, "operator-8192"),
        ] {
            let size = followed(&root(&[("auto", auto)]), of_replicas(replicas), 3).unwrap();
            let problem = size.problem.unwrap();
            assert_eq!((size.shards, problem.code), (32, "TooManyReplicas"));
            let expected = format!("pods from {first} on are refused");
            assert!(problem.message.contains(&expected), "{}", problem.message);
        }
    }

    #[test]
    fn other_roots_do_not_follow_replicas() {
        let given = json!({"shardingSize": 2});
        for changes in [
            [("auto", given)],
            [("auto", Value::Null)],
            [("key", Value::Null)],
            [("disable", true.into())],
        ] {
            assert_eq!(followed(&root(&changes), of_replicas(3), 1), None, "{changes:?}");
        }
    }
}
