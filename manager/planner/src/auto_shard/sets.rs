//! Sets of shards: the shards of a root that belong together.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::names::labels::AUTO_SHARDING_ROOT;
use serde_json::Value;

use super::SET;

/// The shards (by UID) whose set is incomplete, because some of its shards are not written or not deleted yet. They keep their
/// entries. `documents` are the ShardingConfigs of one namespace, as they were stored.
#[must_use]
pub fn held_back(documents: &[Value]) -> BTreeSet<String> {
    let mut sets: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for document in documents.iter().filter(|document| is_alive(document)) {
        if let Some(owner) = owner_uid(document) {
            sets.entry(owner).or_default().push(document);
        }
    }
    let broken = sets.into_values().filter(|shards| !is_whole(shards)).flatten();
    broken
        .filter_map(|shard| shard.pointer("/metadata/uid")?.as_str().map(str::to_owned))
        .collect()
}

fn is_whole(shards: &[&Value]) -> bool {
    let mut sets = shards.iter().map(|shard| set_of(shard));
    let Some(first) = sets.next() else { return true };
    let count = first
        .and_then(|mark| mark.split('-').next())
        .and_then(|count| count.parse::<usize>().ok());
    count == Some(shards.len()) && sets.all(|mark| mark == first)
}

/// The UID of the root that a shard was made from.
#[must_use]
pub fn owner_uid(document: &Value) -> Option<&str> {
    let metadata = document.get("metadata")?;
    metadata.get("labels")?.get(AUTO_SHARDING_ROOT)?;
    let owners = metadata.get("ownerReferences")?.as_array()?.iter();
    let mut roots = owners.filter(|owner| owner["kind"] == "ShardingConfig");
    roots.next()?.get("uid")?.as_str()
}

/// The set that a shard belongs to.
fn set_of(document: &Value) -> Option<&str> {
    document.get("metadata")?.get("annotations")?.get(SET)?.as_str()
}

fn is_alive(document: &Value) -> bool {
    document["kind"] == "ShardingConfig" && document.pointer("/metadata/deletionTimestamp").is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shard(name: &str, root: &str, set: &str) -> Value {
        json!({
            "kind": "ShardingConfig",
            "metadata": {
                "name": name, "uid": name,
                "labels": { AUTO_SHARDING_ROOT: "root" },
                "annotations": { SET: set },
                "ownerReferences": [{ "kind": "ShardingConfig", "name": "root", "uid": root }],
            },
        })
    }

    #[test]
    fn set_is_used_only_when_complete() {
        let of = |documents: &[Value]| held_back(documents).into_iter().collect::<Vec<_>>().concat();
        let (a, b) = (shard("a", "r", "2-x"), shard("b", "r", "2-x"));
        assert_eq!(of(&[a.clone(), b.clone()]), "");
        assert_eq!(of(std::slice::from_ref(&a)), "a", "one is not made yet");
        assert_eq!(of(&[a.clone(), shard("b", "r", "2-y")]), "ab", "one is not edited yet");
        assert_eq!(
            of(&[a.clone(), b.clone(), shard("c", "r", "3-z")]),
            "abc",
            "one is not deleted yet"
        );
        let mut going = shard("c", "r", "3-z");
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(of(&[a.clone(), b.clone(), going]), "", "it is as good as gone");
        assert_eq!(
            of(&[a, b, shard("d", "other", "2-x")]),
            "d",
            "another root's shards are no concern"
        );
    }

    #[test]
    fn shards_without_root_are_never_held_back() {
        let mut own = shard("a", "r", "2-x");
        own["metadata"]["ownerReferences"] = json!([]);
        assert!(held_back(&[own.clone(), json!({ "kind": "CircuitBreaker" })]).is_empty());
        own["metadata"] = json!({ "uid": "a" });
        assert!(held_back(&[own]).is_empty());
    }
}
