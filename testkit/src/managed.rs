//! Field ownership: reads, updates and writes `metadata.managedFields`. [`crate::apply`] decides applies.
//!
//! Coarser than upstream, as for a custom resource without list annotations: a list is one field, owned as a whole. There are two
//! exceptions, because controllers share them: `metadata.finalizers` is a set, and `metadata.ownerReferences` is keyed by `uid`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::object::{metadata, set_metadata};

/// A field: the keys of `fieldsV1` from the root (`f:spec`, `f:replicas`), each with its prefix.
pub(crate) type Path = Vec<String>;

/// Fields without an owner: identity, and what the server sets.
const UNOWNED_METADATA: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
];

/// `managedFields[].operation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldManager {
    pub(crate) name: String,
    pub(crate) operation: Operation,
    pub(crate) api_version: String,
    /// Empty for the main resource.
    pub(crate) subresource: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Ownership {
    pub(crate) manager: FieldManager,
    pub(crate) time: String,
    pub(crate) fields: BTreeSet<Path>,
}

/// The leaves of an object with their values. The module documentation defines leaves.
pub(crate) fn leaf_fields(object: &Value) -> BTreeMap<Path, &Value> {
    let mut found = BTreeMap::new();
    for (field, value) in object.as_object().into_iter().flatten() {
        match field.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                let owned = value.as_object().into_iter().flatten();
                for (field, value) in owned.filter(|(field, _)| !UNOWNED_METADATA.contains(&field.as_str())) {
                    collect_metadata(field, value, &mut found);
                }
            }
            _ => collect_leaves(&mut vec![format!("f:{field}")], value, &mut found),
        }
    }
    found
}

fn collect_metadata<'a>(field: &str, value: &'a Value, found: &mut BTreeMap<Path, &'a Value>) {
    let mut path = vec!["f:metadata".to_owned(), format!("f:{field}")];
    let Some(items) = value.as_array().filter(|_| element_key(field, &Value::Null).is_some()) else {
        return collect_leaves(&mut path, value, found);
    };
    for item in items {
        if let Some(key) = element_key(field, item) {
            found.insert([path.clone(), vec![key]].concat(), item);
        }
    }
}

/// The `fieldsV1` key of an element of the two metadata lists that are owned by element; `None` for other lists.
pub(crate) fn element_key(list: &str, item: &Value) -> Option<String> {
    match list {
        "finalizers" => Some(format!("v:{item}")),
        "ownerReferences" => Some(format!("k:{}", json!({ "uid": item.get("uid") }))),
        _ => None,
    }
}

fn collect_leaves<'a>(path: &mut Path, value: &'a Value, found: &mut BTreeMap<Path, &'a Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (field, value) in fields {
                path.push(format!("f:{field}"));
                collect_leaves(path, value, found);
                path.pop();
            }
        }
        _ => {
            found.insert(path.clone(), value);
        }
    }
}

/// Reads `metadata.managedFields`. Skips entries that are not in the form that the server writes.
pub(crate) fn read_owners(object: &Value) -> Vec<Ownership> {
    let entries = metadata(object)
        .and_then(|m| m.get("managedFields"))
        .and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(read_entry).collect()
}

fn read_entry(entry: &Value) -> Option<Ownership> {
    let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let operation = match entry.get("operation")?.as_str()? {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return None,
    };
    let manager = FieldManager {
        name: text("manager"),
        operation,
        api_version: text("apiVersion"),
        subresource: text("subresource"),
    };
    let mut fields = BTreeSet::new();
    collect_paths(&mut Vec::new(), entry.get("fieldsV1")?.as_object()?, &mut fields);
    Some(Ownership {
        manager,
        time: text("time"),
        fields,
    })
}

fn collect_paths(prefix: &mut Path, tree: &Map<String, Value>, found: &mut BTreeSet<Path>) {
    if tree.is_empty() && !prefix.is_empty() {
        found.insert(prefix.clone());
    }
    for (key, below) in tree {
        if let Some(below) = below.as_object() {
            prefix.push(key.clone());
            collect_paths(prefix, below, found);
            prefix.pop();
        }
    }
}

/// Writes `metadata.managedFields`. Drops managers without fields.
pub(crate) fn write_owners(object: &mut Value, owners: &[Ownership]) {
    let entries: Vec<_> = owners
        .iter()
        .filter(|o| !o.fields.is_empty())
        .map(write_entry)
        .collect();
    set_metadata(
        object,
        "managedFields",
        if entries.is_empty() {
            Value::Null
        } else {
            Value::Array(entries)
        },
    );
}

fn write_entry(owner: &Ownership) -> Value {
    let mut tree = Map::new();
    for path in &owner.fields {
        let mut level = &mut tree;
        for key in path {
            let below = level.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(below) = below else { break };
            level = below;
        }
    }
    let mut entry = json!({
        "manager": owner.manager.name,
        "operation": owner.manager.operation.name(),
        "apiVersion": owner.manager.api_version,
        "time": owner.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": tree,
    });
    if let (Some(entry), false) = (entry.as_object_mut(), owner.manager.subresource.is_empty()) {
        entry.insert("subresource".into(), owner.manager.subresource.clone().into());
    }
    entry
}

/// Records a write other than an apply: the writer becomes the only owner of changed fields; removed fields lose their owners.
pub(crate) fn record_update(old: Option<&Value>, new: &mut Value, manager: &FieldManager, time: &str) {
    let mut owners = old.map(read_owners).unwrap_or_default();
    let before = old.map(leaf_fields).unwrap_or_default();
    let after = leaf_fields(new);
    let changed = |path: &Path| before.get(path) != after.get(path);
    for owner in &mut owners {
        owner.fields.retain(|path| after.contains_key(path) && !changed(path));
    }
    let taken: BTreeSet<Path> = after.keys().filter(|path| changed(path)).cloned().collect();
    if !taken.is_empty() {
        match owners.iter_mut().find(|owner| owner.manager == *manager) {
            Some(owner) => {
                owner.fields.extend(taken);
                owner.time = time.to_owned();
            }
            None => owners.push(Ownership {
                manager: manager.clone(),
                time: time.to_owned(),
                fields: taken,
            }),
        }
    }
    write_owners(new, &owners);
}
