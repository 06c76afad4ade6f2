//! Messages of failed pulls, as a reviewer reads them in the condition `PluginsResolved`.

use ctrlmesh_contract::Digest;
use ctrlmesh_testkit::registry::{Login, WASM_CONFIG_TYPE, WASM_LAYER_TYPE};
use reqwest::Url;
use serde_json::{Value, json};

use super::test_env::{TestEnv, test_env};
use crate::address_policy::{AddressPolicy, redirect_target, token_server_url};
use crate::component::{check_component, check_config};
use crate::layout::{Layout, parse_manifest};
use crate::reference::Image;
use crate::signature::missing_signature;
use crate::*;

fn text_of(failure: &Failure) -> String {
    format!("{}: {}", failure.reason, failure.message)
}

/// The failure for a manifest with this configuration and these layers.
fn layout_failure(config: &Value, layers: &Value) -> Failure {
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    match parse_manifest(manifest.to_string().as_bytes()) {
        Ok(manifest) => Layout::from_manifest(&manifest).unwrap_err(),
        Err(failure) => failure,
    }
}

/// Failures that need no registry.
fn local_failures() -> Vec<Failure> {
    let digest = Digest::of(b"a").to_string();
    let blob = |kind: &str, size: u64| json!({"mediaType": kind, "digest": digest, "size": size});
    let config = blob(WASM_CONFIG_TYPE, 2);
    vec![
        Image::parse("ghcr.io/you/plugin:1.0").unwrap_err(),
        parse_manifest(br#"{"manifests": []}"#).unwrap_err(),
        layout_failure(&blob("application/json", 2), &json!([])),
        layout_failure(&config, &json!([])),
        layout_failure(&config, &json!([blob("application/gzip", 2)])),
        layout_failure(&config, &json!([blob(WASM_LAYER_TYPE, 1 << 40)])),
        check_component(b"\0asm\x01\0\0\0").unwrap_err(),
        check_component(b"text").unwrap_err(),
        check_config(br#"{"os": "wasip1"}"#).unwrap_err(),
        check_config(br#"{"component": {"imports": ["wasi:sockets/tcp@0.2.0"]}}"#).unwrap_err(),
        missing_signature(&digest, 0),
        missing_signature(&digest, 2),
    ]
}

/// Failures because the registry refers the manager to where it does not go.
fn unsafe_redirects() -> Vec<Failure> {
    let registry = Url::parse("https://ghcr.io/v2/").unwrap();
    let policy = AddressPolicy::for_registry(&registry);
    let redirect = |location: &str| redirect_target(&registry, location, policy).unwrap_err();
    let login = |realm: &str| token_server_url(&registry, realm, |_| false).unwrap_err();
    vec![
        redirect("http://ghcr.io/blob"),
        redirect("https://169.254.169.254/blob"),
        login("token"),
        login("http://ghcr.io/token"),
        login("https://token.example.com/"),
    ]
}

/// Pushes a component whose manifest gives its size as one byte too much.
fn put_with_wrong_size(env: &TestEnv) {
    let config = env.registry.put_blob("you/plugin", b"{}");
    let layer = env.registry.put_blob("you/plugin", b"bytes");
    let manifest = json!({
        "schemaVersion": 2,
        "config": { "mediaType": WASM_CONFIG_TYPE, "digest": config, "size": 2 },
        "layers": [{ "mediaType": WASM_LAYER_TYPE, "digest": layer, "size": 6 }],
    });
    env.registry.put_manifest("you/plugin", "damaged", &manifest);
}

/// The failure of a pull, with a constant name instead of the registry's address.
async fn pull_failure(env: &mut TestEnv, request: &ResolveRequest) -> String {
    let (reason, message) = env.manager.resolve_failed(request).await;
    format!("{reason}: {}", message.replace(&env.registry.host(), "registry.test"))
}

#[tokio::test]
async fn messages_of_failed_pulls_match_snapshot() {
    let local = [local_failures(), unsafe_redirects()].concat();
    let mut texts: Vec<String> = local.iter().map(text_of).collect();
    let mut env = test_env().await;
    put_with_wrong_size(&env);
    for tag in ["missing", "damaged"] {
        let request = env.request_for(tag);
        texts.push(pull_failure(&mut env, &request).await);
    }
    let with_secret = |env: &TestEnv, name: &str| ResolveRequest {
        pull_secret: Some(name.to_owned()),
        ..env.request_for("1.0")
    };
    env.registry.require(Login::Basic {
        user: "me".to_owned(),
        password: "hunter2".to_owned(),
    });
    env.put_secret("wrong", "me", "*******");
    for request in [
        env.request_for("1.0"),
        with_secret(&env, "wrong"),
        with_secret(&env, "absent"),
    ] {
        texts.push(pull_failure(&mut env, &request).await);
    }
    env.registry.stop().await;
    let request = env.request_for("2.0");
    let unavailable = pull_failure(&mut env, &request).await;
    // The rest is an error of the system.
    let (known, _) = unavailable.split_once(" too slow: ").unwrap();
    texts.push(format!("{known} too slow: …"));
    insta::assert_snapshot!(texts.join("\n"));
}
