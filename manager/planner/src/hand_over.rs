//! Moves objects between shards. The losing shard narrows first; the gaining shard widens only when the sidecars of the losing one
//! have acknowledged. So an object never has more than one owner.
//!
//! | file | holds |
//! |---|---|
//! | `sharing` | shards that would start to see objects which another shard keeps |
//! | `moves` | which objects change shards |
//! | `claims` | what pods may still show |
//! | `pods` | entries of pods that leave a shard |
//! | `teardown` | last shards of a controller |
//! | `restart_policy` | shards with `reshard: Restart` |
//! | `shard` | a shard as its entry describes it |
//! | `limits` | limits that show nothing |
//! | `settle` | how long pods must be quiet |
//!
//! Guarantees:
//! - Pure. The next chain follows from the last one, from the views that sidecars may still have from earlier chains ([`Claims`]),
//!   and from which pods are quiet. A manager that takes over needs nothing else.
//! - While another shard may still show an object, no shard sees more than it does already or is meant to see.
//! - Objects that do not move are never hidden: shards that keep their objects are not changed.
//! - Unreachable pods are waited for, unless the policy of their shard says that they have been waited for long enough.
//! - In a shard with `reshard: Restart`, no pod sees a change while it runs ([`restart_policy`]).
//! - Pods may change shards: what a pod may still show is remembered wherever it goes, also when it leaves all shards.
//!
//! Only objects that move are guarded. If two ShardingConfigs overlap in the end, [`crate::find_overlaps()`] reports it; objects that
//! they begin to share are shown a little later ([`newly_shared`]).

mod claims;
mod limits;
mod moves;
mod pods;
pub mod restart_policy;
mod settle;
mod shard;
mod sharing;
mod teardown;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::{Entry, LabelSelector};

use crate::built_in::BuiltIn;
pub use claims::{Claims, is_released};
use moves::Moves;
use restart_policy::{Evict, Hold};
pub use settle::SettleTimes;
use shard::{Shard, entry_with_limits};
pub use shard::{is_unbegun, unbegun_entry};
pub use sharing::{Shown, newly_shared, without_new_sharing};
pub use teardown::{LOCK_EXPIRY, Teardown, all_pods};

/// A pod, as far as a hand-over needs to know it.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    pub uid: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    /// Names of the entries that its sidecar reported last.
    pub running: &'a BTreeSet<String>,
    /// The pod shows nothing yet. It will start with the last chain or a later one.
    pub is_blank: bool,
    /// The sidecar has acknowledged the last chain, and no request of an earlier chain is left.
    pub is_quiet: bool,
    /// The pod is unreachable, and has been waited for long enough.
    pub is_given_up: bool,
    /// The controller may consider itself the leader by a lock that it does not ask for any more.
    pub may_lead: bool,
}

/// The pods of a namespace, as far as a hand-over needs to know them.
pub trait FleetState {
    /// All pods with a sidecar.
    fn pods(&self) -> impl Iterator<Item = Pod<'_>>;

    /// Whether pods run a later chain than the last one that is known. Then any of them may show anything.
    fn is_rolled_back(&self) -> bool {
        false
    }

    /// Whether all pods of this entry are known to run something else.
    fn is_unseen(&self, _entry: &Entry) -> bool {
        false
    }

    /// Whether the selector selects any pod.
    fn has_pods(&self, selector: &LabelSelector) -> bool {
        self.pods().any(|pod| selector.matches(pod.labels))
    }

    /// Whether every selected pod is quiet, shows nothing, or is given up.
    fn is_settled(&self, selector: &LabelSelector) -> bool {
        let mut selected = self.pods().filter(|pod| selector.matches(pod.labels));
        selected.all(|pod| pod.is_quiet || pod.is_blank || pod.is_given_up)
    }

    /// Whether every selected pod is quiet or shows nothing.
    fn is_quiet(&self, selector: &LabelSelector) -> bool {
        let mut selected = self.pods().filter(|pod| selector.matches(pod.labels));
        selected.all(|pod| pod.is_quiet || pod.is_blank)
    }
}

/// Whether an entry of this name belongs to a shard.
#[must_use]
pub fn is_of_shard(name: &str) -> bool {
    let rest = name.strip_prefix(BuiltIn::ShardSelector.name());
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// The name of a shard's entry.
#[must_use]
pub fn entry_of_shard(config: &str) -> String {
    format!("{}/{config}", BuiltIn::ShardSelector.name())
}

/// The lock of a shard's controller. `None`: the shard has none, or the entry is not a shard's.
#[must_use]
pub fn lock_of(entry: &Entry) -> Option<&str> {
    is_of_shard(&entry.name).then(|| shard::lock_name(entry))?
}

/// The name of the ShardingConfig that a shard's entry is made from.
#[must_use]
pub fn shard_of(name: &str) -> &str {
    name.split('/').nth(1).unwrap_or(name)
}

/// The prefix of the root that makes shards with such a name (`<prefix>-0-canary`, `<prefix>-1-normal`). `None`: no root does.
fn set_of(name: &str) -> Option<&str> {
    let name = shard_of(name);
    let name = name.strip_suffix("-normal").or_else(|| name.strip_suffix("-canary"))?;
    let (prefix, number) = name.rsplit_once('-')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some(prefix)
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub entries: Vec<Entry>,
    /// Must be stored with the entries.
    pub claims: Claims,
    /// Entries that see less than they are meant to, each with the entries that they wait for.
    pub waiting: BTreeMap<String, BTreeSet<String>>,
    /// Entries that get objects of shards whose pods have been given up, each with the entries of those shards.
    pub overtaking: BTreeMap<String, BTreeSet<String>>,
    /// UIDs of pods that are waited for, by their shard's entry.
    pub awaited: BTreeMap<String, BTreeSet<String>>,
    /// UIDs of pods that have been given up, by their shard's entry.
    pub overtaken: BTreeMap<String, BTreeSet<String>>,
    /// Shards whose running pods must get an entry of their own before the shard changes.
    pub preparing: BTreeSet<String>,
    /// Pods that get a label to keep their view.
    pub hold: Vec<Hold>,
    /// Pods that are to be recreated.
    pub evict: Vec<Evict>,
}

/// The chain that a hand-over leads to.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'a> {
    /// The entries of that chain.
    pub desired: &'a [Entry],
    /// Entries of shards whose pods see no change while they run.
    pub restarts: &'a BTreeSet<String>,
    /// Entries whose ShardingConfigs wait for their deletion.
    pub deleted: &'a BTreeSet<String>,
    pub settle: SettleTimes<'a>,
}

/// Makes the next chain on the way from the last entries to a goal.
#[must_use]
pub fn plan(last: &[Entry], claims: &Claims, goal: Goal<'_>, fleet: &impl FleetState) -> Plan {
    let last = &teardown::with_locks(last, &claims.teardowns);
    let (desired, mut restarts) = restart_policy::without_kept_views(goal.desired, goal.restarts);
    let desired = teardown::without_renamed(last, desired);
    let teardowns = teardown::next_teardowns(last, &claims.teardowns, &desired, goal.deleted, fleet);
    restarts.retain(|name| desired.iter().any(|entry| entry.name == *name));
    let desired = teardown::with_torn_down(last, &desired, &teardowns);
    let all = restart_policy::with_kept(last, &desired, &restarts, fleet);
    let all = pods::with_leavers(last, &all, fleet);
    let before: BTreeMap<&str, Shard> = last.iter().filter_map(Shard::from_entry).collect();
    let after: BTreeMap<&str, Shard> = all.iter().filter_map(Shard::from_entry).collect();
    let possible = claims.possible_views(&before, &all, fleet);
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
        let keeps_view =
            |_: &&Shard| restart_policy::shard_entry_of(&entry.name).is_some_and(|base| restarts.contains(base));
        let next = match old.filter(keeps_view) {
            Some(old) => entry_with_limits(entry, &old.limits, old.is_consistent),
            None => next_entry(&mut plan, &moves, entry, shard, fleet),
        };
        plan.entries.push(next);
    }
    restart_policy::plan_holds(&mut plan, last, &desired, &restarts, fleet);
    plan.evict
        .extend(teardown::evictions(last, &teardowns, goal.restarts, fleet));
    drop_consistent_reads(&mut plan, last, &restarts, fleet);
    plan.claims = Claims::from_possible_views(&plan.entries, &all, possible, fleet);
    plan.claims.record_settle_times(claims, goal.settle, &plan.entries);
    teardown::remove_locks(&mut plan.entries, &teardowns);
    plan.claims.teardowns = teardowns;
    plan
}

/// A shard's next entry. It has the shard's new limits, or, while others may still show some of its new objects, only what the
/// shard may show already.
fn next_entry(plan: &mut Plan, moves: &Moves<'_>, entry: &Entry, shard: &Shard, fleet: &impl FleetState) -> Entry {
    let base = moves.limits_before(&entry.name, shard);
    let limits = if is_held_up(plan, moves, &entry.name, shard, fleet) {
        moves::narrowed_limits(shard, base)
    } else {
        shard.limits.clone()
    };
    let is_sibling = |(name, other): (&&str, &Shard)| **name != entry.name && other.lock == shard.lock;
    let has_siblings = moves.before.iter().chain(moves.after).any(is_sibling);
    let is_consistent = match moves.before.get(entry.name.as_str()) {
        Some(old) if old.limits == limits => old.is_consistent,
        _ => has_siblings && moves::shows_more_than(&limits, base),
    };
    entry_with_limits(entry, &limits, is_consistent)
}

/// Whether a shard has to wait for others. Adds to the plan for whom it waits, or whom it overtakes.
fn is_held_up(plan: &mut Plan, moves: &Moves<'_>, name: &str, shard: &Shard, fleet: &impl FleetState) -> bool {
    for held in moves.conflicting_claims(name, shard, fleet) {
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

/// Lets lists of a shard be answered from caches again once its pods have seen the gained objects. Done only together with another
/// change, and not for pods that see no change while they run.
fn drop_consistent_reads(plan: &mut Plan, last: &[Entry], restarts: &BTreeSet<String>, fleet: &impl FleetState) {
    if plan.entries == last {
        return;
    }
    for entry in &mut plan.entries {
        let Some((_, shard)) = Shard::from_entry(entry).filter(|(_, shard)| shard.is_consistent) else {
            continue;
        };
        let is_fixed = restarts.contains(restart_policy::shard_entry_of(&entry.name).unwrap_or(&entry.name));
        if !is_fixed && last.contains(entry) && fleet.is_quiet(&shard.pods) && fleet.has_pods(&shard.pods) {
            *entry = entry_with_limits(entry, &shard.limits, false);
        }
    }
}
