//! Corrects fields that objects for KusionStack's manager spell differently; its own samples do.

use ctrlmesh_contract::names::labels::STATEFUL_SET_POD_NAME;
use serde_json::Value;

use super::{Change, Fix, Path, limits_with_paths, list_elements};

/// Fields of an element of `httpMatch`.
const HTTP_MATCH: [&str; 5] = ["headers", "host", "method", "path", "url"];

pub(super) fn fix_kusionstack(document: &Value, kind: &str) -> Option<Fix> {
    match kind {
        "ShardingConfig" => pods_of_root(document)
            .or_else(|| selector_beside_root(document))
            .or_else(|| object_selector(document)),
        "FaultInjection" => list_of_matches(document).or_else(|| related_resources(document)),
        _ => None,
    }
}

/// A root whose selector names pods, although these follow from its StatefulSet. Removes the requirement, and whatever is empty
/// without it.
fn pods_of_root(document: &Value) -> Option<Fix> {
    document.pointer("/spec/root")?;
    let path = Path::from_fields("spec.selector");
    let selector = path.find(document)?.as_object()?;
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    let (labels, count) = (
        labels.filter(|labels| !labels.is_empty()),
        expressions.map_or(0, Vec::len),
    );
    if let Some(labels) = labels.filter(|labels| labels.contains_key(STATEFUL_SET_POD_NAME)) {
        let path = match (labels.len(), count) {
            (1, 0) => path,
            (1, _) => path.key("matchLabels"),
            _ => path.key("matchLabels").key(STATEFUL_SET_POD_NAME),
        };
        return Some(Fix::new(path, Change::Remove));
    }
    let is_it = |expression: &Value| expression.get("key").is_some_and(|key| key == STATEFUL_SET_POD_NAME);
    let index = expressions?.iter().position(is_it)?;
    let path = match (labels, count) {
        (None, 1) => path,
        (Some(_), 1) => path.key("matchExpressions"),
        _ => path.key("matchExpressions").with_index(index),
    };
    Some(Fix::new(path, Change::Remove))
}

/// `spec.resourceSelector`, which belongs below `root`.
fn selector_beside_root(document: &Value) -> Option<Fix> {
    let spec = document.get("spec")?;
    spec.get("resourceSelector")?;
    let root = spec.get("root")?.as_object()?;
    let path = Path::from_fields("spec.resourceSelector");
    (!root.contains_key("resourceSelector")).then(|| Fix::new(path, Change::MoveInto("root".to_owned())))
}

/// `objectSelector`, whose fields belong into the limit itself.
fn object_selector(document: &Value) -> Option<Fix> {
    limits_with_paths(document).into_iter().find_map(|(path, limit)| {
        let inner = limit.get("objectSelector")?.as_object()?;
        let is_free = inner.keys().all(|field| limit.get(field).is_none());
        is_free.then(|| Fix::new(path.key("objectSelector"), Change::Unwrap))
    })
}

/// Fields of `httpMatch` outside of it.
fn list_of_matches(document: &Value) -> Option<Fix> {
    let faults = list_elements(document, &Path::from_fields("spec.httpFault")).into_iter();
    let is_match = |item: &Value| {
        let fields = item.as_object().filter(|fields| !fields.is_empty());
        fields.is_some_and(|fields| fields.keys().all(|field| HTTP_MATCH.contains(&field.as_str())))
    };
    faults
        .filter_map(|(path, fault)| Some((path, fault.get("match")?.as_array()?)))
        .find(|(_, matches)| !matches.is_empty() && matches.iter().all(is_match))
        .map(|(path, _)| Fix::new(path.key("match"), Change::Wrap("httpMatch".to_owned())))
}

/// `relatedResources`, a field of limits, in a fault's `match`.
fn related_resources(document: &Value) -> Option<Fix> {
    let faults = list_elements(document, &Path::from_fields("spec.httpFault")).into_iter();
    faults
        .filter_map(|(path, fault)| Some((path.key("match"), fault.get("match")?)))
        .find_map(|(path, matching)| {
            let name = ["relatedResources", "relateResources"]
                .into_iter()
                .find(|name| matching.get(name).is_some())?;
            let change = Change::Rename("resources".to_owned());
            matching
                .get("resources")
                .is_none()
                .then(|| Fix::new(path.key(name), change))
        })
}
