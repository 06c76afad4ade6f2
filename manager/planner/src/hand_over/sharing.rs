//! Finds shards that would start to see objects which another shard sees and keeps.
//!
//! Two objects of one `kubectl apply` arrive one after the other. If the gaining shard comes first, the edit of the losing one is
//! not there yet, and nobody has anything to give up. So objects that would be shared are shown a little later. If the other edit
//! arrives meanwhile, it is a hand-over like any other; if not, both are meant to see them, as [`crate::find_overlaps()`] reports.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::Entry;

use super::FleetState;
use super::moves::{compared_classes, narrowed_existing_limits, narrowed_limits, set_difference, visible_set};
use super::shard::{Shard, entry_with_limits};

/// The entries of shards now, and those that they are meant to have.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    pub last: &'a [Entry],
    /// `last` with the limits that the entries are meant to have: a shard that is about to get an object keeps it, too.
    pub meant: &'a [Entry],
    /// Entries of shards whose pods see no change while they run.
    pub restarts: &'a BTreeSet<String>,
    /// Entries of shards that a root makes. They come as whole sets and never share.
    pub of_roots: &'a BTreeSet<String>,
}

/// Entries of shards that would begin to share objects, each with the shards that see these and keep them. Shards do not count if
/// none of their pods shows anything, or if they have no lock: nothing says that two of them belong to one controller.
#[must_use]
pub fn newly_shared(
    shown: Shown<'_>,
    desired: &[Entry],
    fleet: &impl FleetState,
) -> BTreeMap<String, BTreeSet<String>> {
    let last: BTreeMap<&str, Shard> = shown.last.iter().filter_map(Shard::from_entry).collect();
    let meant: BTreeMap<&str, Shard> = shown.meant.iter().filter_map(Shard::from_entry).collect();
    let after: BTreeMap<&str, Shard> = desired.iter().filter_map(Shard::from_entry).collect();
    let is_shown = |keeper: &Shard| {
        let pods = keeper.all_pods();
        fleet.pods().any(|pod| !pod.is_blank && pods.matches(pod.labels))
    };
    let mut shared: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, shard) in &after {
        let old = meant.get(name);
        let is_as_before = old.is_some_and(|old| old.limits == shard.limits);
        if is_as_before || shown.of_roots.contains(*name) || !can_wait(name, shard, last.get(name), shown.restarts) {
            continue;
        }
        let is_of_other = |(other, _): &(&&str, &Shard)| *other != name && !shown.of_roots.contains(**other);
        for (other, keeper) in after.iter().filter(is_of_other) {
            let is_sibling = keeper.lock.is_some() && keeper.lock == shard.lock;
            let had = meant.get(other).filter(|_| is_sibling);
            if had.is_some_and(|had| shares_objects(shard, old, keeper, had)) && is_shown(keeper) {
                let others = shared.entry((*name).to_owned()).or_default();
                others.insert((*other).to_owned());
            }
        }
    }
    shared
}

/// Whether a shard can be shown less for a while. It can't if its pods would lose more than necessary, or be recreated for it.
fn can_wait(name: &str, shard: &Shard, last: Option<&Shard>, restarts: &BTreeSet<String>) -> bool {
    last.is_none_or(|last| match narrowed_existing_limits(shard, &last.limits) {
        None => false,
        Some(narrowed) => narrowed == last.limits || !restarts.contains(name),
    })
}

/// Whether a shard gains anything that the keeper was meant to have and keeps.
fn shares_objects(shard: &Shard, old: Option<&Shard>, keeper: &Shard, had: &Shard) -> bool {
    let old = old.map(|old| old.limits.as_slice());
    let (now, kept, had) = (Some(&*shard.limits), Some(&*keeper.limits), Some(&*had.limits));
    compared_classes(&[now, old, kept, had]).iter().any(|class| {
        let gained = set_difference(&visible_set(now, class), &visible_set(old, class));
        let both = visible_set(kept, class)
            .zip(visible_set(had, class))
            .and_then(|(kept, had)| kept.intersection(&had));
        both.is_some_and(|both| gained.iter().any(|gained| gained.intersection(&both).is_some()))
    })
}

/// The desired entries. The named ones get only what they see already.
#[must_use]
pub fn without_new_sharing<'n>(
    last: &[Entry],
    desired: &[Entry],
    names: impl IntoIterator<Item = &'n String>,
) -> Vec<Entry> {
    let names: BTreeSet<&String> = names.into_iter().collect();
    let before: BTreeMap<&str, Shard> = last.iter().filter_map(Shard::from_entry).collect();
    let narrowed = |entry: &Entry| {
        let shard = Shard::from_entry(entry).filter(|_| names.contains(&entry.name));
        shard.map_or_else(
            || entry.clone(),
            |(name, shard)| {
                let old = before.get(name).map(|old| old.limits.as_slice());
                entry_with_limits(entry, &narrowed_limits(&shard, old), false)
            },
        )
    };
    desired.iter().map(narrowed).collect()
}
