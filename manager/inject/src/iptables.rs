//! Redirected traffic: an init container sets iptables rules, and containers trust a bundle that includes the mesh CA.

use std::net::IpAddr;

use ctrlmesh_contract::names::{self, pod};
use serde_json::{Map, Value, json};

use super::environment::{HOST, is_service};
use super::injection_request::InjectionRequest;
use super::pod::{Container, Draft, name_of};
use super::refusal::Refusal;
use super::settings::{ClusterInfo, Settings};
use super::volumes::CLUSTER_CA;

/// The init container. `server`: the address of the API server, if the pod sets it.
pub(super) fn init_container(
    request: &InjectionRequest,
    settings: &Settings,
    known: &ClusterInfo,
    server: Vec<Value>,
) -> Container {
    let mut fields = Map::new();
    let mut put = |field: &str, value: Value| drop(fields.insert(field.to_owned(), value));
    put("name", json!(pod::INIT));
    put("image", json!(settings.init_image));
    put("imagePullPolicy", json!(settings.pull_policy));
    put("args", json!(init_arguments(known, &server)));
    if !server.is_empty() {
        put("env", Value::Array(server));
    }
    put("resources", request.resources(settings));
    put("securityContext", security_context());
    Container(fields)
}

/// Redirects all addresses of the Service: kubelet gives containers one of them, and its name may resolve to one of the other
/// family. If the pod sets another API server, only its address is redirected.
fn init_arguments(known: &ClusterInfo, server: &[Value]) -> Vec<String> {
    let mut arguments = vec!["init".to_owned()];
    let service = &known.service_addresses;
    let host_variable = server.iter().find(|variable| name_of(variable) == HOST);
    if !service.is_empty() && host_variable.is_none_or(|variable| is_service(variable, known)) {
        let addresses: Vec<String> = service.iter().map(IpAddr::to_string).collect();
        arguments.push(format!("--host={}", addresses.join(",")));
    }
    arguments
}

/// Rights to set rules in the pod's own network. The container runs as root, because without support by the image only root can
/// have a capability.
fn security_context() -> Value {
    json!({
        "runAsUser": 0,
        "runAsGroup": 0,
        "runAsNonRoot": false,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// The first place if the sidecar serves init containers too. Otherwise the last: redirected init containers would find no sidecar.
pub(super) fn insert_container(container: Container, is_native: bool, init: &mut Vec<Container>) {
    let at = if is_native { 0 } else { init.len() };
    init.insert(at, container);
}

/// Replaces the cluster's CA by a bundle with the mesh CA, under the same key, wherever containers mount it.
pub(super) fn trust_mesh_ca(draft: &mut Draft) {
    for volume in &mut draft.volumes {
        replace_cluster_ca(volume.pointer_mut("/configMap/name"));
        let sources = volume.pointer_mut("/projected/sources").and_then(Value::as_array_mut);
        for source in sources.into_iter().flatten() {
            replace_cluster_ca(source.pointer_mut("/configMap/name"));
        }
    }
    for container in draft.init_containers.iter_mut().chain(&mut draft.containers) {
        let variables = container.0.get_mut("env").and_then(Value::as_array_mut);
        for variable in variables.into_iter().flatten() {
            replace_cluster_ca(variable.pointer_mut("/valueFrom/configMapKeyRef/name"));
        }
    }
}

fn replace_cluster_ca(name: Option<&mut Value>) {
    if let Some(name) = name.filter(|name| **name == CLUSTER_CA) {
        *name = json!(names::CA_CONFIG_MAP);
    }
}

/// Fails if another container runs as the sidecar's user, because that user's traffic is not redirected.
pub(super) fn check_users(draft: &Draft) -> Result<(), Refusal> {
    let user = |context: Option<&Value>| context.and_then(|it| it.get("runAsUser")?.as_u64());
    let of_pod = user(draft.spec_field("securityContext"));
    let is_ours = |it: &&Container| user(it.0.get("securityContext")).or(of_pod) == Some(u64::from(pod::UID));
    match draft.all_containers().find(is_ours) {
        Some(container) => Err(Refusal::SidecarUser {
            container: container.name().to_owned(),
        }),
        None => Ok(()),
    }
}
