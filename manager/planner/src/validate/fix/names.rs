//! Corrects names of resources that no API server has, such as singular ones, and keys in selectors of limits that almost match the
//! manager's labels.

use serde_json::Value;

use super::{Change, Fix, Path, limits_with_paths, list_elements};
use crate::LabelKeys;
use crate::validate::buckets::suggested_key;
use crate::validate::resource_names::plural_of;

pub(super) fn fix_names(document: &Value, kind: &str) -> Option<Fix> {
    resource_groups(document, kind).into_iter().find_map(|(path, group)| {
        let list = |field: &str| -> Vec<String> {
            let list = group.get(field).and_then(Value::as_array).into_iter().flatten();
            list.map(|item| item.as_str().unwrap_or_default().to_owned()).collect()
        };
        let (groups, names) = (list("apiGroups"), list("resources"));
        names.iter().enumerate().find_map(|(index, name)| {
            let plural = plural_of(name, &groups)?;
            let change = if names.contains(&plural) {
                Change::Remove
            } else {
                Change::Text(plural)
            };
            Some(Fix::new(path.key("resources").with_index(index), change))
        })
    })
}

/// Every mapping with groups and resources.
fn resource_groups<'v>(document: &'v Value, kind: &str) -> Vec<(Path, &'v Value)> {
    let of_each = |path: &str, field: &str| {
        let all = list_elements(document, &Path::from_fields(path)).into_iter();
        all.flat_map(|(path, _)| list_elements(document, &Path([path.0, Path::from_fields(field).0].concat())))
            .collect()
    };
    match kind {
        "ShardingConfig" => {
            let all = limits_with_paths(document).into_iter();
            all.flat_map(|(path, _)| list_elements(document, &path.key("relateResources")))
                .collect()
        }
        "CircuitBreaker" => of_each("spec.rateLimitings", "resourceRules"),
        "FaultInjection" => of_each("spec.httpFault", "match.resources"),
        _ => Vec::new(),
    }
}

pub(super) fn fix_labels(document: &Value, kind: &str, keys: &LabelKeys) -> Option<Fix> {
    if kind != "ShardingConfig" {
        return None;
    }
    limits_with_paths(document).into_iter().find_map(|(path, _)| {
        let selector = path.key("selector");
        match_labels(document, &selector.key("matchLabels"), keys)
            .or_else(|| fix_expressions(document, &selector.key("matchExpressions"), keys))
    })
}

fn match_labels(document: &Value, path: &Path, keys: &LabelKeys) -> Option<Fix> {
    let labels = path.find(document)?.as_object()?;
    labels.keys().find_map(|key| {
        let meant = suggested_key(key, keys).filter(|meant| !labels.contains_key(*meant))?;
        Some(Fix::new(path.key(key), Change::Rename(meant.to_owned())))
    })
}

fn fix_expressions(document: &Value, path: &Path, keys: &LabelKeys) -> Option<Fix> {
    list_elements(document, path)
        .into_iter()
        .find_map(|(path, requirement)| {
            let meant = suggested_key(requirement.get("key")?.as_str()?, keys)?;
            Some(Fix::new(path.key("key"), Change::Text(meant.to_owned())))
        })
}
