//! The built-in plugins as the manager carries them: packed once, at the start.

use std::collections::BTreeMap;

use bytes::Bytes;
use ctrlmesh_contract::Digest;
use ctrlmesh_contract::world::Interface;
use ctrlmesh_manager_oci::{interface, pack};
use ctrlmesh_manager_planner::built_in::BuiltIn;

/// A plugin as sidecars get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    /// Of the bytes before they were packed.
    pub(super) digest: Digest,
    /// One zstd stream.
    pub(super) bytes: Bytes,
    /// The version of the plugin interface that it needs.
    pub(super) interface: Option<Interface>,
}

impl Packed {
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
pub(super) fn built_in() -> BTreeMap<BuiltIn, Packed> {
    let plugins = ctrlmesh_plugins_builtin::builtin().iter();
    plugins
        .filter_map(|plugin| Some((BuiltIn::of(plugin.name)?, Packed::new(plugin.bytes))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_plugin_is_carried() {
        let carried = built_in();
        assert_eq!(carried.keys().copied().collect::<Vec<_>>(), BuiltIn::ALL);
        assert!(carried.values().all(|packed| packed.interface.is_some()));
        let sum: usize = carried.values().map(|packed| packed.bytes.len()).sum();
        assert!(sum < 960 * 1024, "they no longer fit into one ConfigMap: {sum} bytes");
    }
}
