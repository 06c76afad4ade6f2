//! The layout of a component in a registry (CNCF TAG-Runtime, "Wasm OCI Artifact"; `wkg oci push` writes it): a manifest with a
//! configuration and one layer, which is the component itself.
//!
//! The names are repeated here, because the crate oci-wasm would bring a second parser of components for them.

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::error::quote;
use ctrlmesh_contract::plugin_file::MAX_PLUGIN_BYTES;
use oci_client::manifest::{OciDescriptor, OciImageManifest};
use serde_json::Value;

use super::failure::{Failure, FailureReason};

/// Media type of the configuration.
const CONFIG: &str = "application/vnd.wasm.config.v0+json";
/// Media type of the layer.
const LAYER: &str = "application/wasm";
/// `Accept` of manifest requests. Indexes and Docker's types are included so that errors can name what was found.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

/// Maximum size of a manifest: the size above which the distribution specification lets registries refuse one. Ours have 600 bytes.
pub(super) const MAX_MANIFEST_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size of a configuration, which is a list of imports and exports.
pub(super) const MAX_CONFIG_BYTES: usize = 256 * 1024;

/// A descriptor's digest and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) digest: Digest,
    pub(super) size: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) config: Blob,
    pub(super) layer: Blob,
}

/// Reads an image manifest.
pub(super) fn parse_manifest(bytes: &[u8]) -> Result<OciImageManifest, Failure> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| invalid_layout(&format!("its manifest is not JSON: {error}")))?;
    if value.get("manifests").is_some() {
        return Err(invalid_layout(
            "it is an index of several images; name one of them by its digest",
        ));
    }
    serde_json::from_value(value).map_err(|error| invalid_layout(&format!("its manifest is not valid: {error}")))
}

impl Layout {
    /// Reads the layout of a component. Fails with what is different.
    pub(super) fn from_manifest(manifest: &OciImageManifest) -> Result<Self, Failure> {
        if manifest.config.media_type != CONFIG {
            let other = quote(&manifest.config.media_type);
            return Err(invalid_layout(&format!("its configuration is {other}, not {CONFIG}")));
        }
        let [layer] = &manifest.layers[..] else {
            return Err(invalid_layout(&format!(
                "it has {} layers, not one",
                manifest.layers.len()
            )));
        };
        if layer.media_type != LAYER {
            return Err(invalid_layout(&format!(
                "its layer is {}, not {LAYER}",
                quote(&layer.media_type)
            )));
        }
        Ok(Self {
            config: check_blob(&manifest.config, MAX_CONFIG_BYTES, "the configuration")?,
            layer: check_blob(layer, MAX_PLUGIN_BYTES, "the component")?,
        })
    }
}

/// Reads a descriptor. Fails if the size is above `limit`.
pub(super) fn check_blob(descriptor: &OciDescriptor, limit: usize, what: &str) -> Result<Blob, Failure> {
    let digest = descriptor.digest.parse().map_err(|_| {
        let digest = quote(&descriptor.digest);
        invalid_layout(&format!("the digest of {what} is {digest}, and only sha256 is read"))
    })?;
    match usize::try_from(descriptor.size) {
        Ok(size) if size <= limit => Ok(Blob { digest, size }),
        _ => {
            let message = format!(
                "{what} has {} bytes, at most {limit} are allowed; build it for size (opt-level \"s\", LTO, stripped)",
                descriptor.size
            );
            Err(Failure::new(FailureReason::TooLarge, message))
        }
    }
}

fn invalid_layout(problem: &str) -> Failure {
    let message = format!("this is not a WebAssembly component in a registry: {problem}; push it with `wkg oci push`");
    Failure::new(FailureReason::InvalidArtifact, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn valid_manifest() -> Value {
        let digest = Digest::of(b"a").to_string();
        json!({
            "schemaVersion": 2,
            "config": {"mediaType": CONFIG, "digest": digest, "size": 3},
            "layers": [{"mediaType": LAYER, "digest": digest, "size": 1}],
        })
    }

    fn read(value: &Value) -> Result<Layout, Failure> {
        Layout::from_manifest(&parse_manifest(value.to_string().as_bytes())?)
    }

    #[test]
    fn component_layout_is_read() {
        let layout = read(&valid_manifest()).unwrap();
        let digest = Digest::of(b"a");
        assert_eq!(layout.layer, Blob { digest, size: 1 });
        assert_eq!(layout.config, Blob { digest, size: 3 });
    }

    #[test]
    fn foreign_layout_is_named_in_error() {
        let other = |pointer: &str, value: Value| {
            let mut manifest = valid_manifest();
            *manifest.pointer_mut(pointer).unwrap() = value;
            let failure = read(&manifest).unwrap_err();
            assert_eq!(failure.reason, FailureReason::InvalidArtifact);
            failure.message
        };
        let image = other("/config/mediaType", json!("application/vnd.oci.image.config.v1+json"));
        assert!(image.contains("configuration is \"application/vnd.oci.image") && image.contains("wkg oci push"));
        assert!(other("/layers", json!([])).contains("0 layers"));
        assert!(other("/layers/0/mediaType", json!("application/tar")).contains("layer is \"application/tar\""));
        assert!(other("/layers/0/digest", json!("sha512:00")).contains("only sha256"));
        assert!(other("/config", json!(1)).contains("manifest is not valid"));
        let index = read(&json!({"schemaVersion": 2, "manifests": []})).unwrap_err();
        assert!(index.message.contains("index of several images"));
        assert!(parse_manifest(b"<html>").unwrap_err().message.contains("not JSON"));
    }

    #[test]
    fn too_large_layer_is_refused_before_it_is_fetched() {
        for size in [json!(MAX_PLUGIN_BYTES + 1), json!(-1)] {
            let mut manifest = valid_manifest();
            manifest["layers"][0]["size"] = size;
            assert_eq!(read(&manifest).unwrap_err().reason, FailureReason::TooLarge);
        }
        let mut largest = valid_manifest();
        largest["layers"][0]["size"] = json!(MAX_PLUGIN_BYTES);
        assert!(read(&largest).is_ok());
    }
}
