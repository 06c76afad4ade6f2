//! Warns of a shard that shares objects with another one, leaves some to nobody, or names no lock beside others. These are never a
//! reason to refuse, because shards are applied one after the other.

use std::time::Duration;

use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_planner::overlap::{Overlap, overlap_of};
use ctrlmesh_manager_planner::validate::{Object, read, unlocked_beside, unlocked_warning};
use tokio::time::{Instant, timeout_at};

use kube::Api;
use kube::api::{ApiResource, ListParams};
use kube::core::DynamicObject;

use super::Reviewer;
use crate::cluster::error_text;

/// Time for everything. A warning is not worth a longer wait.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum ShardingConfigs of a namespace that are compared.
const MAX_CONFIGS: u32 = 500;
/// Maximum namespaces that are compared, so that the response is in time. The object's conditions cover all.
const MAX_NAMESPACES: usize = 200;
/// Maximum warnings. API servers truncate more than 4 KiB in all.
const MAX_WARNINGS: usize = 8;

/// For clients that have not proved to be API servers: names of other shards and of namespaces are only in the object's condition.
const OVERLAPS: &str = "some objects are in several shards of this controller, or in none; the condition Overlapping says which, once this is \
     stored";

/// Why the other shards are not known.
type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Empty if there is nothing to warn of, or the response took too long.
pub(super) async fn warnings_about_overlaps(reviewer: &Reviewer, config: ShardingConfig) -> Vec<String> {
    let end = Instant::now() + LIST_TIMEOUT;
    let found = timeout_at(end, find_warnings(reviewer, config, end)).await;
    match found {
        Ok(Ok(warnings)) => warnings,
        Ok(Err(error)) => {
            tracing::debug!(
                error = error_text(&*error),
                "failed to list other shards; skipping warnings about overlaps"
            );
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

async fn find_warnings(reviewer: &Reviewer, config: ShardingConfig, end: Instant) -> Result<Vec<String>, Problem> {
    let (Some(namespace), None) = (&config.metadata.namespace, &config.spec.root) else {
        return Ok(Vec::new());
    };
    let resource = ApiResource::erase::<ShardingConfig>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(reviewer.context.client.clone(), namespace, &resource);
    let listed = api.list(&ListParams::default().limit(MAX_CONFIGS)).await?;
    let stored = listed
        .items
        .iter()
        .filter_map(|object| match read(&serde_json::to_value(object).ok()?) {
            Ok(Object::ShardingConfig(stored)) => Some(*stored),
            _ => None,
        });
    let is_other = |stored: &ShardingConfig| {
        let is_going = stored.metadata.deletion_timestamp.is_some();
        !is_going && stored.metadata.name != config.metadata.name
    };
    let others: Vec<ShardingConfig> = stored.filter(is_other).collect();
    if lock_name(&config).is_none() {
        return Ok(without_lock(&config, &others, reviewer.knows_clients()));
    }
    warnings_of_shard(reviewer, config, others, end).await
}

/// Warnings about a shard without a lock.
fn without_lock(config: &ShardingConfig, others: &[ShardingConfig], names_shards: bool) -> Vec<String> {
    let beside = unlocked_beside(config, others);
    if beside.is_empty() {
        return Vec::new();
    }
    let warning = unlocked_warning(names_shards.then_some(&beside));
    vec![format!("{}: {}", warning.path, warning.problem)]
}

/// Warnings about objects that are in several shards of the controller, or in none.
async fn warnings_of_shard(
    reviewer: &Reviewer,
    config: ShardingConfig,
    others: Vec<ShardingConfig>,
    end: Instant,
) -> Result<Vec<String>, Problem> {
    let name = config.metadata.name.clone().unwrap_or_default();
    let mut configs = others;
    configs.retain(|stored| lock_name(stored) == lock_name(&config));
    if configs.is_empty() {
        // The first shard of a controller necessarily leaves objects to nobody.
        return Ok(Vec::new());
    }
    configs.push(config);
    let namespaces = reviewer
        .namespaces
        .managed_namespaces(&reviewer.keys, MAX_NAMESPACES + 1);
    let keys = reviewer.keys.clone();
    // One search at a time, because each takes a whole processor. The search keeps the permit, because it may outlast this review.
    let turn = reviewer.searches.clone().acquire_owned().await?;
    let names_shards = reviewer.knows_clients();
    let search = move || {
        let _turn = turn;
        let looked_at = namespaces.get(..MAX_NAMESPACES).unwrap_or(&namespaces);
        let found = overlap_of(&name, &configs, looked_at, &keys, &|| Instant::now() >= end);
        let warnings = overlap_messages(&name, &found, looked_at.len() < namespaces.len());
        if names_shards || warnings.is_empty() {
            warnings
        } else {
            vec![OVERLAPS.to_owned()]
        }
    };
    Ok(tokio::task::spawn_blocking(search).await?)
}

fn overlap_messages(name: &str, found: &[Overlap], are_more: bool) -> Vec<String> {
    let mine = found
        .iter()
        .filter(|overlap| overlap.shards.iter().any(|shard| shard == name));
    let mut warnings: Vec<String> = mine.take(MAX_WARNINGS).map(ToString::to_string).collect();
    if are_more && !warnings.is_empty() {
        warnings.push(format!(
            "only the first {MAX_NAMESPACES} namespaces were looked at; there may be more in the others"
        ));
    }
    warnings
}

fn lock_name(config: &ShardingConfig) -> Option<&str> {
    let controller = config.spec.controller.as_ref()?;
    Some(controller.leader_election_name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ctrlmesh_manager_planner::overlap::OverlapKind;

    #[test]
    fn incomplete_search_says_so() {
        let found = [Overlap {
            shards: vec!["one".to_owned(), "two".to_owned()],
            kind: OverlapKind::Shared,
            resource: "pods".to_owned(),
            examples: vec!["a".to_owned()],
            namespaces: 1,
        }];
        assert_eq!(overlap_messages("one", &found, false).len(), 1);
        let warnings = overlap_messages("one", &found, true);
        assert!(
            warnings[1].contains("only the first 200 namespaces were looked at"),
            "{warnings:?}"
        );
        assert!(overlap_messages("three", &found, true).is_empty());
    }
}
