//! What is watched: custom resources, the pods that have sidecars, our ConfigMaps, namespaces. One watch each for the cluster.

use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_contract::names::labels;
use futures_util::future::join_all;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, PodSpec, PodStatus};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OnceCell, watch};

use super::bypassed::running;
use super::fleet::READY;
use crate::api::{CircuitBreaker, FaultInjection, ShardingConfig};
use crate::context::{FIELD_MANAGER, MANAGED_BY};
use crate::plain::plain;
use crate::rbac::{Rule, Scope};

/// What watching needs.
pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["shardingconfigs", "circuitbreakers", "faultinjections"],
        verbs: &["list", "watch"],
        names: &[],
    },
    Rule {
        scope: Scope::Cluster,
        group: "",
        resources: &["pods", "configmaps", "namespaces"],
        verbs: &["list", "watch"],
        names: &[],
    },
];

/// Namespaces to look at.
pub(super) type Triggers = stream::BoxStream<'static, ObjectRef<Namespace>>;

/// Kinds of custom resources.
pub(super) const KINDS: [&str; 3] = ["ShardingConfig", "CircuitBreaker", "FaultInjection"];

/// All that was seen.
#[derive(Clone)]
pub(super) struct Caches {
    objects: [Watched<Store<DynamicObject>>; 3],
    pods: Watched<Store<Pod>>,
    config_maps: Watched<Store<ConfigMap>>,
    /// How long custom resources are waited for.
    patience: Duration,
    is_ready: Arc<OnceCell<()>>,
}

/// A kind that is watched, and its store.
#[derive(Clone)]
struct Watched<S> {
    store: S,
    /// Whether everything that existed was seen once. (Waiting in the store wakes only the last one that waits.)
    is_seen: watch::Receiver<bool>,
}

impl<S> Watched<S> {
    async fn seen(&self) {
        // It fails if nobody watches any more: then nothing waits for it either.
        let _ = self.is_seen.clone().wait_for(|is_seen| *is_seen).await;
    }
}

impl Caches {
    /// Starts watching when the triggers are polled.
    pub(super) fn watch(client: &Client, patience: Duration) -> (Self, Triggers) {
        let kinds = [
            ApiResource::erase::<ShardingConfig>(&()),
            ApiResource::erase::<CircuitBreaker>(&()),
            ApiResource::erase::<FaultInjection>(&()),
        ];
        let (objects, changes): (Vec<_>, Vec<_>) = kinds.into_iter().map(|kind| custom(client, kind)).unzip();
        let objects = <[_; 3]>::try_from(objects).unwrap_or_else(|_| unreachable!("three kinds make three stores"));
        let with_sidecar = watcher::Config::default().labels(&format!("{}=true", labels::WATCHING));
        let (pods, pod_changes) = reflect(Api::all(client.clone()), (), with_sidecar, strip_pod);
        let ours = watcher::Config::default().labels(&format!("{MANAGED_BY}={FIELD_MANAGER}"));
        let (config_maps, map_changes) = reflect(Api::all(client.clone()), (), ours, strip_config_map);
        let changes = changes.into_iter().chain([pod_changes, map_changes]);
        let caches = Self {
            objects,
            pods,
            config_maps,
            patience,
            is_ready: Arc::default(),
        };
        (caches, stream::select_all(changes).boxed())
    }

    /// Waits until everything that exists was seen once: before that, what is not there is only not seen yet. Custom resources
    /// are waited for so long and no longer ([`Self::unseen`]).
    pub(super) async fn ready(&self) {
        let all = || async {
            self.pods.seen().await;
            self.config_maps.seen().await;
            let kinds = self.objects.iter().map(Watched::seen);
            if tokio::time::timeout(self.patience, join_all(kinds)).await.is_err() {
                tracing::warn!(
                    kinds = ?self.unseen(),
                    "these kinds can't be watched; what they said before goes on; is deploy/crd applied as it came with this version?"
                );
            }
        };
        self.is_ready.get_or_init(all).await;
    }

    /// Kinds whose objects could not be seen yet.
    pub(super) fn unseen(&self) -> Vec<&'static str> {
        let kinds = KINDS.into_iter().zip(&self.objects);
        let unseen = kinds.filter(|(_, watched)| !*watched.is_seen.borrow());
        unseen.map(|(kind, _)| kind).collect()
    }

    /// Custom resources of a namespace, as they were stored.
    pub(super) fn documents(&self, namespace: &str) -> Vec<Value> {
        let stores = self.objects.iter().flat_map(|watched| watched.store.state());
        let of_namespace = stores.filter(|object| object.namespace().as_deref() == Some(namespace));
        let mut documents: Vec<Value> = of_namespace
            .filter_map(|object| serde_json::to_value(&*object).ok())
            .collect();
        let name = |document: &Value| document.pointer("/metadata/name").map(ToString::to_string);
        documents.sort_by_key(name);
        documents
    }

    /// Pods of a namespace that have a sidecar, by name.
    pub(super) fn pods(&self, namespace: &str) -> Vec<Arc<Pod>> {
        let mut pods = self.pods.store.state();
        pods.retain(|pod| pod.namespace().as_deref() == Some(namespace));
        pods.sort_by_key(|pod| pod.name_any());
        pods
    }

    /// One of our ConfigMaps. Plugin bytes are replaced by their SHA-256: see [`fingerprint`].
    pub(super) fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        self.config_maps.store.get(&ObjectRef::new(name).within(namespace))
    }
}

/// What stands for plugin bytes in memory: there may be megabytes of them in every namespace.
pub(super) fn fingerprint(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

fn custom(client: &Client, kind: ApiResource) -> (Watched<Store<DynamicObject>>, Triggers) {
    let api = Api::all_with(client.clone(), &kind);
    reflect(api, kind, watcher::Config::default(), |object: &mut DynamicObject| {
        object.managed_fields_mut().clear();
    })
}

fn reflect<K>(
    api: Api<K>,
    kind: K::DynamicType,
    config: watcher::Config,
    strip: impl FnMut(&mut K) + Send + 'static,
) -> (Watched<Store<K>>, Triggers)
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    K::DynamicType: Clone + Eq + std::hash::Hash + Unpin + Send + Sync + 'static,
{
    let writer = Writer::new(kind.clone());
    let store = writer.as_reader();
    let (seen, is_seen) = watch::channel(false);
    let name = K::plural(&kind).into_owned();
    let changes = watcher(api, config)
        .default_backoff()
        .modify(strip)
        .reflect(writer)
        .inspect_ok(move |event| {
            if matches!(event, watcher::Event::InitDone) {
                seen.send_replace(true);
            }
        })
        .touched_objects()
        .filter_map(move |seen| {
            let seen = seen.inspect_err(|error| {
                tracing::warn!(
                    error = plain(error),
                    resource = name,
                    "a watch has failed and is begun again"
                )
            });
            let namespace = seen.ok().and_then(|object| object.namespace());
            futures_util::future::ready(namespace.map(|namespace| ObjectRef::new(&namespace)))
        });
    (Watched { store, is_seen }, changes.boxed())
}

/// Leaves of a pod what is used of it.
pub(super) fn strip_pod(pod: &mut Pod) {
    pod.managed_fields_mut().clear();
    let node = pod.spec.take().and_then(|spec| spec.node_name);
    pod.spec = node.map(|node| PodSpec {
        node_name: Some(node),
        ..PodSpec::default()
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        pod_ip: status.pod_ip,
        conditions: status.conditions.map(|mut conditions| {
            conditions.retain(|condition| condition.type_ == READY);
            conditions
        }),
        container_statuses: status.container_statuses.map(running),
        ..PodStatus::default()
    });
}

fn strip_config_map(map: &mut ConfigMap) {
    map.managed_fields_mut().clear();
    for bytes in map.binary_data.iter_mut().flatten().map(|(_, bytes)| bytes) {
        *bytes = ByteString(fingerprint(&bytes.0));
    }
}
