//! Registries that send something else than they say.

use bytes::Bytes;
use ctrlmesh_contract::Digest;
use ctrlmesh_contract::plugin_file::MAX_PLUGIN_BYTES;
use ctrlmesh_plugins_builtin::{RATE_LIMIT, SHARD_SELECTOR};
use ctrlmesh_testkit::registry::{Mishap, On, WASM_CONFIG_TYPE, WASM_LAYER_TYPE};
use serde_json::json;

use super::stand::{Stand, stand};
use crate::oci::*;

async fn mismatch(stand: &mut Stand, ask: &Ask, words: &str) {
    let (reason, message) = stand.manager.failed(ask).await;
    assert_eq!(reason, Reason::DigestMismatch, "{message}");
    assert!(message.contains(words), "{message}");
}

#[tokio::test]
async fn a_manifest_that_is_not_the_one_of_its_digest_is_refused() {
    let mut stand = stand().await;
    let manifest = stand.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    stand
        .registry
        .misbehave(On::Manifest, Mishap::Body(Bytes::from_static(b"{\"layers\":[]}")));
    let ask = stand.ask(&manifest);
    mismatch(&mut stand, &ask, "damaged or forged").await;
}

#[tokio::test]
async fn a_header_with_another_digest_than_the_manifest_has_is_refused() {
    let mut stand = stand().await;
    stand.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let other = Digest::of(b"other").to_string();
    stand.registry.misbehave(On::Manifest, Mishap::Digest(other.clone()));
    let ask = stand.ask("1.0");
    mismatch(&mut stand, &ask, &other).await;
}

#[tokio::test]
async fn a_blob_with_other_bytes_is_refused() {
    // As many bytes, and fewer; the first blob that is asked for is the configuration.
    for bytes in [vec![b' '; 149], b"{}".to_vec()] {
        let mut stand = stand().await;
        stand.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
        stand.registry.misbehave(On::Blob, Mishap::Body(bytes.into()));
        let ask = stand.ask("1.0");
        mismatch(&mut stand, &ask, "has digest sha256:").await;
    }
}

/// A component whose manifest says another size.
fn put_with_size(stand: &Stand, size: usize) {
    let config = stand.registry.put_blob("you/plugin", b"{}");
    let layer = stand.registry.put_blob("you/plugin", RATE_LIMIT);
    let manifest = json!({
        "schemaVersion": 2,
        "config": { "mediaType": WASM_CONFIG_TYPE, "digest": config, "size": 2 },
        "layers": [{ "mediaType": WASM_LAYER_TYPE, "digest": layer, "size": size }],
    });
    stand.registry.put_manifest("you/plugin", "1.0", &manifest);
}

#[tokio::test]
async fn a_blob_of_another_size_is_refused() {
    for (size, words) in [
        (RATE_LIMIT.len() - 1, "sends more than"),
        (RATE_LIMIT.len() + 1, "its manifest says"),
    ] {
        let mut stand = stand().await;
        put_with_size(&stand, size);
        let ask = stand.ask("1.0");
        mismatch(&mut stand, &ask, words).await;
    }
}

#[tokio::test]
async fn a_body_without_end_is_cut_off() {
    for on in [On::Manifest, On::Blob] {
        let mut stand = stand().await;
        put_with_size(&stand, MAX_PLUGIN_BYTES);
        stand.registry.misbehave(on, Mishap::Endless);
        let ask = stand.ask("1.0");
        mismatch(&mut stand, &ask, "sends more than").await;
    }
}
