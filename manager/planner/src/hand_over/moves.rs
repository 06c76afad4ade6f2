//! Moves: which objects change shards between the current and the desired chain.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::names::labels::NO_OBJECT_KEY;
use ctrlmesh_manager_api::LabelSelector;
use ctrlmesh_manager_api::sharding_config::{HashRanges, Limit};

use super::claims::HeldClaim;
use super::limits::{is_too_large, limits_hiding_everything};
use super::restart_policy;
use super::shard::Shard;
use super::{FleetState, Pod, set_of, shard_of};
use crate::label_set::{LabelSet, no_object};
use crate::object_set::{ObjectSet, read_ranges};
use crate::range_set::RangeSet;
use crate::view::{self, ResourceClass};

/// The shards as they are shown now, and as they are desired.
pub(super) struct Moves<'a> {
    pub(super) before: &'a BTreeMap<&'a str, Shard>,
    pub(super) after: &'a BTreeMap<&'a str, Shard>,
    pub(super) possible: &'a [HeldClaim],
    /// Entries of the last chain that no pod runs yet.
    pub(super) unseen: BTreeSet<&'a str>,
    /// An earlier chain was put back, so it is unknown what pods show.
    pub(super) is_rolled_back: bool,
}

impl<'a> Moves<'a> {
    /// The claims of pods that lose objects which this shard gains, while they may still show them.
    pub(super) fn conflicting_claims(&self, name: &str, shard: &Shard, fleet: &impl FleetState) -> Vec<&'a HeldClaim> {
        let old = self.limits_before(name, shard);
        let holds = |held: &&HeldClaim| {
            if !self.is_of_controller(held, shard) {
                return false;
            }
            let pods = held.pods(fleet);
            if self.excludes_itself(name, shard, held, &pods) {
                return false;
            }
            let is_renamed =
                |pod: &Pod<'_>| shard.all_pods().matches(pod.labels) && held.is_renamed(pod, self.after.values());
            if pods.iter().any(is_renamed) && shows_more_than(&shard.limits, old) {
                return true;
            }
            // A pod that leads by an earlier lock, but is quiet, does not show this claim any more.
            if !held.is_of_last_chain && pods.iter().all(|pod| pod.is_quiet) {
                return false;
            }
            let kept = self.kept_limits(held, &pods);
            let all = [Some(shard.limits.as_slice()), old, Some(&held.claim.limits), kept];
            let is_moved = |class: &ResourceClass| {
                let gained = set_difference(&visible_set(Some(&shard.limits), class), &visible_set(old, class));
                let lost = set_difference(&visible_set(Some(&held.claim.limits), class), &visible_set(kept, class));
                gained
                    .iter()
                    .any(|gained| lost.iter().any(|lost| gained.intersection(lost).is_some()))
            };
            compared_classes(&all).iter().any(is_moved)
        };
        self.possible.iter().filter(holds).collect()
    }

    /// Whether the claim is of the shard's controller. A claim without a lock is, too, if its shard or one of the same root has this
    /// lock now: the controller's first lock may come in the edit that moves objects.
    fn is_of_controller(&self, held: &HeldClaim, shard: &Shard) -> bool {
        if held.claim.lock == shard.lock {
            return true;
        }
        let set = set_of(&held.name);
        let is_its = |name: &str| shard_of(name) == shard_of(&held.name) || set.is_some() && set_of(name) == set;
        let mut after = self.after.iter();
        held.claim.lock.is_none() && after.any(|(name, own)| own.lock == shard.lock && is_its(name))
    }

    /// The limits that the shard's pods had before. `None`: they saw nothing, because the shard is new; or the shard counts as new,
    /// because it has other pods or another shard lock, so that no lock keeps its pods apart.
    pub(super) fn limits_before(&self, name: &str, shard: &Shard) -> Option<&'a [Limit]> {
        let old = self.before.get(name).filter(|_| !self.is_rolled_back)?;
        let is_one_lock = shard.lock.is_some() && shard.name == old.name;
        if shard.lock.is_some() && shard.lock == old.lock && !is_one_lock {
            return None;
        }
        // Pods that do not exist yet count too.
        let has_others = || {
            let (now, before) = (
                LabelSet::from_selector(&shard.all_pods()),
                LabelSet::from_selector(&old.all_pods()),
            );
            now.is_some_and(|now| before.is_none_or(|before| !now.is_within(&before)))
        };
        if !is_one_lock && has_others() {
            return None;
        }
        if self.unseen.contains(name) {
            return self.seen_before(name, old);
        }
        Some(old.limits.as_slice())
    }

    /// The limits that a shard's pods show while none of them runs its entry. (Objects that it was about to share may meanwhile be
    /// leaving another shard.) `None`: the pods show different things.
    fn seen_before(&self, name: &str, old: &'a Shard) -> Option<&'a [Limit]> {
        let is_its = |held: &&HeldClaim| !held.is_of_last_chain && held.name == name && held.claim.shard == old.name;
        let mut earlier = self.possible.iter().filter(is_its);
        match earlier.next().map(|held| held.claim.limits.as_slice()) {
            Some(first) if !shows_more_than(first, Some(&old.limits)) => earlier.next().is_none().then_some(first),
            // The entry has equal limits in other words, or fewer than its pods show.
            _ => Some(&old.limits),
        }
    }

    /// Whether pods that have a claim can't act beside the shard's pods: they share one shard lock, or without locks they are the
    /// same pods.
    fn excludes_itself(&self, name: &str, shard: &Shard, held: &HeldClaim, pods: &[Pod<'_>]) -> bool {
        if shard.lock.is_some() {
            return held.claim.shard.is_some() && held.claim.shard == shard.name;
        }
        let base = |name: &str| restart_policy::shard_entry_of(name).unwrap_or(name).to_owned();
        base(name) == base(&held.name) && pods.iter().all(|pod| shard.all_pods().matches(pod.labels))
    }

    /// The limits that pods with a claim go on showing under the same shard lock. `None`: nothing.
    fn kept_limits(&self, held: &HeldClaim, pods: &[Pod<'_>]) -> Option<&'a [Limit]> {
        let after = self.after.get(held.name.as_str())?;
        let is_own = |pod: &Pod<'_>| after.all_pods().matches(pod.labels);
        (after.name == held.claim.shard && pods.iter().all(is_own)).then_some(after.limits.as_slice())
    }
}

/// Whether the limits show anything that the old ones hide. `None`: the shard is new and saw nothing.
pub(super) fn shows_more_than(limits: &[Limit], old: Option<&[Limit]>) -> bool {
    let classes = compared_classes(&[Some(limits), old]);
    classes
        .iter()
        .any(|class| !set_difference(&visible_set(Some(limits), class), &visible_set(old, class)).is_empty())
}

/// Limits of the objects that are seen both before and after, which are always safe to show.
pub(super) fn narrowed_limits(shard: &Shard, old: Option<&[Limit]>) -> Vec<Limit> {
    let Some(old) = old else {
        return limits_hiding_everything(&shard.limits);
    };
    narrowed_existing_limits(shard, old).unwrap_or_else(|| {
        let all: Vec<Limit> = old.iter().chain(&shard.limits).cloned().collect();
        limits_hiding_everything(&all)
    })
}

/// The same limits as [`narrowed_limits`], for a shard that existed. `None`: they would be too long.
pub(super) fn narrowed_existing_limits(shard: &Shard, old: &[Limit]) -> Option<Vec<Limit>> {
    // The shard is narrowed already, perhaps on the way to another goal.
    if !shows_more_than(old, Some(&shard.limits)) {
        return Some(old.to_vec());
    }
    let both = intersect_limits(old, &shard.limits);
    (!is_too_large(&both)).then_some(both)
}

/// Limits that apply together, as few as possible.
fn intersect_limits(limits: &[Limit], others: &[Limit]) -> Vec<Limit> {
    let mut both: Vec<Limit> = Vec::new();
    for limit in limits.iter().chain(others) {
        if both.contains(limit) {
            continue;
        }
        let same = both.iter_mut().find(|known| {
            known.relate_resources == limit.relate_resources && known.except_resources == limit.except_resources
        });
        match same.map(|known| (intersect_selections(known, limit), known)) {
            Some((Some((selector, hash_ranges)), known)) => {
                known.selector = Some(selector);
                known.hash_ranges = hash_ranges;
            }
            _ => both.push(limit.clone()),
        }
    }
    both
}

/// One selector, and ranges of one key, for the intersection of two limits; `None`: it takes several, or ranges cannot be read.
fn intersect_selections(limit: &Limit, other: &Limit) -> Option<(LabelSelector, Option<HashRanges>)> {
    let is_readable = |limit: &Limit| {
        let ranges = limit.hash_ranges.as_ref();
        ranges.is_none_or(|ranges| read_ranges(ranges).is_some())
    };
    if !is_readable(limit) || !is_readable(other) {
        return None;
    }
    let both = ObjectSet::from_limit(limit)
        .zip(ObjectSet::from_limit(other))
        .and_then(|(set, other)| set.intersection(&other));
    let mut limits = [limit, other].into_iter();
    let key = limits.find_map(|limit| limit.hash_ranges.as_ref().map(|ranges| &ranges.key));
    match both {
        Some(both) => both.selection().map(|(selector, ranges)| {
            // A limit that hides nothing must have all ranges: a sidecar leaves one without a condition out, and then shows the
            // resource to a leader that comes from another shard.
            let ranges = match key {
                Some(key) if ranges.is_none() && selector.is_empty() => Some(RangeSet::ALL.of_key(key)),
                _ => ranges,
            };
            (selector, ranges)
        }),
        // Without the key, a sidecar would not know that the shard may not write these objects.
        None => {
            let no_ranges = key.map(|key| RangeSet::default().of_key(key));
            Some((no_object(NO_OBJECT_KEY), no_ranges))
        }
    }
}

/// The resources that any of the limits distinguishes. If none does, all resources are one class.
pub(super) fn compared_classes(limits: &[Option<&[Limit]>]) -> BTreeSet<ResourceClass> {
    let mut classes = view::resource_classes(limits.iter().flatten().flat_map(|limits| limits.iter()));
    // A shard that sees everything has no limits, and gains everything if it saw nothing before.
    if classes.is_empty() {
        classes.insert(ResourceClass::all_resources());
    }
    classes
}

/// `None` as limits: nothing is seen.
pub(super) fn visible_set(limits: Option<&[Limit]>, class: &ResourceClass) -> Option<ObjectSet> {
    view::visible_objects(limits?.iter(), class)
}

pub(super) fn set_difference(set: &Option<ObjectSet>, other: &Option<ObjectSet>) -> Vec<ObjectSet> {
    match (set, other) {
        (None, _) => Vec::new(),
        (Some(set), None) => vec![set.clone()],
        (Some(set), Some(other)) => set.difference(other),
    }
}
