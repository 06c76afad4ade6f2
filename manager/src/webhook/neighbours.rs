//! Warnings about a shard that shares objects with another one, or leaves some to nobody. Never a reason to refuse: shards are
//! applied one after the other.

use std::time::Duration;

use kube::Api;
use kube::api::{ApiResource, ListParams};
use kube::core::DynamicObject;

use super::Reviewer;
use crate::api::ShardingConfig;
use crate::overlap;
use crate::validate::{Object, read};

/// For everything. A warning is worth no more waiting.
const DEADLINE: Duration = Duration::from_secs(1);
/// ShardingConfigs of a namespace that are looked at.
const MAX_CONFIGS: u32 = 500;
/// Namespaces that are looked at, so that the answer is there in time. The object's conditions know all.
const MAX_NAMESPACES: usize = 200;
/// API servers cut what is longer than 4 KiB in all.
const MAX_WARNINGS: usize = 8;

/// Empty if there is nothing to warn of, or nobody knows in time.
pub(super) async fn warnings(reviewer: &Reviewer, config: ShardingConfig) -> Vec<String> {
    let found = tokio::time::timeout(DEADLINE, find(reviewer, config)).await;
    match found {
        Ok(Ok(warnings)) => warnings,
        Ok(Err(error)) => {
            tracing::debug!(%error, "no other shards are known, so there are no warnings");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

async fn find(reviewer: &Reviewer, config: ShardingConfig) -> Result<Vec<String>, crate::Error> {
    let name = config.metadata.name.clone().unwrap_or_default();
    let (Some(namespace), Some(_), None) = (&config.metadata.namespace, lock(&config), &config.spec.root) else {
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
    let is_neighbour =
        |stored: &ShardingConfig| stored.metadata.name != config.metadata.name && lock(stored) == lock(&config);
    let mut configs: Vec<ShardingConfig> = stored.filter(is_neighbour).collect();
    if configs.is_empty() {
        // The first shard of a controller leaves most to nobody.
        return Ok(Vec::new());
    }
    configs.push(config);
    let namespaces = reviewer.namespaces.managed(&reviewer.keys, MAX_NAMESPACES);
    let keys = reviewer.keys.clone();
    let found = tokio::task::spawn_blocking(move || overlap(&configs, &namespaces, &keys)).await?;
    let mine = found.iter().filter(|overlap| overlap.shards.contains(&name));
    Ok(mine.take(MAX_WARNINGS).map(ToString::to_string).collect())
}

fn lock(config: &ShardingConfig) -> Option<&str> {
    let controller = config.spec.controller.as_ref()?;
    Some(controller.leader_election_name.as_str())
}
