//! Writes the condition `Overlapping` of shards: whether objects are in two shards of a controller, or in none.
//! [`ctrlmesh_manager_planner::find_overlaps()`] finds them.
//!
//! A namespace is checked again when its ShardingConfigs or the cluster's namespaces have changed, at most once a second, one
//! namespace after the other. All requests come after those of other parts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_api::document::text_at;
use ctrlmesh_manager_api::status::{Condition, ConditionDraft, ConditionStatus, Reason, condition};
use ctrlmesh_manager_planner::overlap::{Overlap, OverlapKind, find_overlaps};
use ctrlmesh_manager_planner::validate::{Object, read};
use futures_util::{StreamExt as _, stream};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use super::caches::{Caches, Config};
use super::status::{condition_of, patch_config, stored_of};
use crate::cluster::status::{StatusPatch, timestamp_now};
use crate::cluster::{Context, Error, error_text};

/// Field manager of this condition.
const FIELD_MANAGER: &str = "ctrlmesh-manager-overlap";
/// Pause between two checks, which merges changes that follow each other.
const CHECK_PAUSE: Duration = Duration::from_secs(1);
/// Maximum concurrent writes of a status.
const CONCURRENCY: usize = 4;
/// Maximum findings in a condition.
const MAX_FINDINGS: usize = 3;

/// Keeps the condition up to date until the manager stops.
///
/// # Errors
/// A computation panicked.
pub(super) async fn run(context: Context, caches: Caches) -> Result<(), Error> {
    let mut changes = caches.subscribe_changes();
    let mut done: HashMap<String, u64> = HashMap::new();
    tokio::select! {
        () = context.stop.cancelled() => return Ok(()),
        () = caches.wait_until_ready() => {}
    }
    loop {
        changes.mark_unchanged();
        let is_whole = tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            is_whole = check_namespaces(&context, &caches, &mut done) => is_whole?,
        };
        let changed = async {
            tokio::time::sleep(CHECK_PAUSE).await;
            if is_whole {
                // The sender is in `caches`.
                let _ = changes.changed().await;
            }
        };
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = changed => {}
        }
    }
}

/// Checks every namespace that has changed. Returns whether all conditions were written.
async fn check_namespaces(context: &Context, caches: &Caches, done: &mut HashMap<String, u64>) -> Result<bool, Error> {
    let mut namespaces = caches.managed_namespaces();
    namespaces.sort_unstable();
    let by_namespace = caches.by_namespace();
    done.retain(|namespace, _| by_namespace.contains_key(namespace));
    let mut is_whole = true;
    for (namespace, configs) in by_namespace {
        let print = inputs_hash(&configs, &namespaces);
        if done.get(&namespace) == Some(&print) {
            continue;
        }
        let documents: Vec<Value> = configs
            .iter()
            .filter_map(|config| serde_json::to_value(&**config).ok())
            .collect();
        let (all, keys) = (namespaces.clone(), caches.keys().clone());
        // The search may take a while, and others need the thread.
        let checked = tokio::task::spawn_blocking(move || {
            let conditions = overlap_conditions(&documents, &all, &keys);
            (documents, conditions)
        });
        let (documents, conditions) = checked.await?;
        if write_conditions(&context.background, &documents, &conditions).await {
            done.insert(namespace, print);
        } else {
            is_whole = false;
        }
    }
    Ok(is_whole)
}

/// Hash of everything that findings depend on.
fn inputs_hash(configs: &[Config], namespaces: &[String]) -> u64 {
    let mut parts: BTreeSet<(String, Option<String>, Option<i64>, bool)> = BTreeSet::new();
    for config in configs {
        let metadata = &config.metadata;
        let is_going = metadata.deletion_timestamp.is_some();
        parts.insert((config.name_any(), metadata.uid.clone(), metadata.generation, is_going));
    }
    let mut hasher = DefaultHasher::new();
    (parts, namespaces).hash(&mut hasher);
    hasher.finish()
}

/// The condition of each ShardingConfig, by name. Roots have none, nor do shards without a lock, because nothing says which of them
/// belong together. Pure.
fn overlap_conditions(
    documents: &[Value],
    namespaces: &[String],
    keys: &ctrlmesh_manager_planner::LabelKeys,
) -> BTreeMap<String, ConditionDraft> {
    let read = documents.iter().filter_map(|document| match read(document) {
        Ok(Object::ShardingConfig(config)) if config.metadata.deletion_timestamp.is_none() => Some(*config),
        _ => None,
    });
    let configs: Vec<ShardingConfig> = read.collect();
    let found = find_overlaps(&configs, namespaces, keys);
    let mut by_shard: BTreeMap<&str, Vec<&Overlap>> = BTreeMap::new();
    for overlap in &found {
        for shard in &overlap.shards {
            by_shard.entry(shard).or_default().push(overlap);
        }
    }
    let shards = configs
        .iter()
        .filter(|config| config.spec.root.is_none() && config.spec.controller.is_some());
    let conditions = shards.map(|shard| {
        let name = shard.name_any();
        let condition = overlap_condition(by_shard.get(name.as_str()).map(Vec::as_slice).unwrap_or_default());
        (name, condition)
    });
    conditions.collect()
}

fn overlap_condition(found: &[&Overlap]) -> ConditionDraft {
    let draft = |status, code, message| ConditionDraft::new(condition::OVERLAPPING, status, code, message);
    let is_shared = found.iter().any(|overlap| overlap.kind == OverlapKind::Shared);
    let code = match (found.is_empty(), is_shared) {
        (true, _) => return draft(ConditionStatus::False, Reason::NONE, String::new()),
        (false, true) => Reason::SHARED,
        (false, false) => Reason::ORPHANED,
    };
    let some: Vec<String> = found.iter().take(MAX_FINDINGS).map(ToString::to_string).collect();
    let message = match found.len().saturating_sub(MAX_FINDINGS) {
        0 => some.join("; "),
        more => format!("{}; and {more} more", some.join("; ")),
    };
    draft(ConditionStatus::True, code, message)
}

/// Returns whether all conditions were written.
async fn write_conditions(client: &Client, documents: &[Value], conditions: &BTreeMap<String, ConditionDraft>) -> bool {
    let now = timestamp_now();
    let mut writes = Vec::new();
    for document in documents {
        let draft = conditions.get(text_at(document, "/metadata/name"));
        let before = stored_of(document, condition::OVERLAPPING);
        let condition = draft.map(|draft| condition_of(document, draft, &now));
        if condition != before {
            writes.push(write_condition(client, document, condition));
        }
    }
    let written: Vec<bool> = stream::iter(writes).buffer_unordered(CONCURRENCY).collect().await;
    written.into_iter().all(|is_written| is_written)
}

async fn write_condition(client: &Client, document: &Value, condition: Option<Condition>) -> bool {
    let (namespace, name) = (
        text_at(document, "/metadata/namespace"),
        text_at(document, "/metadata/name"),
    );
    let patch = StatusPatch::Apply {
        field_manager: FIELD_MANAGER,
        status: json!({ "conditions": Vec::from_iter(condition) }),
    };
    match patch_config(client, document, patch).await {
        Ok(()) => true,
        Err(kube::Error::Api(status)) if status.code == 404 => true,
        Err(error) => {
            tracing::warn!(
                error = error_text(&error),
                namespace,
                name,
                "failed to write condition Overlapping; retrying"
            );
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_api::API_VERSION;

    use super::super::run as run_all;
    use super::*;
    use crate::test_env;
    use crate::test_env::{Running, until};

    const KIND: &str = "shardingconfigs.ctrlmesh.kusionstack.io";

    fn shard(name: &str, values: &[&str]) -> Value {
        let expression = json!({ "key": "app", "operator": "In", "values": values });
        json!({
            "apiVersion": API_VERSION, "kind": "ShardingConfig", "metadata": { "namespace": "a", "name": name },
            "spec": {
                "controller": { "leaderElectionName": "lock" },
                "selector": { "matchLabels": { "shard": name } },
                "limits": [{
                    "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
                    "selector": { "matchExpressions": [expression] },
                }],
            },
        })
    }

    fn found_conditions(documents: &[Value]) -> Vec<String> {
        let conditions = overlap_conditions(
            documents,
            &["x".to_owned()],
            &ctrlmesh_manager_planner::LabelKeys::default(),
        );
        let line = |(name, draft): (String, ConditionDraft)| {
            let (status, Reason { code, message }) = (draft.status, draft.reason);
            let count = message
                .split("; ")
                .filter(|one| {
                    ["can be in", "leave out"].iter().any(|words| one.contains(words)) || one.starts_with("and ")
                })
                .count();
            format!("{name} {status:?} {code} {count}")
        };
        conditions.into_iter().map(line).collect()
    }

    #[test]
    fn each_shard_gets_its_own_findings() {
        let (a, b, c) = (shard("a", &["x"]), shard("b", &["x", "y"]), shard("c", &["z"]));
        assert_eq!(
            found_conditions(&[a.clone(), b.clone(), c]),
            ["a True Shared 2", "b True Shared 2", "c True Orphaned 1"]
        );
        let mut rest = shard("c", &["x", "y"]);
        rest["spec"]["limits"][0]["selector"]["matchExpressions"][0]["operator"] = json!("NotIn");
        let mut alone = shard("d", &["x"]);
        alone["spec"]["controller"] = json!(null);
        let mut going = a;
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(
            found_conditions(&[going, b, rest, alone, json!({ "kind": "ShardingConfig" })]),
            ["b False None 0", "c False None 0"],
            "what is going, alone, or can't be read says nothing"
        );
        let many: Vec<Value> = (0..6).map(|n| shard(&format!("s{n}"), &["x"])).collect();
        assert_eq!(
            found_conditions(&many)[0],
            "s0 True Shared 4",
            "three findings, and that there are more"
        );
    }

    #[test]
    fn messages_of_overlapping_match_snapshot() {
        let many: Vec<Value> = (0..6).map(|n| shard(&format!("s{n}"), &["x"])).collect();
        let mut rest = shard("b", &["x"]);
        rest["spec"]["limits"][0]["selector"]["matchExpressions"][0]["operator"] = json!("NotIn");
        let situations = [
            ("nothing to say", vec![shard("a", &["x"]), rest]),
            ("shared", vec![shard("a", &["x"]), shard("b", &["x", "y"])]),
            ("orphaned", vec![shard("c", &["z"])]),
            ("more than are named", many),
        ];
        let mut text = String::new();
        for (situation, documents) in situations {
            let keys = ctrlmesh_manager_planner::LabelKeys::default();
            text += &format!("{situation}:\n");
            for (name, draft) in overlap_conditions(&documents, &["x".to_owned()], &keys).iter().take(2) {
                let Reason { code, message } = &draft.reason;
                text += &format!("  {name}: Overlapping={:?} {code}: {message}\n", draft.status);
            }
        }
        insta::assert_snapshot!(text);
    }

    fn overlapping_reason(object: &Value) -> String {
        let stored = stored_of(object, condition::OVERLAPPING);
        stored.map_or_else(String::new, |stored| stored.reason)
    }

    #[tokio::test]
    async fn overlapping_is_written_only_when_something_changes() {
        let server = test_env::builder().namespace("a").start().await.unwrap();
        let put = |object: Value| server.store().put(object).unwrap();
        put(shard("one", &["x"]));
        put(shard("two", &["x"]));
        let context = test_env::context(&server, &["--rest-config-qps=10000", "--rest-config-burst=10000"]).await;
        let running = Running::start(&context, run_all(context.clone()));
        let until_reasons = |one: &'static str, two: &'static str| {
            let server = &server;
            async move {
                let is = |state: &ctrlmesh_testkit::Snapshot<'_>| {
                    let reason = |name| state.get(KIND, "a", name).map(overlapping_reason).unwrap_or_default();
                    (reason("one"), reason("two")) == (one.to_owned(), two.to_owned())
                };
                until(server, one, is).await;
            }
        };
        until_reasons("Shared", "Shared").await;
        put(shard("two", &["y"]));
        until_reasons("Orphaned", "Orphaned").await;
        let mut rest = shard("two", &["x"]);
        rest["spec"]["limits"][0]["selector"]["matchExpressions"][0]["operator"] = json!("NotIn");
        put(rest);
        until_reasons("None", "None").await;
        // An unnecessary write would come before the next change.
        server.requests().clear();
        let mut noted = server
            .store()
            .read(|state| state.get(KIND, "a", "one").cloned())
            .unwrap();
        noted["metadata"]["annotations"] = json!({ "a": "b" });
        put(noted);
        let mut without = server
            .store()
            .read(|state| state.get(KIND, "a", "two").cloned())
            .unwrap();
        without["spec"]["controller"] = json!(null);
        put(without);
        until_reasons("Orphaned", "").await;
        assert_eq!(server.requests().count("patch"), 2);
        running.stop().await;
    }
}
