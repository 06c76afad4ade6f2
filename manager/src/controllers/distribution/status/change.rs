//! Whether a status says anything new, and what makes the stored one this one. What others have written into it stays, but for fields
//! that are ours. Pure.

use std::collections::BTreeMap;

use ctrlmesh_manager_api::status::condition;
use serde_json::{Map, Value, json};

/// Fields that are ours in full: what others put into them goes.
const FIELDS: [&str; 6] = [
    "enforced",
    "currentSpecHash",
    "targetStatus",
    "plugins",
    "opened",
    "leader",
];
/// Conditions that are ours. Others stay.
const CONDITIONS: [&str; 5] = [
    condition::ACCEPTED,
    condition::PLUGINS_RESOLVED,
    condition::DISTRIBUTED,
    condition::ENFORCED,
    condition::BYPASSED,
];

/// Conditions of a status: ours, or those of others.
fn conditions(status: &Value, is_ours: bool) -> impl Iterator<Item = (&str, &Value)> {
    let list = status["conditions"].as_array().into_iter().flatten();
    let by_type = list.filter_map(|condition| Some((condition["type"].as_str()?, condition)));
    by_type.filter(move |(kind, _)| CONDITIONS.contains(kind) == is_ours)
}

/// Whether the stored status says the same already.
#[must_use]
pub(in crate::controllers::distribution) fn is_same(before: &Value, after: &Value) -> bool {
    let ours = |status| conditions(status, true).collect::<BTreeMap<_, _>>();
    let is_nothing = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        value => value.is_null(),
    };
    let is_field = |field: &str| match (&before[field], &after[field]) {
        (before, after) if is_nothing(before) => is_nothing(after),
        (before, after) if field == "targetStatus" => uncounted(before) == uncounted(after),
        (before, after) => before == after,
    };
    ours(before) == ours(after) && is_field("observedGeneration") && FIELDS.into_iter().all(is_field)
}

/// What is said of sidecars, but for what their breakers count: that changes with every request.
fn uncounted(targets: &Value) -> Value {
    let mut targets = targets.clone();
    let all = targets.as_array_mut().into_iter().flatten();
    let snapshots = all.filter_map(|target| target.get_mut("limitingSnapshots")?.as_array_mut());
    for snapshot in snapshots.flatten().filter_map(Value::as_object_mut) {
        snapshot.remove("requests");
        snapshot.remove("failures");
    }
    targets
}

/// What makes the stored status this one: fields of ours become what they are, as a whole. (Under server-side apply, elements of
/// `targetStatus` that another manager applied would stay for ever.)
pub(super) fn change(before: &Value, after: Value, now: Option<&str>) -> Value {
    let mut fields = match after {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let foreign: Vec<Value> = conditions(before, false)
        .map(|(_, condition)| condition.clone())
        .collect();
    if let Some(Value::Array(list)) = fields.get_mut("conditions") {
        list.extend(foreign);
    }
    for field in FIELDS {
        if before.get(field).is_some() && !fields.contains_key(field) {
            fields.insert(field.to_owned(), Value::Null);
        }
    }
    if let Some(now) = now {
        fields.insert("lastUpdatedTime".to_owned(), json!(now));
    }
    Value::Object(fields)
}
