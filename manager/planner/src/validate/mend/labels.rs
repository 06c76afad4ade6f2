//! Corrects keys in selectors of limits that almost match the manager's labels.

use serde_json::Value;

use super::{Change, Mend, Path, elements, limits};
use crate::LabelKeys;
use crate::validate::buckets::meant;

pub(super) fn mend(document: &Value, kind: &str, keys: &LabelKeys) -> Option<Mend> {
    if kind != "ShardingConfig" {
        return None;
    }
    limits(document).into_iter().find_map(|(path, _)| {
        let selector = path.key("selector");
        match_labels(document, &selector.key("matchLabels"), keys)
            .or_else(|| expressions(document, &selector.key("matchExpressions"), keys))
    })
}

fn match_labels(document: &Value, path: &Path, keys: &LabelKeys) -> Option<Mend> {
    let labels = path.find(document)?.as_object()?;
    labels.keys().find_map(|key| {
        let meant = meant(key, keys).filter(|meant| !labels.contains_key(*meant))?;
        Some(Mend::new(path.key(key), Change::Rename(meant.to_owned())))
    })
}

fn expressions(document: &Value, path: &Path, keys: &LabelKeys) -> Option<Mend> {
    elements(document, path).into_iter().find_map(|(path, requirement)| {
        let meant = meant(requirement.get("key")?.as_str()?, keys)?;
        Some(Mend::new(path.key("key"), Change::Text(meant.to_owned())))
    })
}
