//! Does what a user does with kubectl: applies and deletes objects, and watches their status.

use std::pin::pin;

use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ShardingConfig};
use futures_util::{StreamExt as _, stream};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::Value;

use super::applied_objects::{Applied, ObjectName};
use super::observations::SharedObservations;
use super::sharding_plan::POD_NAMESPACE;
use crate::error::Error;

/// Applies and deletes objects for the user.
#[derive(Clone)]
pub(crate) struct Kubectl {
    client: Client,
}

impl Kubectl {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) async fn apply(&self, document: &Value) -> Result<Applied, Error> {
        let name = ObjectName::of_document(document);
        let params = PatchParams::apply("kubectl").force();
        let namespace = document.pointer("/metadata/namespace").and_then(Value::as_str);
        let applied = self
            .api_for(&name.kind, namespace.unwrap_or(POD_NAMESPACE))
            .patch(&name.name, &params, &Patch::Apply(document))
            .await;
        let applied = applied.map_err(Error::client(format!("apply {name}")))?;
        let generation = applied.metadata.generation.unwrap_or_default();
        Ok(Applied { name, generation })
    }

    pub(crate) async fn delete(&self, name: &ObjectName) -> Result<(), Error> {
        let deleted = self
            .api_for(&name.kind, POD_NAMESPACE)
            .delete(&name.name, &DeleteParams::default())
            .await;
        deleted.map(drop).map_err(Error::client(format!("delete {name}")))
    }

    fn api_for(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let [shards, breakers, faults] = applied_kinds();
        let resource = match kind {
            "ShardingConfig" => shards,
            "CircuitBreaker" => breakers,
            _ => faults,
        };
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }
}

fn applied_kinds() -> [ApiResource; 3] {
    [
        ApiResource::erase::<ShardingConfig>(&()),
        ApiResource::erase::<CircuitBreaker>(&()),
        ApiResource::erase::<FaultInjection>(&()),
    ]
}

/// `kubectl get --watch`: keeps the observations about all objects current until dropped.
pub(crate) async fn watch_objects(client: Client, observations: SharedObservations) {
    let watches = applied_kinds().map(|kind| {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), POD_NAMESPACE, &kind);
        watcher(api, watcher::Config::default()).default_backoff().boxed()
    });
    let mut events = pin!(stream::select_all(watches));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                observations.with_observations(|observations| observations.objects.record_object(&object))
            }
            Ok(Event::Delete(object)) => {
                observations.with_observations(|observations| observations.objects.forget_object(&object))
            }
            // The watcher reconnects by itself.
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
    }
}
