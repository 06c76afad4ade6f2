//! The plugins that chains may use: the built-in ones, and those that objects name.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ctrlmesh_contract::Digest;
use ctrlmesh_contract::world::Interface;
use ctrlmesh_manager_api::plugin::PluginStatus;
use ctrlmesh_manager_planner::Resolved;
use ctrlmesh_manager_planner::built_in::BuiltIn;

/// A plugin as sidecars get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedPlugin {
    /// Digest of the component before it was packed.
    pub digest: Digest,
    /// One zstd stream.
    pub bytes: Bytes,
    /// Version of the plugin interface that it needs.
    pub interface: Option<Interface>,
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
