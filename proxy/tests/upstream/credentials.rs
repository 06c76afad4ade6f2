//! Tokens from files and exec plugins, and configurations that can't work.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, path::PathBuf};

use ctrlmesh_proxy::upstream::{Error, Target};
use http::HeaderMap;
use serde_json::{Value, json};

use crate::{run_on_worker, wait_until};

fn write_kubeconfig(directory: &Path, server: &str, user: &Value) -> PathBuf {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [
            {"name": "c", "context": {"cluster": "k", "user": "u"}},
            {"name": "behind-proxy", "context": {"cluster": "p", "user": "u"}},
        ],
        "clusters": [
            {"name": "k", "cluster": {"server": server}},
            {"name": "p", "cluster": {"server": server, "proxy-url": "http://proxy.example:3128"}},
        ],
        "users": [{"name": "u", "user": user}],
    });
    let path = directory.join("kubeconfig");
    fs::write(&path, config.to_string()).unwrap();
    path
}

const SERVER: &str = "http://127.0.0.1:1";

#[test]
fn rotated_token_file_is_noticed_and_last_good_token_kept_when_it_is_gone() {
    run_on_worker(async {
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        fs::write(&token, "one").unwrap();
        let path = write_kubeconfig(directory.path(), SERVER, &json!({"tokenFile": token}));
        let target = Target::infer(Some(&path), None).await.unwrap();
        let credentials = target.credentials();
        let first = credentials.current_header().unwrap();
        assert_eq!(first, "Bearer one");
        assert!(first.is_sensitive(), "must not show in a debug print");

        fs::write(&token, "two").unwrap();
        credentials.refresh_now();
        wait_until(|| credentials.current_header().unwrap() == "Bearer two").await;

        fs::remove_file(&token).unwrap();
        credentials.refresh_now();
        wait_until(|| credentials.refresh_failures() > 0).await;
        assert_eq!(credentials.current_header().unwrap(), "Bearer two");
    });
}

fn exec_plugin(directory: &Path) -> PathBuf {
    let plugin = directory.join("plugin.sh");
    let script = r#"#!/bin/sh
echo run >> "$1/runs"
token="token-$(wc -l < "$1/runs" | tr -d ' ')"
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
echo '"status":{"token":"'"$token"'","expirationTimestamp":"2999-01-01T00:00:00Z"}}'
"#;
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    plugin
}

#[test]
fn exec_plugin_gives_token_and_is_run_again_after_401() {
    run_on_worker(async {
        let directory = tempfile::tempdir().unwrap();
        let user = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": exec_plugin(directory.path()), "args": [directory.path()],
        }});
        let path = write_kubeconfig(directory.path(), SERVER, &user);
        let target = Target::infer(Some(&path), None).await.unwrap();
        let first = target.credentials().current_header().unwrap();
        target.credentials().refresh_now();
        wait_until(|| target.credentials().current_header().unwrap() != first).await;
        assert!(
            target
                .credentials()
                .current_header()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("Bearer token-")
        );
    });
}

#[test]
fn basic_auth_and_impersonation_are_applied_to_our_own_requests() {
    run_on_worker(async {
        let directory = tempfile::tempdir().unwrap();
        let user = json!({"username": "u", "password": "p", "as": "someone", "as-groups": ["a", "b"]});
        let path = write_kubeconfig(directory.path(), SERVER, &user);
        let target = Target::infer(Some(&path), None).await.unwrap();
        let mut headers = HeaderMap::new();
        target.credentials().apply(&mut headers);
        assert_eq!(headers["authorization"], "Basic dTpw");
        assert_eq!(headers["impersonate-user"], "someone");
        let groups: Vec<_> = headers.get_all("impersonate-group").iter().collect();
        assert_eq!(groups, ["a", "b"]);
    });
}

#[test]
fn invalid_configurations_are_refused_with_reason() {
    run_on_worker(async {
        let directory = tempfile::tempdir().unwrap();
        let path = write_kubeconfig(directory.path(), SERVER, &json!({}));
        let fails = async |path: Option<&Path>, context| Target::infer(path, context).await.unwrap_err();

        let missing = fails(Some(Path::new("/nowhere/kubeconfig")), None).await;
        assert!(matches!(missing, Error::Kubeconfig { .. }), "{missing:?}");
        let missing = missing.to_string();
        assert_eq!(missing.matches("/nowhere/kubeconfig").count(), 1, "{missing}");
        let unknown = fails(Some(&path), Some("other")).await;
        assert!(
            matches!(unknown, Error::KubeconfigContext { .. })
                && unknown
                    .to_string()
                    .ends_with("there is no context \"other\"; its contexts are c, behind-proxy"),
            "{unknown}"
        );
        let other_file = directory.path().join("chain.yaml");
        fs::write(&other_file, "namespace: operators\nentries: []\n").unwrap();
        let no_kubeconfig = fails(Some(&other_file), None).await.to_string();
        assert!(no_kubeconfig.contains("it is no kubeconfig"), "{no_kubeconfig}");
        fs::write(&other_file, "contexts: [{name: c, context: {cluster: k}}]\n").unwrap();
        let none_chosen = fails(Some(&other_file), None).await.to_string();
        assert!(
            none_chosen.ends_with("--context (CTRLMESH_CONTEXT): c"),
            "{none_chosen}"
        );
        let alone = fails(None, Some("c")).await;
        assert!(matches!(alone, Error::ContextWithoutKubeconfig { .. }), "{alone}");
        let proxied = fails(Some(&path), Some("behind-proxy")).await;
        assert!(matches!(proxied, Error::ProxyUrl { .. }), "{proxied}");

        let path = write_kubeconfig(directory.path(), "ftp://127.0.0.1", &json!({}));
        let scheme = fails(Some(&path), None).await;
        assert!(
            matches!(scheme, Error::ServerUrl { .. }) && scheme.to_string().contains("https://"),
            "{scheme}"
        );
        let path = write_kubeconfig(directory.path(), SERVER, &json!({"tokenFile": "/nowhere/token"}));
        let token = fails(Some(&path), None).await;
        assert!(
            matches!(token, Error::Credentials { .. }) && token.to_string().contains("/nowhere/token"),
            "{token}"
        );
    });
}

/// As kubelet mounts a ConfigMap: nobody has to know the key beforehand.
#[test]
fn directory_with_one_file_is_kubeconfig() {
    run_on_worker(async {
        let directory = tempfile::tempdir().unwrap();
        let mounted = directory.path().join("mounted");
        fs::create_dir_all(mounted.join("..data")).unwrap();
        let problem = async || Target::infer(Some(&mounted), None).await.unwrap_err().to_string();
        assert!(problem().await.contains("has no file"), "{}", problem().await);
        let path = write_kubeconfig(&mounted.join("..data"), SERVER, &json!({"token": "one"}));
        std::os::unix::fs::symlink(path, mounted.join("admin.conf")).unwrap();
        let target = Target::infer(Some(&mounted), None).await.unwrap();
        assert_eq!(target.credentials().current_header().unwrap(), "Bearer one");
        fs::write(mounted.join("other"), "").unwrap();
        assert!(problem().await.contains("has several files"), "{}", problem().await);
    });
}
