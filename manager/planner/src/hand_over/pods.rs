//! Pods that leave a shard, because its ShardingConfig is gone or does not select them any more. As long as the controller has
//! other shards, they see nothing; without an entry they would see everything. The same holds for pods that replace them, so the
//! entry stays as long as the controller has shards.

use ctrlmesh_contract::{Entry, LabelSelector};
use serde_json::Value;

use super::FleetState;
use super::shard::{Shard, hidden_from_leavers, leaver_entry};
use crate::label_set::LabelSet;

/// Separates an entry's name from a number.
const LEFT_INFIX: &str = "/left/";
/// Maximum entries in a namespace for pods that do not exist (any more, or for now). Further ones are removed.
const MAX_ABSENT: usize = 32;

/// The desired entries, and one for the pods that leave each shard.
pub(super) fn with_leavers(last: &[Entry], desired: &[Entry], fleet: &impl FleetState) -> Vec<Entry> {
    let mut entries = desired.to_vec();
    let after: Vec<(&str, Shard)> = desired.iter().filter_map(Shard::from_entry).collect();
    let (mut absent, mut covered) = (0, Vec::<(Option<String>, LabelSelector)>::new());
    // Entries of pods that left earlier keep their names.
    let is_gone = |name: &str| !after.iter().any(|(other, _)| *other == name);
    let shards = last.iter().filter_map(|entry| Some((entry, Shard::from_entry(entry)?)));
    let (gone, living): (Vec<_>, Vec<_>) = shards.partition(|(_, (name, _))| is_gone(name));
    for (entry, (name, shard)) in gone.into_iter().chain(living) {
        let has_siblings = after
            .iter()
            .any(|(other, sibling)| *other != name && sibling.lock.is_some() && sibling.lock == shard.lock);
        // A shard that lives on counts as a sibling of the pods that leave it.
        let base = name.split(LEFT_INFIX).next().unwrap_or(name);
        let lives_on = after.iter().any(|(other, _)| *other == base);
        if !has_siblings && !lives_on {
            continue;
        }
        // A pod may also be in a shard of another controller, which hides none of this one's objects.
        let covers = |lock: &Option<String>| shard.lock.is_none() || *lock == shard.lock;
        let others = after.iter().map(|(_, other)| (&other.lock, &other.pods));
        let others = others.chain(covered.iter().map(|(lock, pods)| (lock, pods)));
        let others = others.filter(|(lock, _)| covers(lock)).map(|(_, pods)| pods);
        let leaving = leaving_pods(&shard.pods, others);
        for (number, pods) in leaving.into_iter().enumerate() {
            if !fleet.has_pods(&pods) {
                absent += 1;
                if absent > MAX_ABSENT {
                    continue;
                }
            }
            let is_free = !entries.iter().any(|entry| entry.name == name);
            let name = match (is_free, number) {
                (true, 0) => name.to_owned(),
                _ => free_name(name, &entries),
            };
            covered.push((shard.lock.clone(), pods.clone()));
            let hidden = hidden_from_leavers(shard.lock.as_deref(), &pods, last, desired);
            entries.push(leaver_entry(entry, name, pods, &hidden));
        }
    }
    entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    entries
}

fn free_name(name: &str, entries: &[Entry]) -> String {
    let base = name.split(LEFT_INFIX).next().unwrap_or(name);
    let names = (0..=entries.len()).map(|number| format!("{base}{LEFT_INFIX}{number}"));
    let is_free = |name: &String| !entries.iter().any(|entry| entry.name == *name);
    // There is always a free name: one more is tried than there are entries.
    names.into_iter().find(is_free).unwrap_or_else(|| name.to_owned())
}

/// The pods of a shard that are in no other shard.
fn leaving_pods<'a>(pods: &LabelSelector, others: impl Iterator<Item = &'a LabelSelector>) -> Vec<LabelSelector> {
    let mut rest: Vec<LabelSet> = LabelSet::from_selector(pods).into_iter().collect();
    for other in others.filter_map(LabelSet::from_selector) {
        rest = rest.iter().flat_map(|part| part.difference(&other)).collect();
    }
    rest.iter().flat_map(LabelSet::selectors).collect()
}

/// Parses a selector that is stored as JSON.
pub(super) fn read_selector(pods: &Value) -> Option<LabelSelector> {
    serde_json::from_value(pods.clone()).ok()
}
