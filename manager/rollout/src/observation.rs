//! Everything that a pass decides on, as one plain value. The manager's `observe` fills it from watch caches and sidecars.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ctrlmesh_contract::world::Interface;
use ctrlmesh_contract::{Chain, Digest, Mistakes, Origin};
use ctrlmesh_manager_api::document::text_at;
use ctrlmesh_manager_api::plugin::PluginStatus;
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ShardingConfig};
use ctrlmesh_manager_planner::auto_shard::held_back;
use ctrlmesh_manager_planner::built_in::BuiltIn;
use ctrlmesh_manager_planner::validate::Object;
use ctrlmesh_manager_planner::{LabelKeys, Resolved, hand_over, validate};
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt as _;
use serde_json::Value;

use crate::config_maps::{PackedPlugin, StoredConfigMaps};
use crate::fleet::Fleet;

/// Everything that a pass decides on, read at one time.
#[derive(Debug)]
pub struct Observation {
    pub namespace: String,
    pub now: Instant,
    /// The same moment, for messages.
    pub time: Timestamp,
    pub resources: CustomResources,
    pub config_maps: StoredConfigMaps,
    pub fleet: Fleet,
    pub plugins: AvailablePlugins,
    pub settings: Settings,
}

/// Flags of the manager that decisions depend on.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Time for which a pod must have been quiet, unless its shard says otherwise.
    pub settle: Duration,
    pub label_keys: LabelKeys,
}

/// The last chain that the manager remembers. ConfigMaps and reports are checked against it while they are read.
#[derive(Clone, Copy, Default)]
pub struct Remembered<'m> {
    /// The chain that was written last.
    pub last: Option<&'m Chain>,
    /// Digest of the chain that the pass before found in the ConfigMap.
    pub digest: Option<Digest>,
}

/// Custom resources of a namespace. They are parsed one by one: an object that was stored under an older schema does not hide
/// the others.
#[derive(Debug, Default)]
pub struct CustomResources {
    pub sharding_configs: Vec<ShardingConfig>,
    pub circuit_breakers: Vec<CircuitBreaker>,
    pub fault_injections: Vec<FaultInjection>,
    /// Objects that can't be parsed, and why.
    pub unreadable: Vec<(Value, Mistakes)>,
    /// UIDs of shards whose root has not written all its shards yet.
    pub held: BTreeSet<String>,
    /// All objects as they are stored.
    pub documents: Vec<Value>,
    /// Kinds that can't be watched. There may be objects of them.
    pub unsynced_kinds: Vec<&'static str>,
}

impl CustomResources {
    pub fn parse(documents: Vec<Value>, unsynced_kinds: Vec<&'static str>) -> Self {
        let mut all = Self {
            held: held_back(&documents),
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

    /// Entries of the ShardingConfigs that are being deleted.
    #[must_use]
    pub fn deleted_entries(&self) -> BTreeSet<String> {
        let configs = self.sharding_configs.iter();
        let deleted =
            configs.filter(|config| config.metadata.deletion_timestamp.is_some() && config.spec.root.is_none());
        let unreadable = self.unreadable.iter().map(|(document, _)| document);
        let unreadable = unreadable.filter(|document| is_deleted(document) && is_shard(document));
        let unreadable = unreadable.map(|document| hand_over::entry_of_shard(&origin_of(document).name));
        deleted.map(entry_name_of).chain(unreadable).collect()
    }
}

/// Identity of a stored document, whether or not the rest of it can be parsed.
pub fn origin_of(document: &Value) -> Origin {
    Origin {
        kind: text_at(document, "/kind").to_owned(),
        name: text_at(document, "/metadata/name").to_owned(),
        uid: text_at(document, "/metadata/uid").to_owned(),
        generation: document
            .pointer("/metadata/generation")
            .and_then(Value::as_u64)
            .unwrap_or_default(),
    }
}

pub fn is_deleted(document: &Value) -> bool {
    document.pointer("/metadata/deletionTimestamp").is_some()
}

/// Whether a document is a ShardingConfig that is a shard itself, not a root that makes shards.
pub fn is_shard(document: &Value) -> bool {
    document["kind"] == "ShardingConfig" && document.pointer("/spec/root").is_none_or(Value::is_null)
}

/// Name of a shard's entry in the chain.
pub fn entry_name_of(config: &ShardingConfig) -> String {
    hand_over::entry_of_shard(&config.name_any())
}

/// Version of the plugin interface that each plugin needs.
pub type Interfaces = BTreeMap<Digest, Interface>;

/// A plugin that a ShardingConfig names.
#[derive(Clone, Debug)]
pub struct NamedPlugin {
    /// The plugin that its reference resolves to.
    pub packed: Option<PackedPlugin>,
    /// The digest that sidecars run. The bytes are in the cluster, not in this manager.
    pub running: Option<Digest>,
    /// Reason code while the reference is not resolved to bytes.
    pub problem: Option<&'static str>,
    pub status: PluginStatus,
}

/// The plugins that the ShardingConfigs of a namespace name, by ShardingConfig.
#[derive(Clone, Debug, Default)]
pub struct NamedPlugins(pub BTreeMap<String, Vec<NamedPlugin>>);

impl NamedPlugins {
    /// Digests of components by object and plugin, or why there is none: [`Resolved::own`].
    #[must_use]
    pub fn digests(&self) -> BTreeMap<(String, String), Result<Digest, String>> {
        let all = self.0.iter().flat_map(|(object, plugins)| {
            plugins.iter().map(move |plugin| {
                let digest = plugin.packed.as_ref().map(|packed| packed.digest).or(plugin.running);
                let key = (object.clone(), plugin.status.name.clone());
                (key, digest.ok_or_else(|| plugin.status.message.clone()))
            })
        });
        all.collect()
    }

    /// The plugins whose bytes the manager has.
    pub fn packed(&self) -> impl Iterator<Item = &PackedPlugin> {
        let all = self.0.values().flatten();
        all.filter_map(|plugin| plugin.packed.as_ref())
    }

    /// Why an object is not completely resolved: the reason of its first unresolved plugin.
    #[must_use]
    pub fn problem(&self, object: &str) -> Option<&'static str> {
        self.0.get(object)?.iter().find_map(|plugin| plugin.problem)
    }

    /// `status.plugins` of an object; `None`: it names no plugin, or can't be read. It must be written, because it holds the pins.
    /// If this is `None` because an object can't be read, its old status must stay.
    #[must_use]
    pub fn status(&self, object: &str) -> Option<Vec<PluginStatus>> {
        let plugins = self.0.get(object)?;
        Some(plugins.iter().map(|plugin| plugin.status.clone()).collect())
    }
}

/// The built-in plugins, and those that objects name.
#[derive(Clone, Debug, Default)]
pub struct AvailablePlugins {
    builtin: Arc<BTreeMap<BuiltIn, PackedPlugin>>,
    pub named: NamedPlugins,
}

impl AvailablePlugins {
    #[must_use]
    pub const fn new(builtin: Arc<BTreeMap<BuiltIn, PackedPlugin>>, named: NamedPlugins) -> Self {
        Self { builtin, named }
    }

    /// Every plugin whose bytes the manager has.
    #[must_use]
    pub fn packed(&self) -> BTreeMap<Digest, PackedPlugin> {
        let all = self.builtin.values().chain(self.named.packed()).cloned();
        all.map(|packed| (packed.digest, packed)).collect()
    }

    /// Plugins that are not among these run already, and need nothing new.
    #[must_use]
    pub fn interfaces(&self) -> Interfaces {
        let packed = self.packed().into_values();
        packed
            .filter_map(|packed| Some((packed.digest, packed.interface?)))
            .collect()
    }

    #[must_use]
    pub fn resolved(&self) -> Resolved {
        let builtin = self.builtin.iter();
        Resolved {
            built_in: builtin.map(|(plugin, packed)| (*plugin, packed.digest)).collect(),
            own: self.named.digests(),
        }
    }
}
