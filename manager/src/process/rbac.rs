//! The manager's permissions in a cluster. Each part lists its own beside its code ([`RbacRule`]); `make rbac` writes them to
//! `deploy/rbac`, and a test compares. Permissions that an installation may omit have roles of their own ([`Part`]).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cluster::{RbacRule, Scope};

/// Roles of one name, and the file with them.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Name of the file in `deploy/rbac`.
    pub file: &'static str,
    /// Name of the roles and bindings.
    pub name: &'static str,
    pub rules: &'static [&'static [&'static [RbacRule]]],
}

/// All parts. The first includes the service account.
pub const PARTS: &[Part] = &[
    Part {
        file: "manager.yaml",
        name: ACCOUNT,
        rules: &[
            crate::controllers::distribution::RULES,
            &[
                crate::process::leader::RULES,
                crate::cluster::events::RULES,
                crate::controllers::labels::RULES,
                crate::controllers::manager_state::RULES,
                crate::controllers::plugins::RULES,
                crate::controllers::shards::RULES,
                crate::webhook::RULES,
            ],
        ],
    },
    // Without it `--mesh-ca` must be false.
    Part {
        file: "mesh-ca.yaml",
        name: "ctrlmesh-manager-mesh-ca",
        rules: &[&[crate::certificates::mesh_ca::RULES]],
    },
];

fn flatten_rules(rules: &'static [&'static [&'static [RbacRule]]]) -> impl Iterator<Item = &'static RbacRule> {
    rules.iter().flat_map(|part| part.iter()).flat_map(|rules| rules.iter())
}

/// The rules of the part's Role or ClusterRole, merged and sorted.
fn policy_rules(part: &Part, scope: Scope) -> Vec<Value> {
    // The verbs by group, resource and names.
    let mut merged: BTreeMap<(&str, &str, &[&str]), std::collections::BTreeSet<&str>> = BTreeMap::new();
    for rule in flatten_rules(part.rules).filter(|rule| rule.scope == scope) {
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

/// Name of the manager's account.
const ACCOUNT: &str = "ctrlmesh-manager";
/// The namespace that the manager is installed in.
const NAMESPACE: &str = "ctrlmesh";

/// The part's roles and bindings; for the first part also the account.
///
/// # Errors
/// The objects can't be serialized, which happens to none of ours.
pub fn to_yaml(part: &Part) -> Result<String, serde_saphyr::ser::Error> {
    let group = "rbac.authorization.k8s.io";
    let subjects = json!([{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE }]);
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
    let everywhere = || json!({ "name": part.name });
    let here = || json!({ "name": part.name, "namespace": NAMESPACE });
    let reference = |kind: &str| json!({ "apiGroup": group, "kind": kind, "name": part.name });
    let binding = |kind: &str| json!({ "roleRef": reference(kind), "subjects": subjects.clone() });
    let rules = |scope| json!({ "rules": policy_rules(part, scope) });
    let account = (part.name == ACCOUNT).then(|| object("ServiceAccount", here(), json!({})));
    let roles = [
        object("ClusterRole", everywhere(), rules(Scope::Cluster)),
        object("ClusterRoleBinding", everywhere(), binding("ClusterRole")),
        object("Role", here(), rules(Scope::Namespace)),
        object("RoleBinding", here(), binding("Role")),
    ];
    let mut text = String::from("# Written by `make rbac` from the rules beside the manager's code.\n");
    for object in account.into_iter().chain(roles) {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&object)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deploy_rbac_matches_rules_of_code() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/rbac");
        for part in PARTS {
            let committed = std::fs::read_to_string(format!("{folder}/{}", part.file)).unwrap();
            assert_eq!(
                committed,
                to_yaml(part).unwrap(),
                "run `make rbac` and commit what it writes"
            );
        }
    }

    #[test]
    fn manager_without_mesh_ca_may_not_create_secrets() {
        let is_made = |rule: &&RbacRule| rule.resources.contains(&"secrets") && rule.verbs.contains(&"create");
        let [manager, mesh_ca] = PARTS else { panic!("{PARTS:?}") };
        let everywhere = |part: &Part| {
            flatten_rules(part.rules)
                .filter(is_made)
                .any(|rule| rule.scope == Scope::Cluster)
        };
        assert_eq!((everywhere(manager), everywhere(mesh_ca)), (false, true));
    }

    #[test]
    fn roles_have_no_wildcard() {
        for rule in PARTS.iter().flat_map(|part| flatten_rules(part.rules)) {
            let words = rule.verbs.iter().chain(rule.resources).chain([&rule.group]);
            assert!(!words.into_iter().any(|word| word.contains('*')), "{rule:?}");
            // RBAC ignores names in rules for `create`.
            assert!(rule.names.is_empty() || !rule.verbs.contains(&"create"), "{rule:?}");
        }
    }
}
