//! What limits let a shard see, as sets: resource by resource, of those that are named, and of "any other" where there is a
//! wildcard.

use std::collections::BTreeSet;
use std::fmt;

use ctrlmesh_contract::LabelSelector;

use crate::api::sharding_config::{Limit, ResourceGroup};
use crate::label_set::LabelSet;

/// A resource, or all that have no name in any limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResourceClass {
    /// `None`: a group that no limit names.
    group: Option<String>,
    /// `None`: a resource that no limit names.
    resource: Option<String>,
}

/// All resources that some limits tell apart.
pub(crate) fn classes<'a>(limits: impl Iterator<Item = &'a Limit> + Clone) -> BTreeSet<ResourceClass> {
    let mut classes = BTreeSet::new();
    for group in limits.clone().flat_map(|limit| &limit.relate_resources) {
        for api_group in &group.api_groups {
            for resource in &group.resources {
                classes.insert(ResourceClass {
                    group: named(api_group),
                    resource: named(resource),
                });
            }
        }
    }
    let mut limits = limits;
    if limits.any(|limit| limit.relate_resources.is_empty()) {
        classes.insert(ResourceClass {
            group: None,
            resource: None,
        });
    }
    classes
}

/// What of a resource is seen: all limits that match hold together, as in the shard-selector plugin. `None`: nothing.
pub(crate) fn seen<'a>(limits: impl Iterator<Item = &'a Limit>, class: &ResourceClass) -> Option<LabelSet> {
    let mut set = LabelSet::default();
    for selector in limits
        .filter(|limit| class.is_in(limit))
        .filter_map(|limit| limit.selector.as_ref())
    {
        set = set.and(&LabelSet::of(&LabelSelector::from(selector))?)?;
    }
    Some(set)
}

fn named(text: &str) -> Option<String> {
    (text != "*").then(|| text.to_owned())
}

impl ResourceClass {
    /// Whether a limit is for these.
    fn is_in(&self, limit: &Limit) -> bool {
        let groups = &limit.relate_resources;
        groups.is_empty() || groups.iter().any(|group| self.is_of(group))
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
