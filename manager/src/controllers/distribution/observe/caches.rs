//! Watch caches: custom resources, pods with a sidecar, and the ConfigMaps that managers write. One watch per kind for the whole
//! cluster.

use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_contract::names::labels;
use ctrlmesh_manager_api::{CHAIN_KINDS, CircuitBreaker, FIELD_MANAGER, FaultInjection, MANAGED_BY, ShardingConfig};
use futures_util::future::join_all;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{OnceCell, watch};

use crate::cluster::{RbacRule, Scope, error_text};
use ctrlmesh_manager_rollout::config_maps::fingerprint;
use ctrlmesh_manager_rollout::fleet::strip_pod;

pub(crate) const RULES: &[RbacRule] = &[
    RbacRule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["shardingconfigs", "circuitbreakers", "faultinjections"],
        verbs: &["list", "watch"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "",
        resources: &["pods", "configmaps", "namespaces"],
        verbs: &["list", "watch"],
        names: &[],
    },
];

/// Namespaces in which something has changed.
pub(crate) type Triggers = stream::BoxStream<'static, ObjectRef<Namespace>>;

#[derive(Clone)]
pub(crate) struct Caches {
    objects: [Watched<Store<DynamicObject>>; 3],
    pods: Watched<Store<Pod>>,
    config_maps: Watched<Store<ConfigMap>>,
    /// How long a start waits for custom resources whose definition may be missing.
    crd_timeout: Duration,
    is_ready: Arc<OnceCell<()>>,
}

#[derive(Clone)]
struct Watched<S> {
    store: S,
    /// Whether the first list is complete. (`Store::wait_until_ready` wakes only the last one that waits.)
    is_synced: watch::Receiver<bool>,
}

impl<S> Watched<S> {
    async fn synced(&self) {
        // Fails only when the watch has ended, and then nobody waits any more.
        let _ = self.is_synced.clone().wait_for(|is_synced| *is_synced).await;
    }
}

impl Caches {
    /// The caches, and a stream of changes. Watches start when the stream is polled.
    pub(crate) fn watch(client: &Client, crd_timeout: Duration) -> (Self, Triggers) {
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
            crd_timeout,
            is_ready: Arc::default(),
        };
        (caches, stream::select_all(changes).boxed())
    }

    /// Waits for the first list of every kind, but for custom resources no longer than the timeout ([`Self::unsynced_kinds`]): a
    /// kind whose definition is missing would block for ever.
    pub(crate) async fn wait_until_synced(&self) {
        let all = || async {
            self.pods.synced().await;
            self.config_maps.synced().await;
            let kinds = self.objects.iter().map(Watched::synced);
            if tokio::time::timeout(self.crd_timeout, join_all(kinds)).await.is_err() {
                tracing::warn!(
                    kinds = ?self.unsynced_kinds(),
                    "failed to watch custom resources; keeping what was distributed for them. Is deploy/crd of this version applied?"
                );
            }
        };
        self.is_ready.get_or_init(all).await;
    }

    /// Kinds whose first list is not complete.
    pub(crate) fn unsynced_kinds(&self) -> Vec<&'static str> {
        let kinds = CHAIN_KINDS.into_iter().zip(&self.objects);
        let unsynced = kinds.filter(|(_, watched)| !*watched.is_synced.borrow());
        unsynced.map(|(kind, _)| kind).collect()
    }

    /// Custom resources of a namespace as they are stored, by name.
    pub(crate) fn documents(&self, namespace: &str) -> Vec<Value> {
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
    pub(crate) fn pods(&self, namespace: &str) -> Vec<Arc<Pod>> {
        let mut pods = self.pods.store.state();
        pods.retain(|pod| pod.namespace().as_deref() == Some(namespace));
        pods.sort_by_key(|pod| pod.name_any());
        pods
    }

    /// One of our ConfigMaps. Plugin bytes are replaced by their [`fingerprint`].
    pub(crate) fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        self.config_maps.store.get(&ObjectRef::new(name).within(namespace))
    }
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
    let (synced, is_synced) = watch::channel(false);
    let name = K::plural(&kind).into_owned();
    let changes = watcher(api, config)
        .default_backoff()
        .modify(strip)
        .reflect(writer)
        .inspect_ok(move |event| {
            if matches!(event, watcher::Event::InitDone) {
                synced.send_replace(true);
            }
        })
        .touched_objects()
        .filter_map(move |object| {
            let object = object.inspect_err(|error| {
                tracing::warn!(
                    error = error_text(error),
                    resource = name,
                    "watch failed; restarting it"
                )
            });
            let namespace = object.ok().and_then(|object| object.namespace());
            futures_util::future::ready(namespace.map(|namespace| ObjectRef::new(&namespace)))
        });
    (Watched { store, is_synced }, changes.boxed())
}

fn strip_config_map(map: &mut ConfigMap) {
    map.managed_fields_mut().clear();
    for bytes in map.binary_data.iter_mut().flatten().map(|(_, bytes)| bytes) {
        *bytes = ByteString(fingerprint(&bytes.0));
    }
}
