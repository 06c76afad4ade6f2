//! Tears down controllers whose last ShardingConfig was deleted: their objects go to one shard, and in the end the entries go.
//!
//! 1. All shards but one, the *successor*, show nothing. When their pods have acknowledged that, the successor shows everything
//!    ([`super::plan`] keeps the order, as for any other move).
//! 2. The other shards' pods had leaders of their own, and a controller considers itself the leader until it fails to renew its
//!    lock. So these pods show nothing until they are gone or recreated.
//! 3. Then all pods show nothing and ask for the controller's own lock. When none can hold a shard's lock any more, the entries go.
//!
//! Pods that show nothing do no harm, however long a stage takes. The stage is stored beside the chain ([`super::Claims`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ctrlmesh_contract::{Entry, LabelSelector, Settings};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::restart_policy::{Evict, Stale};
use super::shard::{
    LOCK, SHARD, Shard, entry_with_limits, hidden_from_leavers, leaver_entry, left_name, selector_without_keeps,
};
use super::{FleetState, Pod, is_unbegun, lock_of, restart_policy, shard_of};

/// How long a controller may consider itself the leader by a lock that it can't renew. client-go's leases last for 15 s by default;
/// sidecars report longer ones. The caller counts this time before it clears [`Pod::may_lead`].
pub const LOCK_EXPIRY: Duration = Duration::from_secs(15);
/// Maximum pods that are remembered by UID. If a controller has more, its other shards must have no pods left at all.
const MAX_PODS: usize = 1024;

/// The stage of a controller's teardown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Teardown {
    /// Entry of the shard that gets everything.
    pub(super) successor: String,
    /// UIDs of the other shards' pods, which show nothing until they are gone. `None`: too many to name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) others: Option<BTreeSet<String>>,
    /// The successor's ShardingConfig waits for the end of the teardown. If it vanishes before, somebody has removed its finalizer
    /// by force.
    #[serde(default)]
    pub(super) has_object: bool,
    /// Entries that make their pods use the controller's own lock.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) unlocked: BTreeSet<String>,
}

/// Teardowns by the controller's lock.
pub(super) type Teardowns = BTreeMap<String, Teardown>;

impl Teardown {
    /// Whether the entry is the successor's.
    #[must_use]
    pub fn is_of(&self, entry: &str) -> bool {
        self.successor == entry
    }

    /// Entry of the shard that gets everything.
    #[must_use]
    pub fn successor(&self) -> &str {
        &self.successor
    }

    /// Whether the successor has a ShardingConfig, which waits for the end of the teardown. Pods that left a deleted shard have
    /// none, and neither has a shard whose lock was edited.
    #[must_use]
    pub const fn has_object(&self) -> bool {
        self.has_object
    }

    /// Whether nothing is shown any more, and locks of shards expire.
    #[must_use]
    pub fn is_last_stage(&self) -> bool {
        !self.unlocked.is_empty()
    }

    /// Whether pods of this entry use the controller's own lock.
    #[must_use]
    pub fn is_last_stage_of(&self, entry: &str) -> bool {
        self.unlocked.contains(entry)
    }

    /// UIDs of the pods that must be deleted or recreated.
    pub fn remaining<'f>(&'f self, entries: &'f [Entry], fleet: &'f impl FleetState) -> impl Iterator<Item = &'f str> {
        let pods = fleet.pods().filter(|pod| self.holds_up(pod, entries));
        pods.map(|pod| pod.uid)
    }

    fn holds_up(&self, pod: &Pod<'_>, entries: &[Entry]) -> bool {
        match &self.others {
            Some(others) => others.contains(pod.uid),
            None => !pod.is_blank && is_other(pod, &self.successor, entries),
        }
    }
}

/// Whether a pod belongs to one of these entries other than the successor's.
fn is_other(pod: &Pod<'_>, successor: &str, entries: &[Entry]) -> bool {
    let mut others = entries.iter().filter(|entry| entry.name != successor);
    others.any(|entry| all_pods(entry).matches(pod.labels))
}

/// The pods of a shard's entry, also those that keep an earlier view.
#[must_use]
pub fn all_pods(entry: &Entry) -> LabelSelector {
    selector_without_keeps(&entry.pod_selector)
}

/// The last entries with their locks. Entries that made their pods give up their shard's lock do not name it, so it is put back
/// here.
pub(super) fn with_locks(last: &[Entry], teardowns: &Teardowns) -> Vec<Entry> {
    let named = |entry: &Entry| {
        let mut all = teardowns.iter();
        let lock = all.find(|(_, teardown)| teardown.unlocked.contains(&entry.name));
        lock.map_or_else(|| entry.clone(), |(lock, _)| with_lock(entry, lock))
    };
    last.iter().map(named).collect()
}

fn with_lock(entry: &Entry, lock: &str) -> Entry {
    let mut settings = entry.settings.value().clone();
    if let Value::Object(fields) = &mut settings {
        fields.insert(LOCK.to_owned(), lock.into());
        fields.insert(SHARD.to_owned(), left_name(shard_of(&entry.name)).into());
    }
    Entry {
        settings: Settings::new(settings),
        ..entry.clone()
    }
}

/// The entry without a lock, so that its pods use the controller's own.
fn without_lock(entry: &Entry) -> Entry {
    let mut settings = entry.settings.value().clone();
    if let Value::Object(fields) = &mut settings {
        fields.remove(LOCK);
        fields.remove(SHARD);
    }
    Entry {
        settings: Settings::new(settings),
        ..entry.clone()
    }
}

/// The desired entries without those whose shard exists under another lock. Such a shard is removed first, as if its ShardingConfig
/// were deleted, because a pod may still lead by the old lock.
pub(super) fn without_renamed(last: &[Entry], mut desired: Vec<Entry>) -> Vec<Entry> {
    let is_renamed = |entry: &Entry| {
        let mut before = last.iter().filter(|before| before.name == entry.name);
        before.any(|before| lock_of(before).is_some_and(|lock| lock_of(entry) != Some(lock)))
    };
    desired.retain(|entry| !is_renamed(entry));
    desired
}

/// The next stage of all teardowns. `last` has all locks; `deleted`: entries whose ShardingConfigs wait for their deletion.
pub(super) fn next_teardowns(
    last: &[Entry],
    before: &Teardowns,
    desired: &[Entry],
    deleted: &BTreeSet<String>,
    fleet: &impl FleetState,
) -> Teardowns {
    let lock = |entry: &Entry| Shard::from_entry(entry).and_then(|(_, shard)| shard.lock);
    let living: BTreeSet<String> = desired.iter().filter_map(lock).collect();
    let mut controllers: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for entry in last
        .iter()
        .filter(|entry| restart_policy::shard_entry_of(&entry.name).is_none())
    {
        if let Some(lock) = lock(entry).filter(|lock| !living.contains(lock)) {
            controllers.entry(lock).or_default().push(entry.clone());
        }
    }
    let next = controllers.into_iter().filter_map(|(lock, entries)| {
        let next = next_stage(&entries, before.get(&lock), deleted, fleet)?;
        Some((lock, next))
    });
    next.collect()
}

/// The next stage. `None`: the entries go.
fn next_stage(
    entries: &[Entry],
    before: Option<&Teardown>,
    deleted: &BTreeSet<String>,
    fleet: &impl FleetState,
) -> Option<Teardown> {
    let is_own = |pod: &Pod<'_>| entries.iter().any(|entry| all_pods(entry).matches(pod.labels));
    let pods: Vec<Pod<'_>> = fleet.pods().filter(is_own).collect();
    if pods.is_empty() {
        return None;
    }
    let mut next = match before {
        Some(before) if before.has_object && !deleted.contains(&before.successor) => return None,
        Some(before) => before.clone(),
        None => begin_teardown(entries, &pods, deleted)?,
    };
    next.has_object |= deleted.contains(&next.successor);
    if next.is_last_stage() {
        let is_free = |pod: &Pod<'_>| pod.is_blank || pod.is_given_up || pod.is_quiet && !pod.may_lead;
        return (!pods.iter().all(is_free)).then_some(next);
    }
    if !pods.iter().any(|pod| next.holds_up(pod, entries)) {
        next.unlocked = entry_names(entries);
    }
    Some(next)
}

fn begin_teardown(entries: &[Entry], pods: &[Pod<'_>], deleted: &BTreeSet<String>) -> Option<Teardown> {
    let has_pods = |entry: &Entry| {
        let selector = all_pods(entry);
        pods.iter().any(|pod| !pod.is_blank && selector.matches(pod.labels))
    };
    let rank = |entry: &&Entry| (has_pods(entry), deleted.contains(&entry.name), !is_left(entry));
    // Of equal ranks, the first entry wins.
    let successor = entries.iter().rev().max_by_key(rank)?.name.clone();
    let others = pods
        .iter()
        .filter(|pod| !pod.is_blank && is_other(pod, &successor, entries));
    let others: BTreeSet<String> = others.map(|pod| pod.uid.to_owned()).collect();
    let mut begun = Teardown {
        successor,
        others: (others.len() <= MAX_PODS).then_some(others),
        ..Teardown::default()
    };
    // Shards that have not begun leave everything to pods without a sidecar.
    if entries.iter().all(is_unbegun) {
        begun.unlocked = entry_names(entries);
    }
    Some(begun)
}

fn entry_names(entries: &[Entry]) -> BTreeSet<String> {
    entries.iter().map(|entry| entry.name.clone()).collect()
}

/// Whether the entry is of pods that have left their shard.
fn is_left(entry: &Entry) -> bool {
    let shard = Shard::from_entry(entry).and_then(|(_, shard)| shard.name);
    shard.is_some_and(|name| left_name(&name) == name)
}

/// The desired entries, and those of shards that are torn down.
pub(super) fn with_torn_down(last: &[Entry], desired: &[Entry], teardowns: &Teardowns) -> Vec<Entry> {
    let mut entries = desired.to_vec();
    for entry in last
        .iter()
        .filter(|entry| restart_policy::shard_entry_of(&entry.name).is_none())
    {
        let Some(lock) = Shard::from_entry(entry).and_then(|(_, shard)| shard.lock) else {
            continue;
        };
        let Some(teardown) = teardowns.get(&lock) else {
            continue;
        };
        let pods = all_pods(entry);
        entries.push(if teardown.is_of(&entry.name) && !teardown.is_last_stage() {
            Entry {
                pod_selector: pods,
                ..entry_with_limits(entry, &[], false)
            }
        } else {
            let hidden = hidden_from_leavers(Some(&lock), &pods, last, desired);
            leaver_entry(entry, entry.name.clone(), pods, &hidden)
        });
    }
    entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    entries
}

/// Pods that must be recreated and belong to shards with `reshard: Restart`. If there are too many to name, none is evicted, because
/// their replacements could not be distinguished.
pub(super) fn evictions(
    last: &[Entry],
    teardowns: &Teardowns,
    restarts: &BTreeSet<String>,
    fleet: &impl FleetState,
) -> Vec<Evict> {
    let of_entry = |entry: &Entry| {
        let lock = Shard::from_entry(entry).and_then(|(_, shard)| shard.lock)?;
        let teardown = teardowns.get(&lock).filter(|teardown| !teardown.is_of(&entry.name))?;
        teardown.others.as_ref()?;
        let pods = all_pods(entry);
        let own = fleet
            .pods()
            .filter(|pod| pods.matches(pod.labels) && teardown.holds_up(pod, last));
        let named: BTreeSet<String> = own.map(|pod| pod.uid.to_owned()).collect();
        (!named.is_empty()).then(|| Evict {
            entry: entry.name.clone(),
            pods,
            stale: Stale::Named(named),
        })
    };
    let own = last.iter().filter(|entry| restarts.contains(&entry.name));
    own.filter_map(of_entry).collect()
}

/// Removes the lock from entries in the last stage, so that their pods use the controller's own.
pub(super) fn remove_locks(entries: &mut [Entry], teardowns: &Teardowns) {
    for entry in entries {
        if teardowns
            .values()
            .any(|teardown| teardown.unlocked.contains(&entry.name))
        {
            *entry = without_lock(entry);
        }
    }
}
