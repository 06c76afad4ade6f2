//! Which resources limits speak of: those that are named, and "any other" where there is a wildcard.

use std::collections::BTreeSet;
use std::fmt;

use crate::api::ShardingConfig;
use crate::api::sharding_config::{Limit, ResourceGroup};

/// A resource, or all that have no name in any limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResourceClass {
    /// `None`: a group that no limit names.
    group: Option<String>,
    /// `None`: a resource that no limit names.
    resource: Option<String>,
}

/// All that the limits of some shards tell apart.
pub(super) fn classes(shards: &[&ShardingConfig]) -> BTreeSet<ResourceClass> {
    let limits = || shards.iter().flat_map(|shard| shard.spec.limits.iter().flatten());
    let mut classes = BTreeSet::new();
    for group in limits().flat_map(|limit| &limit.relate_resources) {
        for api_group in &group.api_groups {
            for resource in &group.resources {
                classes.insert(ResourceClass {
                    group: named(api_group),
                    resource: named(resource),
                });
            }
        }
    }
    if limits().any(|limit| limit.relate_resources.is_empty()) {
        classes.insert(ResourceClass {
            group: None,
            resource: None,
        });
    }
    classes
}

fn named(text: &str) -> Option<String> {
    (text != "*").then(|| text.to_owned())
}

impl ResourceClass {
    /// Whether a limit is for these.
    pub(super) fn is_in(&self, limit: &Limit) -> bool {
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
