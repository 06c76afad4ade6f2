//! Finds objects that two shards of one controller see, and objects that none of them sees.
//!
//! Computed from selectors and the names of namespaces, without reading objects: the labels that the manager sets follow from the
//! namespace, and every other label may have any value. The findings are exact for such objects.
//!
//! Shards of a root never overlap by construction ([`crate::auto_shard()`]); this is for shards that people write.

mod in_files;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_api::sharding_config::Limit;

use crate::auto_shard::LabelKeys;
use crate::object_set::ObjectSet;
use crate::shard_hash::shard_hash;
use crate::view::{self, ResourceClass};

pub use in_files::ShardIndex;

/// Maximum number of namespaces that a finding names. Further ones are counted.
const MAX_EXAMPLES: usize = 5;
/// Maximum parts that a namespace's objects may be divided into by labels of their own. Selectors that need more count as covering
/// the rest, so that there is no false alarm.
const MAX_PARTS: usize = 256;

/// Objects of one resource that are in the wrong number of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The shards that share the objects; if no shard sees them, all shards of the controller.
    pub shards: Vec<String>,
    /// Whether the objects are in several shards, or in none.
    pub kind: OverlapKind,
    /// The resource, as `apps/deployments`.
    pub resource: String,
    /// Names of some namespaces with such objects.
    pub examples: Vec<String>,
    /// Number of all namespaces with such objects.
    pub namespaces: usize,
}

/// The wrong number of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverlapKind {
    /// Several shards see the objects, and all may act on them.
    Shared,
    /// No shard sees the objects, so none acts on them.
    Orphaned,
}

/// Finds overlaps among all ShardingConfigs of a namespace. `namespaces` are the labelled namespaces of the cluster. Roots are left
/// out, and so are shards without a lock, because nothing says which of them belong together.
#[must_use]
pub fn find_overlaps(configs: &[ShardingConfig], namespaces: &[String], keys: &LabelKeys) -> Vec<Overlap> {
    let mut controllers: BTreeMap<_, Vec<&ShardingConfig>> = BTreeMap::new();
    for (config, controller) in configs
        .iter()
        .filter_map(|config| Some((config, controller_key(config)?)))
    {
        controllers.entry(controller).or_default().push(config);
    }
    let found = controllers
        .into_values()
        .map(|shards| overlaps_among(shards, namespaces, keys, &|| false));
    found.flatten().collect()
}

/// The overlaps of one shard: what it shares with others, and what it and others leave to nobody. When `is_over` returns true, the
/// search ends with the findings so far.
#[must_use]
pub fn overlap_of(
    shard: &str,
    configs: &[ShardingConfig],
    namespaces: &[String],
    keys: &LabelKeys,
    is_over: &dyn Fn() -> bool,
) -> Vec<Overlap> {
    let Some(own) = configs
        .iter()
        .find(|config| config_name(config) == shard)
        .and_then(controller_key)
    else {
        return Vec::new();
    };
    let shards = configs
        .iter()
        .filter(|config| controller_key(config) == Some(own))
        .collect();
    let mut found = overlaps_among(shards, namespaces, keys, is_over);
    found.retain(|overlap| overlap.shards.iter().any(|name| name == shard));
    found
}

/// Identifies a shard's controller: namespace and lock. `None`: the object is not a shard, or has no lock.
fn controller_key(config: &ShardingConfig) -> Option<(&str, &str)> {
    let controller = config.spec.controller.as_ref().filter(|_| config.spec.root.is_none())?;
    let namespace = config.metadata.namespace.as_deref().unwrap_or_default();
    Some((namespace, controller.leader_election_name.as_str()))
}

fn overlaps_among(
    mut shards: Vec<&ShardingConfig>,
    namespaces: &[String],
    keys: &LabelKeys,
    is_over: &dyn Fn() -> bool,
) -> Vec<Overlap> {
    let mut namespaces: Vec<&String> = namespaces.iter().collect();
    namespaces.sort_unstable();
    shards.sort_by_key(|shard| config_name(shard));
    let classes = view::resource_classes(shards.iter().flat_map(|shard| limits_of(shard)));
    let classes = classes.iter().take_while(|_| !is_over());
    classes
        .flat_map(|class| overlaps_of_resource(&shards, class, &namespaces, keys))
        .collect()
}

fn config_name(config: &ShardingConfig) -> String {
    config.metadata.name.clone().unwrap_or_default()
}

/// The part of a resource that one shard sees.
struct Part {
    shard: String,
    /// `None`: the shard sees nothing of it.
    set: Option<ObjectSet>,
    /// The visible objects without conditions on the labels that the manager sets.
    own: ObjectSet,
}

impl Part {
    fn from_shard(shard: &ShardingConfig, class: &ResourceClass, keys: &LabelKeys) -> Self {
        let set = view::visible_objects(limits_of(shard), class);
        let own = set.clone().unwrap_or_default();
        Self {
            shard: config_name(shard),
            set,
            own: own
                .without_key(&keys.namespace)
                .without_key(&keys.shard_hash)
                .without_key(&keys.control),
        }
    }

    fn sees_namespace(&self, namespace: &str, hash: &str, keys: &LabelKeys) -> bool {
        let known = [
            (&keys.namespace, namespace),
            (&keys.shard_hash, hash),
            (&keys.control, "true"),
        ];
        let allows = |set: &ObjectSet| known.iter().all(|(key, value)| set.allows_value(key, value));
        self.set.as_ref().is_some_and(allows)
    }
}

#[derive(Default)]
struct Tally {
    examples: Vec<String>,
    namespaces: usize,
}

impl Tally {
    fn add(&mut self, namespaces: &[&String]) {
        let room = MAX_EXAMPLES.saturating_sub(self.examples.len());
        self.examples
            .extend(namespaces.iter().take(room).map(|name| (*name).clone()));
        self.namespaces += namespaces.len();
    }
}

/// Finds the overlaps of one resource. The manager's labels of each namespace are known, so a namespace matters only by the shards
/// that see anything in it. Namespaces with equal shards are checked once.
fn overlaps_of_resource(
    shards: &[&ShardingConfig],
    class: &ResourceClass,
    namespaces: &[&String],
    keys: &LabelKeys,
) -> Vec<Overlap> {
    let parts: Vec<Part> = shards
        .iter()
        .map(|shard| Part::from_shard(shard, class, keys))
        .collect();
    let alike = group_namespaces(&parts, namespaces, keys);
    let mut shared: BTreeMap<(usize, usize), Tally> = BTreeMap::new();
    let mut orphaned = Tally::default();
    let mut known = HashMap::new();
    for (seeing, namespaces) in &alike {
        let here: Vec<(usize, &ObjectSet)> = seeing
            .iter()
            .filter_map(|index| Some((*index, &parts.get(*index)?.own)))
            .collect();
        for pair in intersecting_pairs(&here, &mut known) {
            shared.entry(pair).or_default().add(namespaces);
        }
        if !is_covered(&here) {
            orphaned.add(namespaces);
        }
    }
    let names = |indexes: &[usize]| {
        indexes
            .iter()
            .filter_map(|index| Some(parts.get(*index)?.shard.clone()))
            .collect()
    };
    let overlap = |kind, shards, mut tally: Tally| {
        tally.examples.sort_unstable();
        Overlap {
            shards,
            kind,
            resource: class.to_string(),
            examples: tally.examples,
            namespaces: tally.namespaces,
        }
    };
    let shared = shared.into_iter();
    let mut found: Vec<Overlap> = shared
        .map(|((one, other), tally)| overlap(OverlapKind::Shared, names(&[one, other]), tally))
        .collect();
    if orphaned.namespaces > 0 {
        let all = parts.iter().map(|part| part.shard.clone()).collect();
        found.push(overlap(OverlapKind::Orphaned, all, orphaned));
    }
    found
}

fn limits_of(shard: &ShardingConfig) -> impl Iterator<Item = &Limit> + Clone {
    shard.spec.limits.iter().flatten()
}

/// Namespaces by the shards that see anything there.
fn group_namespaces<'a>(
    parts: &[Part],
    namespaces: &[&'a String],
    keys: &LabelKeys,
) -> BTreeMap<Vec<usize>, Vec<&'a String>> {
    let mut alike: BTreeMap<Vec<usize>, Vec<&'a String>> = BTreeMap::new();
    for namespace in namespaces {
        let hash = shard_hash(namespace).to_string();
        let seeing = parts.iter().enumerate();
        let seeing = seeing.filter(|(_, part)| part.sees_namespace(namespace, &hash, keys));
        alike
            .entry(seeing.map(|(index, _)| index).collect())
            .or_default()
            .push(namespace);
    }
    alike
}

/// Pairs of sets that intersect. `known` caches the comparisons.
fn intersecting_pairs(here: &[(usize, &ObjectSet)], known: &mut HashMap<(usize, usize), bool>) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for (at, (index, set)) in here.iter().enumerate() {
        for (other, other_set) in here.iter().skip(at + 1) {
            let pair = (*index, *other);
            if *known.entry(pair).or_insert_with(|| set.intersects(other_set)) {
                pairs.push(pair);
            }
        }
    }
    pairs
}

fn is_covered(sets: &[(usize, &ObjectSet)]) -> bool {
    let mut rest = vec![ObjectSet::default()];
    for (_, set) in sets {
        rest = rest.iter().flat_map(|part| part.difference(set)).collect();
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
                "the limits of {shards} leave out {} in namespace {examples}{more}; add the namespace or its hash bucket \
                 to one",
                self.resource
            ),
        }
    }
}
