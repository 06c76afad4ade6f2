//! Plugins resolved to the digests of their components.

use std::collections::BTreeMap;

use ctrlmesh_contract::{Digest, Mistakes};
use ctrlmesh_manager_api::{PluginRef, ShardingConfig};

use crate::built_in::BuiltIn;

/// Digests of components.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Digests of the built-in plugins.
    pub built_in: BTreeMap<BuiltIn, Digest>,
    /// Digests of the user's plugins, by ShardingConfig and by name in `spec.plugins`; or why there is none.
    pub own: BTreeMap<(String, String), Result<Digest, String>>,
}

impl Resolved {
    /// Adds a mistake for each plugin of an object that is not resolved.
    pub(super) fn check(&self, config: &ShardingConfig, mistakes: &mut Mistakes) {
        for (index, plugin) in config.spec.plugins.iter().enumerate() {
            if BuiltIn::named_by(plugin).is_some() {
                continue;
            }
            if let Err(problem) = self.own_digest(config, plugin) {
                mistakes.add(format!("spec.plugins[{index}].image"), problem);
            }
        }
    }

    pub(super) fn own_digest(&self, config: &ShardingConfig, plugin: &PluginRef) -> Result<Digest, String> {
        let key = (config.metadata.name.clone().unwrap_or_default(), plugin.name.clone());
        match self.own.get(&key) {
            Some(resolved) => resolved.clone(),
            None => Err("is not fetched yet; wait".to_owned()),
        }
    }

    pub(super) fn built_in(&self, plugin: BuiltIn) -> Result<Digest, Mistakes> {
        self.built_in.get(&plugin).copied().ok_or_else(|| {
            let mut mistakes = Mistakes::default();
            let name = plugin.name();
            mistakes.add(
                "spec",
                format!("needs the built-in plugin {name}, which this manager does not carry"),
            );
            mistakes
        })
    }
}
