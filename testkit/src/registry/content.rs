//! The content of a registry: blobs by repository and digest, manifests by repository and tag or digest.

use std::collections::HashMap;

use aws_lc_rs::digest::SHA256;
use bytes::Bytes;
use serde_json::{Value, json};

/// Media type of the configuration of a component (CNCF TAG-Runtime, Wasm OCI Artifact layout).
pub const WASM_CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
/// Media type of a component's layer (the same).
pub const WASM_LAYER_TYPE: &str = "application/wasm";
/// Media type of the payload that cosign signs (`pkg/types/media.go`).
pub const SIGNATURE_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Annotation with the signature over a payload (cosign, `pkg/oci/static`).
pub const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// The digest of these bytes, with `sha256:`.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&SHA256, bytes);
    let hex: Vec<String> = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", hex.concat())
}

/// The payload that cosign signs for a manifest: a simple signing document (containers/image,
/// `docs/containers-signature.5.md`).
#[must_use]
pub fn signature_payload(reference: &str, manifest: &str) -> Vec<u8> {
    let document = json!({
        "critical": {
            "identity": { "docker-reference": reference },
            "image": { "docker-manifest-digest": manifest },
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    document.to_string().into_bytes()
}

type Key = (String, String);

#[derive(Debug, Default)]
pub(super) struct Content {
    blobs: HashMap<Key, Bytes>,
    manifests: HashMap<Key, (String, Bytes)>,
    tags: HashMap<Key, String>,
}

impl Content {
    pub(super) fn put_blob(&mut self, repository: &str, bytes: &[u8]) -> String {
        let digest = digest(bytes);
        let key = (repository.to_owned(), digest.clone());
        self.blobs.insert(key, Bytes::copy_from_slice(bytes));
        digest
    }

    pub(super) fn put_manifest(&mut self, repository: &str, tag: &str, manifest: &Value) -> String {
        let bytes = manifest.to_string().into_bytes();
        let media_type = manifest
            .get("mediaType")
            .and_then(Value::as_str)
            .unwrap_or(MANIFEST_TYPE);
        let digest = digest(&bytes);
        let key = (repository.to_owned(), digest.clone());
        self.manifests.insert(key, (media_type.to_owned(), bytes.into()));
        if !tag.is_empty() {
            self.tags
                .insert((repository.to_owned(), tag.to_owned()), digest.clone());
        }
        digest
    }

    pub(super) fn put_component(&mut self, repository: &str, tag: &str, wasm: &[u8]) -> String {
        let layer = self.put_blob(repository, wasm);
        let config = json!({
            "created": "2026-01-01T00:00:00Z",
            "architecture": "wasm",
            "os": "wasip2",
            "layerDigests": [layer],
        });
        let config = config.to_string().into_bytes();
        let config_digest = self.put_blob(repository, &config);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": { "mediaType": WASM_CONFIG_TYPE, "digest": config_digest, "size": config.len() },
            "layers": [{ "mediaType": WASM_LAYER_TYPE, "digest": layer, "size": wasm.len() }],
        });
        self.put_manifest(repository, tag, &manifest)
    }

    pub(super) fn put_signature(&mut self, repository: &str, manifest: &str, payload: &[u8], signature: &str) {
        let layer = self.put_blob(repository, payload);
        let config = self.put_blob(repository, b"{}");
        let signed = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 2 },
            "layers": [{
                "mediaType": SIGNATURE_TYPE,
                "digest": layer,
                "size": payload.len(),
                "annotations": { SIGNATURE_ANNOTATION: signature },
            }],
        });
        let tag = format!("{}.sig", manifest.replace(':', "-"));
        self.put_manifest(repository, &tag, &signed);
    }

    /// Media type and bytes, by digest or tag.
    pub(super) fn find_manifest(&self, repository: &str, reference: &str) -> Option<(String, Bytes)> {
        let tag = (repository.to_owned(), reference.to_owned());
        let digest = self.tags.get(&tag).map_or(reference, String::as_str);
        self.manifests.get(&(repository.to_owned(), digest.to_owned())).cloned()
    }

    pub(super) fn find_blob(&self, repository: &str, digest: &str) -> Option<Bytes> {
        self.blobs.get(&(repository.to_owned(), digest.to_owned())).cloned()
    }
}
