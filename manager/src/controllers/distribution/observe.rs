//! Reads everything that a pass decides on into one plain value, [`Observation`]. Writes nothing and decides nothing.
//!
//! | file | what it does |
//! |---|---|
//! | `named_plugins` | resolves the plugins that ShardingConfigs name to digests, packed bytes and status |
//! | `sidecar_poller` | asks sidecars for `/status`, and keeps their last reports |
//!
//! Custom resources, ConfigMaps and pods come from watch caches ([`Caches`]), sidecar status from [`sidecar_poller`], plugin bytes
//! from [`ctrlmesh_manager_oci`] ([`named_plugins`]). Pods without a sidecar are not watched, because those are all other
//! pods of the cluster; [`Observer::list_uninjected`] lists them when a shard may have to wait for them.

mod named_plugins;
pub(crate) mod sidecar_poller;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, annotations, labels};
use ctrlmesh_contract::signature::PublicKeys;
use ctrlmesh_manager_api::{CHAIN_KINDS, CircuitBreaker, FIELD_MANAGER, FaultInjection, MANAGED_BY, ShardingConfig};
use ctrlmesh_manager_oci::{Plugins, interface_version, pack};
use ctrlmesh_manager_planner::built_in::BuiltIn;
use ctrlmesh_manager_rollout::config_maps::{PackedPlugin, StoredConfigMaps, plugin_fingerprint};
use ctrlmesh_manager_rollout::fleet::{Fleet, Sidecar, strip_pod};
use ctrlmesh_manager_rollout::observation::{AvailablePlugins, CustomResources, Observation, Remembered, Settings};
use futures_util::future::join_all;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{OnceCell, watch};
use tokio::time::timeout;

use crate::cluster::{Context, Error, RbacRule, Scope, error_text};
use named_plugins::resolve_plugins;
use sidecar_poller::SidecarPoller;

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

/// Pods per page of a list.
const PAGE: u32 = 500;
/// Limit for all pages together. Shards that have started wait for them, too.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum lead of a sidecar's generation over the last one written. A status beyond that is not believed.
const MAX_AHEAD: u64 = 1 << 20;

/// The contents of the watch caches for a namespace.
pub(crate) struct CachedObjects {
    pub(crate) documents: Vec<Value>,
    pub(crate) config_maps: StoredConfigMaps,
}

pub(crate) struct Observer {
    pub(crate) caches: Caches,
    pub(crate) poller: SidecarPoller,
    context: Context,
    plugins: Plugins,
    builtin: Arc<BTreeMap<BuiltIn, PackedPlugin>>,
    keys: PublicKeys,
}

impl Observer {
    pub(crate) fn new(
        context: Context,
        caches: Caches,
        poller: SidecarPoller,
        plugins: Plugins,
        keys: PublicKeys,
    ) -> Self {
        Self {
            caches,
            poller,
            context,
            plugins,
            builtin: Arc::new(builtin_plugins()),
            keys,
        }
    }

    pub(crate) fn cached(&self, namespace: &str) -> CachedObjects {
        CachedObjects {
            documents: self.caches.documents(namespace),
            config_maps: StoredConfigMaps::read(|name| self.caches.config_map(namespace, name), namespace, &self.keys),
        }
    }

    /// Completes what the caches hold. Sidecars are polled in the background; this takes their last reports.
    ///
    /// # Errors
    /// The chain's ConfigMap is in no cache and can't be read.
    pub(crate) async fn observe(
        &self,
        namespace: &str,
        cached: CachedObjects,
        remembered: Remembered<'_>,
    ) -> Result<Observation, Error> {
        let mut config_maps = cached.config_maps;
        // A ConfigMap that has lost its label, or was never ours, is not in the cache.
        if config_maps.version.is_none()
            && let Some(map) = get_chain(&self.context.client, namespace).await?
        {
            config_maps.read_chain(&map, namespace, &self.keys);
        }
        if let Some(last) = remembered.last {
            config_maps.ignore_older_than(last);
        }
        let resources = CustomResources::parse(cached.documents, self.caches.unsynced_kinds());
        let fleet = self.observe_fleet(namespace, &config_maps, remembered);
        let last = config_maps.chain.as_ref().or(remembered.last);
        let running: BTreeSet<Digest> = last
            .iter()
            .flat_map(|chain| &chain.entries)
            .map(|entry| entry.plugin)
            .collect();
        let named = resolve_plugins(namespace, &resources.sharding_configs, &running, |ask| {
            self.plugins.resolve(ask)
        });
        let args = &self.context.args;
        Ok(Observation {
            namespace: namespace.to_owned(),
            now: Instant::now(),
            time: Timestamp::now(),
            resources,
            config_maps,
            fleet,
            plugins: AvailablePlugins::new(Arc::clone(&self.builtin), named),
            settings: Settings {
                settle: Duration::from_millis(args.settle_ms),
                label_keys: args.label_keys(),
            },
        })
    }

    fn observe_fleet(&self, namespace: &str, config_maps: &StoredConfigMaps, remembered: Remembered<'_>) -> Fleet {
        let pods = self.caches.pods(namespace);
        let sidecars: Vec<Sidecar> = pods.iter().filter_map(|pod| Sidecar::from_pod(pod)).collect();
        let is_new_chain = config_maps.digest != remembered.digest;
        let reports = self.poller.track(namespace, &sidecars, is_new_chain);
        let written = [remembered.last, config_maps.chain.as_ref()];
        let written = written.into_iter().flatten().map(|chain| chain.generation).max();
        let believable = written.unwrap_or_default().saturating_add(MAX_AHEAD);
        Fleet::from_reports(sidecars, &reports, believable)
    }

    /// Lists the pods without a sidecar that have not ended. That may take a while, so the observation gets the time after it.
    pub(crate) async fn list_uninjected(&self, observation: &mut Observation) {
        let namespace = &observation.namespace;
        let problem = match timeout(LIST_TIMEOUT, self.list_pods(namespace)).await {
            Ok(Ok(pods)) => {
                observation.fleet.uninjected.pods = pods;
                None
            }
            Ok(Err(error)) => Some(error_text(&error)),
            Err(_) => Some(format!("no response within {} s", LIST_TIMEOUT.as_secs())),
        };
        if let Some(problem) = &problem {
            tracing::warn!(
                %namespace,
                error = problem,
                "failed to list pods; shards that have not begun keep waiting"
            );
        }
        (observation.now, observation.time) = (Instant::now(), Timestamp::now());
        observation.fleet.uninjected.unknown = problem;
        observation.fleet.uninjected.listed = Some(observation.now);
    }

    async fn list_pods(&self, namespace: &str) -> Result<BTreeMap<String, BTreeMap<String, String>>, kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let mut params = ListParams::default()
            .fields("status.phase!=Succeeded,status.phase!=Failed")
            .limit(PAGE);
        let mut pods = BTreeMap::new();
        loop {
            let page = api.list_metadata(&params).await?;
            let uninjected = page.items.iter().filter(|pod| !has_sidecar(*pod));
            pods.extend(uninjected.map(|pod| (pod.name_any(), pod.labels().clone())));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(pods);
            }
        }
    }
}

/// The chain's ConfigMap, also one without our label, which is not watched.
///
/// # Errors
/// The API server's error, other than 404.
async fn get_chain(client: &Client, namespace: &str) -> Result<Option<ConfigMap>, kube::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    api.get_opt(CHAIN_CONFIG_MAP).await
}

/// Whether a pod was injected with a sidecar of ours that we watch. The label alone proves nothing: KusionStack's pods have it,
/// too, and there people write it into templates.
fn has_sidecar(pod: &impl ResourceExt) -> bool {
    let is_watched = pod.labels().get(labels::WATCHING).is_some_and(|value| value == "true");
    is_watched && pod.annotations().contains_key(annotations::INJECTED)
}

fn pack_plugin(component: &[u8]) -> PackedPlugin {
    PackedPlugin {
        digest: Digest::of(component),
        bytes: pack(component).into(),
        interface: interface_version(component),
    }
}

/// The plugins that the manager's binary contains, packed once at the start.
#[must_use]
pub(crate) fn builtin_plugins() -> BTreeMap<BuiltIn, PackedPlugin> {
    let plugins = ctrlmesh_plugins_builtin::builtin().iter();
    plugins
        .filter_map(|plugin| Some((BuiltIn::from_name(plugin.name)?, pack_plugin(plugin.bytes))))
        .collect()
}

/// Namespaces in which something has changed.
pub(crate) type Triggers = stream::BoxStream<'static, ObjectRef<Namespace>>;

/// Watch caches of custom resources, of pods with a sidecar, and of the ConfigMaps that managers write. Each kind has one watch for
/// the whole cluster.
#[derive(Clone)]
pub(crate) struct Caches {
    objects: [WatchedStore<Store<DynamicObject>>; 3],
    pods: WatchedStore<Store<Pod>>,
    config_maps: WatchedStore<Store<ConfigMap>>,
    /// Maximum time that a start waits for custom resources whose definition may be missing.
    crd_timeout: Duration,
    is_ready: Arc<OnceCell<()>>,
}

#[derive(Clone)]
struct WatchedStore<S> {
    store: S,
    /// Whether the first list is complete. (`Store::wait_until_ready` wakes only the last one that waits.)
    is_synced: watch::Receiver<bool>,
}

impl<S> WatchedStore<S> {
    async fn wait_until_synced(&self) {
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
        let (objects, changes): (Vec<_>, Vec<_>) = kinds
            .into_iter()
            .map(|kind| watch_custom_resources(client, kind))
            .unzip();
        let objects = <[_; 3]>::try_from(objects).unwrap_or_else(|_| unreachable!("three kinds make three stores"));
        let with_sidecar = watcher::Config::default().labels(&format!("{}=true", labels::WATCHING));
        let (pods, pod_changes) = watch_objects(Api::all(client.clone()), (), with_sidecar, strip_pod);
        let ours = watcher::Config::default().labels(&format!("{MANAGED_BY}={FIELD_MANAGER}"));
        let (config_maps, map_changes) = watch_objects(Api::all(client.clone()), (), ours, strip_config_map);
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
            self.pods.wait_until_synced().await;
            self.config_maps.wait_until_synced().await;
            let kinds = self.objects.iter().map(WatchedStore::wait_until_synced);
            if timeout(self.crd_timeout, join_all(kinds)).await.is_err() {
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

    /// One of our ConfigMaps. Plugin bytes are replaced by their [`plugin_fingerprint`].
    pub(crate) fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        self.config_maps.store.get(&ObjectRef::new(name).within(namespace))
    }
}

fn watch_custom_resources(client: &Client, kind: ApiResource) -> (WatchedStore<Store<DynamicObject>>, Triggers) {
    let api = Api::all_with(client.clone(), &kind);
    watch_objects(api, kind, watcher::Config::default(), |object: &mut DynamicObject| {
        object.managed_fields_mut().clear();
    })
}

fn watch_objects<K>(
    api: Api<K>,
    kind: K::DynamicType,
    config: watcher::Config,
    strip: impl FnMut(&mut K) + Send + 'static,
) -> (WatchedStore<Store<K>>, Triggers)
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
    (WatchedStore { store, is_synced }, changes.boxed())
}

fn strip_config_map(map: &mut ConfigMap) {
    map.managed_fields_mut().clear();
    for bytes in map.binary_data.iter_mut().flatten().map(|(_, bytes)| bytes) {
        *bytes = ByteString(plugin_fingerprint(&bytes.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_plugins_are_complete_and_fit_into_one_config_map() {
        let plugins = builtin_plugins();
        assert_eq!(plugins.keys().copied().collect::<Vec<_>>(), BuiltIn::ALL);
        assert!(plugins.values().all(|packed| packed.interface.is_some()));
        let sum: usize = plugins.values().map(|packed| packed.bytes.len()).sum();
        assert!(sum < 960 * 1024, "they no longer fit into one ConfigMap: {sum} bytes");
    }
}
