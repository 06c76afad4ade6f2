//! Deletes every ShardingConfig while a manager still runs, and waits until all are gone: managers can be taken away afterwards.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::Value;

use crate::api::ShardingConfig;
use crate::error::Error;

/// Between two looks at what is left.
const PAUSE: Duration = Duration::from_secs(1);

/// What comes after it, for a person.
pub const NEXT: &str = "no ShardingConfig is left; next: kubectl delete circuitbreakers,faultinjections --all -A, then managers, webhooks, \
                        rights and definitions: kubectl delete -k deploy/, or helm uninstall";

/// Deletes them in the cluster that the environment names (a pod's account, or KUBECONFIG).
///
/// # Errors
/// There is no way to a cluster, the API server refuses it, or some wait for longer than `patience`.
pub async fn run(patience: Duration, tell: impl FnMut(&str)) -> Result<(), Error> {
    // Only fails if there is a provider already; then that one is used.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = Config::infer().await.map_err(Error::Config)?;
    uninstall(&Client::try_from(config)?, patience, tell).await
}

/// Deletes all ShardingConfigs, and tells why they are not gone yet whenever that changes.
///
/// # Errors
/// The API server refuses it, or some wait for longer than `patience`.
pub async fn uninstall(client: &Client, patience: Duration, mut tell: impl FnMut(&str)) -> Result<(), Error> {
    let begun = Instant::now();
    let mut told: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let left = left(client).await?;
        if left.is_empty() {
            return Ok(());
        }
        // Also those that a manager has made again for a root that was there still.
        for config in left
            .iter()
            .filter(|config| config.metadata.deletion_timestamp.is_none())
        {
            delete(client, config).await?;
        }
        let waits: BTreeMap<String, String> = left.iter().map(|config| (name(config), why(config))).collect();
        for (name, why) in waits.iter().filter(|(name, why)| told.get(*name) != Some(*why)) {
            tell(&format!("{name}: {why}"));
        }
        if begun.elapsed() >= patience {
            return Err(Error::Waiting(waits.into_keys().collect::<Vec<_>>().join(", ")));
        }
        told = waits;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Roots first: as long as one is there, its shards are made again.
async fn left(client: &Client) -> Result<Vec<DynamicObject>, Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind());
    let mut left = match api.list(&ListParams::default()).await {
        Ok(list) => list.items,
        // There is no definition of them any more.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    left.sort_by_key(|config| {
        (
            config.data.pointer("/spec/root").is_none_or(Value::is_null),
            name(config),
        )
    });
    Ok(left)
}

async fn delete(client: &Client, config: &DynamicObject) -> Result<(), Error> {
    let namespace = config.namespace().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &kind());
    match api.delete(&config.name_any(), &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => Ok(deleted.map(drop)?),
    }
}

fn kind() -> ApiResource {
    ApiResource::erase::<ShardingConfig>(&())
}

fn name(config: &DynamicObject) -> String {
    format!("{}/{}", config.namespace().unwrap_or_default(), config.name_any())
}

/// What its status says of the wait.
fn why(config: &DynamicObject) -> String {
    let conditions = config.data.pointer("/status/conditions").and_then(Value::as_array);
    let mut bad = conditions.into_iter().flatten().filter(|condition| {
        let is = |field: &str, value: &str| condition[field] == value;
        is("type", "Distributed") && is("status", "False")
    });
    let message = bad.next().and_then(|condition| condition["message"].as_str());
    message.map_or_else(|| "is being deleted; does a manager run?".to_owned(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use ctrlmesh_contract::names::finalizers::HAND_OVER;
    use serde_json::json;

    use super::*;
    use crate::samples;
    use crate::stand::{self, put};

    const KIND: &str = "shardingconfigs.ctrlmesh.kusionstack.io";

    #[tokio::test]
    async fn uninstall_waits_until_every_shard_is_released_and_says_for_what() {
        let server = stand::builder().namespace("demo").start().await.unwrap();
        let mut held = samples::shard("held", &[]);
        held["metadata"]["finalizers"] = json!([HAND_OVER]);
        held["status"] = json!({ "conditions": [
            { "type": "Distributed", "status": "False", "reason": "Deleting", "message": "waits for left-0" },
        ] });
        put(&server, held);
        put(&server, samples::shard("free", &[]));
        let context = stand::context(&server, &[]).await;
        let client = &context.client;
        let waiting = uninstall(client, Duration::ZERO, |_| ()).await.unwrap_err();
        assert!(waiting.to_string().contains("demo/held"), "{waiting}");
        let mut said = Vec::new();
        let uninstalled = uninstall(client, stand::PATIENCE, |line| {
            said.push(line.to_owned());
            let mut held = server
                .store()
                .read(|state| state.get(KIND, "demo", "held").cloned())
                .unwrap();
            held["metadata"]["finalizers"] = json!([]);
            held.as_object_mut().unwrap().remove("status");
            put(&server, held);
        });
        uninstalled.await.unwrap();
        assert_eq!(said, ["demo/held: waits for left-0"]);
        assert!(server.store().read(|state| state.list(KIND).next().is_none()));
    }
}
