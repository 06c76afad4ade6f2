//! Warns of limits that hide from a controller what it creates: it would get 409 AlreadyExists and retry forever.
//!
//! What a controller creates can't be known here. A warning comes where objects are divided by a label that only people and the
//! controller itself set, and more than one kind is divided by it: of several kinds, one is usually given to a controller and the others
//! are made by it. The manager's own labels are set by the manager, on children too.

use std::collections::BTreeSet;

use ctrlmesh_manager_api::sharding_config::Limit;
use ctrlmesh_manager_api::{LabelSelector, Operator, ShardingConfig};

use super::Findings;
use super::resource_names::is_usual_child;
use crate::LabelKeys;

/// Warns of a shard whose children need a label that nobody may set. Shards of a root are divided by labels of the manager.
pub(super) fn check(config: &ShardingConfig, keys: &LabelKeys, findings: &mut Findings) {
    let limits = config.spec.limits.as_deref().unwrap_or_default();
    let divided: Vec<(usize, &Limit, &str)> = limits
        .iter()
        .enumerate()
        .filter_map(|(at, limit)| Some((at, limit, own_label(limit.selector.as_ref()?, keys)?)))
        .collect();
    let kinds: BTreeSet<&str> = divided.iter().flat_map(|(_, limit, _)| names(limit)).collect();
    if kinds.len() < 2 {
        return;
    }
    for (at, limit, label) in divided {
        let children: BTreeSet<&str> = names(limit).filter(|name| is_usual_child(name)).collect();
        if !children.is_empty() {
            let children = children.into_iter().collect::<Vec<_>>().join(", ");
            let problem = format!(
                "hides {children} without label {label}, which the manager does not set: if the controller creates some without it, it \
                 gets AlreadyExists again and again; let it copy the label to what it creates, or leave these out \
                 (docs/operating.md, \"An operator loops\")"
            );
            findings.warn(format!("spec.limits[{at}].selector"), problem);
        }
    }
}

/// A label that an object must have to be seen, if none of those that it must have is the manager's.
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
    (!all.any(is_managers)).then_some(first)
}

fn names(limit: &Limit) -> impl Iterator<Item = &str> {
    let groups = limit.relate_resources.iter();
    groups.flat_map(|group| &group.resources).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::samples::object;
    use crate::validate::validate;

    fn warned(limits: &Value) -> Vec<String> {
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
    fn several_kinds_under_a_label_that_the_manager_does_not_set_are_warned_of() {
        let left = json!({"matchLabels": {"shard": "left"}});
        for limits in [
            json!([limit(&["widgets", "configmaps"], &left)]),
            json!([limit(&["widgets"], &left), limit(&["configmaps"], &left)]),
        ] {
            let told = warned(&limits);
            let [told] = &told[..] else {
                panic!("{limits}: {told:?}")
            };
            assert!(
                told.contains("selector: hides configmaps without label shard, "),
                "{told}"
            );
        }
        let either = json!({"matchExpressions": [{"key": "shard", "operator": "In", "values": ["a", "b"]}]});
        assert_eq!(warned(&json!([limit(&["pods", "services"], &either)])).len(), 1);
    }

    #[test]
    fn limits_that_hide_no_children_are_not_warned_of() {
        let left = json!({"matchLabels": {"shard": "left"}});
        let hash = json!({"key": "ctrlmesh.kusionstack.io/shard-hash", "operator": "In", "values": ["1"]});
        for limits in [
            // What a controller is given.
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
            assert_eq!(warned(&limits), Vec::<String>::new(), "{limits}");
        }
    }
}
