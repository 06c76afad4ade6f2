//! How objects change shards: who loses them narrows first, and only when its sidecars have acknowledged that does who gains
//! them widen. An object has one owner at most at any time.
//!
//! Guarantees:
//! - Pure. The next chain follows from the last one, from what sidecars may still run of the ones before it ([`Claims`]), and
//!   from who is quiet. A manager that takes over needs nothing else.
//! - No shard sees more than it shall in the end, nor more than it sees already, as long as somebody else may see it.
//! - What is not given away is never withheld: shards that keep their objects are left alone.
//! - Who can't be reached is waited for, unless the policy of its shard says that it was waited for long enough.
//! - Of a shard with `reshard: Restart`, no pod sees a change while it runs ([`restart_policy`]).
//!
//! - It does not matter which pods a shard has: what a pod may show follows it into another shard, or out of all.
//!
//! Only objects that move are guarded. If two ShardingConfigs overlap in the end, [`crate::overlap()`] says so; what they begin to
//! share is shown a little later ([`newly_shared`]).

mod claims;
mod moves;
mod pods;
pub mod restart_policy;
mod shard;
mod sharing;
mod teardown;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::{Entry, LabelSelector};

use crate::built_in::BuiltIn;
pub use claims::Claims;
use moves::Moves;
pub use moves::{is_waiting, waiting};
use restart_policy::{Evict, Hold};
use shard::{Shard, with};
pub use sharing::{Shown, newly_shared, unshared};
pub use teardown::{Teardown, all_pods, is_released};

/// A pod, as far as it matters who shows what.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    pub uid: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    /// Names of the entries that its sidecar said last to run.
    pub running: &'a BTreeSet<String>,
    /// It shows nothing, and what it will show first is what the last chain says or a later one.
    pub is_blank: bool,
    /// It runs what the last chain says, and nothing goes on there that began before it.
    pub is_quiet: bool,
    /// It does not answer, and was waited for long enough.
    pub is_given_up: bool,
    /// Its controller may take itself for the leader by a lock that it asks for no more.
    pub may_lead: bool,
}

/// What is known of the pods of a namespace.
pub trait Fleet {
    /// All pods that have a sidecar.
    fn pods(&self) -> impl Iterator<Item = Pod<'_>>;

    /// Whether pods run a later chain than the last one that is known: any of them may show anything.
    fn is_rolled_back(&self) -> bool {
        false
    }

    /// Whether all pods of this entry are known to run something else.
    fn is_unseen(&self, _entry: &Entry) -> bool {
        false
    }

    /// Whether there is a pod that these labels select.
    fn has_pods(&self, selector: &LabelSelector) -> bool {
        self.pods().any(|pod| selector.matches(pod.labels))
    }

    /// Whether every pod that these labels select is quiet, or shows nothing, or is waited for no longer.
    fn is_settled(&self, selector: &LabelSelector) -> bool {
        let mut selected = self.pods().filter(|pod| selector.matches(pod.labels));
        selected.all(|pod| pod.is_quiet || pod.is_blank || pod.is_given_up)
    }

    /// Whether every pod that these labels select is quiet, or shows nothing.
    fn is_quiet(&self, selector: &LabelSelector) -> bool {
        let mut selected = self.pods().filter(|pod| selector.matches(pod.labels));
        selected.all(|pod| pod.is_quiet || pod.is_blank)
    }
}

/// Whether an entry of this name is a shard's.
#[must_use]
pub fn is_of_shard(name: &str) -> bool {
    let rest = name.strip_prefix(BuiltIn::ShardSelector.name());
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// The entry of a ShardingConfig's shard.
#[must_use]
pub fn entry_of_shard(config: &str) -> String {
    format!("{}/{config}", BuiltIn::ShardSelector.name())
}

/// The lock of a shard's controller. `None`: it says none, or is no shard's.
#[must_use]
pub fn lock_of(entry: &Entry) -> Option<&str> {
    is_of_shard(&entry.name).then(|| shard::lock(entry))?
}

/// The ShardingConfig that the entry of a shard is of.
#[must_use]
pub fn shard_of(name: &str) -> &str {
    name.split('/').nth(1).unwrap_or(name)
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub entries: Vec<Entry>,
    /// What is to be remembered with it.
    pub claims: Claims,
    /// Entries that see less than they shall, each with those of the shards that it waits for.
    pub waiting: BTreeMap<String, BTreeSet<String>>,
    /// Entries that get what shards may still show whose pods were waited for long enough: each with those shards.
    pub overtaking: BTreeMap<String, BTreeSet<String>>,
    /// UIDs of pods that are waited for, by the shard's entry.
    pub awaited: BTreeMap<String, BTreeSet<String>>,
    /// UIDs of pods that are waited for no longer, by the shard's entry.
    pub overtaken: BTreeMap<String, BTreeSet<String>>,
    /// Shards whose pods do not keep what they see yet, and will have to.
    pub preparing: BTreeSet<String>,
    /// Pods that are to keep what they see.
    pub hold: Vec<Hold>,
    /// Pods that have kept it for long enough.
    pub evict: Vec<Evict>,
}

/// What a plan leads to.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'a> {
    /// The entries that are to be in the chain in the end.
    pub wanted: &'a [Entry],
    /// Entries of shards whose pods see no change while they run.
    pub restarts: &'a BTreeSet<String>,
    /// Entries whose ShardingConfigs wait for their deletion.
    pub deleted: &'a BTreeSet<String>,
}

/// Makes the next chain on the way from the last entries to a goal.
#[must_use]
pub fn plan(last: &[Entry], claims: &Claims, goal: Goal<'_>, fleet: &impl Fleet) -> Plan {
    let last = &teardown::with_locks(last, &claims.teardowns);
    let (wanted, mut restarts) = restart_policy::normal(goal.wanted, goal.restarts);
    let wanted = teardown::without_renamed(last, wanted);
    let teardowns = teardown::next(last, &claims.teardowns, &wanted, goal.deleted, fleet);
    restarts.retain(|name| wanted.iter().any(|entry| entry.name == *name));
    let wanted = teardown::with_torn_down(last, wanted, &teardowns);
    let all = restart_policy::with_kept(last, &wanted, &restarts, fleet);
    let all = pods::with_leavers(last, &all, fleet);
    let before: BTreeMap<&str, Shard> = last.iter().filter_map(Shard::of).collect();
    let after: BTreeMap<&str, Shard> = all.iter().filter_map(Shard::of).collect();
    let possible = claims.possible(&before, &all, fleet);
    let unseen = last
        .iter()
        .filter(|entry| is_of_shard(&entry.name) && fleet.is_unseen(entry));
    let moves = Moves {
        unseen: unseen.map(|entry| entry.name.as_str()).collect(),
        before: &before,
        after: &after,
        possible: &possible,
        is_rolled_back: fleet.is_rolled_back(),
    };
    let mut plan = Plan::default();
    for entry in &all {
        let Some(shard) = after.get(entry.name.as_str()) else {
            plan.entries.push(entry.clone());
            continue;
        };
        let old = before.get(entry.name.as_str());
        let keeps = |_: &&Shard| restart_policy::base(&entry.name).is_some_and(|base| restarts.contains(base));
        let next = match old.filter(keeps) {
            Some(old) => with(entry, &old.limits, old.is_consistent),
            None => step(&mut plan, &moves, entry, shard, fleet),
        };
        plan.entries.push(next);
    }
    restart_policy::hold(&mut plan, last, &wanted, &restarts, fleet);
    plan.evict
        .extend(teardown::evictions(last, &teardowns, goal.restarts, fleet));
    relax(&mut plan, last, &restarts, fleet);
    plan.claims = Claims::remembered(&plan.entries, &all, possible, fleet);
    teardown::unlock(&mut plan.entries, &teardowns);
    plan.claims.teardowns = teardowns;
    plan
}

/// A shard's next entry: what it shall show, or, while others may still show some of that, what it may show meanwhile.
fn step(plan: &mut Plan, moves: &Moves<'_>, entry: &Entry, shard: &Shard, fleet: &impl Fleet) -> Entry {
    let base = moves.base(&entry.name, shard);
    let limits = if is_held_up(plan, moves, &entry.name, shard, fleet) {
        moves::narrowed(shard, base)
    } else {
        shard.limits.clone()
    };
    let is_sibling = |(name, other): (&&str, &Shard)| **name != entry.name && other.lock == shard.lock;
    let has_siblings = moves.before.iter().chain(moves.after).any(is_sibling);
    let is_consistent = match moves.before.get(entry.name.as_str()) {
        Some(old) if old.limits == limits => old.is_consistent,
        _ => has_siblings && moves::gains(&limits, base),
    };
    with(entry, &limits, is_consistent)
}

/// Whether a shard has to wait for others; the plan says for whom, or whom it overtakes.
fn is_held_up(plan: &mut Plan, moves: &Moves<'_>, name: &str, shard: &Shard, fleet: &impl Fleet) -> bool {
    for held in moves.holders(name, shard, fleet) {
        let pods = held.pods(fleet);
        let is_over = !pods.is_empty() && pods.iter().all(|pod| pod.is_given_up);
        let (holders, of_holders) = if is_over {
            (&mut plan.overtaking, &mut plan.overtaken)
        } else {
            (&mut plan.waiting, &mut plan.awaited)
        };
        holders.entry(name.to_owned()).or_default().insert(held.name.clone());
        let known = of_holders.entry(held.name.clone()).or_default();
        known.extend(pods.iter().map(|pod| pod.uid.to_owned()));
    }
    plan.waiting.contains_key(name)
}

/// With a change that is made anyway, lists that need not be consistent any more are let be answered from caches: their shard has
/// seen what it gained. Pods that see no change see none of this either.
fn relax(plan: &mut Plan, last: &[Entry], restarts: &BTreeSet<String>, fleet: &impl Fleet) {
    if plan.entries == last {
        return;
    }
    for entry in &mut plan.entries {
        let Some((_, shard)) = Shard::of(entry).filter(|(_, shard)| shard.is_consistent) else {
            continue;
        };
        let is_fixed = restarts.contains(restart_policy::base(&entry.name).unwrap_or(&entry.name));
        if !is_fixed && last.contains(entry) && fleet.is_quiet(&shard.pods) && fleet.has_pods(&shard.pods) {
            *entry = with(entry, &shard.limits, false);
        }
    }
}
