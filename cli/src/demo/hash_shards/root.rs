//! The root of the gadgets: what the user applies, whether its shards are in force, and which gadgets they have.

use ctrlmesh_manager_api::API_VERSION;
use ctrlmesh_manager_api::status::condition;
use ctrlmesh_manager_planner::divide_ranges;
use ctrlmesh_manager_planner::range_set::RangeSet;
use ctrlmesh_testkit::Snapshot;
use ctrlmesh_wire::objects::{HashKey, VIRTUAL_RANGES};
use serde_json::{Value, json};

use crate::demo::gadget::{GADGET_NAMESPACE, relate_resources};

/// Name of the root, of the StatefulSet, and prefix of the shards.
pub(super) const NAME: &str = "gadgets";

const LOCK: &str = "gadget-controller";

const SHARDING_CONFIGS: &str = "shardingconfigs.ctrlmesh.kusionstack.io";

/// A root that divides all gadgets by their UIDs. The controller creates none, so `uid` suits it (docs/sharding.md).
pub(super) fn root_document(shards: usize) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "ShardingConfig",
        "metadata": { "namespace": GADGET_NAMESPACE, "name": NAME },
        "spec": {
            "controller": { "leaderElectionName": LOCK },
            "root": {
                "prefix": NAME,
                "targetStatefulSet": NAME,
                "key": "uid",
                "auto": { "shardingSize": shards, "everyShardReplicas": 1 },
                "resourceSelector": [{ "relateResources": relate_resources() }],
            },
        },
    })
}

/// Name of the shard with this number, counted from 1.
pub(super) fn shard_name(number: usize) -> String {
    format!("{NAME}-{number}-normal")
}

/// The shards up to this number that the manager does not report to be in force.
pub(super) fn late_shards(state: &Snapshot<'_>, shards: usize) -> Vec<String> {
    let is_late = |name: &String| {
        !state
            .get(SHARDING_CONFIGS, GADGET_NAMESPACE, name)
            .is_some_and(is_in_force)
    };
    (1..=shards).map(shard_name).filter(is_late).collect()
}

fn is_in_force(shard: &Value) -> bool {
    [condition::DISTRIBUTED, condition::ENFORCED]
        .into_iter()
        .all(|kind| is_true(shard, kind))
}

/// Whether a condition about the current generation is true.
fn is_true(shard: &Value, kind: &str) -> bool {
    let generation = shard.pointer("/metadata/generation");
    let conditions = shard.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        let is = |field: &str, value: &str| condition.get(field).and_then(Value::as_str) == Some(value);
        is("type", kind) && is("status", "True") && condition.get("observedGeneration") == generation
    })
}

/// The virtual ranges of each shard of the root.
pub(super) struct Division(Vec<RangeSet>);

impl Division {
    pub(super) fn among(shards: usize) -> Self {
        Self(divide_ranges(&vec![1; shards]))
    }

    /// The shard, counted from 0, that has the object with this UID.
    pub(super) fn shard_of(&self, uid: &str) -> Option<usize> {
        // Ranges are of equal size, and their number is a power of two: the upper bits of a hash are the number of its range.
        let range = HashKey::Uid.hash_of_value(uid) >> (u64::BITS - VIRTUAL_RANGES.ilog2());
        let range = u16::try_from(range).ok()?;
        self.0.iter().position(|ranges| ranges.contains(range))
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_planner::validate;

    use super::*;

    #[test]
    fn roots_are_valid_for_manager() {
        for shards in [2, 3, 4] {
            let findings = validate(&root_document(shards));
            assert!(findings.mistakes.list().is_empty(), "{}", findings.mistakes);
        }
    }

    #[test]
    fn objects_move_to_new_shard_alone() {
        let (three, four) = (Division::among(3), Division::among(4));
        let uids = (0..300).map(|number: u32| format!("{number:08x}-3b1d-4e55-8a6e-0d4c1b7e9a52"));
        let moves: Vec<_> = uids.map(|uid| (three.shard_of(&uid), four.shard_of(&uid))).collect();
        assert!(
            moves
                .iter()
                .all(|(before, after)| before.is_some() && (after == before || *after == Some(3)))
        );
        for before in 0..3 {
            assert!(moves.contains(&(Some(before), Some(3))), "{moves:?}");
        }
    }

    #[test]
    fn shard_is_in_force_when_both_conditions_are_about_its_generation() {
        let shard = |kind: &str, status: &str, generation: u32| {
            json!({
                "metadata": { "generation": 2 },
                "status": { "conditions": [
                    { "type": "Distributed", "status": "True", "observedGeneration": 2 },
                    { "type": kind, "status": status, "observedGeneration": generation },
                ] },
            })
        };
        assert!(is_in_force(&shard("Enforced", "True", 2)));
        assert!(!is_in_force(&shard("Enforced", "True", 1)));
        assert!(!is_in_force(&shard("Enforced", "False", 2)));
        assert!(!is_in_force(&shard("Accepted", "True", 2)));
    }
}
