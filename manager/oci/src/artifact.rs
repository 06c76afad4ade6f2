//! A component that was fetched, checked and packed.

use bytes::Bytes;
use ctrlmesh_contract::Digest;
use ctrlmesh_contract::world::Interface;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// A verified plugin as the manager distributes it.
#[derive(Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Reference with digest: `oci://host/repository@sha256:...`.
    pub reference: String,
    /// Digest of the manifest, `sha256:...`.
    pub manifest: String,
    /// Digest of the component, by which chains refer to it.
    pub digest: Digest,
    /// The component, packed as [`pack`] does.
    pub packed: Bytes,
    /// Size of the unpacked component in bytes.
    pub size: usize,
    /// The version of the plugin interface that the component needs.
    pub interface: Interface,
}

impl std::fmt::Debug for Artifact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Artifact")
            .field("reference", &self.reference)
            .field("digest", &self.digest)
            .field("size", &self.size)
            .field("packed", &self.packed.len())
            .finish()
    }
}

/// Packs bytes into one zstd frame, the format of files `<sha256>.wasm.zst`. Equal bytes give an equal result, so that an unchanged
/// plugin is not written again.
#[must_use]
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use ctrlmesh_contract::plugin_file::MAX_PLUGIN_BYTES;
    use ctrlmesh_plugins_builtin::SHARD_SELECTOR;
    use ruzstd::decoding::StreamingDecoder;

    use super::*;

    #[test]
    fn packed_plugin_is_smaller_and_unpacks_to_same_bytes() {
        let packed = pack(SHARD_SELECTOR);
        assert!(
            packed.len() < SHARD_SELECTOR.len() * 3 / 4,
            "{} of {}",
            packed.len(),
            SHARD_SELECTOR.len()
        );
        assert_eq!(packed, pack(SHARD_SELECTOR));
        let mut decoder = StreamingDecoder::new_with_max_window_size(&packed[..], MAX_PLUGIN_BYTES as u64).unwrap();
        let mut bytes = Vec::new();
        decoder.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, SHARD_SELECTOR);
    }
}
