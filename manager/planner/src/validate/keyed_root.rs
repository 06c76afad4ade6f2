//! Rules of a root that divides objects by a hash (`spec.root.key`), and of limits with hash ranges.
//!
//! A resource is divided (`resourceSelector`), seen whole by every shard (`whole`) or seen by the first shard alone (`singletons`). No
//! resource may be in two of these lists, unless one names it by a wildcard: then it is an exception.

use ctrlmesh_manager_api::sharding_config::{Limit, ResourceGroup, Root};
use ctrlmesh_manager_api::{PluginRef, ShardingConfig};
use serde_json::json;

use super::Findings;
use super::limit_resources::{WILDCARD, includes_pair, pairs_of, shared_resource};
use super::resource_names::is_cluster_scoped;
use super::warn_hash_keys::warn_of_root_key;
use crate::auto_shard::MAX_SHARDS;
use crate::built_in::BuiltIn;

/// Refuses fields that have no effect in a root, a key without a lock or with a canary, and a root that does not say how many shards it
/// has. Also applies to a disabled root, as in the schema.
pub(super) fn check_lists(config: &ShardingConfig, root: &Root, findings: &mut Findings) {
    check_missing_size(root, findings);
    for (index, limit) in root.resource_selector.iter().enumerate() {
        let path = format!("spec.root.resourceSelector[{index}]");
        if limit.hash_ranges.is_some() {
            let problem = "is made from root.key and the number of shards; remove it";
            findings.refuse(format!("{path}.hashRanges"), problem);
        }
        if !limit.except_resources.is_empty() {
            let problem = "has no effect in a root; with root.key write root.whole";
            findings.refuse(format!("{path}.exceptResources"), problem);
        }
    }
    if root.key.is_some() {
        if config.spec.controller.is_none() {
            let problem = "is missing; with root.key each shard needs a lock of its own";
            findings.refuse("spec.controller", problem);
        }
        if root.canary.is_some() {
            let problem = "has no effect beside key; give a shard less in auto.weights";
            findings.refuse("spec.root.canary", problem);
        }
        return;
    }
    for (field, groups) in [("whole", &root.whole), ("singletons", &root.singletons)] {
        if !groups.is_empty() {
            let problem = "has no effect without key; remove it, or write key";
            findings.refuse(format!("spec.root.{field}"), problem);
        }
    }
}

/// Without `shardingSize` the number of shards follows replicas: only with a key, and not beside weights, of which there would be too few
/// when the StatefulSet is scaled.
fn check_missing_size(root: &Root, findings: &mut Findings) {
    let Some(auto) = root.auto.as_ref().filter(|auto| auto.sharding_size.is_none()) else {
        return;
    };
    if root.key.is_none() {
        let problem = format!("is missing; without key write the number of shards, 1 to {MAX_SHARDS}");
        findings.refuse("spec.root.auto.shardingSize", problem);
    } else if !auto.weights.is_empty() {
        let problem = "needs shardingSize: without it the number of shards follows the replicas of the StatefulSet; write it, or remove \
                       weights";
        findings.refuse("spec.root.auto.weights", problem);
    }
}

/// The rules of a root with this key.
pub(super) fn check_keyed_root(config: &ShardingConfig, root: &Root, key: &str, findings: &mut Findings) {
    let namespace = config.metadata.namespace.as_deref().unwrap_or_default();
    let no_range = json!({"limits": [{"hashRanges": {"key": key, "ranges": []}}]});
    findings.check_with_plugin(BuiltIn::ShardSelector, &no_range, namespace, &|_| {
        "spec.root.key".to_owned()
    });
    for (index, plugin) in config.spec.plugins.iter().enumerate() {
        refuse_plugin(plugin, index, findings);
    }
    for (field, groups) in [("whole", &root.whole), ("singletons", &root.singletons)] {
        for (index, group) in groups.iter().enumerate() {
            check_group(group, &format!("spec.root.{field}[{index}]"), namespace, findings);
        }
    }
    for (index, group) in root.singletons.iter().enumerate() {
        let whole = Limit {
            relate_resources: root.whole.clone(),
            ..Limit::default()
        };
        if let Some(shared) = shared_resource(&whole, group) {
            let problem = format!("{shared} is also named by whole; name it once");
            findings.refuse(format!("spec.root.singletons[{index}]"), problem);
        }
    }
    check_divided(root, key, findings);
    warn_of_root_key(root, key, findings);
}

/// Refuses a plugin in place of shard-selector beside hash ranges: one that does not know them would show all objects to every shard.
pub(super) fn refuse_replacement(limits: &[Limit], plugins: &[PluginRef], findings: &mut Findings) {
    if limits.iter().all(|limit| limit.hash_ranges.is_none()) {
        return;
    }
    for (index, plugin) in plugins.iter().enumerate() {
        refuse_plugin(plugin, index, findings);
    }
}

fn refuse_plugin(plugin: &PluginRef, index: usize, findings: &mut Findings) {
    if BuiltIn::replaced_by(&plugin.name) == Some(BuiltIn::ShardSelector) {
        let problem = "replaces shard-selector, which alone is known to divide objects by a hash; remove the plugin, or divide them by \
                       labels";
        findings.refuse(format!("spec.plugins[{index}].name"), problem);
    }
}

fn check_group(group: &ResourceGroup, path: &str, namespace: &str, findings: &mut Findings) {
    if group.api_groups.is_empty() || group.resources.is_empty() {
        findings.refuse(path, "names no resource; write both apiGroups and resources");
        return;
    }
    let settings = json!({"limits": [{"relateResources": [group], "hashRanges": {"key": "uid", "ranges": []}}]});
    findings.check_with_plugin(BuiltIn::ShardSelector, &settings, namespace, &|inner| {
        let inner = inner.strip_prefix("limits[0].relateResources[0]").unwrap_or_default();
        format!("{path}{inner}")
    });
}

/// Checks which resources are divided.
fn check_divided(root: &Root, key: &str, findings: &mut Findings) {
    for (index, limit) in root.resource_selector.iter().enumerate() {
        let path = format!("spec.root.resourceSelector[{index}]");
        if limit.relate_resources.is_empty() {
            let problem = "is missing or empty; with root.key name the resources that are divided";
            findings.refuse(format!("{path}.relateResources"), problem);
        }
        for (at, group) in limit.relate_resources.iter().enumerate() {
            let path = format!("{path}.relateResources[{at}]");
            for (api_group, resource) in pairs_of(group) {
                if let Some(problem) = pair_problem(root, key, api_group, resource) {
                    findings.refuse(path.clone(), problem);
                }
            }
        }
    }
}

/// Why a resource can't be divided.
fn pair_problem(root: &Root, key: &str, api_group: &str, resource: &str) -> Option<String> {
    let has = |groups: &[ResourceGroup]| groups.iter().any(|group| includes_pair(group, (api_group, resource)));
    if api_group == WILDCARD && resource == WILDCARD {
        let problem = "is every resource, also those of which each shard needs all objects; with root.key name the resources or their \
                       groups";
        return Some(problem.to_owned());
    }
    for (field, groups) in [("whole", &root.whole), ("singletons", &root.singletons)] {
        if has(groups) {
            return Some(format!(
                "{api_group:?}/{resource:?} is also named by {field}, so that nothing of it is divided; name it once"
            ));
        }
    }
    (key == "namespace" && is_cluster_scoped(api_group, resource)).then(|| {
        format!(
            "{resource} have no namespace, so that one shard would have all of them; name them in singletons (the first shard alone sees \
             them) or in whole (every shard does)"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::samples::object;
    use crate::validate::{Findings, validate};

    fn root(changes: &Value) -> Value {
        let mut spec = json!({
            "controller": {"leaderElectionName": "lock"},
            "root": {
                "prefix": "p",
                "targetStatefulSet": "t",
                "key": "owner",
                "auto": {"shardingSize": 2, "everyShardReplicas": 1},
                "resourceSelector": [{"relateResources": [{"apiGroups": ["example.com"], "resources": ["*"]}]}],
                "whole": [{"apiGroups": ["example.com"], "resources": ["classes"]}],
                "singletons": [{"apiGroups": ["example.com"], "resources": ["clusters"]}],
            },
        });
        for (pointer, value) in changes.as_object().unwrap() {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let parent = spec.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            match value {
                Value::Null => drop(parent.remove(field)),
                value => drop(parent.insert(field.to_owned(), value.clone())),
            }
        }
        object("ShardingConfig", "root", &spec)
    }

    fn findings(changes: &Value) -> Findings {
        validate(&root(changes))
    }

    fn mistakes(changes: &Value) -> Vec<String> {
        let findings = findings(changes);
        let mistakes = findings.mistakes.list().iter();
        mistakes.map(|it| format!("{}: {}", it.path, it.problem)).collect()
    }

    fn warnings(changes: &Value) -> Vec<String> {
        let findings = findings(changes);
        assert!(findings.is_accepted(), "{}", findings.mistakes);
        let warnings = findings.warnings.list().iter();
        warnings.map(|it| format!("{}: {}", it.path, it.problem)).collect()
    }

    #[test]
    fn root_by_owner_is_accepted_without_warnings() {
        for changes in [
            json!({}),
            json!({"/root/auto/weights": [1, 100]}),
            json!({"/root/auto/shardingSize": null}),
            json!({"/root/auto": {}}),
            json!({"/root/whole": null, "/root/singletons": null}),
            json!({"/root/whole/0/resources": ["classes", "zones"]}),
        ] {
            assert_eq!(warnings(&changes), Vec::<String>::new(), "{changes}");
        }
    }

    fn group(api_group: &str, resource: &str) -> Value {
        json!([{"apiGroups": [api_group], "resources": [resource]}])
    }

    /// Each change makes one mistake, whose text starts with this.
    fn assert_refused(cases: &[(Value, &str)]) {
        for (changes, expected) in cases {
            let mistakes = mistakes(changes);
            assert!(
                mistakes.len() == 1 && mistakes[0].starts_with(*expected),
                "{changes}: {mistakes:?}"
            );
        }
    }

    #[test]
    fn fields_that_contradict_the_key_are_refused() {
        assert_refused(&[
            (
                json!({"/controller": null}),
                "spec.controller: is missing; with root.key",
            ),
            (
                json!({"/root/canary": {"replicas": 1, "inNamespaces": ["a"]}}),
                "spec.root.canary: has no effect beside key; give a shard less in auto.weights",
            ),
            (
                json!({"/root/auto/weights": [1, 2, 3]}),
                "spec.root.auto.weights: must have one number for each shard: there are 2 shards and 3 numbers",
            ),
            (
                json!({"/root/auto/weights": [1, 0]}),
                "spec.root.auto.weights[1]: is 0; write 1 to 100",
            ),
            (
                json!({"/root/key": "name"}),
                "spec.root.key: is \"name\"; write uid, namespace, owner or label(",
            ),
            (
                json!({"/root/key": "label(a b)"}),
                "spec.root.key: \"a b\" is no label key",
            ),
            (
                json!({"/root/key": null, "/root/singletons": null}),
                "spec.root.whole: has no effect without key",
            ),
            (
                json!({"/root/key": null, "/root/whole": null}),
                "spec.root.singletons: has no effect without key",
            ),
            (
                json!({"/root/key": null, "/root/whole": null, "/root/singletons": null, "/root/auto/weights": [1, 1]}),
                "spec.root.auto.weights: has no effect without key",
            ),
            (
                json!({"/root/resourceSelector/0/hashRanges": {"key": "uid", "ranges": ["0"]}}),
                "spec.root.resourceSelector[0].hashRanges: is made from root.key",
            ),
            (
                json!({"/root/resourceSelector/0/exceptResources": group("a", "b")}),
                "spec.root.resourceSelector[0].exceptResources: has no effect in a root",
            ),
        ]);
    }

    #[test]
    fn number_of_shards_may_be_left_out_with_a_key_and_without_weights() {
        assert_refused(&[
            (
                json!({"/root/auto": {"weights": [1, 2]}}),
                "spec.root.auto.weights: needs shardingSize: without it the number of shards follows the replicas of the StatefulSet; write \
                 it, or remove weights",
            ),
            (
                json!({"/root/auto": {"weights": [1, 2]}, "/root/disable": true}),
                "spec.root.auto.weights: needs shardingSize",
            ),
            (
                json!({"/root/auto": {"everyShardReplicas": 257}}),
                "spec.root.auto.everyShardReplicas: is 257; write 1 to 256",
            ),
            (
                json!({"/root/key": null, "/root/whole": null, "/root/singletons": null, "/root/auto/shardingSize": null}),
                "spec.root.auto.shardingSize: is missing; without key write the number of shards, 1 to 32",
            ),
        ]);
    }

    #[test]
    fn root_that_follows_replicas_must_make_valid_shards_for_any_number_of_them() {
        // The name of the eleventh pod would be too long for a label.
        let name = "t".repeat(61);
        assert!(findings(&json!({"/root/targetStatefulSet": name})).is_accepted());
        let changes = json!({"/root/targetStatefulSet": name, "/root/auto/shardingSize": null});
        let found = mistakes(&changes);
        assert!(
            !found.is_empty()
                && found
                    .iter()
                    .all(|it| it.starts_with("spec.root: makes p-11-normal with spec.selector")),
            "{found:?}"
        );
    }

    #[test]
    fn canary_is_refused_together_with_other_mistakes() {
        let canary = json!({"replicas": 1, "inNamespaces": ["a"]});
        let except = json!([{"apiGroups": ["a"], "resources": ["b"]}]);
        let found = mistakes(&json!({"/root/canary": canary, "/root/resourceSelector/0/exceptResources": except}));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found
                .iter()
                .any(|it| it.starts_with("spec.root.canary: has no effect beside key"))
        );
        assert_refused(&[(
            json!({"/root/canary": canary, "/root/disable": true}),
            "spec.root.canary: has no effect beside key",
        )]);
    }

    #[test]
    fn resources_that_cannot_be_divided_are_refused() {
        let divided = "/root/resourceSelector/0/relateResources";
        assert_refused(&[
            (
                json!({divided: []}),
                "spec.root.resourceSelector[0].relateResources: is missing or empty; with root.key name",
            ),
            (
                json!({divided: group("*", "*")}),
                "spec.root.resourceSelector[0].relateResources[0]: is every resource",
            ),
            (
                json!({divided: group("example.com", "classes")}),
                "spec.root.resourceSelector[0].relateResources[0]: \"example.com\"/\"classes\" is also named by whole",
            ),
            (
                json!({divided: group("example.com", "clusters")}),
                "spec.root.resourceSelector[0].relateResources[0]: \"example.com\"/\"clusters\" is also named by singletons",
            ),
            (
                json!({"/root/singletons": group("*", "classes")}),
                "spec.root.singletons[0]: \"*\"/\"classes\" is also named by whole",
            ),
            (
                json!({"/root/whole": [{"resources": ["classes"]}]}),
                "spec.root.whole[0]: names no resource; write both",
            ),
            (
                json!({"/root/whole": group("example.com", "Classes")}),
                "spec.root.whole[0].resources[0]: invalid resource \"Classes\"",
            ),
            (
                json!({"/root/key": "namespace", divided: group("", "nodes")}),
                "spec.root.resourceSelector[0].relateResources[0]: nodes have no namespace",
            ),
            (
                json!({"/plugins": [{"name": "shard-selector", "image": "oci://ghcr.io/you/plugin:1"}]}),
                "spec.plugins[0].name: replaces shard-selector",
            ),
        ]);
    }

    #[test]
    fn cluster_scoped_resources_may_be_exceptions_of_a_namespace_key() {
        let groups = json!([{"apiGroups": [""], "resources": ["nodes"]}]);
        let changes = json!({"/root/key": "namespace", "/root/singletons": groups});
        assert!(findings(&changes).is_accepted());
    }

    #[test]
    fn keys_that_divide_unexpectedly_are_warned_of() {
        let pods = json!([{"apiGroups": ["example.com", ""], "resources": ["widgets", "pods"]}]);
        let of = |key: &str| {
            let changes = json!({"/root/key": key, "/root/resourceSelector/0/relateResources": pods});
            warnings(&changes)
        };
        assert_eq!(of("owner"), Vec::<String>::new());
        assert!(
            matches!(&of("uid")[..], [text] if text.contains("puts pods into other shards") && text.contains("write key: owner"))
        );
        for key in ["namespace", "label(example.com/tenant)"] {
            assert_eq!(of(key), Vec::<String>::new(), "{key}");
        }
        assert_eq!(
            warnings(&json!({"/root/key": "uid"})),
            Vec::<String>::new(),
            "no known child is divided"
        );
    }

    #[test]
    fn not_found_for_gets_by_name_is_warned_of() {
        for (value, expected) in [("Pass", 0), ("Forbidden", 0), ("NotFound", 1)] {
            let found = warnings(&json!({"/namedGets": value}));
            assert_eq!(found.len(), expected, "{value}: {found:?}");
            assert!(
                found.iter().all(|text| text.contains("may create it again")),
                "{found:?}"
            );
        }
        let spec = json!({
            "selector": {"matchLabels": {"a": "b"}},
            "limits": [{"selector": {"matchLabels": {"a": "b"}}}],
            "namedGets": "Forbidden",
        });
        let findings = validate(&object("ShardingConfig", "s", &spec));
        let mut warnings = findings.warnings.list().iter();
        let is_its = |problem: &str| problem.starts_with("has no effect without root.key");
        assert!(
            warnings.any(|it| it.path == "spec.namedGets" && is_its(&it.problem)),
            "{}",
            findings.warnings
        );
    }

    #[test]
    fn shard_with_hash_ranges_keeps_the_built_in_plugin() {
        let spec = json!({
            "selector": {"matchLabels": {"a": "b"}},
            "limits": [{"hashRanges": {"key": "uid", "ranges": ["0-511"]}}],
            "plugins": [{"name": "shard-selector", "image": "oci://ghcr.io/you/plugin:1"}],
        });
        let findings = validate(&object("ShardingConfig", "s", &spec));
        let [mistake] = findings.mistakes.list() else {
            panic!("{}", findings.mistakes)
        };
        assert_eq!(mistake.path, "spec.plugins[0].name");
    }
}
