//! Objects that two shards of one controller see, and objects that none of them sees.
//!
//! Computed from selectors and the names of namespaces, without looking at objects: the labels that the manager sets follow from
//! the namespace, and every other label may have any value. What is found is exact for such objects.
//!
//! Leaves to auto sharding that its shards never overlap; these are for shards that people write.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use crate::api::ShardingConfig;
use crate::api::sharding_config::Limit;
use crate::auto_shard::LabelKeys;
use crate::label_set::LabelSet;
use crate::shard_hash::shard_hash;
use crate::view::{self, ResourceClass};

/// Namespaces that are named one by one in a finding; the others are counted.
const MAX_EXAMPLES: usize = 5;
/// Parts that a namespace's objects may fall into by labels of their own. Selectors that need more are taken to cover the rest:
/// no false alarm is raised.
const MAX_PARTS: usize = 256;

/// Objects of one resource that are in the wrong number of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The shards: two or more that share objects, or all of a controller if nobody has them.
    pub shards: Vec<String>,
    /// Whether the objects are in two shards, or in none.
    pub kind: OverlapKind,
    /// The resource, as `apps/deployments`.
    pub resource: String,
    /// Some of the namespaces.
    pub examples: Vec<String>,
    /// How many namespaces there are.
    pub namespaces: usize,
}

/// In which wrong number of shards objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverlapKind {
    /// Two at least: both may act on them.
    Shared,
    /// None: nobody acts on them.
    Orphaned,
}

/// Finds them among all ShardingConfigs of a namespace. `namespaces` are the labelled ones of the cluster. Roots, and shards
/// without a controller (there is nothing to tell that two of them are one), are left out.
#[must_use]
pub fn overlap(configs: &[ShardingConfig], namespaces: &[String], keys: &LabelKeys) -> Vec<Overlap> {
    let all = Search {
        namespaces,
        keys,
        only: None,
        is_over: &|| false,
    };
    all.among(configs)
}

/// The same of one shard: what it shares with others, and what it and others leave to nobody. `is_over` ends the search early,
/// with what was found by then.
#[must_use]
pub fn overlap_of(
    shard: &str,
    configs: &[ShardingConfig],
    namespaces: &[String],
    keys: &LabelKeys,
    is_over: &dyn Fn() -> bool,
) -> Vec<Overlap> {
    let of_one = Search {
        namespaces,
        keys,
        only: Some(shard),
        is_over,
    };
    of_one.among(configs)
}

/// What is looked for.
#[derive(Clone, Copy)]
struct Search<'a> {
    namespaces: &'a [String],
    keys: &'a LabelKeys,
    /// Only pairs with this shard.
    only: Option<&'a str>,
    is_over: &'a dyn Fn() -> bool,
}

impl Search<'_> {
    fn among(self, configs: &[ShardingConfig]) -> Vec<Overlap> {
        let mut controllers: BTreeMap<(&str, &str), Vec<&ShardingConfig>> = BTreeMap::new();
        for config in configs.iter().filter(|config| config.spec.root.is_none()) {
            if let Some(controller) = &config.spec.controller {
                let namespace = config.metadata.namespace.as_deref().unwrap_or_default();
                let key = (namespace, controller.leader_election_name.as_str());
                controllers.entry(key).or_default().push(config);
            }
        }
        let mut found = Vec::new();
        for mut shards in controllers.into_values() {
            shards.sort_by_key(|shard| name(shard));
            for class in view::classes(shards.iter().flat_map(|shard| limits(shard))) {
                found.extend(self.of_resource(&shards, &class));
            }
        }
        found
    }

    fn of_resource(self, shards: &[&ShardingConfig], class: &ResourceClass) -> Vec<Overlap> {
        let parts: Vec<Part> = shards
            .iter()
            .map(|shard| Part {
                shard: name(shard),
                set: view::seen(limits(shard), class),
            })
            .collect();
        let mut found: BTreeMap<(OverlapKind, Vec<String>), Vec<String>> = BTreeMap::new();
        for namespace in self.namespaces.iter().take_while(|_| !(self.is_over)()) {
            for finding in self.in_namespace(&parts, namespace) {
                found.entry(finding).or_default().push(namespace.clone());
            }
        }
        let overlap = |((kind, shards), mut in_namespaces): ((OverlapKind, Vec<String>), Vec<String>)| {
            in_namespaces.sort_unstable();
            let namespaces = in_namespaces.len();
            in_namespaces.truncate(MAX_EXAMPLES);
            Overlap {
                shards,
                kind,
                resource: class.to_string(),
                examples: in_namespaces,
                namespaces,
            }
        };
        found.into_iter().map(overlap).collect()
    }

    fn in_namespace(self, parts: &[Part], namespace: &str) -> Vec<(OverlapKind, Vec<String>)> {
        let Some(everything) = objects_of(namespace, self.keys) else {
            return Vec::new();
        };
        let here: Vec<(&str, LabelSet)> = parts
            .iter()
            .filter_map(|part| Some((part.shard.as_str(), part.set.as_ref()?.and(&everything)?)))
            .collect();
        let mut found = Vec::new();
        for (index, (shard, set)) in here.iter().enumerate() {
            let is_meant = |other: &str| self.only.is_none_or(|only| only == *shard || only == other);
            for (other, other_set) in here.iter().skip(index + 1) {
                if is_meant(other) && set.and(other_set).is_some() {
                    found.push((OverlapKind::Shared, vec![(*shard).to_owned(), (*other).to_owned()]));
                }
            }
        }
        if !is_covered(everything, &here) {
            found.push((
                OverlapKind::Orphaned,
                parts.iter().map(|part| part.shard.clone()).collect(),
            ));
        }
        found
    }
}

fn name(config: &ShardingConfig) -> String {
    config.metadata.name.clone().unwrap_or_default()
}

/// One shard's part of a resource.
struct Part {
    shard: String,
    /// `None`: it sees nothing of it.
    set: Option<LabelSet>,
}

fn limits(shard: &ShardingConfig) -> impl Iterator<Item = &Limit> + Clone {
    shard.spec.limits.iter().flatten()
}

/// The objects of a namespace: the labels that the manager sets are known, all others are not.
fn objects_of(namespace: &str, keys: &LabelKeys) -> Option<LabelSet> {
    LabelSet::default()
        .with(&keys.namespace, namespace)?
        .with(&keys.shard_hash, &shard_hash(namespace).to_string())?
        .with(&keys.control, "true")
}

fn is_covered(everything: LabelSet, sets: &[(&str, LabelSet)]) -> bool {
    let mut rest = vec![everything];
    for (_, set) in sets {
        rest = rest.iter().flat_map(|part| part.minus(set)).collect();
        if rest.len() > MAX_PARTS {
            return true;
        }
    }
    rest.is_empty()
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = self.shards.join(", ");
        let examples = self.examples.join(", ");
        let more = match self.namespaces.saturating_sub(self.examples.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        match self.kind {
            OverlapKind::Shared => write!(
                f,
                "{} in namespace {examples}{more} can be in both {shards}; let their selectors exclude each other",
                self.resource
            ),
            OverlapKind::Orphaned => write!(
                f,
                "{} in namespace {examples}{more} can be in none of the shards {shards}; add the namespace or its bucket to one",
                self.resource
            ),
        }
    }
}
