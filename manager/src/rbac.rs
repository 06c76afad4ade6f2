//! What the manager may do in a cluster. Each part says beside its code what it needs ([`Rule`]); `make rbac` writes them to
//! `deploy/rbac`, a test compares.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Where a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// In every namespace.
    Cluster,
    /// In the manager's own.
    Namespace,
}

/// Calls that a part of the manager makes.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Where.
    pub scope: Scope,
    /// API group; "" is the core group.
    pub group: &'static str,
    /// Resources and subresources.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// Names of objects; empty: any. `create` can't be limited so; `list` and `watch` only of one object, by a field selector
    /// for its name.
    pub names: &'static [&'static str],
}

/// All of them.
pub const RULES: &[&[&[Rule]]] = &[
    crate::distribution::RULES,
    &[
        crate::leader::RULES,
        crate::events::RULES,
        crate::labels::RULES,
        crate::webhook::RULES,
    ],
];

/// The Role or ClusterRole's rules, merged and sorted.
#[must_use]
pub fn policy(scope: Scope) -> Vec<Value> {
    // By group, resource and names: the verbs.
    let mut merged: BTreeMap<(&str, &str, &[&str]), std::collections::BTreeSet<&str>> = BTreeMap::new();
    let rules = RULES.iter().flat_map(|part| part.iter()).flat_map(|rules| rules.iter());
    let rules = rules.filter(|rule| rule.scope == scope);
    for rule in rules {
        for resource in rule.resources {
            let verbs = merged.entry((rule.group, resource, rule.names)).or_default();
            verbs.extend(rule.verbs);
        }
    }
    let merged = merged.into_iter();
    let value = merged.map(|((group, resource, names), verbs)| {
        if names.is_empty() {
            json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs })
        } else {
            json!({ "apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs })
        }
    });
    value.collect()
}
