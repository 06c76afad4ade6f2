//! Resources that two limits have in common.

use ctrlmesh_manager_api::sharding_config::{Limit, ResourceGroup};

use super::findings::Findings;

/// Warns of a resource that two limits name. Both would apply, which is hardly ever intended. A limit that names what an earlier one
/// leaves out is no such case.
pub(super) fn warn_of_duplicate_resources(limits: &[Limit], path: &str, findings: &mut Findings) {
    for (at, limit) in limits.iter().enumerate() {
        for (rule, group) in limit.relate_resources.iter().enumerate() {
            let earlier = limits.iter().take(at).enumerate();
            if let Some((first, shared)) = earlier
                .filter(|(_, earlier)| !earlier.except_resources.contains(group))
                .flat_map(|(first, limit)| Some((first, shared_resource(limit, group)?)))
                .next()
            {
                let problem = format!(
                    "{shared} is also named by {path}[{first}], so both selectors would hold; name it once, with one selector"
                );
                findings.refuse(format!("{path}[{at}].relateResources[{rule}]"), problem);
            }
        }
    }
}

/// A group and resource that both have.
pub(super) fn shared_resource(limit: &Limit, group: &ResourceGroup) -> Option<String> {
    let both = |a: &[String], b: &[String]| {
        let is_in = |name: &&String| b.contains(name) || *name == "*" || b.iter().any(|other| other == "*");
        a.iter().find(is_in).cloned()
    };
    limit.relate_resources.iter().find_map(|other| {
        let api_group = both(&group.api_groups, &other.api_groups)?;
        let resource = both(&group.resources, &other.resources)?;
        Some(format!("{api_group:?}/{resource:?}"))
    })
}
