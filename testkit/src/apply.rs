//! Server-side apply: conflicts, merge, and removal of fields that a manager no longer applies (KEP-555). [`crate::write`] stores the
//! result; [`crate::managed`] describes how coarse ownership is.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_wire::StatusCause;
use serde_json::{Map, Value};

use crate::managed::{FieldManager, Operation, Ownership, Path, element_key, leaf_fields, read_owners, write_owners};
use crate::object::now_rfc3339;

/// Applies `config` to `live` (an object with only metadata if none exists yet).
///
/// # Errors
/// One cause per field that another manager owns with another value, unless `force`.
pub(crate) fn merge_applied(
    live: &Value,
    config: &Value,
    manager: &FieldManager,
    force: bool,
) -> Result<Value, Vec<StatusCause>> {
    let mut config = config.clone();
    drop_nulls(&mut config);
    let mut owners = read_owners(live);
    let contested = conflicting_fields(live, &config, &owners, manager);
    if !contested.is_empty() && !force {
        return Err(contested
            .iter()
            .map(|(owner, path)| conflict_cause(owner, path))
            .collect());
    }
    let applied: BTreeSet<Path> = leaf_fields(&config).into_keys().collect();
    let mut merged = live.clone();
    for path in abandoned_fields(&owners, manager, &applied) {
        remove_field(&mut merged, &path);
    }
    merge_value(&mut merged, &config, "");
    let remaining: BTreeSet<Path> = leaf_fields(&merged).into_keys().collect();
    for owner in &mut owners {
        let lost = |path: &Path| {
            contested
                .iter()
                .any(|(by, taken)| *by == owner.manager && taken == path)
        };
        let kept: BTreeSet<Path> = owner
            .fields
            .iter()
            .filter(|p| remaining.contains(*p) && !lost(p))
            .cloned()
            .collect();
        owner.fields = kept;
    }
    match owners.iter_mut().find(|owner| owner.manager == *manager) {
        Some(owner) if owner.fields == applied => {}
        Some(owner) => (owner.fields, owner.time) = (applied, now_rfc3339()),
        None => owners.push(Ownership {
            manager: manager.clone(),
            time: now_rfc3339(),
            fields: applied,
        }),
    }
    write_owners(&mut merged, &owners);
    Ok(merged)
}

/// Removes nulls: an applied `null` neither owns nor deletes a field.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

/// Fields that `manager` would take from others: the same field, or one inside the other, with another value.
fn conflicting_fields(
    live: &Value,
    config: &Value,
    owners: &[Ownership],
    manager: &FieldManager,
) -> Vec<(FieldManager, Path)> {
    let (now, desired) = (leaf_fields(live), leaf_fields(config));
    let mut found = Vec::new();
    for owner in owners.iter().filter(|owner| owner.manager != *manager) {
        for theirs in &owner.fields {
            let conflicts = desired.iter().any(|(ours, value)| {
                let related = ours.starts_with(theirs) || theirs.starts_with(ours);
                related && now.get(ours) != Some(value) && !is_parent_of_map(theirs, ours, &now)
            });
            if conflicts {
                found.push((owner.manager.clone(), theirs.clone()));
            }
        }
    }
    found
}

/// Owning an empty map claims nothing of what others put into it.
fn is_parent_of_map(theirs: &Path, ours: &Path, now: &BTreeMap<Path, &Value>) -> bool {
    theirs.len() < ours.len() && now.get(theirs).is_none_or(|value| value.is_object())
}

fn conflict_cause(owner: &FieldManager, path: &Path) -> StatusCause {
    let using = if owner.operation == Operation::Update {
        format!(" using {}", owner.api_version)
    } else {
        String::new()
    };
    let field: String = path
        .iter()
        .map(|key| match key.split_once(':') {
            Some(("f", field)) => format!(".{field}"),
            Some((_, element)) => format!("[{element}]"),
            None => key.clone(),
        })
        .collect();
    let message = format!("conflict with \"{}\"{using}", owner.name);
    StatusCause {
        reason: "FieldManagerConflict".into(),
        message,
        field,
    }
}

/// Fields that the manager applied last time, does not apply now, and nobody else owns.
fn abandoned_fields(owners: &[Ownership], manager: &FieldManager, applied: &BTreeSet<Path>) -> Vec<Path> {
    let others = |path: &Path| owners.iter().any(|o| o.manager != *manager && o.fields.contains(path));
    let before = owners.iter().find(|owner| owner.manager == *manager);
    let before = before.into_iter().flat_map(|owner| &owner.fields);
    before
        .filter(|path| !applied.contains(*path) && !others(path))
        .cloned()
        .collect()
}

/// Removes a leaf, and the maps that this empties.
fn remove_field(value: &mut Value, path: &[String]) {
    let Some((key, rest)) = path.split_first() else { return };
    let (Some(("f", field)), Value::Object(fields)) = (key.split_once(':'), value) else {
        return;
    };
    if rest.is_empty() {
        fields.remove(field);
        return;
    }
    let Some(below) = fields.get_mut(field) else { return };
    if let (Value::Array(items), [element]) = (&mut *below, rest) {
        items.retain(|item| element_key(field, item).as_deref() != Some(element));
    } else {
        remove_field(below, rest);
    }
    let emptied = below.as_object().is_some_and(Map::is_empty) || below.as_array().is_some_and(Vec::is_empty);
    if emptied {
        fields.remove(field);
    }
}

/// Merges `config` into `value`: maps merge, shared metadata lists merge by element, everything else is replaced.
fn merge_value(value: &mut Value, config: &Value, field: &str) {
    match (value, config) {
        (Value::Object(fields), Value::Object(desired)) => {
            for (field, desired) in desired {
                merge_value(fields.entry(field.clone()).or_insert(Value::Null), desired, field);
            }
        }
        (value @ (Value::Null | Value::Array(_)), Value::Array(desired)) if is_shared_list(field, value, desired) => {
            if value.is_null() {
                *value = Value::Array(Vec::new());
            }
            let Value::Array(items) = value else { return };
            for desired in desired {
                let key = element_key(field, desired);
                match items.iter_mut().find(|item| element_key(field, item) == key) {
                    Some(item) => item.clone_from(desired),
                    None => items.push(desired.clone()),
                }
            }
        }
        (value, Value::Object(desired)) if !desired.is_empty() => {
            *value = Value::Object(Map::new());
            merge_value(value, config, field);
        }
        (value, config) => value.clone_from(config),
    }
}

/// A list named `finalizers` elsewhere than in metadata (a namespace's `spec.finalizers`) merges by element too:
/// strings there, so the same rule does no harm.
fn is_shared_list(field: &str, value: &Value, desired: &[Value]) -> bool {
    let strings = |items: &[Value]| items.iter().all(Value::is_string);
    match field {
        "finalizers" => strings(desired) && value.as_array().is_none_or(|items| strings(items)),
        "ownerReferences" => desired.iter().all(|reference| reference.get("uid").is_some()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manager_named(name: &str) -> FieldManager {
        FieldManager {
            name: name.into(),
            operation: Operation::Apply,
            api_version: "v1".into(),
            subresource: String::new(),
        }
    }

    fn apply_as(live: &Value, config: &Value, by: &str) -> Value {
        merge_applied(live, config, &manager_named(by), false).expect("no conflict")
    }

    #[test]
    fn unapplied_fields_are_removed_unless_another_manager_owns_them() {
        let live = apply_as(
            &json!({"metadata": {"name": "x"}}),
            &json!({"data": {"a": "1", "b": "2", "c": "3"}}),
            "one",
        );
        let live = apply_as(&live, &json!({"data": {"b": "2"}}), "two");
        let live = apply_as(&live, &json!({"data": {"a": "1"}}), "one");
        assert_eq!(live["data"], json!({"a": "1", "b": "2"}));
        let live = apply_as(&live, &json!({}), "one");
        assert_eq!(live["data"], json!({"b": "2"}));
    }

    #[test]
    fn field_of_another_manager_conflicts_until_forced() {
        let live = apply_as(&json!({}), &json!({"spec": {"n": 1}}), "one");
        let config = json!({"spec": {"n": 2}});
        let causes = merge_applied(&live, &config, &manager_named("two"), false).expect_err("one owns spec.n");
        assert_eq!(
            (causes[0].field.as_str(), causes[0].message.as_str()),
            (".spec.n", "conflict with \"one\"")
        );
        let live = merge_applied(&live, &config, &manager_named("two"), true).expect("forced");
        assert_eq!(live["spec"], config["spec"]);
        let owners = read_owners(&live);
        assert_eq!(
            owners
                .iter()
                .map(|o| (o.manager.name.as_str(), o.fields.len()))
                .collect::<Vec<_>>(),
            [("one", 0), ("two", 1)]
                .iter()
                .copied()
                .filter(|(_, n)| *n > 0)
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn scalar_over_map_of_another_manager_conflicts() {
        let live = apply_as(&json!({}), &json!({"spec": {"a": {"x": 1}}}), "one");
        assert!(merge_applied(&live, &json!({"spec": {"a": 5}}), &manager_named("two"), false).is_err());
        assert!(merge_applied(&live, &json!({"spec": {"a": {"y": 1}}}), &manager_named("two"), false).is_ok());
    }

    #[test]
    fn finalizers_are_shared_by_element() {
        let live = apply_as(&json!({}), &json!({"metadata": {"finalizers": ["a/one"]}}), "one");
        let live = apply_as(&live, &json!({"metadata": {"finalizers": ["b/two"]}}), "two");
        assert_eq!(live["metadata"]["finalizers"], json!(["a/one", "b/two"]));
        let live = apply_as(&live, &json!({"metadata": {}}), "one");
        assert_eq!(live["metadata"]["finalizers"], json!(["b/two"]));
    }
}
