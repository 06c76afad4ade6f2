//! The view of a shard as sets of objects: one for each resource that its limits name, and one for all others if a limit has a
//! wildcard.

use std::collections::BTreeSet;
use std::fmt;

use ctrlmesh_manager_api::sharding_config::{Limit, ResourceGroup};

use crate::object_set::ObjectSet;

/// A resource, or all resources that no limit names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceClass {
    /// `None`: a group that no limit names.
    group: Option<String>,
    /// `None`: a resource that no limit names.
    resource: Option<String>,
}

/// All resources that some limits distinguish: every named group and any other, each with every named resource and any other.
/// (`apps/*` and `*/deployments` meet in a pair that neither names.)
pub fn resource_classes<'a>(limits: impl Iterator<Item = &'a Limit> + Clone) -> BTreeSet<ResourceClass> {
    let rules = || {
        let of_limit = |limit: &'a Limit| limit.relate_resources.iter().chain(&limit.except_resources);
        limits.clone().flat_map(of_limit)
    };
    let named = |names: &[String]| -> Vec<Option<String>> {
        names.iter().filter(|name| *name != "*").cloned().map(Some).collect()
    };
    let mut groups: BTreeSet<Option<String>> = rules().flat_map(|rule| named(&rule.api_groups)).collect();
    let mut resources: BTreeSet<Option<String>> = rules().flat_map(|rule| named(&rule.resources)).collect();
    groups.insert(None);
    resources.insert(None);
    let pairs = groups.into_iter().flat_map(|group| {
        let with = move |resource: &Option<String>| ResourceClass {
            group: group.clone(),
            resource: resource.clone(),
        };
        resources.iter().map(with).collect::<Vec<_>>()
    });
    // Pairs to which the same limits apply are merged, but not those that people have written.
    let mut known: BTreeSet<Vec<bool>> = BTreeSet::new();
    let is_distinct = |class: &ResourceClass| {
        let limits: Vec<bool> = limits.clone().map(|limit| class.is_in(limit)).collect();
        limits.contains(&true) && (known.insert(limits) || rules().any(|rule| class.is_named_by(rule)))
    };
    pairs.filter(is_distinct).collect()
}

/// The objects of a resource that a shard sees: the intersection of the limits that match it, as in the shard-selector plugin.
/// `None`: nothing.
pub fn visible_objects<'a>(limits: impl Iterator<Item = &'a Limit>, class: &ResourceClass) -> Option<ObjectSet> {
    let mut set = ObjectSet::default();
    for limit in limits.filter(|limit| class.is_in(limit)) {
        set = set.intersection(&ObjectSet::from_limit(limit)?)?;
    }
    Some(set)
}

impl ResourceClass {
    /// All resources, when no limit distinguishes any.
    pub(crate) const fn all_resources() -> Self {
        Self {
            group: None,
            resource: None,
        }
    }

    /// Whether a limit applies to these resources.
    fn is_in(&self, limit: &Limit) -> bool {
        let (groups, excepted) = (&limit.relate_resources, &limit.except_resources);
        let is_named = groups.is_empty() || groups.iter().any(|group| self.is_of(group));
        is_named && !excepted.iter().any(|group| self.is_of(group))
    }

    fn is_named_by(&self, group: &ResourceGroup) -> bool {
        let has = |names: &[String], name: &Option<String>| name.as_ref().is_some_and(|name| names.contains(name));
        has(&group.api_groups, &self.group) && has(&group.resources, &self.resource)
    }

    fn is_of(&self, group: &ResourceGroup) -> bool {
        let has = |names: &[String], name: &Option<String>| {
            names.iter().any(|known| known == "*" || name.as_ref() == Some(known))
        };
        has(&group.api_groups, &self.group) && has(&group.resources, &self.resource)
    }
}

impl fmt::Display for ResourceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.group.as_deref(), self.resource.as_deref()) {
            (Some(""), Some(resource)) => f.write_str(resource),
            (None, Some(resource)) => write!(f, "{resource} (of any group)"),
            (None, None) => f.write_str("other resources"),
            (Some(group), Some(resource)) => write!(f, "{group}/{resource}"),
            (Some(group), None) => write!(f, "other resources of {group:?}"),
        }
    }
}
