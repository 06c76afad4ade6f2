//! The built-in plugins as the manager carries them: packed once, at the start.

use std::collections::BTreeMap;

use bytes::Bytes;
use ctrlmesh_contract::Digest;
use ctrlmesh_contract::world::Interface;

use crate::built_in::BuiltIn;
use crate::oci::{interface, pack};

/// A plugin as sidecars get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackedPlugin {
    /// Of the bytes before they were packed.
    pub(super) digest: Digest,
    /// One zstd stream.
    pub(super) bytes: Bytes,
    /// The version of the plugin interface that it needs.
    pub(super) interface: Option<Interface>,
}

impl PackedPlugin {
    /// Packs a component.
    #[must_use]
    pub(super) fn new(component: &[u8]) -> Self {
        Self {
            digest: Digest::of(component),
            bytes: pack(component).into(),
            interface: interface(component),
        }
    }
}

/// All of them.
#[must_use]
pub(super) fn builtin_plugins() -> BTreeMap<BuiltIn, PackedPlugin> {
    let plugins = ctrlmesh_plugins_builtin::builtin().iter();
    plugins
        .filter_map(|plugin| Some((BuiltIn::of(plugin.name)?, PackedPlugin::new(plugin.bytes))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_plugin_is_carried() {
        let plugins = builtin_plugins();
        assert_eq!(plugins.keys().copied().collect::<Vec<_>>(), BuiltIn::ALL);
        assert!(plugins.values().all(|packed| packed.interface.is_some()));
        let sum: usize = plugins.values().map(|packed| packed.bytes.len()).sum();
        assert!(sum < 960 * 1024, "they no longer fit into one ConfigMap: {sum} bytes");
    }
}
