//! Adds a kubeconfig that leads to the sidecar, and makes containers use it.
//!
//! Kubelet makes the file from an annotation of the pod, so that no ConfigMap has to exist first (docs/adr/0020).

use ctrlmesh_contract::names::{self, annotations, pod, ports};
use serde_json::{Value, json};

use super::injection_request::InjectionRequest;
use super::kubeconfig_flag;
use super::pod::{Container, Draft, name_of, variable_with_value};
use super::refusal::Refusal;

const VARIABLE: &str = "KUBECONFIG";
const CA_FILE: &str = "ca.crt";

/// Path of the kubeconfig in containers.
pub(super) fn kubeconfig_path() -> String {
    format!("{}/{}", pod::KUBECONFIG_DIR, pod::KUBECONFIG_FILE)
}

/// The kubeconfig. It has no credentials: the sidecar adds the pod's own to requests without any.
pub(super) fn kubeconfig_document(namespace: &str, has_tls: bool) -> String {
    let (scheme, ca) = if has_tls {
        let ca = format!("    certificate-authority: {}/{CA_FILE}\n", pod::KUBECONFIG_DIR);
        ("https", ca)
    } else {
        ("http", String::new())
    };
    let port = ports::API;
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: ctrlmesh\n\
         \x20 cluster:\n\
         \x20   server: {scheme}://127.0.0.1:{port}\n\
         {ca}\
         users:\n\
         - name: ctrlmesh\n\
         \x20 user: {{}}\n\
         contexts:\n\
         - name: ctrlmesh\n\
         \x20 context: {{cluster: ctrlmesh, user: ctrlmesh, namespace: \"{namespace}\"}}\n\
         current-context: ctrlmesh\n"
    )
}

/// The volume with the kubeconfig, and with the CA if the controller uses TLS.
pub(super) fn kubeconfig_volume(request: &InjectionRequest) -> Value {
    let field = format!("metadata.annotations['{}']", annotations::KUBECONFIG);
    let file = json!({"path": pod::KUBECONFIG_FILE, "fieldRef": {"fieldPath": field}});
    let mut sources = vec![json!({"downwardAPI": {"items": [file]}})];
    if request.has_tls {
        let items = json!([{"key": CA_FILE, "path": CA_FILE}]);
        sources.push(json!({"configMap": {"name": names::CA_CONFIG_MAP, "items": items}}));
    }
    json!({"name": pod::KUBECONFIG_VOLUME, "projected": {"sources": sources}})
}

/// Makes the pod's containers use the sidecar. Init containers are included only if it starts before them.
pub(super) fn point_containers_to_sidecar(
    draft: &mut Draft,
    request: &InjectionRequest,
    namespace: &str,
) -> Result<(), Refusal> {
    let document = kubeconfig_document(namespace, request.has_tls);
    draft.annotations.insert(annotations::KUBECONFIG.to_owned(), document);
    let init = draft.init_containers.iter_mut().filter(|_| request.is_native);
    for container in init.chain(&mut draft.containers) {
        lead_container(container, request)?;
    }
    Ok(())
}

fn lead_container(container: &mut Container, request: &InjectionRequest) -> Result<(), Refusal> {
    if request.rewrites_args
        && let Some(upstream) = &request.upstream
    {
        // Containers do not get the sidecar's credentials, which would be a way around it.
        container.remove_mounts_of(&upstream.volume);
    }
    match check_mount_path(container) {
        None => container
            .add_mount(json!({"name": pod::KUBECONFIG_VOLUME, "mountPath": pod::KUBECONFIG_DIR, "readOnly": true})),
        Some(refusal) if request.rewrites_args || request.rewrites_env => return Err(refusal),
        Some(_) => {}
    }
    if request.rewrites_args {
        let is_asked_for = request.arg_containers.iter().any(|name| name == container.name());
        kubeconfig_flag::set_kubeconfig_flag(container, &kubeconfig_path(), is_asked_for, request.rewrites_env)?;
    }
    if request.rewrites_env {
        kubeconfig_flag::check_variable(container, &kubeconfig_path())?;
        container.set_variable(variable_with_value(VARIABLE, &kubeconfig_path()));
    }
    Ok(())
}

/// Fails if a container has a mount at, above or below the path of our volume: a mount inside a volume changes it.
fn check_mount_path(container: &Container) -> Option<Refusal> {
    let ours = pod::KUBECONFIG_DIR;
    let is_within = |inner: &str, outer: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mounts = container.items("volumeMounts").iter();
    let mut others = mounts.filter(|mount| name_of(mount) != pod::KUBECONFIG_VOLUME);
    others.find_map(|mount| {
        let path = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        let trimmed = path.trim_end_matches('/');
        (is_within(trimmed, ours) || is_within(ours, trimmed)).then(|| Refusal::MountTaken {
            container: container.name().to_owned(),
            volume: name_of(mount).to_owned(),
            path: path.to_owned(),
            ours: pod::KUBECONFIG_VOLUME,
            at: ours,
        })
    })
}
