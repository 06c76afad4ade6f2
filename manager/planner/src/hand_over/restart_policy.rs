//! Shards with `reshard: Restart`: running pods keep the view that they started with, and get the new one when they are recreated.
//!
//! A pod selector cannot tell a running pod from one that is yet to be created; a label can. So the entry of such a shard changes
//! in three steps:
//! 1. The running pods get a label with a hash of their view, and an entry of their own with that view.
//! 2. When each of them runs that entry, the shard's own entry changes. Only new pods have it then.
//! 3. The running pods are evicted one by one. Until the last one is gone, the shard counts as still showing the old view.
//!
//! Until step 2 both entries say the same, so labels and chain may reach a sidecar in any order. A sidecar that restarts still has
//! its pod's label.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::names::labels::KEEPS_LIMITS;
use ctrlmesh_contract::{Digest, Entry, LabelSelector, Operator, Requirement};
use ctrlmesh_manager_api::sharding_config::Limit;
use serde_json::json;

use super::shard::{Shard, entry_with_limits, selector_without_keeps};
use super::{FleetState, Plan};

/// Separates the name of a shard's entry from the hash of the view that its pods keep.
const KEEPS_INFIX: &str = "/keeps/";
/// Digits of the hash of limits.
const DIGITS: usize = 16;

/// Pods that get a label to keep their view.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    pub pods: LabelSelector,
    /// The value of label [`KEEPS_LIMITS`].
    pub value: String,
}

/// A shard with pods that are to be evicted, one by one.
#[derive(Clone, Debug, PartialEq)]
pub struct Evict {
    pub entry: String,
    /// All pods of the shard.
    pub pods: LabelSelector,
    /// The pods to evict.
    pub stale: Stale,
}

/// The pods that are to be recreated.
#[derive(Clone, Debug, PartialEq)]
pub enum Stale {
    /// Pods that keep an earlier view, by label.
    Keeping(LabelSelector),
    /// Pods with these UIDs.
    Named(BTreeSet<String>),
}

impl Evict {
    /// Whether a pod of the shard is to be evicted.
    #[must_use]
    pub fn is_due(&self, uid: &str, labels: &BTreeMap<String, String>) -> bool {
        self.pods.matches(labels) && self.stale.has_pod(uid, labels)
    }
}

impl Stale {
    #[must_use]
    pub fn has_pod(&self, uid: &str, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Keeping(selector) => selector.matches(labels),
            Self::Named(uids) => uids.contains(uid),
        }
    }
}

/// The name of the shard's entry, if this is the entry of pods that keep their view.
#[must_use]
pub fn shard_entry_of(name: &str) -> Option<&str> {
    let (base, value) = name.split_once(KEEPS_INFIX)?;
    (!value.contains('/')).then_some(base)
}

/// The desired entries, one for each shard, and the shards with `reshard: Restart`. A refused object has its last entries here; if
/// some of them are of pods that keep their view, its shard counts as one with `reshard: Restart`.
pub(super) fn without_kept_views(desired: &[Entry], restarts: &BTreeSet<String>) -> (Vec<Entry>, BTreeSet<String>) {
    let bases = desired
        .iter()
        .filter_map(|entry| shard_entry_of(&entry.name))
        .map(str::to_owned);
    let restarts: BTreeSet<String> = restarts.iter().cloned().chain(bases).collect();
    let own = desired.iter().filter(|entry| shard_entry_of(&entry.name).is_none());
    let own = own.cloned().map(|mut entry| {
        if restarts.contains(&entry.name) {
            entry.pod_selector = selector_without_keeps(&entry.pod_selector);
        }
        entry
    });
    (own.collect(), restarts)
}

/// The label's value for these limits.
fn view_hash(limits: &[Limit]) -> String {
    let mut hash = Digest::of(json!(limits).to_string().as_bytes()).hex();
    hash.truncate(DIGITS);
    hash
}

fn keeping_entry_name(entry: &Entry, value: &str) -> String {
    format!("{}{KEEPS_INFIX}{value}", entry.name)
}

fn keep_requirement(operator: Operator, values: &BTreeSet<String>) -> Requirement {
    Requirement {
        key: KEEPS_LIMITS.to_owned(),
        operator,
        values: values.iter().cloned().collect(),
    }
}

/// The pods that keep one of these views.
fn pods_keeping(pods: &LabelSelector, values: &BTreeSet<String>) -> LabelSelector {
    let mut pods = pods.clone();
    pods.match_expressions.push(keep_requirement(Operator::In, values));
    pods
}

/// The pods that keep none of these views.
fn pods_not_keeping(pods: &LabelSelector, values: &BTreeSet<String>) -> LabelSelector {
    let mut pods = pods.clone();
    if !values.is_empty() {
        pods.match_expressions.push(keep_requirement(Operator::NotIn, values));
    }
    pods
}

/// The desired entries, and those of pods that keep their view; these get the shard's final limits here.
pub(super) fn with_kept(
    last: &[Entry],
    desired: &[Entry],
    restarts: &BTreeSet<String>,
    fleet: &impl FleetState,
) -> Vec<Entry> {
    let mut entries = Vec::new();
    for entry in desired {
        if !restarts.contains(&entry.name) {
            entries.push(entry.clone());
            continue;
        }
        let values = kept_view_hashes(entry, last, fleet);
        for value in &values {
            entries.push(Entry {
                name: keeping_entry_name(entry, value),
                pod_selector: pods_keeping(&entry.pod_selector, &[value.clone()].into()),
                ..entry.clone()
            });
        }
        entries.push(Entry {
            pod_selector: pods_not_keeping(&entry.pod_selector, &values),
            ..entry.clone()
        });
    }
    entries
}

/// The label values of views that pods of a shard keep.
fn kept_view_hashes(entry: &Entry, last: &[Entry], fleet: &impl FleetState) -> BTreeSet<String> {
    let prefix = keeping_entry_name(entry, "");
    let own = last.iter().filter(|old| shard_entry_of(&old.name).is_some());
    let values = own.filter_map(|old| old.name.strip_prefix(&prefix));
    let has_pods = |value: &&str| fleet.has_pods(&pods_keeping(&entry.pod_selector, &[(*value).to_owned()].into()));
    values.filter(has_pods).map(str::to_owned).collect()
}

/// Replaces the planned entries of shards with `reshard: Restart` by entries under which no running pod sees a change.
pub(super) fn plan_holds(
    plan: &mut Plan,
    last: &[Entry],
    desired: &[Entry],
    restarts: &BTreeSet<String>,
    fleet: &impl FleetState,
) {
    for entry in desired.iter().filter(|entry| restarts.contains(&entry.name)) {
        let planned = plan.entries.iter().find(|planned| planned.name == entry.name);
        let shown = planned
            .and_then(Shard::from_entry)
            .map(|(_, shard)| (shard.limits, shard.is_consistent));
        if let Some(shown) = shown {
            plan_holds_of_shard(plan, last, entry, shown, fleet);
        }
    }
    plan.entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
}

/// `shown`: what new pods of the shard are to see next, and whether their lists are consistent.
fn plan_holds_of_shard(
    plan: &mut Plan,
    last: &[Entry],
    entry: &Entry,
    mut shown: (Vec<Limit>, bool),
    fleet: &impl FleetState,
) {
    let before: BTreeMap<&str, Shard> = last.iter().filter_map(Shard::from_entry).collect();
    let mut values = kept_view_hashes(entry, last, fleet);
    let mut prepared = None;
    if let Some(old) = before.get(entry.name.as_str()).filter(|old| old.limits != shown.0) {
        prepared = view_to_keep(plan, last, entry, &old.limits, &values, fleet);
        if prepared.is_some() {
            shown = (old.limits.clone(), old.is_consistent);
        }
    }
    // A view that equals the shard's is not kept any longer.
    let limits = |value: &String| {
        before
            .get(keeping_entry_name(entry, value).as_str())
            .map(|kept| &kept.limits)
    };
    values.retain(|value| prepared.as_ref() != Some(value) && limits(value).is_some_and(|kept| *kept != shown.0));
    if !values.is_empty() {
        plan.evict.push(Evict {
            entry: entry.name.clone(),
            pods: entry.pod_selector.clone(),
            stale: Stale::Keeping(pods_keeping(&entry.pod_selector, &values)),
        });
    }
    let prefix = keeping_entry_name(entry, "");
    plan.entries.retain(|planned| {
        let value = planned
            .name
            .strip_prefix(&prefix)
            .filter(|_| shard_entry_of(&planned.name).is_some());
        planned.name != entry.name && value.is_none_or(|value| values.contains(value))
    });
    let shows = entry_with_limits(entry, &shown.0, shown.1);
    if let Some(value) = prepared {
        plan.entries.push(Entry {
            name: keeping_entry_name(entry, &value),
            pod_selector: pods_keeping(&entry.pod_selector, &[value.clone()].into()),
            ..shows.clone()
        });
        values.insert(value);
    }
    plan.entries.push(Entry {
        pod_selector: pods_not_keeping(&entry.pod_selector, &values),
        ..shows
    });
}

/// The view that the pods of a shard must keep before its entry changes; `None`: all pods keep theirs, or there are none.
fn view_to_keep(
    plan: &mut Plan,
    last: &[Entry],
    entry: &Entry,
    shown: &[Limit],
    kept: &BTreeSet<String>,
    fleet: &impl FleetState,
) -> Option<String> {
    let value = view_hash(shown);
    let mut values = kept.clone();
    values.insert(value.clone());
    if is_held(entry, &value, &values, last, fleet) {
        return None;
    }
    let pods = pods_not_keeping(&entry.pod_selector, &values);
    if fleet.has_pods(&pods) {
        let value = value.clone();
        plan.hold.push(Hold { pods, value });
    }
    plan.preparing.insert(entry.name.clone());
    let own = fleet.pods().filter(|pod| entry.pod_selector.matches(pod.labels));
    let awaited = plan.awaited.entry(entry.name.clone()).or_default();
    awaited.extend(own.map(|pod| pod.uid.to_owned()));
    Some(value)
}

/// Whether every pod of a shard runs an entry that keeps its view.
fn is_held(entry: &Entry, value: &str, values: &BTreeSet<String>, last: &[Entry], fleet: &impl FleetState) -> bool {
    let holding = pods_keeping(&entry.pod_selector, &[value.to_owned()].into());
    let has_entry = last.iter().any(|old| old.name == keeping_entry_name(entry, value));
    let is_entry_in_force = !fleet.has_pods(&holding) || has_entry && fleet.is_settled(&holding);
    is_entry_in_force && !fleet.has_pods(&pods_not_keeping(&entry.pod_selector, values))
}
