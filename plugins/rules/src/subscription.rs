//! The subscription of all rules of a plugin, within the interface's bounds.

use ctrlmesh_sdk::{MatchRule, Traffic, Verb};

use crate::Rules;

/// Bounds of one subscription (`wit/types.wit`).
const MAX_RULES: usize = 256;
const MAX_BYTES: usize = 64 * 1024;

/// The subscription of a plugin with these rules. If it exceeds the interface's bounds, it covers whole kinds of traffic instead; the
/// plugin is then called for more, and [`Rules::matches`] sorts it out.
#[must_use]
pub fn match_rules<'a>(rules: impl IntoIterator<Item = &'a Rules>) -> Vec<MatchRule> {
    let mut all: Vec<MatchRule> = Vec::new();
    for rule in rules.into_iter().flat_map(Rules::match_rules) {
        if !all.contains(&rule) {
            all.push(rule);
        }
    }
    let bytes: usize = all.iter().map(size_in_bytes).sum();
    if all.len() <= MAX_RULES && bytes <= MAX_BYTES {
        return all;
    }
    let mut kinds = Vec::new();
    for rule in &all {
        let kind = match (rule.traffic.as_slice(), rule.verbs.as_slice()) {
            ([Traffic::Api], [Verb::NonResource]) => MatchRule::api().verbs([Verb::NonResource]),
            ([Traffic::Api], _) => MatchRule::api(),
            _ => MatchRule::of(Traffic::External),
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Size as the host counts it: the text, and one more for each list element.
fn size_in_bytes(rule: &MatchRule) -> usize {
    let texts = [
        &rule.groups,
        &rule.resources,
        &rule.subresources,
        &rule.namespaces,
        &rule.names,
        &rule.paths,
        &rule.hosts,
        &rule.user_agents,
    ];
    let text: usize = texts.into_iter().flatten().map(|text| text.len() + 1).sum();
    text + rule.verbs.len() + rule.traffic.len()
}
