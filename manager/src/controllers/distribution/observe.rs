//! Reads everything that a pass decides on into one plain value, [`Observation`]. Writes nothing and decides nothing.
//!
//! Custom resources, ConfigMaps and pods come from watch caches ([`caches`], [`config_maps`]), sidecar status from
//! [`sidecar_poller`], plugin bytes from [`ctrlmesh_manager_oci`]. Pods without a sidecar are not watched, because those are all other
//! pods of the cluster; [`Observer::list_uninjected`] lists them when a shard may have to wait for them.

pub(crate) mod caches;
pub(crate) mod config_maps;
pub(crate) mod fleet;
pub(crate) mod sidecar_poller;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ctrlmesh_contract::names::{annotations, labels};
use ctrlmesh_contract::signature::PublicKeys;
use ctrlmesh_contract::world::Interface;
use ctrlmesh_contract::{Chain, Digest, Mistakes, Origin};
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ShardingConfig};
use ctrlmesh_manager_oci::{Found, Plugins, interface, pack};
use ctrlmesh_manager_planner::built_in::BuiltIn;
use ctrlmesh_manager_planner::validate::Object;
use ctrlmesh_manager_planner::{LabelKeys, Resolved, hand_over, validate};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::time::timeout;

use crate::cluster::{Context, Error, error_text};
use crate::controllers::shards;
use caches::Caches;
use config_maps::StoredConfigMaps;
use fleet::{Fleet, Sidecar};
use sidecar_poller::SidecarPoller;

/// Pods per page of a list.
const PAGE: u32 = 500;
/// Limit for all pages together. Shards that have started wait for them, too.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// How far a sidecar's generation may be ahead of the last one written. A status beyond that is not believed.
const MAX_AHEAD: u64 = 1 << 20;

/// Everything that a pass decides on, read at one time.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) namespace: String,
    pub(crate) now: Instant,
    /// The same moment, for messages.
    pub(crate) time: Timestamp,
    pub(crate) resources: CustomResources,
    pub(crate) config_maps: StoredConfigMaps,
    pub(crate) fleet: Fleet,
    pub(crate) plugins: AvailablePlugins,
    pub(crate) settings: Settings,
}

/// Flags of the manager that decisions depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// How long a pod must have been quiet, unless its shard says otherwise.
    pub(crate) settle: Duration,
    pub(crate) label_keys: LabelKeys,
}

/// What the watch caches hold for a namespace.
pub(crate) struct Cached {
    pub(crate) documents: Vec<Value>,
    pub(crate) config_maps: StoredConfigMaps,
}

/// What the manager remembers of the chain, as far as reading depends on it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Remembered<'m> {
    /// The chain that was written last.
    pub(crate) last: Option<&'m Chain>,
    /// Digest of the chain that the pass before found in the ConfigMap.
    pub(crate) digest: Option<Digest>,
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

    pub(crate) fn cached(&self, namespace: &str) -> Cached {
        Cached {
            documents: self.caches.documents(namespace),
            config_maps: StoredConfigMaps::read(&self.caches, namespace, &self.keys),
        }
    }

    /// Completes what the caches hold. Sidecars are polled in the background; this takes their last reports.
    ///
    /// # Errors
    /// The chain's ConfigMap is in no cache and can't be read.
    pub(crate) async fn observe(
        &self,
        namespace: &str,
        cached: Cached,
        remembered: Remembered<'_>,
    ) -> Result<Observation, Error> {
        let mut config_maps = cached.config_maps;
        // A ConfigMap that has lost its label, or was never ours, is not in the cache.
        if config_maps.version.is_none()
            && let Some(map) = config_maps::get_chain(&self.context.client, namespace).await?
        {
            config_maps.read_chain(&map, namespace, &self.keys);
        }
        if let Some(last) = remembered.last {
            config_maps.ignore_older_than(last);
        }
        let resources = CustomResources::parse(cached.documents, self.caches.unsynced_kinds());
        let fleet = self.fleet(namespace, &config_maps, remembered);
        let last = config_maps.chain.as_ref().or(remembered.last);
        let running: BTreeSet<Digest> = last
            .iter()
            .flat_map(|chain| &chain.entries)
            .map(|entry| entry.plugin)
            .collect();
        let found = Found::of(namespace, &resources.sharding_configs, &running, |ask| {
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
            plugins: AvailablePlugins::new(Arc::clone(&self.builtin), found),
            settings: Settings {
                settle: Duration::from_millis(args.settle_ms),
                label_keys: args.label_keys(),
            },
        })
    }

    fn fleet(&self, namespace: &str, config_maps: &StoredConfigMaps, remembered: Remembered<'_>) -> Fleet {
        let pods = self.caches.pods(namespace);
        let sidecars: Vec<Sidecar> = pods.iter().filter_map(|pod| Sidecar::of(pod)).collect();
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
            Err(_) => Some(format!("no answer within {} s", LIST_TIMEOUT.as_secs())),
        };
        if let Some(problem) = &problem {
            tracing::warn!(
                %namespace,
                error = problem,
                "failed to list pods; shards that have not started keep waiting"
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

/// Whether a pod was injected with a sidecar of ours that we watch. The label alone proves nothing: KusionStack's pods have it,
/// too, and there people write it into templates.
fn has_sidecar(pod: &impl ResourceExt) -> bool {
    let is_watched = pod.labels().get(labels::WATCHING).is_some_and(|value| value == "true");
    is_watched && pod.annotations().contains_key(annotations::INJECTED)
}

/// Pods of a namespace without a sidecar. Empty when no shard could have to wait for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct UninjectedPods {
    /// Labels by pod name.
    pub(crate) pods: BTreeMap<String, BTreeMap<String, String>>,
    /// Why they are not known.
    pub(crate) unknown: Option<String>,
    /// When they were listed, or could not be. `None`: this pass did not try.
    pub(crate) listed: Option<Instant>,
}

impl UninjectedPods {
    pub(crate) const fn unknown(problem: String) -> Self {
        Self {
            pods: BTreeMap::new(),
            unknown: Some(problem),
            listed: None,
        }
    }
}

/// Custom resources of a namespace. They are parsed one by one: an object that was stored under an older schema does not hide
/// the others.
#[derive(Debug, Default)]
pub(crate) struct CustomResources {
    pub(crate) sharding_configs: Vec<ShardingConfig>,
    pub(crate) circuit_breakers: Vec<CircuitBreaker>,
    pub(crate) fault_injections: Vec<FaultInjection>,
    /// Objects that can't be parsed, and why.
    pub(crate) unreadable: Vec<(Value, Mistakes)>,
    /// UIDs of shards whose root has not written all its shards yet.
    pub(crate) held: BTreeSet<String>,
    /// All objects as they are stored.
    pub(crate) documents: Vec<Value>,
    /// Kinds that can't be watched. There may be objects of them.
    pub(crate) unsynced_kinds: Vec<&'static str>,
}

impl CustomResources {
    pub(crate) fn parse(documents: Vec<Value>, unsynced_kinds: Vec<&'static str>) -> Self {
        let mut all = Self {
            held: shards::held_back(&documents),
            unsynced_kinds,
            ..Self::default()
        };
        for document in &documents {
            match validate::read(document) {
                Ok(Object::ShardingConfig(object)) => all.sharding_configs.push(*object),
                Ok(Object::CircuitBreaker(object)) => all.circuit_breakers.push(*object),
                Ok(Object::FaultInjection(object)) => all.fault_injections.push(*object),
                Ok(Object::ManagerState(_)) => {}
                Err(mistakes) => all.unreadable.push((document.clone(), mistakes)),
            }
        }
        all.documents = documents;
        all
    }
}

/// Identity of a stored document, whether or not the rest of it can be parsed.
pub(crate) fn origin_of(document: &Value) -> Origin {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    Origin {
        kind: text("/kind").to_owned(),
        name: text("/metadata/name").to_owned(),
        uid: text("/metadata/uid").to_owned(),
        generation: document
            .pointer("/metadata/generation")
            .and_then(Value::as_u64)
            .unwrap_or_default(),
    }
}

pub(crate) fn is_deleted(document: &Value) -> bool {
    document.pointer("/metadata/deletionTimestamp").is_some()
}

/// Whether a document is a ShardingConfig that is a shard itself, not a root that makes shards.
pub(crate) fn is_shard(document: &Value) -> bool {
    document["kind"] == "ShardingConfig" && document.pointer("/spec/root").is_none_or(Value::is_null)
}

/// Name of a shard's entry in the chain.
pub(crate) fn entry_name_of(config: &ShardingConfig) -> String {
    hand_over::entry_of_shard(&config.name_any())
}

/// A plugin as sidecars get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedPlugin {
    /// Digest of the component before it was packed.
    pub(crate) digest: Digest,
    /// One zstd stream.
    pub(crate) bytes: Bytes,
    /// Version of the plugin interface that it needs.
    pub(crate) interface: Option<Interface>,
}

impl PackedPlugin {
    #[must_use]
    pub(crate) fn new(component: &[u8]) -> Self {
        Self {
            digest: Digest::of(component),
            bytes: pack(component).into(),
            interface: interface(component),
        }
    }
}

/// The plugins that the manager's binary contains, packed once at the start.
#[must_use]
pub(crate) fn builtin_plugins() -> BTreeMap<BuiltIn, PackedPlugin> {
    let plugins = ctrlmesh_plugins_builtin::builtin().iter();
    plugins
        .filter_map(|plugin| Some((BuiltIn::of(plugin.name)?, PackedPlugin::new(plugin.bytes))))
        .collect()
}

/// Version of the plugin interface that each plugin needs.
pub(crate) type Interfaces = BTreeMap<Digest, Interface>;

/// Built-in plugins, and what the plugin references of objects resolve to.
#[derive(Clone, Debug, Default)]
pub(crate) struct AvailablePlugins {
    builtin: Arc<BTreeMap<BuiltIn, PackedPlugin>>,
    pub(crate) found: Found,
}

impl AvailablePlugins {
    pub(crate) const fn new(builtin: Arc<BTreeMap<BuiltIn, PackedPlugin>>, found: Found) -> Self {
        Self { builtin, found }
    }

    /// Every plugin whose bytes the manager has.
    pub(crate) fn packed(&self) -> BTreeMap<Digest, PackedPlugin> {
        let own = self.found.artifacts().map(|artifact| PackedPlugin {
            digest: artifact.digest,
            bytes: artifact.packed.clone(),
            interface: Some(artifact.interface),
        });
        let all = self.builtin.values().cloned().chain(own);
        all.map(|packed| (packed.digest, packed)).collect()
    }

    /// Plugins that are not among these run already, and need nothing new.
    pub(crate) fn interfaces(&self) -> Interfaces {
        let packed = self.packed().into_values();
        packed
            .filter_map(|packed| Some((packed.digest, packed.interface?)))
            .collect()
    }

    pub(crate) fn resolved(&self) -> Resolved {
        let builtin = self.builtin.iter();
        Resolved {
            built_in: builtin.map(|(plugin, packed)| (*plugin, packed.digest)).collect(),
            own: self.found.digests(),
        }
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
