//! Warns of shards without a lock. Shards with the same lock belong to one controller; without one, nothing says whether they do,
//! so the manager cannot hand objects over safely (docs/adr/0043).

use std::collections::BTreeSet;

use ctrlmesh_contract::Mistake;
use ctrlmesh_contract::names::labels::{AUTO_SHARDING_ROOT, IGNORE_VALIDATE};
use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_api::sharding_config::Limit;

use super::Findings;
use super::limit_resources::shared_resource;
use crate::labels::has_label;

/// Path of the lock.
const PATH: &str = "spec.controller";
/// Maximum shards that a warning names.
const MAX_NAMED: usize = 5;
/// The consequences, and how to avoid them.
const DANGER: &str = "if a shard is deleted, its pods see everything at once and act beside the others. Edits can give an object two owners for a \
     while. If the controller elects a leader, one pod leads for all shards, and nobody handles the objects of the others. Write \
     controller.leaderElectionName: the name of the controller's lock. If the controller elects no leader, write any name that is the same in all \
     its shards, and run one pod for each shard (docs/manager.md, \"Shards without a lock\")";

/// Warns of a root, which makes several shards of one controller.
pub(super) fn warn_of_unlocked_root(config: &ShardingConfig, findings: &mut Findings) {
    if config.spec.controller.is_none() {
        findings.warn(PATH, format!("is missing, so the shards have no lock: {DANGER}"));
    }
}

/// The ShardingConfigs that endanger a shard without a lock: those of its namespace that limit the same resources. Empty: the shard
/// has a lock, or nothing is divided between it and another. For a shard of a root, the root has the warning.
#[must_use]
pub fn unlocked_beside<'a>(
    config: &ShardingConfig,
    others: impl IntoIterator<Item = &'a ShardingConfig>,
) -> BTreeSet<&'a str> {
    let has_label = |label: &str| has_label(&config.metadata, label);
    let is_named = config.spec.controller.is_some() || config.spec.root.is_some();
    if is_named || has_label(AUTO_SHARDING_ROOT) || has_label(IGNORE_VALIDATE) {
        return BTreeSet::new();
    }
    let is_beside = |other: &&ShardingConfig| {
        let is_other =
            other.metadata.name != config.metadata.name && other.metadata.namespace == config.metadata.namespace;
        let is_going = other.metadata.deletion_timestamp.is_some();
        is_other && !is_going && limits_of(config).any(|limit| limits_of(other).any(|its| names_same(limit, its)))
    };
    let beside = others.into_iter().filter(is_beside);
    beside.filter_map(|other| other.metadata.name.as_deref()).collect()
}

/// The warning for such a shard. `beside`: the result of [`unlocked_beside`]; `None`: the reader may not see the others.
#[must_use]
pub fn unlocked_warning(beside: Option<&BTreeSet<&str>>) -> Mistake {
    let others = beside.map_or_else(
        || "other shards of this namespace".to_owned(),
        |beside| {
            let some: Vec<&str> = beside.iter().copied().take(MAX_NAMED).collect();
            match beside.len().saturating_sub(MAX_NAMED) {
                0 => some.join(", "),
                more => format!("{} and {more} more", some.join(", ")),
            }
        },
    );
    Mistake {
        path: PATH.to_owned(),
        problem: format!(
            "is missing, and this limits the same resources as {others}. They may be shards of one controller: {DANGER}"
        ),
    }
}

/// Limits of a shard, or those that a root divides.
fn limits_of(config: &ShardingConfig) -> impl Iterator<Item = &Limit> {
    let of_root = config.spec.root.iter().flat_map(|root| &root.resource_selector);
    config.spec.limits.iter().flatten().chain(of_root)
}

/// Whether two limits have a resource in common. A limit without resources applies to all.
fn names_same(limit: &Limit, other: &Limit) -> bool {
    let (own, others) = (&limit.relate_resources, &other.relate_resources);
    own.is_empty() || others.is_empty() || own.iter().any(|group| shared_resource(other, group).is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::samples::object;
    use crate::validate::{Object, read, validate};

    fn config(name: &str, lock: Option<&str>, resources: &[&str]) -> ShardingConfig {
        let mut spec = json!({
            "selector": {"matchLabels": {"shard": name}},
            "limits": [{"relateResources": [{"apiGroups": [""], "resources": resources}], "selector": {"matchLabels": {"a": name}}}],
        });
        if let Some(lock) = lock {
            spec["controller"] = json!({"leaderElectionName": lock});
        }
        config_of(&object("ShardingConfig", name, &spec))
    }

    fn config_of(document: &Value) -> ShardingConfig {
        match read(document) {
            Ok(Object::ShardingConfig(config)) => *config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn shard_without_lock_is_in_danger_beside_those_that_limit_the_same_resources() {
        let left = config("left", None, &["pods", "secrets"]);
        let others = [
            left.clone(),
            config("other", None, &["configmaps"]),
            config("right", None, &["pods"]),
            config("locked", Some("lock"), &["*"]),
        ];
        let beside = unlocked_beside(&left, &others);
        assert_eq!(beside, ["right", "locked"].into());
        let warning = unlocked_warning(Some(&beside));
        assert_eq!(warning.path, "spec.controller");
        assert!(
            warning
                .problem
                .contains("the same resources as locked, right. They may"),
            "{}",
            warning.problem
        );
        assert!(
            !unlocked_warning(None).problem.contains("right"),
            "the reader may not see them"
        );
        let many: Vec<ShardingConfig> = (0..7).map(|id| config(&format!("s{id}"), None, &["pods"])).collect();
        let warning = unlocked_warning(Some(&unlocked_beside(&left, &many))).problem;
        assert!(warning.contains("s0, s1, s2, s3, s4 and 2 more."), "{warning}");
    }

    #[test]
    fn shard_is_in_no_danger_alone_or_with_a_lock() {
        let right = [config("right", None, &["pods"])];
        let beside = |config: &ShardingConfig| unlocked_beside(config, &right).len();
        let left = config("left", None, &["pods"]);
        assert_eq!(beside(&left), 1);
        assert_eq!(beside(&config("left", Some("lock"), &["pods"])), 0);
        assert_eq!(beside(&config("left", None, &["configmaps"])), 0, "nothing is divided");
        assert_eq!(beside(&right[0]), 0, "it is alone");
        let with = |metadata: &Value, config: &ShardingConfig| {
            let mut document = json!(config);
            let fields = metadata.as_object().cloned().unwrap();
            document["metadata"].as_object_mut().unwrap().extend(fields);
            config_of(&document)
        };
        assert_eq!(
            beside(&with(&json!({"labels": {AUTO_SHARDING_ROOT: "a"}}), &left)),
            0,
            "its root says it"
        );
        assert_eq!(beside(&with(&json!({"labels": {IGNORE_VALIDATE: ""}}), &left)), 0);
        assert_eq!(beside(&with(&json!({"namespace": "another"}), &left)), 0);
        let going = with(&json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), &right[0]);
        assert!(unlocked_beside(&left, &[going]).is_empty());
    }

    #[test]
    fn root_without_lock_is_warned_of() {
        let spec = |controller: Option<&str>| {
            let mut spec = json!({
                "selector": {"matchLabels": {"app": "a"}},
                "root": {
                    "prefix": "a", "targetStatefulSet": "a", "auto": {"everyShardReplicas": 1, "shardingSize": 2},
                    "resourceSelector": [{"relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}]}],
                },
            });
            if let Some(name) = controller {
                spec["controller"] = json!({"leaderElectionName": name});
            }
            spec
        };
        let warned = |controller| {
            let findings = validate(&object("ShardingConfig", "root", &spec(controller)));
            assert!(findings.is_accepted(), "{}", findings.mistakes);
            let warnings = findings.warnings.list().iter();
            warnings.filter(|it| it.path == PATH).count()
        };
        assert_eq!((warned(None), warned(Some("lock"))), (1, 0));
        let root = config_of(&object("ShardingConfig", "root", &spec(None)));
        assert_eq!(
            unlocked_beside(&config("left", None, &["pods"]), &[root]),
            ["root"].into()
        );
    }
}
