//! Limits that show nothing, and the size of limits.
//!
//! A shard that has not begun yet shows nothing: pods without a sidecar do all the work of its controller until they are gone. A
//! shard also shows nothing for a moment while its objects are handed over. The two cases have different keys in their selectors, so
//! that a manager that takes over can distinguish them.
//!
//! Limits with hash ranges keep their key and get no ranges: by the key, sidecars know that the shard may not write these objects either.

use ctrlmesh_contract::names::labels::NO_OBJECT_KEY;
use ctrlmesh_manager_api::sharding_config::Limit;
use ctrlmesh_wire::objects::MAX_HASH_RANGES;

use crate::label_set::no_object;
use crate::range_set::RangeSet;

/// The key of selectors that select nothing, like [`NO_OBJECT_KEY`], for shards that have not begun yet: [`super::unbegun_entry`].
const UNBEGUN_KEY: &str = "ctrlmesh.kusionstack.io/nothing-yet";
/// Maximum bytes of limits as JSON: half of what the shard-selector plugin allows, so that sidecars accept them for certain.
const MAX_LIMITS_BYTES: usize = 8 * 1024;

/// Whether a sidecar could refuse the limits. It would keep all that it shows.
pub(super) fn is_too_large(limits: &[Limit]) -> bool {
    let ranges: usize = limits
        .iter()
        .filter_map(|limit| limit.hash_ranges.as_ref())
        .map(|hash| hash.ranges.len())
        .sum();
    let bytes = serde_json::to_vec(limits).map_or(usize::MAX, |json| json.len());
    ranges > MAX_HASH_RANGES || bytes > MAX_LIMITS_BYTES
}

/// Limits that hide every object of these resources; without limits, of all resources.
pub(super) fn limits_hiding_everything(limits: &[Limit]) -> Vec<Limit> {
    hiding_limits(limits, NO_OBJECT_KEY)
}

/// Limits of a shard that has not begun, which hide every object of these resources; without limits, of all resources.
pub(super) fn limits_of_unbegun_shard(limits: &[Limit]) -> Vec<Limit> {
    hiding_limits(limits, UNBEGUN_KEY)
}

/// Whether these are limits of a shard that has not begun.
pub(super) fn are_of_unbegun_shard(limits: &[Limit]) -> bool {
    let nothing = Some(no_object(UNBEGUN_KEY));
    !limits.is_empty() && limits.iter().all(|limit| limit.selector == nothing)
}

/// Whether limits show no object of any resource that they name.
pub(super) fn hide_everything_named(limits: &[Limit]) -> bool {
    let nothing = [NO_OBJECT_KEY, UNBEGUN_KEY].map(|key| Some(no_object(key)));
    !limits.is_empty() && limits.iter().all(|limit| nothing.contains(&limit.selector))
}

/// Whether the limit hides every object of every resource.
pub(super) fn hides_everything(limit: &Limit) -> bool {
    let is_of_all = limit.relate_resources.is_empty() && limit.except_resources.is_empty();
    is_of_all && hide_everything_named(std::slice::from_ref(limit))
}

fn of_all_kinds(key: &str) -> Vec<Limit> {
    vec![Limit {
        selector: Some(no_object(key)),
        ..Limit::default()
    }]
}

fn hiding_limits(limits: &[Limit], key: &str) -> Vec<Limit> {
    if limits.is_empty() {
        return of_all_kinds(key);
    }
    let mut hidden: Vec<Limit> = Vec::new();
    for limit in limits {
        let no_ranges = limit
            .hash_ranges
            .as_ref()
            .map(|hash| RangeSet::default().of_key(&hash.key));
        let same = hidden.iter_mut().find(|known| {
            known.relate_resources == limit.relate_resources && known.except_resources == limit.except_resources
        });
        match same {
            // Equal in each pass, whatever the order of shards.
            Some(known) => {
                let both = known.hash_ranges.take().into_iter().chain(no_ranges);
                known.hash_ranges = both.min_by(|hash, other| hash.key.cmp(&other.key));
            }
            None => hidden.push(Limit {
                relate_resources: limit.relate_resources.clone(),
                except_resources: limit.except_resources.clone(),
                selector: Some(no_object(key)),
                hash_ranges: no_ranges,
            }),
        }
    }
    hidden
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_api::sharding_config::HashRanges;
    use serde_json::json;

    use super::*;
    use crate::built_in::BuiltIn;

    #[test]
    fn hidden_resources_keep_their_key_whatever_the_order_of_limits() {
        let limit = |resource: &str, hash_ranges: serde_json::Value| -> Limit {
            let groups = json!([{"apiGroups": ["apps"], "resources": [resource]}]);
            serde_json::from_value(json!({"relateResources": groups, "hashRanges": hash_ranges})).unwrap()
        };
        let of_labels = limit("deployments", json!(null));
        let by_uid = limit("deployments", json!({"key": "uid", "ranges": ["0-511"]}));
        let by_owner = limit("deployments", json!({"key": "owner", "ranges": ["7"]}));
        let other = limit("daemonsets", json!(null));
        let limits = [of_labels, by_uid, by_owner, other];
        let reversed: Vec<Limit> = limits.iter().rev().cloned().collect();
        for (limits, divided) in [(&limits[..], 0), (&reversed[..], 1)] {
            for hidden in [limits_hiding_everything(limits), limits_of_unbegun_shard(limits)] {
                assert_eq!(hidden.len(), 2);
                let none = HashRanges {
                    key: "owner".to_owned(),
                    ranges: Vec::new(),
                };
                assert_eq!(hidden[divided].hash_ranges, Some(none));
                assert_eq!(hidden[1 - divided].hash_ranges, None);
                assert!(hide_everything_named(&hidden));
                let checked = BuiltIn::ShardSelector.check(&json!({"limits": hidden}), "demo");
                assert!(checked.is_ok(), "{checked:?}");
            }
        }
    }

    #[test]
    fn limits_with_more_ranges_than_a_sidecar_takes_are_too_large() {
        let limit = |ranges: usize| Limit {
            hash_ranges: Some(HashRanges {
                key: "uid".to_owned(),
                ranges: vec!["7".to_owned(); ranges],
            }),
            ..Limit::default()
        };
        for (limits, expected) in [([limit(1000), limit(24)], false), ([limit(1000), limit(25)], true)] {
            let checked = BuiltIn::ShardSelector.check(&json!({"limits": limits}), "demo");
            assert_eq!(checked.is_err(), expected, "{checked:?}");
            assert_eq!(is_too_large(&limits), expected);
        }
    }
}
