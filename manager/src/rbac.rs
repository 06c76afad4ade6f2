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
        crate::manager_state::RULES,
        crate::mesh_ca::RULES,
        crate::oci::RULES,
        crate::shards::RULES,
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

/// Name of the manager's account, roles and bindings.
const NAME: &str = "ctrlmesh-manager";
/// The namespace that the manager is installed in.
const NAMESPACE: &str = "ctrlmesh";

/// The manager's account, its roles, and that they are its.
///
/// # Errors
/// They can't be printed; none of ours does that.
pub fn yaml() -> Result<String, serde_saphyr::ser::Error> {
    let group = "rbac.authorization.k8s.io";
    let subjects = json!([{ "kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE }]);
    let object = |kind: &str, meta: Value, mut more: Value| {
        if let Value::Object(fields) = &mut more {
            let version = if kind == "ServiceAccount" {
                "v1".to_owned()
            } else {
                format!("{group}/v1")
            };
            fields.insert("apiVersion".to_owned(), version.into());
            fields.insert("kind".to_owned(), kind.into());
            fields.insert("metadata".to_owned(), meta);
        }
        more
    };
    let everywhere = || json!({ "name": NAME });
    let here = || json!({ "name": NAME, "namespace": NAMESPACE });
    let reference = |kind: &str| json!({ "apiGroup": group, "kind": kind, "name": NAME });
    let binding = |kind: &str| json!({ "roleRef": reference(kind), "subjects": subjects.clone() });
    let objects = [
        object("ServiceAccount", here(), json!({})),
        object("ClusterRole", everywhere(), json!({ "rules": policy(Scope::Cluster) })),
        object("ClusterRoleBinding", everywhere(), binding("ClusterRole")),
        object("Role", here(), json!({ "rules": policy(Scope::Namespace) })),
        object("RoleBinding", here(), binding("Role")),
    ];
    let mut text = String::from("# Written by `make rbac` from the rules beside the manager's code.\n");
    for object in objects {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&object)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deploy_rbac_is_what_the_code_says() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/rbac/manager.yaml");
        let committed = std::fs::read_to_string(file).unwrap();
        assert_eq!(committed, yaml().unwrap(), "run `make rbac` and commit what it writes");
    }

    #[test]
    fn nothing_is_allowed_as_a_whole() {
        for rule in RULES.iter().flat_map(|part| part.iter()).flat_map(|rules| rules.iter()) {
            let words = rule.verbs.iter().chain(rule.resources).chain([&rule.group]);
            assert!(!words.into_iter().any(|word| word.contains('*')), "{rule:?}");
            // RBAC does not look at names of what is created.
            assert!(rule.names.is_empty() || !rule.verbs.contains(&"create"), "{rule:?}");
        }
    }
}
