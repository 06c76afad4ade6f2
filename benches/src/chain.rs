//! The folder of a sidecar: kubeconfig, chain document, plugins, compile cache.

use std::path::PathBuf;

use ctrlmesh_contract::{Digest, names};

use crate::builtins::{
    Builtin, CIRCUIT_BREAKER, FAULT_INJECT, FAULT_INJECT_BY_NAME, FAULT_INJECT_THAT_DRAWS, RATE_LIMIT,
};
use crate::origin::OriginPort;

#[derive(Debug)]
pub(crate) struct SidecarFolder {
    path: PathBuf,
    upstream_http: &'static str,
}

/// Virtual ranges of hashes that a shard has, of 1,024: about a tenth.
pub(crate) const KEPT_RANGES: u64 = 102;

/// The entries of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chain {
    Empty,
    /// shard-selector, for config maps and pods.
    Sharded,
    /// shard-selector that keeps those of them whose UIDs have a hash in the first [`KEPT_RANGES`].
    UidRanges,
    /// The same with the UIDs of their controllers.
    OwnerRanges,
    Limited,
    Guarded,
    Faulty,
    /// fault-inject with a rule that draws.
    FaultyByDraw,
    /// fault-inject with a rule that reads the name of the object.
    FaultyByName,
    /// All four built-in plugins. A rule of each one matches, and none draws.
    Full,
}

impl Chain {
    /// The plugins besides shard-selector.
    const fn builtins(self) -> &'static [Builtin] {
        match self {
            Self::Empty | Self::Sharded | Self::UidRanges | Self::OwnerRanges => &[],
            Self::Limited => &[RATE_LIMIT],
            Self::Guarded => &[CIRCUIT_BREAKER],
            Self::Faulty => &[FAULT_INJECT],
            Self::FaultyByDraw => &[FAULT_INJECT_THAT_DRAWS],
            Self::FaultyByName => &[FAULT_INJECT_BY_NAME],
            Self::Full => &[RATE_LIMIT, CIRCUIT_BREAKER, FAULT_INJECT],
        }
    }

    const fn has_shard_selector(self) -> bool {
        matches!(self, Self::Sharded | Self::UidRanges | Self::OwnerRanges | Self::Full)
    }

    /// The limit of shard-selector.
    fn limit(self) -> serde_json::Value {
        let resources = serde_json::json!([{ "apiGroups": [""], "resources": ["configmaps", "pods"] }]);
        let key = match self {
            Self::UidRanges => "uid",
            Self::OwnerRanges => "owner",
            _ => {
                let selector = serde_json::json!({ "matchLabels": { "shard": "a" } });
                return serde_json::json!({ "relateResources": resources, "selector": selector });
            }
        };
        let ranges = format!("0-{}", KEPT_RANGES - 1);
        serde_json::json!({ "relateResources": resources, "hashRanges": { "key": key, "ranges": [ranges] } })
    }

    /// The number of its entries.
    pub(crate) fn entries(self) -> u64 {
        u64::from(self.has_shard_selector()) + self.builtins().len() as u64
    }
}

impl SidecarFolder {
    /// Creates a folder with the first chain in it.
    pub(crate) fn create(path: PathBuf, origin: &OriginPort, chain: Chain) -> anyhow::Result<Self> {
        let folder = Self {
            path,
            upstream_http: origin.best_http(),
        };
        std::fs::create_dir_all(folder.chain_directory())?;
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": cluster(origin) }],
            "users": [{ "name": "c", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        std::fs::write(folder.kubeconfig_path(), serde_json::to_vec(&kubeconfig)?)?;
        folder.write_chain(1, chain, ctrlmesh_plugins_builtin::SHARD_SELECTOR)?;
        Ok(folder)
    }

    /// Replaces the chain, with this build of shard-selector.
    pub(crate) fn write_chain(&self, generation: u64, chain: Chain, plugin: &[u8]) -> anyhow::Result<()> {
        let digest = Digest::of(plugin);
        let entry = serde_json::json!({
            "name": "shard-selector/a", "plugin": format!("sha256:{}", digest.hex()), "podSelector": {}, "order": 100,
            "onFailure": "Closed",
            "settings": { "shard": "a", "limits": [chain.limit()] },
        });
        let mut entries = Vec::new();
        if chain.has_shard_selector() {
            entries.push(entry);
        }
        for builtin in chain.builtins() {
            entries.push(builtin.chain_entry()?);
            self.write_plugin(builtin.plugin)?;
        }
        let document = serde_json::json!({
            "apiVersion": names::CHAIN_API_VERSION, "namespace": "bench", "generation": generation, "entries": entries,
        });
        self.write_plugin(plugin)?;
        // Renamed into place, so that no reader sees half of it.
        let fresh = self.path.join("chain.fresh");
        std::fs::write(&fresh, serde_json::to_vec(&document)?)?;
        std::fs::rename(fresh, self.chain_directory().join("chain.yaml"))?;
        Ok(())
    }

    fn write_plugin(&self, plugin: &[u8]) -> std::io::Result<()> {
        std::fs::write(
            self.chain_directory()
                .join(format!("{}.wasm", Digest::of(plugin).hex())),
            plugin,
        )
    }

    pub(crate) const fn upstream_http(&self) -> &'static str {
        self.upstream_http
    }

    pub(crate) fn kubeconfig_path(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    pub(crate) fn chain_directory(&self) -> PathBuf {
        self.path.join("chain")
    }

    pub(crate) fn cache_directory(&self) -> PathBuf {
        self.path.join("cache")
    }
}

/// The origin in a kubeconfig.
fn cluster(origin: &OriginPort) -> serde_json::Value {
    let address = origin.address;
    match &origin.ca {
        None => serde_json::json!({ "server": format!("http://{address}") }),
        Some(ca) => serde_json::json!({ "server": format!("https://{address}"), "certificate-authority": ca }),
    }
}

/// The same plugin with other bytes: a custom section at its end changes its digest, so that it is compiled again.
pub(crate) fn with_custom_section(plugin: &[u8], number: u8) -> Vec<u8> {
    // Component binary format: section 0 is custom; its length, the length of its name, the name, any bytes.
    const NAME: &[u8] = b"bench";
    let mut bytes = plugin.to_vec();
    bytes.extend([0, 7, 5]);
    bytes.extend(NAME);
    bytes.push(number);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(ca: Option<PathBuf>) -> OriginPort {
        OriginPort {
            address: std::net::SocketAddr::from(([127, 0, 0, 1], 1)),
            ca,
        }
    }

    #[test]
    fn kubeconfig_trusts_origin_with_tls() {
        assert_eq!(
            cluster(&origin(None)),
            serde_json::json!({ "server": "http://127.0.0.1:1" })
        );
        let expected = serde_json::json!({ "server": "https://127.0.0.1:1", "certificate-authority": "/ca" });
        assert_eq!(cluster(&origin(Some("/ca".into()))), expected);
    }

    #[test]
    fn custom_section_changes_the_digest_and_has_its_declared_length() {
        let (first, second) = (with_custom_section(b"wasm", 1), with_custom_section(b"wasm", 2));
        assert_ne!(Digest::of(&first), Digest::of(&second));
        let section = first.strip_prefix(b"wasm").unwrap();
        assert_eq!(usize::from(section[1]), section.len() - 2);
        assert_eq!(usize::from(section[2]), section.len() - 4);
    }

    #[test]
    fn new_document_replaces_the_old_one() {
        let files = tempfile::tempdir().unwrap();
        let folder = SidecarFolder::create(files.path().join("a"), &origin(None), Chain::Empty).unwrap();
        folder.write_chain(2, Chain::Sharded, b"wasm").unwrap();
        let document = std::fs::read(folder.chain_directory().join("chain.yaml")).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        assert_eq!(document["generation"], 2);
        let plugin = document["entries"][0]["plugin"].as_str().unwrap();
        assert_eq!(plugin, format!("sha256:{}", Digest::of(b"wasm").hex()));
    }

    #[test]
    fn entries_of_each_chain_are_counted() {
        let files = tempfile::tempdir().unwrap();
        let folder = SidecarFolder::create(files.path().join("a"), &origin(None), Chain::Empty).unwrap();
        for (chain, entries) in [
            (Chain::Empty, 0),
            (Chain::Sharded, 1),
            (Chain::UidRanges, 1),
            (Chain::OwnerRanges, 1),
            (Chain::FaultyByName, 1),
            (Chain::Full, 4),
        ] {
            folder.write_chain(2, chain, b"wasm").unwrap();
            let document = std::fs::read(folder.chain_directory().join("chain.yaml")).unwrap();
            let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
            assert_eq!(document["entries"].as_array().unwrap().len(), entries, "{chain:?}");
            assert_eq!(chain.entries(), entries as u64, "{chain:?}");
        }
    }

    #[test]
    fn shard_is_limited_by_label_or_by_hash_ranges() {
        assert_eq!(Chain::Full.limit()["selector"]["matchLabels"]["shard"], "a");
        assert_eq!(Chain::Full.limit()["hashRanges"], serde_json::Value::Null);
        for (chain, key) in [(Chain::UidRanges, "uid"), (Chain::OwnerRanges, "owner")] {
            let limit = chain.limit();
            let expected = serde_json::json!({ "key": key, "ranges": ["0-101"] });
            assert_eq!(limit["hashRanges"], expected);
            assert_eq!(limit["relateResources"], Chain::Full.limit()["relateResources"]);
            assert_eq!(limit["selector"], serde_json::Value::Null);
        }
    }

    #[test]
    fn full_chain_has_four_valid_entries_with_their_files() {
        let files = tempfile::tempdir().unwrap();
        let folder = SidecarFolder::create(files.path().join("a"), &origin(None), Chain::Full).unwrap();
        let document = std::fs::read(folder.chain_directory().join("chain.yaml")).unwrap();
        let chain = ctrlmesh_contract::chain::Chain::parse(&document).unwrap();
        assert_eq!(chain.entries.len(), 4);
        for entry in chain.entries {
            let file = folder.chain_directory().join(format!("{}.wasm", entry.plugin.hex()));
            assert_eq!(
                Digest::of(&std::fs::read(file).unwrap()),
                entry.plugin,
                "{}",
                entry.name
            );
        }
    }
}
