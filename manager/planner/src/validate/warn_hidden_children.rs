//! Warns of limits that hide objects from the controller that creates them: it would get 409 AlreadyExists and retry forever.
//!
//! The objects that a controller creates are not known here. There is a warning if several kinds are divided by a label that only
//! people and the controller itself set: of several kinds, users usually create one and the controller makes the others. `*` counts
//! as several kinds. The manager's own labels are safe, because the manager sets them on children too.

use std::collections::BTreeSet;

use ctrlmesh_contract::error::quote;
use ctrlmesh_contract::names::labels::NO_OBJECT_KEY;
use ctrlmesh_manager_api::sharding_config::{Limit, ResourceGroup};
use ctrlmesh_manager_api::{LabelSelector, Operator, ShardingConfig};

use super::Findings;
use super::resource_names::{has_usual_children, is_usual_child};
use crate::LabelKeys;

/// All resources, or all API groups.
const WILDCARD: &str = "*";

/// Warns of a shard whose children need a label that nobody may set. Shards of a root are divided by labels of the manager.
pub(super) fn warn_of_hidden_children(config: &ShardingConfig, keys: &LabelKeys, findings: &mut Findings) {
    let limits = config.spec.limits.as_deref().unwrap_or_default();
    let divided: Vec<(usize, &Limit, &str)> = limits
        .iter()
        .enumerate()
        .filter_map(|(at, limit)| Some((at, limit, own_label(limit.selector.as_ref()?, keys)?)))
        .collect();
    let kinds: BTreeSet<&str> = divided
        .iter()
        .flat_map(|(_, limit, _)| resource_names_of(limit))
        .collect();
    if kinds.len() < 2 && !kinds.contains(WILDCARD) {
        return;
    }
    for (at, limit, label) in divided {
        let children = created_resources(limit);
        if !children.is_empty() {
            let children = children.into_iter().collect::<Vec<_>>().join(", ");
            let problem = format!(
                "hides {children} without label {label}, which the manager does not set: if the controller creates some without it, it \
                 gets AlreadyExists again and again; let it copy the label to what it creates, or name only resources that it does \
                 not create (docs/operating.md, \"An operator loops\")"
            );
            findings.warn(format!("spec.limits[{at}].selector"), problem);
        }
    }
}

/// A label that an object must have to be seen, unless one of the required labels is the manager's.
fn own_label<'s>(selector: &'s LabelSelector, keys: &LabelKeys) -> Option<&'s str> {
    let expressions = selector.match_expressions.iter();
    let required = expressions.filter(|it| matches!(it.operator, Operator::In | Operator::Exists));
    let required = required.map(|it| it.key.as_str());
    let mut all = selector
        .match_labels
        .keys()
        .map(String::as_str)
        .chain(required)
        .peekable();
    let first = *all.peek()?;
    let is_managers = |key: &str| {
        [&keys.shard_hash, &keys.namespace, &keys.control]
            .iter()
            .any(|it| *it == key)
    };
    // A shard that hides all objects of a resource is not about those without a label.
    (first != NO_OBJECT_KEY && !all.any(is_managers)).then_some(first)
}

fn joined_groups(groups: &[String]) -> String {
    let groups: Vec<String> = groups.iter().map(|group| quote(group)).collect();
    groups.join(", ")
}

/// The resources of a limit that controllers usually create.
pub(super) fn created_resources(limit: &Limit) -> BTreeSet<String> {
    let of_group = |group: &ResourceGroup| -> Vec<String> {
        let groups = &group.api_groups;
        let named = group.resources.iter().filter_map(|name| match name.as_str() {
            WILDCARD if !has_usual_children(groups) => None,
            WILDCARD if groups.iter().all(|group| group == WILDCARD) => Some("every kind".to_owned()),
            WILDCARD => Some(format!("every kind of {}", joined_groups(groups))),
            name => is_usual_child(name).then(|| name.to_owned()),
        });
        named.collect()
    };
    limit.relate_resources.iter().flat_map(of_group).collect()
}

pub(super) fn resource_names_of(limit: &Limit) -> impl Iterator<Item = &str> {
    let groups = limit.relate_resources.iter();
    groups.flat_map(|group| &group.resources).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::samples::object;
    use crate::validate::validate;

    fn warnings_for(limits: &Value) -> Vec<String> {
        let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "limits": limits});
        let findings = validate(&object("ShardingConfig", "s", &spec));
        assert!(findings.is_accepted(), "{}", findings.mistakes);
        let warnings = findings.warnings.list().iter();
        warnings.map(|it| format!("{}: {}", it.path, it.problem)).collect()
    }

    fn limit(resources: &[&str], selector: &Value) -> Value {
        json!({"relateResources": [{"apiGroups": ["*"], "resources": resources}], "selector": selector})
    }

    #[test]
    fn kinds_divided_by_label_that_manager_does_not_set_are_warned_of() {
        let left = json!({"matchLabels": {"shard": "left"}});
        for limits in [
            json!([limit(&["widgets", "configmaps"], &left)]),
            json!([limit(&["widgets"], &left), limit(&["configmaps"], &left)]),
        ] {
            let warnings = warnings_for(&limits);
            let [warning] = &warnings[..] else {
                panic!("{limits}: {warnings:?}")
            };
            assert!(
                warning.contains("selector: hides configmaps without label shard, "),
                "{warning}"
            );
        }
        let either = json!({"matchExpressions": [{"key": "shard", "operator": "In", "values": ["a", "b"]}]});
        assert_eq!(warnings_for(&json!([limit(&["pods", "services"], &either)])).len(), 1);
    }

    #[test]
    fn star_counts_as_several_kinds_in_groups_with_usual_children() {
        let left = json!({"matchLabels": {"shard": "left"}});
        let every = |groups: &[&str]| json!([{"relateResources": [{"apiGroups": groups, "resources": ["*"]}], "selector": left}]);
        for (groups, hides) in [
            (&["*"][..], "hides every kind without label shard, "),
            (
                &["", "apps"],
                "hides every kind of \"\", \"apps\" without label shard, ",
            ),
        ] {
            let warnings = warnings_for(&every(groups));
            assert!(
                warnings.len() == 1 && warnings[0].contains(hides),
                "{groups:?}: {warnings:?}"
            );
        }
        // Users create the resources of these groups.
        assert_eq!(warnings_for(&every(&["example.com"])), Vec::<String>::new());
        let hash = json!({"matchExpressions": [{"key": "ctrlmesh.kusionstack.io/shard-hash", "operator": "In", "values": ["1"]}]});
        assert_eq!(warnings_for(&json!([limit(&["*"], &hash)])), Vec::<String>::new());
    }

    #[test]
    fn limits_that_hide_no_children_are_not_warned_of() {
        let left = json!({"matchLabels": {"shard": "left"}});
        let hash = json!({"key": "ctrlmesh.kusionstack.io/shard-hash", "operator": "In", "values": ["1"]});
        for limits in [
            // Users create these.
            json!([limit(&["configmaps"], &left)]),
            json!([limit(&["widgets", "gadgets"], &left)]),
            // The manager labels children, too.
            json!([limit(&["widgets", "pods"], &json!({"matchExpressions": [hash]}))]),
            json!([limit(
                &["widgets", "pods"],
                &json!({"matchLabels": {"app": "a"}, "matchExpressions": [hash]})
            )]),
            // Objects without the label are seen.
            json!([limit(
                &["widgets", "pods"],
                &json!({"matchExpressions": [{"key": "shard", "operator": "NotIn", "values": ["right"]}]})
            )]),
        ] {
            assert_eq!(warnings_for(&limits), Vec::<String>::new(), "{limits}");
        }
    }
}
