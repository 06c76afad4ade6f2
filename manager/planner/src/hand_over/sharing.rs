//! Shards that would start to see objects which another shard sees and keeps.
//!
//! Two objects of one `kubectl apply` come one after the other. Where the shard that gains comes first, the edit of the one that
//! loses is not there yet, and nobody has anything to give up. So what would be shared is shown a little later: if the other edit
//! comes meanwhile, it is a hand-over like any other; if not, both are meant to see it, as [`crate::overlap()`] says.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::Entry;

use super::Fleet;
use super::moves::{classes, less, narrowed, narrowed_in_part, seen};
use super::shard::{Shard, with};

/// What shards show, and what is to be known of them.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    pub last: &'a [Entry],
    /// The same with what they were to show in the end: who is about to get something keeps it, too.
    pub meant: &'a [Entry],
    /// Entries of shards whose pods see no change while they run.
    pub restarts: &'a BTreeSet<String>,
    /// Entries of shards that are made by a root: whole sets, which never share.
    pub of_roots: &'a BTreeSet<String>,
}

/// Entries of shards that would begin to share, each with those that see the same and keep it. Shards without a pod that shows
/// anything do not count, nor do shards without a controller: nothing tells that two of them are of one.
#[must_use]
pub fn newly_shared(shown: Shown<'_>, wanted: &[Entry], fleet: &impl Fleet) -> BTreeMap<String, BTreeSet<String>> {
    let last: BTreeMap<&str, Shard> = shown.last.iter().filter_map(Shard::of).collect();
    let meant: BTreeMap<&str, Shard> = shown.meant.iter().filter_map(Shard::of).collect();
    let after: BTreeMap<&str, Shard> = wanted.iter().filter_map(Shard::of).collect();
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
            if had.is_some_and(|had| shares(shard, old, keeper, had)) && is_shown(keeper) {
                let others = shared.entry((*name).to_owned()).or_default();
                others.insert((*other).to_owned());
            }
        }
    }
    shared
}

/// Whether a shard can be shown less than it shall without that its pods lose more than they have to, or are made again for it.
fn can_wait(name: &str, shard: &Shard, last: Option<&Shard>, restarts: &BTreeSet<String>) -> bool {
    last.is_none_or(|last| match narrowed_in_part(shard, &last.limits) {
        None => false,
        Some(narrowed) => narrowed == last.limits || !restarts.contains(name),
    })
}

/// Whether a shard gains anything that another was to have and keeps.
fn shares(shard: &Shard, old: Option<&Shard>, keeper: &Shard, had: &Shard) -> bool {
    let old = old.map(|old| old.limits.as_slice());
    let (now, keeps, had) = (Some(&*shard.limits), Some(&*keeper.limits), Some(&*had.limits));
    classes(&[now, old, keeps, had]).iter().any(|class| {
        let gained = less(&seen(now, class), &seen(old, class));
        let both = seen(keeps, class)
            .zip(seen(had, class))
            .and_then(|(keeps, had)| keeps.and(&had));
        both.is_some_and(|both| gained.iter().any(|gained| gained.and(&both).is_some()))
    })
}

/// The wanted entries; of those that are named, only what they see already.
#[must_use]
pub fn unshared<'n>(last: &[Entry], wanted: &[Entry], names: impl IntoIterator<Item = &'n String>) -> Vec<Entry> {
    let names: BTreeSet<&String> = names.into_iter().collect();
    let before: BTreeMap<&str, Shard> = last.iter().filter_map(Shard::of).collect();
    let unshared = |entry: &Entry| {
        let shard = Shard::of(entry).filter(|_| names.contains(&entry.name));
        shard.map_or_else(
            || entry.clone(),
            |(name, shard)| {
                let old = before.get(name).map(|old| old.limits.as_slice());
                with(entry, &narrowed(&shard, old), false)
            },
        )
    };
    wanted.iter().map(unshared).collect()
}
