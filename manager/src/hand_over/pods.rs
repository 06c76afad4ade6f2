//! Pods that leave a shard: one whose ShardingConfig is gone, or does not select them any more. As long as the controller has
//! other shards they see nothing, for without an entry they would see everything.

use ctrlmesh_contract::{Entry, LabelSelector, Settings};
use serde_json::{Value, json};

use super::{CONSISTENT_READS, Fleet, Shard};
use crate::label_set::LabelSet;

/// Between an entry's name and a number.
const LEFT: &str = "/left/";

/// Resources of every kind, of which nothing is seen.
fn nothing() -> Value {
    let key = "ctrlmesh.kusionstack.io/nothing";
    json!([{ "selector": { "matchExpressions": [
        { "key": key, "operator": "Exists" }, { "key": key, "operator": "DoesNotExist" },
    ] } }])
}

/// The wanted entries, and one for the pods that leave each shard.
pub(super) fn with_leavers(last: &[Entry], wanted: &[Entry], fleet: &impl Fleet) -> Vec<Entry> {
    let mut entries = wanted.to_vec();
    let after: Vec<(&str, Shard)> = wanted.iter().filter_map(Shard::of).collect();
    for entry in last {
        let Some((name, shard)) = Shard::of(entry) else {
            continue;
        };
        let has_siblings = after
            .iter()
            .any(|(other, sibling)| *other != name && sibling.lock.is_some() && sibling.lock == shard.lock);
        if !has_siblings {
            continue;
        }
        let is_gone = !after.iter().any(|(other, _)| *other == name);
        let leaving = leaving(&shard.pods, &after);
        let leaving = leaving.into_iter().filter(|pods| fleet.has_pods(pods));
        for (number, pods) in leaving.enumerate() {
            let name = match (is_gone, number) {
                (true, 0) => name.to_owned(),
                _ => free_name(name, &entries),
            };
            entries.push(left(entry, name, pods));
        }
    }
    entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    entries
}

fn free_name(name: &str, entries: &[Entry]) -> String {
    let base = name.split(LEFT).next().unwrap_or(name);
    let names = (0..=entries.len()).map(|number| format!("{base}{LEFT}{number}"));
    let is_free = |name: &String| !entries.iter().any(|entry| entry.name == *name);
    // There is one more name than entries.
    names.into_iter().find(is_free).unwrap_or_else(|| name.to_owned())
}

/// The pods of a shard that are in no shard any more.
fn leaving(pods: &LabelSelector, after: &[(&str, Shard)]) -> Vec<LabelSelector> {
    let mut rest: Vec<LabelSet> = LabelSet::of(pods).into_iter().collect();
    for shard in after.iter().filter_map(|(_, shard)| LabelSet::of(&shard.pods)) {
        rest = rest.iter().flat_map(|part| part.minus(&shard)).collect();
    }
    rest.iter().flat_map(LabelSet::selectors).collect()
}

/// It keeps its lock: giving it up is the controller's business.
fn left(entry: &Entry, name: String, pods: LabelSelector) -> Entry {
    let mut settings = entry.settings.value().clone();
    if let Value::Object(fields) = &mut settings {
        fields.insert("limits".to_owned(), nothing());
        fields.remove(CONSISTENT_READS);
    }
    Entry {
        name,
        pod_selector: pods,
        settings: Settings::new(settings),
        ..entry.clone()
    }
}

/// A selector that was written as JSON.
pub(super) fn read(pods: &Value) -> Option<LabelSelector> {
    serde_json::from_value::<crate::api::LabelSelector>(pods.clone())
        .ok()
        .map(|selector| LabelSelector::from(&selector))
}
