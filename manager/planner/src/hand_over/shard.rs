//! A shard as its entry in the chain describes it: pods, lock, limits.

use std::collections::BTreeMap;

use ctrlmesh_contract::names::labels::KEEPS_LIMITS;
use ctrlmesh_contract::{Entry, LabelSelector, Settings};
use ctrlmesh_manager_api::sharding_config::Limit;
use serde_json::{Value, json};

use super::limits::{
    are_of_unbegun_shard, hides_everything, is_too_large, limits_hiding_everything, limits_of_unbegun_shard,
};
use crate::label_set::LabelSet;

/// The shard-selector setting that makes lists at least as new as their request: the first list of gained objects has to show the
/// last writes of the losing shard.
pub(super) const CONSISTENT_READS: &str = "consistentReads";
/// The shard-selector setting with the shard's name. The shard lock is named after the lock and the shard.
pub(super) const SHARD: &str = "shard";
/// The shard-selector setting with the name of the controller's lock.
pub(super) const LOCK: &str = "leaderElectionName";

/// The view of an entry, and the pods that have it.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    /// The entry's pod selector.
    pub(super) pods: LabelSelector,
    /// The controller's lock. Shards of one controller have the same.
    pub(super) lock: Option<String>,
    /// The shard's name in the name of its shard lock.
    pub(super) name: Option<String>,
    /// Limits of the view. Unreadable ones count as if they hid nothing.
    pub(super) limits: Vec<Limit>,
    pub(super) is_consistent: bool,
}

impl Shard {
    /// `None`: the entry is not a shard's.
    pub(super) fn from_entry(entry: &Entry) -> Option<(&str, Self)> {
        if !super::is_of_shard(&entry.name) {
            return None;
        }
        let settings = entry.settings.value();
        let shard = Self {
            pods: entry.pod_selector.clone(),
            lock: lock_name(entry).map(str::to_owned),
            name: settings.get(SHARD).and_then(Value::as_str).map(str::to_owned),
            limits: limits_of(settings),
            is_consistent: settings.get(CONSISTENT_READS) == Some(&Value::Bool(true)),
        };
        Some((entry.name.as_str(), shard))
    }

    /// All pods of the shard, also those that keep an earlier view.
    pub(super) fn all_pods(&self) -> LabelSelector {
        selector_without_keeps(&self.pods)
    }
}

/// The pods of a shard, with those that keep an earlier view.
pub(super) fn selector_without_keeps(pods: &LabelSelector) -> LabelSelector {
    let mut pods = pods.clone();
    pods.match_expressions
        .retain(|requirement| requirement.key != KEEPS_LIMITS);
    pods
}

pub(super) fn lock_name(entry: &Entry) -> Option<&str> {
    entry.settings.value().get(LOCK).and_then(Value::as_str)
}

pub(super) fn limits_of(settings: &Value) -> Vec<Limit> {
    let limits = settings.get("limits").cloned().unwrap_or_default();
    serde_json::from_value(limits).unwrap_or_default()
}

/// The entry with other limits.
pub(super) fn entry_with_limits(entry: &Entry, limits: &[Limit], is_consistent: bool) -> Entry {
    let mut settings = entry.settings.value().clone();
    if let Value::Object(fields) = &mut settings {
        if limits_of(entry.settings.value()) != limits {
            fields.insert("limits".to_owned(), json!(limits));
        }
        fields.remove(CONSISTENT_READS);
        if is_consistent {
            fields.insert(CONSISTENT_READS.to_owned(), true.into());
        }
    }
    Entry {
        settings: Settings::new(settings),
        ..entry.clone()
    }
}

/// The entry of a shard until the shard begins.
#[must_use]
pub fn unbegun_entry(entry: &Entry) -> Entry {
    Shard::from_entry(entry).map_or_else(
        || entry.clone(),
        |(_, shard)| entry_with_limits(entry, &limits_of_unbegun_shard(&shard.limits), false),
    )
}

/// Whether the entry belongs to a shard that has not begun.
#[must_use]
pub fn is_unbegun(entry: &Entry) -> bool {
    Shard::from_entry(entry).is_some_and(|(_, shard)| are_of_unbegun_shard(&shard.limits))
}

/// The entry of pods that leave the shard: they see nothing of `hidden` resources, and use a lock of no shard. If the shard has not
/// begun, its limits still say so.
pub(super) fn leaver_entry(entry: &Entry, name: String, pods: LabelSelector, hidden: &[Limit]) -> Entry {
    let limits = if is_unbegun(entry) {
        limits_of_unbegun_shard(hidden)
    } else {
        limits_hiding_everything(hidden)
    };
    let nothing = entry_with_limits(entry, &limits, false);
    let mut settings = nothing.settings.value().clone();
    if let Some(Value::String(shard)) = settings.get_mut(SHARD) {
        *shard = left_name(shard);
    }
    Entry {
        name,
        pod_selector: pods,
        settings: Settings::new(settings),
        ..nothing
    }
}

/// Limits that name what pods must not see any more when they leave a shard with this lock. None: no resource at all.
///
/// That is every resource. But if a shard of another controller has some of these pods, resources that no shard of this controller
/// limits stay visible, so that the other controller goes on. (All shards of this one see these; they never had one owner.) For that
/// case the limited resources are always named, because nothing else says later which they are.
pub(super) fn hidden_from_leavers(
    lock: Option<&str>,
    pods: &LabelSelector,
    last: &[Entry],
    desired: &[Entry],
) -> Vec<Limit> {
    let shards = || last.iter().chain(desired).filter_map(Shard::from_entry);
    let own = shards().filter(|(_, shard)| shard.lock.as_deref() == lock);
    let limits = own.flat_map(|(_, shard)| shard.limits);
    let limits = limits.filter(|limit| !hides_everything(limit));
    let hidden = limits.collect::<Vec<_>>();
    if is_too_large(&limits_hiding_everything(&hidden)) {
        return Vec::new();
    }
    let pods = LabelSet::from_selector(pods);
    let has_some = |other: &Shard| {
        let both = pods.as_ref().zip(LabelSet::from_selector(&other.pods));
        both.is_some_and(|(pods, others)| pods.intersection(&others).is_some())
    };
    let mut others = desired.iter().filter_map(Shard::from_entry).map(|(_, shard)| shard);
    let is_shared = others.any(|other| other.lock.as_deref() != lock && has_some(&other));
    let all = if is_shared {
        Vec::new()
    } else {
        limits_hiding_everything(&[])
    };
    // With a key, a limit of all resources would be a fence, and the pods may have other locks.
    let without_fence_of_all = |limit: Limit| match hides_everything(&limit) {
        true => Limit {
            hash_ranges: None,
            ..limit
        },
        false => limit,
    };
    let hidden = limits_hiding_everything(&hidden).into_iter().map(without_fence_of_all);
    // Equal in each pass, whatever the order of shards.
    let hidden = hidden.chain(all);
    let hidden: BTreeMap<String, Limit> = hidden.map(|limit| (json!(limit).to_string(), limit)).collect();
    hidden.into_values().collect()
}

/// The shard's name in the lock of pods that have left it.
pub(super) fn left_name(shard: &str) -> String {
    let shard = shard.strip_suffix(LEFT_SUFFIX).unwrap_or(shard);
    format!("{shard}{LEFT_SUFFIX}")
}

/// Suffix of the shard's name for pods that have left it. A shard that takes over waits for the shard lock that they give up this way.
const LEFT_SUFFIX: &str = "-left";
