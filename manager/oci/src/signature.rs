//! Signatures as `cosign sign --key` makes them: they are layers of another image with the tag `sha256-<digest>.sig`. Each layer is
//! a signed text that names the digest of the signed manifest.
//!
//! Keyless signing (certificates, transparency log) is not supported: an object that names a key trusts that key only.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ctrlmesh_manager_api::VerificationKey;
use oci_client::manifest::OciImageManifest;
use serde::Deserialize;

use super::failure::{Failure, FailureReason};
use super::layout::{Blob, check_blob};

/// Media type of a signed text (cosign, `pkg/types/media.go`).
const TEXT: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Annotation of a layer with its signature in base64 (cosign, `pkg/oci/static/options.go`).
const ANNOTATION: &str = "dev.cosignproject.cosign/signature";
/// `critical.type` of a signed text.
const KIND: &str = "cosign container image signature";

/// Maximum size of a signed text; cosign's have 250 bytes.
const MAX_TEXT_BYTES: usize = 64 * 1024;
/// Maximum number of signatures of an image that are checked; each needs a request.
const MAX_SIGNATURES: usize = 16;

/// The tag with the signatures of a manifest.
pub(super) fn signature_tag(manifest: &str) -> String {
    format!("{}.sig", manifest.replace(':', "-"))
}

/// A reference to a signed text, and its signature.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) text: Blob,
    signature: Vec<u8>,
}

/// The first signatures of an image, `MAX_SIGNATURES` at most.
pub(super) fn signed_layers(signatures: &OciImageManifest) -> Vec<Signed> {
    let layers = signatures.layers.iter().filter(|layer| layer.media_type == TEXT);
    let read = layers.filter_map(|layer| {
        let signature = layer.annotations.as_ref()?.get(ANNOTATION)?;
        Some(Signed {
            text: check_blob(layer, MAX_TEXT_BYTES, "a signed text").ok()?,
            signature: STANDARD.decode(signature.trim()).ok()?,
        })
    });
    read.take(MAX_SIGNATURES).collect()
}

impl Signed {
    /// Whether the key has signed this text, and the text names this manifest.
    pub(super) fn is_of(&self, manifest: &str, text: &[u8], key: &VerificationKey) -> bool {
        // Texts are not parsed until the signature is verified.
        if !key.has_signed(text, &self.signature) {
            return false;
        }
        serde_json::from_slice::<Text>(text)
            .is_ok_and(|text| text.critical.image.digest == manifest && text.critical.kind == KIND)
    }
}

/// A signed text (containers/image, `docs/containers-signature.5.md`).
#[derive(Deserialize)]
struct Text {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: SignedImage,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct SignedImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

/// The failure of an image without a valid signature.
pub(super) fn missing_signature(manifest: &str, looked_at: usize) -> Failure {
    let message = match looked_at {
        0 => format!(
            "there is no signature of {manifest} (tag {}); sign it with `cosign sign --key` (cosign 3: with --new-bundle-format=false --use-signing-config=false), or remove verificationKey",
            signature_tag(manifest)
        ),
        n => format!(
            "{manifest} has {n} signatures, and none is by spec.plugins[].verificationKey for this manifest; sign it with that \
             key, or correct the key"
        ),
    };
    Failure::new(FailureReason::SignatureInvalid, message)
}

#[cfg(test)]
mod tests;
