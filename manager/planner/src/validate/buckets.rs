//! Validates selectors of limits that use the manager's labels: hash buckets must exist, and keys must not be misspelt. A wrong
//! hash bucket or key hides objects that the shard should show, or shows those of another shard.

use ctrlmesh_contract::error::quote;
use ctrlmesh_contract::suggest::closest_word;
use ctrlmesh_manager_api::sharding_config::Limit;
use ctrlmesh_manager_api::{LabelSelector, ShardingConfig};

use super::Findings;
use crate::LabelKeys;
use crate::shard_hash::is_bucket;

/// Default prefix of the manager's labels.
const PREFIX: &str = "ctrlmesh.kusionstack.io/";

/// Refuses hash buckets that do not exist, and misspelt keys.
pub(super) fn check_buckets(config: &ShardingConfig, keys: &LabelKeys, findings: &mut Findings) {
    let root = config.spec.root.as_ref();
    let lists: [(&str, &[Limit]); 2] = [
        ("spec.limits", config.spec.limits.as_deref().unwrap_or_default()),
        (
            "spec.root.resourceSelector",
            root.map(|root| &*root.resource_selector).unwrap_or_default(),
        ),
    ];
    for (path, limits) in lists {
        for (at, limit) in limits.iter().enumerate() {
            if let Some(selector) = &limit.selector {
                check_selector(selector, &format!("{path}[{at}].selector"), keys, findings);
            }
        }
    }
}

fn check_selector(selector: &LabelSelector, path: &str, keys: &LabelKeys, findings: &mut Findings) {
    for (key, value) in &selector.match_labels {
        let path = format!("{path}.matchLabels.{}", quote(key));
        check_key(key, &path, keys, findings);
        check_value(key, value, &path, keys, findings);
    }
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        check_key(&requirement.key, &format!("{path}.key"), keys, findings);
        for (at, value) in requirement.values.iter().enumerate() {
            check_value(&requirement.key, value, &format!("{path}.values[{at}]"), keys, findings);
        }
    }
}

fn check_key(key: &str, path: &str, keys: &LabelKeys, findings: &mut Findings) {
    if let Some(meant) = suggested_key(key, keys) {
        let problem = format!(
            "{} is no label that the manager sets; did you mean {meant}?",
            quote(key)
        );
        findings.refuse(path, problem);
    }
}

fn check_value(key: &str, value: &str, path: &str, keys: &LabelKeys, findings: &mut Findings) {
    if key == keys.shard_hash && !is_bucket(value) {
        let problem = format!(
            "{} is no hash bucket, so no object has it; write \"0\" to \"31\"",
            quote(value)
        );
        findings.refuse(path, problem);
    }
}

/// The manager's label that a key almost matches. KusionStack's documentation has `ctrlmesh.kusionstack.io/sharding-hash` for
/// `ctrlmesh.kusionstack.io/shard-hash`.
pub(super) fn suggested_key<'k>(key: &str, keys: &'k LabelKeys) -> Option<&'k str> {
    let all = [&keys.shard_hash, &keys.namespace, &keys.control].map(String::as_str);
    let name = key.strip_prefix(PREFIX).filter(|_| !all.contains(&key))?;
    let near = closest_word(name, all.into_iter().filter_map(|key| key.strip_prefix(PREFIX)))?;
    all.into_iter().find(|key| key.strip_prefix(PREFIX) == Some(near))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::samples::object;
    use crate::validate::validate_with;

    const HASH: &str = "ctrlmesh.kusionstack.io/shard-hash";

    fn mistakes_of(selector: &Value, keys: &LabelKeys) -> Vec<String> {
        let limits = json!([{"relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}], "selector": selector}]);
        let shard = json!({"selector": {"matchLabels": {"app": "a"}}, "limits": limits});
        let root = json!({"controller": {"leaderElectionName": "a"}, "root": {
            "prefix": "p", "targetStatefulSet": "t", "auto": {"shardingSize": 2, "everyShardReplicas": 1}, "resourceSelector": limits,
        }});
        let mistakes = [shard, root].map(|spec| {
            let findings = validate_with(&object("ShardingConfig", "s", &spec), keys);
            let mistakes = findings.mistakes.list().iter();
            mistakes
                .map(|it| {
                    let path = it.path.replace("spec.root.resourceSelector", "spec.limits");
                    format!(
                        "{}: {}",
                        path.trim_start_matches("spec.limits[0].selector."),
                        it.problem
                    )
                })
                .collect::<Vec<_>>()
        });
        let [of_shard, of_root] = mistakes;
        assert_eq!(of_shard, of_root, "a root's are judged as a shard's");
        of_shard
    }

    fn one_of(key: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]})
    }

    #[test]
    fn bucket_values_are_numbers_from_0_to_31() {
        let keys = LabelKeys::default();
        for good in ["0", "7", "31"] {
            assert_eq!(mistakes_of(&one_of(HASH, &[good]), &keys), Vec::<String>::new());
        }
        for wrong in ["32", "-1", "07", "", "a"] {
            let mistakes = mistakes_of(&one_of(HASH, &["0", wrong]), &keys);
            let expected = format!(
                "matchExpressions[0].values[1]: \"{wrong}\" is no hash bucket, so no object has it; write \"0\" to \"31\""
            );
            assert!(mistakes.contains(&expected), "{wrong}: {mistakes:?}");
        }
        let mistakes = mistakes_of(&json!({"matchLabels": {HASH: "32"}}), &keys);
        assert_eq!(
            mistakes,
            [format!(
                "matchLabels.\"{HASH}\": \"32\" is no hash bucket, so no object has it; write \"0\" to \"31\""
            )]
        );
        let exists = json!({"matchExpressions": [{"key": HASH, "operator": "Exists"}]});
        assert_eq!(mistakes_of(&exists, &keys), Vec::<String>::new());
        assert_eq!(mistakes_of(&one_of("a/hash", &["32"]), &keys), Vec::<String>::new());
        let keys = LabelKeys {
            shard_hash: "a/hash".to_owned(),
            ..keys
        };
        assert_eq!(
            mistakes_of(&one_of("a/hash", &["32"]), &keys).len(),
            1,
            "a flag of the manager says so"
        );
    }

    #[test]
    fn misspelt_keys_of_manager_labels_are_reported() {
        let keys = LabelKeys::default();
        for (key, meant) in [
            ("sharding-hash", "shard-hash"),
            ("shardhash", "shard-hash"),
            ("name-space", "namespace"),
        ] {
            let key = format!("ctrlmesh.kusionstack.io/{key}");
            let problem =
                format!("{key:?} is no label that the manager sets; did you mean ctrlmesh.kusionstack.io/{meant}?");
            assert_eq!(
                mistakes_of(&one_of(&key, &["1"]), &keys),
                [format!("matchExpressions[0].key: {problem}")]
            );
            assert_eq!(
                mistakes_of(&json!({"matchLabels": {&key: "1"}}), &keys),
                [format!("matchLabels.{key:?}: {problem}")]
            );
        }
        for key in [
            "sharding-hash",
            "example.com/sharding-hash",
            "ctrlmesh.kusionstack.io/enable-proxy",
            "ctrlmesh.kusionstack.io/control",
        ] {
            assert_eq!(mistakes_of(&one_of(key, &["1"]), &keys), Vec::<String>::new(), "{key}");
        }
        let keys = LabelKeys {
            shard_hash: "ctrlmesh.kusionstack.io/sharding-hash".to_owned(),
            ..keys
        };
        assert_eq!(
            mistakes_of(&one_of(&keys.shard_hash, &["1"]), &keys),
            Vec::<String>::new(),
            "a flag of the manager says so"
        );
    }
}
