//! Fetches of plugins: how often, and what is refused before its bytes are fetched.

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use ctrlmesh_contract::Digest;
use ctrlmesh_contract::plugin_file::MAX_PLUGIN_BYTES;
use ctrlmesh_plugins_builtin::{RATE_LIMIT, SHARD_SELECTOR};
use ctrlmesh_testkit::registry::{WASM_CONFIG_TYPE, WASM_LAYER_TYPE, signature_payload};
use serde_json::json;

use super::test_env::{base64, request_for, test_env, test_env_with};
use crate::*;

#[tokio::test]
async fn component_is_fetched_once_for_all_namespaces() {
    let mut env = test_env().await;
    let manifest = env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let ours = env.request_for("1.0");
    let theirs = ResolveRequest {
        namespace: "other".to_owned(),
        ..ours.clone()
    };
    assert_eq!(env.manager.plugins.resolve(&ours), Resolution::Pending);
    assert_eq!(env.manager.plugins.resolve(&theirs), Resolution::Pending);
    let reported = [env.manager.next_report().await, env.manager.next_report().await];
    assert_eq!(reported, ["demo", "other"]);
    let artifact = env.manager.resolve_ready(&ours).await;
    assert_eq!(artifact.digest, Digest::of(SHARD_SELECTOR));
    assert_eq!((artifact.size, &artifact.manifest), (SHARD_SELECTOR.len(), &manifest));
    assert_eq!(artifact.packed, pack(SHARD_SELECTOR));
    assert_eq!(
        artifact.reference,
        format!("oci://{}/you/plugin@{manifest}", env.registry.host())
    );
    assert!(Arc::ptr_eq(&artifact, &env.manager.resolve_ready(&theirs).await));
    assert_eq!(env.registry.count("/v2/you/plugin/manifests/"), 1);
    assert_eq!(env.registry.count("/v2/you/plugin/blobs/"), 2);
    env.manager.stop().await;
}

#[tokio::test]
async fn pulls_are_counted_by_outcome() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let artifact = env.manager.resolve_ready(&env.request_for("1.0")).await;
    env.manager.resolve_failed(&env.request_for("2.0")).await;
    let mut registry = prometheus_client::registry::Registry::default();
    env.manager.metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("plugin_pulls_total{outcome=\"Pulled\"} 1"), "{text}");
    assert!(text.contains("plugin_pulls_total{outcome=\"NotFound\"}"), "{text}");
    assert!(text.contains("plugin_references 2"), "{text}");
    assert!(
        text.contains(&format!("plugin_cache_bytes {}", artifact.packed.len())),
        "{text}"
    );
}

#[tokio::test]
async fn non_plugin_is_refused_before_its_blob_is_fetched() {
    let mut env = test_env().await;
    let layer = env.registry.put_blob("you/plugin", SHARD_SELECTOR);
    let manifest = |config: &serde_json::Value, layers: serde_json::Value| {
        let config = config.to_string();
        let digest = env.registry.put_blob("you/plugin", config.as_bytes());
        json!({
            "schemaVersion": 2,
            "config": { "mediaType": WASM_CONFIG_TYPE, "digest": digest, "size": config.len() },
            "layers": layers,
        })
    };
    let good = json!([{ "mediaType": WASM_LAYER_TYPE, "digest": layer, "size": SHARD_SELECTOR.len() }]);
    let large = json!([{ "mediaType": WASM_LAYER_TYPE, "digest": layer, "size": MAX_PLUGIN_BYTES + 1 }]);
    let tar = json!([{ "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": layer, "size": 1 }]);
    let sockets = json!({ "os": "wasip2", "component": { "imports": ["wasi:sockets/tcp@0.2.0"] } });
    let plain = json!({ "os": "wasip2" });
    let cases = [
        (
            "large",
            manifest(&plain, large),
            FailureReason::TooLarge,
            "at most 16777216",
        ),
        (
            "tar",
            manifest(&plain, tar),
            FailureReason::InvalidArtifact,
            "wkg oci push",
        ),
        (
            "sockets",
            manifest(&sockets, good),
            FailureReason::Incompatible,
            "wasi:sockets/tcp",
        ),
        (
            "index",
            json!({ "schemaVersion": 2, "manifests": [] }),
            FailureReason::InvalidArtifact,
            "index of several",
        ),
    ];
    for (tag, manifest, expected, words) in cases {
        env.registry.put_manifest("you/plugin", tag, &manifest);
        let (reason, message) = env.manager.resolve_failed(&env.request_for(tag)).await;
        assert_eq!(reason, expected, "{tag}: {message}");
        assert!(message.contains(words), "{tag}: {message}");
    }
    assert_eq!(env.registry.count(&format!("/v2/you/plugin/blobs/{layer}")), 0);
}

#[tokio::test]
async fn component_of_another_world_is_refused() {
    let mut env = test_env().await;
    for (tag, wasm, words) in [
        ("module", &b"\0asm\x01\0\0\0"[..], "core WebAssembly module"),
        ("script", b"#!/bin/sh", "not WebAssembly"),
        ("cut", &SHARD_SELECTOR[..SHARD_SELECTOR.len() / 2], "can't be read"),
    ] {
        env.registry.put_component("you/plugin", tag, wasm);
        let (reason, message) = env.manager.resolve_failed(&env.request_for(tag)).await;
        assert_eq!(reason, FailureReason::Incompatible);
        assert!(message.contains(words), "{message}");
    }
}

fn pem(key: &EcdsaKeyPair) -> String {
    let der = base64(key.public_key().as_der().unwrap().as_ref());
    format!("-----BEGIN PUBLIC KEY-----\n{der}\n-----END PUBLIC KEY-----\n")
}

#[tokio::test]
async fn manifest_must_be_signed_by_given_key() {
    let mut env = test_env().await;
    let ours = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    let theirs = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    let signed = env.registry.put_component("you/plugin", "signed", SHARD_SELECTOR);
    let other = env.registry.put_component("you/plugin", "other", RATE_LIMIT);
    let text = signature_payload("you/plugin", &signed);
    let signature = base64(ours.sign(&SystemRandom::new(), &text).unwrap().as_ref());
    env.registry.put_signature("you/plugin", &signed, &text, &signature);
    // A valid signature of another manifest, stored under this one's tag.
    env.registry.put_signature("you/plugin", &other, &text, &signature);
    env.registry
        .put_component("you/plugin", "unsigned", b"\0asm\x0d\0\x01\0");
    let [on_signed, on_other, on_unsigned] = ["signed", "other", "unsigned"].map(|tag| env.request_for(tag));
    let with = |request: &ResolveRequest, key: String| ResolveRequest {
        verification_key: Some(key),
        ..request.clone()
    };
    let good = with(&on_signed, pem(&ours));
    let bad = [
        (with(&on_signed, pem(&theirs)), "1 signatures, and none is by"),
        (with(&on_other, pem(&ours)), "1 signatures, and none is by"),
        (with(&on_unsigned, pem(&ours)), "there is no signature"),
        (with(&on_signed, "nonsense".to_owned()), "is no public key"),
    ];
    assert_eq!(env.manager.resolve_ready(&good).await.manifest, signed);
    for (request, words) in bad {
        let (reason, message) = env.manager.resolve_failed(&request).await;
        assert_eq!(reason, FailureReason::SignatureInvalid);
        assert!(message.contains(words), "{message}");
    }
    // Nothing unsigned was fetched.
    assert_eq!(
        env.registry
            .count(&format!("/v2/you/plugin/blobs/{}", Digest::of(RATE_LIMIT))),
        0
    );
    // Without a key, no signature is checked. An unchecked artifact is not used for a request with a key.
    assert_eq!(env.manager.resolve_ready(&on_other).await.manifest, other);
    let (reason, _) = env.manager.resolve_failed(&with(&on_other, pem(&ours))).await;
    assert_eq!(reason, FailureReason::SignatureInvalid);
}

#[tokio::test]
async fn plugin_beyond_cache_limit_is_refused_and_others_stay() {
    let mut env = test_env_with(|settings, _| settings.cache_bytes = pack(SHARD_SELECTOR).len() + 10).await;
    env.registry.put_component("you/plugin", "1", SHARD_SELECTOR);
    env.registry.put_component("you/plugin", "2", RATE_LIMIT);
    let first = env.request_for("1");
    env.manager.resolve_ready(&first).await;
    let (reason, message) = env.manager.resolve_failed(&env.request_for("2")).await;
    assert_eq!(reason, FailureReason::TooLarge);
    assert!(message.contains("--plugin-cache-mib"), "{message}");
    assert!(matches!(env.manager.plugins.resolve(&first), Resolution::Ready(_)));
}

#[tokio::test]
async fn invalid_reference_is_reported_at_once() {
    let env = test_env().await;
    let resolution = env.manager.plugins.resolve(&request_for("oci://You"));
    assert!(matches!(
        resolution,
        Resolution::Failed {
            reason: FailureReason::InvalidReference,
            ..
        }
    ));
}
