//! Resources that two limits have in common.

use ctrlmesh_manager_api::sharding_config::{Limit, ResourceGroup};

use super::findings::Findings;

/// All resources, or all API groups.
pub(super) const WILDCARD: &str = "*";

/// An API group and a resource.
type Pair<'a> = (&'a str, &'a str);

/// Warns of a resource that two limits name. Both would apply, which is hardly ever intended. A resource that one of them leaves out
/// is no such case.
pub(super) fn warn_of_duplicate_resources(limits: &[Limit], path: &str, findings: &mut Findings) {
    for (at, limit) in limits.iter().enumerate() {
        for (rule, group) in limit.relate_resources.iter().enumerate() {
            let mut earlier = limits.iter().take(at).enumerate();
            let shared = earlier.find_map(|(first, earlier)| {
                let is_left_out = |pair: Pair<'_>| {
                    let mut left_out = limit.except_resources.iter().chain(&earlier.except_resources);
                    left_out.any(|excepted| includes_pair(excepted, pair))
                };
                let mut pairs = shared_pairs(earlier, group);
                let (written, _) = pairs.find(|(_, both)| !is_left_out(*both))?;
                Some((first, written))
            });
            if let Some((first, (api_group, resource))) = shared {
                let problem = format!(
                    "{api_group:?}/{resource:?} is also named by {path}[{first}], so both selectors would hold; name it once, with one \
                     selector"
                );
                findings.refuse(format!("{path}[{at}].relateResources[{rule}]"), problem);
            }
        }
    }
}

/// A group and resource that both have.
pub(super) fn shared_resource(limit: &Limit, group: &ResourceGroup) -> Option<String> {
    let ((api_group, resource), _) = shared_pairs(limit, group).next()?;
    Some(format!("{api_group:?}/{resource:?}"))
}

/// All pairs of the group, as it has them.
pub(super) fn pairs_of(group: &ResourceGroup) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    for api_group in &group.api_groups {
        pairs.extend(
            group
                .resources
                .iter()
                .map(|resource| (api_group.as_str(), resource.as_str())),
        );
    }
    pairs
}

/// Whether the group has this pair, and every resource of it if it is a wildcard.
pub(super) fn includes_pair(group: &ResourceGroup, (api_group, resource): Pair<'_>) -> bool {
    let has = |names: &[String], name: &str| names.iter().any(|known| known == WILDCARD || known == name);
    has(&group.api_groups, api_group) && has(&group.resources, resource)
}

/// All pairs of a limit and a group that have a resource in common: as the group has them, and what both have.
fn shared_pairs<'a>(limit: &'a Limit, group: &'a ResourceGroup) -> impl Iterator<Item = (Pair<'a>, Pair<'a>)> {
    limit.relate_resources.iter().flat_map(move |other| {
        let api_groups = shared_names(&group.api_groups, &other.api_groups);
        let resources = shared_names(&group.resources, &other.resources);
        api_groups.into_iter().flat_map(move |(api_group, both_groups)| {
            let with = move |(resource, both): Pair<'a>| ((api_group, resource), (both_groups, both));
            resources.clone().into_iter().map(with)
        })
    })
}

/// Names that have something in common with one of the others, and what both have.
fn shared_names<'a>(names: &'a [String], others: &'a [String]) -> Vec<(&'a str, &'a str)> {
    let mut shared = Vec::new();
    for name in names {
        for other in others {
            if name == other || other == WILDCARD {
                shared.push((name.as_str(), name.as_str()));
            } else if name == WILDCARD {
                shared.push((name.as_str(), other.as_str()));
            }
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::samples::object;
    use crate::validate::validate;

    fn mistakes(limits: &Value) -> Vec<String> {
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "limits": limits});
        let findings = validate(&object("ShardingConfig", "s", &spec));
        let mistakes = findings.mistakes.list().iter();
        mistakes.map(|it| format!("{}: {}", it.path, it.problem)).collect()
    }

    fn limit(resources: &[&str], excepted: &[&str], ranges: &str) -> Value {
        json!({
            "relateResources": [{"apiGroups": ["example.com"], "resources": resources}],
            "exceptResources": [{"apiGroups": ["example.com"], "resources": excepted}],
            "hashRanges": {"key": "uid", "ranges": [ranges]},
        })
    }

    #[test]
    fn resources_that_one_limit_leaves_out_are_named_once_in_any_order() {
        let all = limit(&["*"], &["classes", "clusters"], "0-511");
        let others = limit(&["clusters", "classes"], &[], "0-1023");
        let none: [&str; 0] = [];
        assert_eq!(mistakes(&json!([all, others])), none);
        assert_eq!(mistakes(&json!([others, all])), none);
    }

    #[test]
    fn resource_that_no_limit_leaves_out_is_named_twice_in_any_order() {
        let all = limit(&["*"], &["classes"], "0-511");
        let others = limit(&["classes", "clusters"], &[], "0-1023");
        for (limits, name) in [(json!([all, others]), "clusters"), (json!([others, all]), "*")] {
            let mistakes = mistakes(&limits);
            let expected =
                format!("spec.limits[1].relateResources[0]: \"example.com\"/{name:?} is also named by spec.limits[0]");
            assert!(
                mistakes.len() == 1 && mistakes[0].starts_with(&expected),
                "{mistakes:?}"
            );
        }
    }
}
