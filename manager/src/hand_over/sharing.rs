//! Shards that would begin to see what another one sees and is to go on seeing.
//!
//! Two objects of one `kubectl apply` come one after the other. Where the shard that gains comes first, the edit of the one that
//! loses is not there yet, and nobody has anything to give up. So what would be shared is shown a little later: if the other edit
//! comes meanwhile, it is a hand-over like any other; if not, both are meant to see it, as [`crate::overlap()`] says.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::Entry;

use super::Fleet;
use super::moves::{classes, less, narrowed, seen};
use super::shard::{Shard, with};

/// Entries of shards that would begin to share, each with those that see the same and keep it. `meant`: the last entries with
/// what they were to show in the end; who is about to get something keeps it, too. Shards without a pod that shows anything do
/// not count.
#[must_use]
pub fn newly_shared(
    last: &[Entry],
    meant: &[Entry],
    wanted: &[Entry],
    fleet: &impl Fleet,
) -> BTreeMap<String, BTreeSet<String>> {
    let before: BTreeMap<&str, Shard> = last.iter().filter_map(Shard::of).collect();
    let meant: BTreeMap<&str, Shard> = meant.iter().filter_map(Shard::of).collect();
    let after: BTreeMap<&str, Shard> = wanted.iter().filter_map(Shard::of).collect();
    let mut shared: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, shard) in &after {
        let old = before.get(name);
        if old.is_some_and(|old| old.limits == shard.limits) {
            continue;
        }
        for (other, keeper) in &after {
            let is_shown = || {
                fleet
                    .pods()
                    .any(|pod| !pod.is_blank && keeper.all_pods().matches(pod.labels))
            };
            let Some(kept) = meant.get(other).filter(|_| other != name && keeper.lock == shard.lock) else {
                continue;
            };
            if shares(shard, old, keeper, kept) && is_shown() {
                shared
                    .entry((*name).to_owned())
                    .or_default()
                    .insert((*other).to_owned());
            }
        }
    }
    shared
}

/// Whether a shard gains anything that another was to have and keeps.
fn shares(shard: &Shard, old: Option<&Shard>, keeper: &Shard, kept: &Shard) -> bool {
    let old = old.map(|old| old.limits.as_slice());
    let (now, keeps, had) = (Some(&*shard.limits), Some(&*keeper.limits), Some(&*kept.limits));
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
