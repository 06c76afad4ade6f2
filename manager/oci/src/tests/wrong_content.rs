//! Registries whose content does not match what they announce.

use bytes::Bytes;
use ctrlmesh_contract::Digest;
use ctrlmesh_contract::plugin_file::MAX_PLUGIN_BYTES;
use ctrlmesh_plugins_builtin::{RATE_LIMIT, SHARD_SELECTOR};
use ctrlmesh_testkit::registry::{AffectedRequests, Mishap, WASM_CONFIG_TYPE, WASM_LAYER_TYPE};
use serde_json::json;

use super::test_env::{TestEnv, test_env};
use crate::*;

async fn assert_mismatch(env: &mut TestEnv, request: &ResolveRequest, words: &str) {
    let (reason, message) = env.manager.resolve_failed(request).await;
    assert_eq!(reason, FailureReason::DigestMismatch, "{message}");
    assert!(message.contains(words), "{message}");
}

#[tokio::test]
async fn manifest_with_wrong_digest_is_refused() {
    let mut env = test_env().await;
    let manifest = env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    env.registry.plan_mishap(
        AffectedRequests::Manifest,
        Mishap::Body(Bytes::from_static(b"{\"layers\":[]}")),
    );
    let request = env.request_for(&manifest);
    assert_mismatch(&mut env, &request, "damaged or forged").await;
}

#[tokio::test]
async fn digest_header_that_differs_from_manifest_is_refused() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let other = Digest::of(b"other").to_string();
    env.registry
        .plan_mishap(AffectedRequests::Manifest, Mishap::Digest(other.clone()));
    let request = env.request_for("1.0");
    assert_mismatch(&mut env, &request, &other).await;
}

#[tokio::test]
async fn blob_with_wrong_bytes_is_refused() {
    // The same number of bytes, and fewer. The configuration is the first blob that is fetched.
    for bytes in [vec![b' '; 149], b"{}".to_vec()] {
        let mut env = test_env().await;
        env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
        env.registry
            .plan_mishap(AffectedRequests::Blob, Mishap::Body(bytes.into()));
        let request = env.request_for("1.0");
        assert_mismatch(&mut env, &request, "has digest sha256:").await;
    }
}

/// Pushes a component whose manifest has this size.
fn put_with_size(env: &TestEnv, size: usize) {
    let config = env.registry.put_blob("you/plugin", b"{}");
    let layer = env.registry.put_blob("you/plugin", RATE_LIMIT);
    let manifest = json!({
        "schemaVersion": 2,
        "config": { "mediaType": WASM_CONFIG_TYPE, "digest": config, "size": 2 },
        "layers": [{ "mediaType": WASM_LAYER_TYPE, "digest": layer, "size": size }],
    });
    env.registry.put_manifest("you/plugin", "1.0", &manifest);
}

#[tokio::test]
async fn blob_of_wrong_size_is_refused() {
    for (size, words) in [
        (RATE_LIMIT.len() - 1, "sends more than"),
        (RATE_LIMIT.len() + 1, "its manifest says"),
    ] {
        let mut env = test_env().await;
        put_with_size(&env, size);
        let request = env.request_for("1.0");
        assert_mismatch(&mut env, &request, words).await;
    }
}

#[tokio::test]
async fn endless_body_is_cut_off() {
    for on in [AffectedRequests::Manifest, AffectedRequests::Blob] {
        let mut env = test_env().await;
        put_with_size(&env, MAX_PLUGIN_BYTES);
        env.registry.plan_mishap(on, Mishap::Endless);
        let request = env.request_for("1.0");
        assert_mismatch(&mut env, &request, "sends more than").await;
    }
}
