//! From what objects ask for to the plan of the next chain: what is held back, and how the rest is handed over. Pure.

use std::collections::BTreeSet;
use std::time::Instant;

use ctrlmesh_contract::Entry;
use ctrlmesh_contract::names::labels::AUTO_SHARDING_ROOT;
use kube::ResourceExt as _;

use super::fleet::Fleet;
use super::memory::Memory;
use super::objects::CustomResources;
use super::overlap_grace::OverlapGrace;
use super::reconcile::Decision;
use super::start_gate::{self, BlockedShards};
use crate::api::sharding_config::{Reshard, ShardingConfig};
use crate::hand_over::{self, Goal, Plan, Shown};

/// The plan on the way to what is wanted, and what is held back of that: for a moment, or until pods without a sidecar are gone.
pub(super) fn planned(
    next: &Decision,
    meant: &[Entry],
    wanted: Vec<Entry>,
    objects: &CustomResources,
    fleet: &Fleet,
    memory: &Memory,
) -> (OverlapGrace, BlockedShards, Plan) {
    let (last, restarts) = (&next.chain.entries, restarts(objects));
    let shown = Shown {
        last,
        meant: &begun(meant, last),
        restarts: &restarts,
        of_roots: &of_roots(objects),
    };
    let (now, before) = (Instant::now(), (&next.chain, &next.claims));
    let waiting = start_gate::waiting(before, &wanted, objects, fleet, &memory.start_gate, now);
    let to_begin: Vec<Entry> = wanted
        .iter()
        .filter(|entry| waiting.contains_key(&entry.name))
        .cloned()
        .collect();
    let (settling, mut wanted) = OverlapGrace::of(shown, wanted, fleet, &memory.overlaps, now);
    for entry in wanted.iter_mut().filter(|entry| waiting.contains_key(&entry.name)) {
        *entry = hand_over::waiting(entry);
    }
    let goal = Goal {
        wanted: &wanted,
        restarts: &restarts,
        deleted: &super::deletion::entries(objects),
    };
    let mut plan = hand_over::plan(last, &next.claims, goal, fleet);
    // An object may be refused when its time comes.
    plan.claims.aim(&to_begin);
    (settling, waiting, plan)
}

/// What entries were to show in the end. Those that have not begun show nothing that another could keep.
fn begun(meant: &[Entry], last: &[Entry]) -> Vec<Entry> {
    let waiting = last.iter().filter(|entry| hand_over::is_waiting(entry));
    let waiting: BTreeSet<&str> = waiting.map(|entry| entry.name.as_str()).collect();
    let begun = |entry: &Entry| {
        if waiting.contains(entry.name.as_str()) {
            hand_over::waiting(entry)
        } else {
            entry.clone()
        }
    };
    meant.iter().map(begun).collect()
}

/// Entries of shards whose pods see no change while they run.
fn restarts(objects: &CustomResources) -> BTreeSet<String> {
    let shards = objects.sharding_configs.iter();
    let restarts = shards.filter(|config| config.spec.reshard == Reshard::Restart);
    restarts.map(entry_of).collect()
}

/// Entries of shards that roots make.
fn of_roots(objects: &CustomResources) -> BTreeSet<String> {
    let shards = objects.sharding_configs.iter();
    let made = shards.filter(|config| config.labels().contains_key(AUTO_SHARDING_ROOT));
    made.map(entry_of).collect()
}

/// The entry of a shard.
pub(super) fn entry_of(config: &ShardingConfig) -> String {
    hand_over::entry_of_shard(&config.name_any())
}
