//! The volumes of the sidecar, and its mounts.

use ctrlmesh_contract::names::{self, files, pod};
use serde_json::{Value, json};

use super::injection_request::{InjectionRequest, Mode};
use super::kubeconfig;
use super::own_paths::DATA_DIR;
use super::upstream;

const CHAIN: &str = "ctrlmesh-chain";
const POD_INFO: &str = "ctrlmesh-podinfo";
const DATA: &str = "ctrlmesh-data";
const TOKEN: &str = "ctrlmesh-token";
const TLS: &str = "ctrlmesh-tls";

/// Names of all volumes that a pod may get.
pub(super) const NAMES: [&str; 7] = [CHAIN, POD_INFO, DATA, TOKEN, TLS, upstream::OWN, pod::KUBECONFIG_VOLUME];

pub(super) const CHAIN_DIR: &str = "/etc/ctrlmesh/chain";
const POD_INFO_DIR: &str = "/etc/ctrlmesh/podinfo";
pub(super) const TLS_DIR: &str = "/etc/ctrlmesh/tls";
/// The path at which clients look for the token.
const TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const UPSTREAM_DIR: &str = "/etc/ctrlmesh/upstream";

/// Enough for compiled plugins: a few MiB each, in a few versions.
const DATA_SIZE: &str = "256Mi";
/// Lifetime of kubelet's own tokens: a little over an hour. They are renewed after four fifths of it.
const TOKEN_SECONDS: i64 = 3607;
/// The ConfigMap in every namespace with the CA of the API server.
pub(super) const CLUSTER_CA: &str = "kube-root-ca.crt";

/// The file with the pod's labels.
pub(super) fn labels_file() -> String {
    format!("{POD_INFO_DIR}/{}", files::LABELS)
}

/// Directory for compiled plugins. The sidecar creates its own directories, because the volume belongs to root and is writable for
/// all.
pub(super) fn cache_dir() -> String {
    format!("{DATA_DIR}/cache")
}

/// Directory for state that a sidecar leaves for its successor in the pod.
pub(super) fn state_dir() -> String {
    format!("{DATA_DIR}/state")
}

/// The kubeconfig in the pod's own volume, or the directory with it.
pub(super) fn upstream_file(request: &InjectionRequest) -> Option<String> {
    let upstream = request.upstream.as_ref()?;
    Some(match &upstream.file {
        Some(file) => format!("{UPSTREAM_DIR}/{file}"),
        None => UPSTREAM_DIR.to_owned(),
    })
}

/// The volumes that the pod gets.
pub(super) fn pod_volumes(request: &InjectionRequest) -> Vec<Value> {
    let mut volumes = vec![
        chain_volume(),
        pod_info_volume(),
        json!({"name": DATA, "emptyDir": {"sizeLimit": DATA_SIZE}}),
    ];
    volumes.push(match &request.upstream {
        Some(upstream) => upstream.own.clone(),
        None => token_volume(),
    });
    if request.has_tls {
        volumes.push(json!({"name": TLS, "secret": {"secretName": names::SERVING_SECRET}}));
    }
    if request.mode == Mode::Kubeconfig {
        volumes.push(kubeconfig::kubeconfig_volume(request));
    }
    volumes
}

pub(super) fn sidecar_mounts(request: &InjectionRequest) -> Vec<Value> {
    let read_only = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true});
    let mut mounts = vec![
        read_only(CHAIN, CHAIN_DIR),
        read_only(POD_INFO, POD_INFO_DIR),
        json!({"name": DATA, "mountPath": DATA_DIR}),
    ];
    match &request.upstream {
        Some(_) => mounts.push(read_only(upstream::OWN, UPSTREAM_DIR)),
        None => mounts.push(read_only(TOKEN, TOKEN_DIR)),
    }
    if request.has_tls {
        mounts.push(read_only(TLS, TLS_DIR));
    }
    mounts
}

/// Document, signature and plugins side by side. They may be created after the pod.
fn chain_volume() -> Value {
    let slots = (0..names::PLUGIN_CONFIG_MAPS).filter_map(names::plugin_config_map);
    let maps = std::iter::once(names::CHAIN_CONFIG_MAP.to_owned()).chain(slots);
    let sources: Vec<Value> = maps
        .map(|name| json!({"configMap": {"name": name, "optional": true}}))
        .collect();
    json!({"name": CHAIN, "projected": {"sources": sources}})
}

fn pod_info_volume() -> Value {
    let labels = json!({"path": files::LABELS, "fieldRef": {"fieldPath": "metadata.labels"}});
    json!({"name": POD_INFO, "downwardAPI": {"items": [labels]}})
}

/// The sidecar's own token: a pod may have none for its containers, and with redirected traffic they trust other CAs.
fn token_volume() -> Value {
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}});
    let ca = json!({"configMap": {"name": CLUSTER_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}});
    let namespace = json!({"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}});
    let namespace = json!({"downwardAPI": {"items": [namespace]}});
    json!({"name": TOKEN, "projected": {"sources": [token, ca, namespace]}})
}
