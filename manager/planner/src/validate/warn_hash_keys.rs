//! Warns of keys that divide objects otherwise than people expect, in a root and in limits with hash ranges.

use ctrlmesh_contract::names::labels::AUTO_SHARDING_ROOT;
use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_api::sharding_config::{Limit, ResourceGroup, Root};

use super::Findings;
use super::limit_resources::{WILDCARD, includes_pair, pairs_of};
use super::resource_names::is_cluster_scoped;
use super::warn_hidden_children::{created_resources, resource_names_of};
use crate::object_set::ObjectSet;

pub(super) fn warn_of_root_key(root: &Root, key: &str, findings: &mut Findings) {
    let limits = &root.resource_selector;
    if key == "uid" && are_several_kinds(limits) {
        let children: Vec<String> = limits.iter().flat_map(created_resources).collect();
        warn_of_divided_children(&children, "spec.root.key", findings);
    }
}

/// Warns of the keys of a shard's limits. Shards of a root are left out, because nobody can change their keys but in the root.
pub(super) fn warn_of_limit_keys(config: &ShardingConfig, findings: &mut Findings) {
    let labels = config.metadata.labels.as_ref();
    if labels.is_some_and(|labels| labels.contains_key(AUTO_SHARDING_ROOT)) {
        return;
    }
    let limits = config.spec.limits.iter().flatten().enumerate();
    let hiding: Vec<(usize, Limit)> = limits
        .filter(|(_, limit)| ObjectSet::from_limit(limit) != Some(ObjectSet::default()))
        .map(|(at, limit)| (at, without_exceptions(limit)))
        .collect();
    let has_several_kinds = are_several_kinds(hiding.iter().map(|(_, limit)| limit));
    for (at, limit) in &hiding {
        let key = limit.hash_ranges.as_ref().map(|hash| hash.key.as_str());
        match key {
            Some("uid") if has_several_kinds => {
                let children: Vec<String> = created_resources(limit).into_iter().collect();
                warn_of_divided_children(&children, &format!("spec.limits[{at}].hashRanges.key"), findings);
            }
            Some("namespace") => warn_of_cluster_scoped(limit, &format!("spec.limits[{at}]"), findings),
            _ => {}
        }
    }
}

fn are_several_kinds<'l>(limits: impl IntoIterator<Item = &'l Limit>) -> bool {
    let names: Vec<&str> = limits.into_iter().flat_map(resource_names_of).collect();
    names.len() > 1 || names.contains(&WILDCARD)
}

/// The limit without the resources that it leaves out. A limit of all resources names them by wildcards.
fn without_exceptions(limit: &Limit) -> Limit {
    let is_left_out = |pair: (&str, &str)| {
        let mut excepted = limit.except_resources.iter();
        excepted.any(|group| includes_pair(group, pair))
    };
    let mut groups = limit.relate_resources.clone();
    if groups.is_empty() {
        groups.push(ResourceGroup {
            api_groups: vec![WILDCARD.to_owned()],
            resources: vec![WILDCARD.to_owned()],
        });
    }
    for ResourceGroup { api_groups, resources } in &mut groups {
        resources.retain(|resource| {
            !api_groups
                .iter()
                .all(|api_group| is_left_out((api_group.as_str(), resource.as_str())))
        });
    }
    Limit {
        relate_resources: groups,
        ..limit.clone()
    }
}

fn warn_of_divided_children(children: &[String], path: &str, findings: &mut Findings) {
    if !children.is_empty() {
        let problem = format!(
            "puts {} into other shards than the objects that they belong to: a controller that creates some does not see them, and gets \
             AlreadyExists again and again; write key: owner, or name only resources that it does not create",
            children.join(", ")
        );
        findings.warn(path, problem);
    }
}

/// Warns of resources whose objects have no namespace, beside the key `namespace`.
fn warn_of_cluster_scoped(limit: &Limit, path: &str, findings: &mut Findings) {
    for (index, group) in limit.relate_resources.iter().enumerate() {
        for (api_group, resource) in pairs_of(group) {
            if is_cluster_scoped(api_group, resource) {
                let problem = format!(
                    "{resource} have no namespace, so that one shard has all of them; remove them if every shard needs them, or give them \
                     a limit of their own with key: uid"
                );
                findings.warn(format!("{path}.relateResources[{index}]"), problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::samples::object;
    use crate::validate::validate;

    fn shard(limits: &Value) -> Value {
        let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "limits": limits});
        object("ShardingConfig", "s", &spec)
    }

    fn warnings_of(document: &Value) -> Vec<String> {
        let findings = validate(document);
        assert!(findings.is_accepted(), "{}", findings.mistakes);
        let warnings = findings.warnings.list().iter();
        warnings.map(|it| format!("{}: {}", it.path, it.problem)).collect()
    }

    fn limit(resources: &[&str], key: &str) -> Value {
        json!({
            "relateResources": [{"apiGroups": ["example.com", ""], "resources": resources}],
            "hashRanges": {"key": key, "ranges": ["0-511"]},
        })
    }

    fn assert_one_warning(limits: &Value, expected: &str) {
        let warnings = warnings_of(&shard(limits));
        assert!(
            warnings.len() == 1 && warnings[0].starts_with(expected),
            "{limits}: {warnings:?}"
        );
    }

    #[test]
    fn children_that_are_divided_by_their_own_uid_are_warned_of() {
        assert_one_warning(
            &json!([limit(&["widgets", "pods"], "uid")]),
            "spec.limits[0].hashRanges.key: puts pods into other shards than the objects that they belong to",
        );
        assert_one_warning(
            &json!([limit(&["widgets"], "owner"), limit(&["pods"], "uid")]),
            "spec.limits[1].hashRanges.key: puts pods into other shards",
        );
        assert_one_warning(
            &json!([{"hashRanges": {"key": "uid", "ranges": ["0-511"]}}]),
            "spec.limits[0].hashRanges.key: puts every kind into other shards",
        );
    }

    #[test]
    fn keys_that_divide_as_expected_are_not_warned_of() {
        let mut excepted = limit(&["widgets", "pods"], "uid");
        excepted["exceptResources"] = json!([{"apiGroups": ["*"], "resources": ["pods"]}]);
        let mut all = limit(&["widgets", "pods"], "uid");
        all["hashRanges"]["ranges"] = json!(["0-1023"]);
        for limits in [
            json!([limit(&["widgets", "pods"], "owner")]),
            json!([limit(&["widgets", "pods"], "namespace")]),
            json!([limit(&["widgets", "pods"], "label(example.com/tenant)")]),
            json!([limit(&["widgets", "gadgets"], "uid")]),
            json!([limit(&["pods"], "uid")]),
            json!([limit(&["nodes"], "uid")]),
            json!([excepted]),
            json!([all]),
        ] {
            assert_eq!(warnings_of(&shard(&limits)), Vec::<String>::new(), "{limits}");
        }
    }

    #[test]
    fn resources_without_a_namespace_are_warned_of_beside_namespace_key() {
        assert_one_warning(
            &json!([limit(&["pods", "nodes"], "namespace")]),
            "spec.limits[0].relateResources[0]: nodes have no namespace, so that one shard has all of them",
        );
    }

    #[test]
    fn shards_of_a_root_are_not_warned_of() {
        let mut document = shard(&json!([limit(&["widgets", "pods"], "uid")]));
        document["metadata"]["labels"] = json!({AUTO_SHARDING_ROOT: "root"});
        assert_eq!(warnings_of(&document), Vec::<String>::new());
    }
}
