//! Corrects keys in selectors of limits that almost match the manager's labels.

use serde_json::Value;

use super::{Change, Fix, Path, limits, list_elements};
use crate::LabelKeys;
use crate::validate::buckets::suggested_key;

pub(super) fn fix_labels(document: &Value, kind: &str, keys: &LabelKeys) -> Option<Fix> {
    if kind != "ShardingConfig" {
        return None;
    }
    limits(document).into_iter().find_map(|(path, _)| {
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
