//! Which objects change shards.

use std::collections::{BTreeMap, BTreeSet};

use super::{Claim, Claims, Shard};
use crate::api::sharding_config::Limit;
use crate::api::{LabelSelector, Operator, Requirement};
use crate::label_set::LabelSet;
use crate::view::{self, ResourceClass};

/// A key that selectors for nothing speak of. No object can both have it and not have it.
const NOTHING: &str = "ctrlmesh.kusionstack.io/nothing";

/// What sidecars of other shards may still show that this one gains and that they lose, each with the shard's entry.
pub(super) fn holders<'a>(
    name: &str,
    shard: &Shard,
    old: Option<&Shard>,
    after: &BTreeMap<&str, Shard>,
    possible: &'a Claims,
) -> Vec<(&'a str, &'a Claim)> {
    let mut holders = Vec::new();
    for (holder, claims) in possible.iter().filter(|(holder, _)| *holder != name) {
        for claim in claims.iter().filter(|claim| claim.lock == shard.lock) {
            let keeps = after.get(holder.as_str()).map(|shard| shard.limits.as_slice());
            let limits = [
                Some(shard.limits.as_slice()),
                old.map(|old| old.limits.as_slice()),
                Some(&claim.limits),
                keeps,
            ];
            let is_moved = |class: &ResourceClass| {
                let gained = less(
                    &seen(Some(&shard.limits), class),
                    &seen(old.map(|old| old.limits.as_slice()), class),
                );
                let lost = less(&seen(Some(&claim.limits), class), &seen(keeps, class));
                gained
                    .iter()
                    .any(|gained| lost.iter().any(|lost| gained.and(lost).is_some()))
            };
            if classes(&limits).iter().any(is_moved) {
                holders.push((holder.as_str(), claim));
            }
        }
    }
    holders
}

/// Whether the limits show anything that the old ones hide. No old ones: the shard is new, and saw nothing.
pub(super) fn gains(limits: &[Limit], old: Option<&[Limit]>) -> bool {
    let classes = classes(&[Some(limits), old]);
    classes
        .iter()
        .any(|class| !less(&seen(Some(limits), class), &seen(old, class)).is_empty())
}

/// What is seen before and after: nobody can object to that.
pub(super) fn narrowed(shard: &Shard, old: Option<&Shard>) -> Vec<Limit> {
    let Some(old) = old else {
        return shard.limits.iter().map(nothing_of).collect();
    };
    // It is narrowed already, perhaps on the way to something else.
    if !gains(&old.limits, Some(&shard.limits)) {
        return old.limits.clone();
    }
    old.limits.iter().chain(&shard.limits).cloned().collect()
}

fn nothing_of(limit: &Limit) -> Limit {
    let requirement = |operator| Requirement {
        key: NOTHING.to_owned(),
        operator,
        values: Vec::new(),
    };
    Limit {
        relate_resources: limit.relate_resources.clone(),
        selector: Some(LabelSelector {
            match_expressions: vec![requirement(Operator::Exists), requirement(Operator::DoesNotExist)],
            ..LabelSelector::default()
        }),
    }
}

/// The resources that any of the limits tells apart. Where nobody has a limit, nobody owns anything.
fn classes(limits: &[Option<&[Limit]>]) -> BTreeSet<ResourceClass> {
    view::classes(limits.iter().flatten().flat_map(|limits| limits.iter()))
}

/// `None` as limits: nothing.
fn seen(limits: Option<&[Limit]>, class: &ResourceClass) -> Option<LabelSet> {
    view::seen(limits?.iter(), class)
}

fn less(set: &Option<LabelSet>, other: &Option<LabelSet>) -> Vec<LabelSet> {
    match (set, other) {
        (None, _) => Vec::new(),
        (Some(set), None) => vec![set.clone()],
        (Some(set), Some(other)) => set.minus(other),
    }
}
