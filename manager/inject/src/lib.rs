//! Injects the sidecar: from a pod that requests one, and what is known of its cluster, to the patch of the pod.
//!
//! Pure. The manager's webhook reads the [`ClusterInfo`].
//!
//! | module | holds |
//! |---|---|
//! | `conflicts` | reasons to reject the pod |
//! | `sidecar`, `iptables`, `environment` | containers and variables of the sidecar |
//! | `log_volume`, `reinvocation`, `patch` | the shared log volume, containers that an earlier call injected, the patch |
//! | `volumes` | volumes of the sidecar, and its mounts |
//! | `kubeconfig` | the kubeconfig of the pod's own containers |
//! | `injection_request` | what the pod requests |
//! | `own_paths` | paths in the sidecar's container that a pod's own volumes must not change |
//! | `kubeconfig_flag`, `upstream` | `--kubeconfig` in the commands of its own containers, and its own kubeconfig for the sidecar |
//! | `settings`, [`flags`] | what injection gets besides the pod, and the flags that it comes from |
//! | `select` | which custom resources select the pod |
//! | `pod`, `refusal` | the pod as JSON, and messages of rejections |
//!
//! Guarantees:
//! - A second injection changes nothing, also after other webhooks have changed the pod or the sidecar.
//! - The rest of the pod is unchanged, apart from what leads its containers to the sidecar.
//! - The injected containers follow from the manager's settings alone, also if the pod brings such containers itself.
//! - A pod that can't be served is rejected, and never created without its sidecar.

mod conflicts;
mod environment;
pub mod flags;
mod injection_request;
mod iptables;
mod kubeconfig;
mod kubeconfig_flag;
mod log_volume;
mod own_paths;
mod patch;
mod pod;
mod refusal;
mod reinvocation;
mod select;
mod settings;
mod sidecar;
#[cfg(test)]
mod tests;
mod upstream;
mod volumes;

use ctrlmesh_contract::names::{annotations, labels, pod as names_of_pod};
use serde_json::{Value, json};

use injection_request::{InjectionRequest, Mode};
use pod::{Draft, name_of};
pub use refusal::Refusal;
use reinvocation::PreviousContainers;
pub use select::Rule;
pub use settings::{ClusterInfo, Settings};

/// Maximum length of a label's value.
const MAX_LABEL: usize = 63;

/// Whether a pod requests a sidecar.
#[must_use]
pub fn is_asked_for(pod: &Value) -> bool {
    Draft::from_pod(pod).is_some_and(|pod| pod.has_label(labels::ENABLE_PROXY))
}

/// Whether a pod requests redirected traffic, which needs the addresses of the API server.
#[must_use]
pub fn is_redirected(pod: &Value) -> bool {
    Draft::from_pod(pod).is_some_and(|pod| pod.has_label(labels::ENABLE_IPTABLES))
}

/// The JSON patch that adds the sidecar to a pod; empty if the pod has it.
///
/// # Errors
/// The pod can't have a sidecar.
pub fn inject(pod: &Value, known: &ClusterInfo, settings: &Settings) -> Result<Vec<Value>, Refusal> {
    let injected = inject_sidecar(pod, known, settings)?;
    Ok(patch::json_patch(pod, &injected))
}

fn inject_sidecar(pod: &Value, known: &ClusterInfo, settings: &Settings) -> Result<Value, Refusal> {
    let mut draft = Draft::from_pod(pod).ok_or(Refusal::NoPod)?;
    if settings.image.is_empty() {
        return Err(Refusal::NoImage);
    }
    let previous = take_out(&mut draft);
    let shard = label_pod(&mut draft, known)?;
    conflicts::check_pod(&draft)?;
    let request = InjectionRequest::read(&draft, known, settings)?;
    conflicts::check_ports(&draft, &request, settings)?;
    let (mode, is_native) = (request.mode, request.is_native);
    conflicts::check_init_containers(&draft, &request)?;
    sidecar::check_variables(&request, settings)?;

    environment::inject_variables(&mut draft, &request)?;
    if mode == Mode::Iptables {
        iptables::check_users(&draft)?;
        // This comes before the sidecar gets copies of variables. They would be others on the next injection.
        iptables::trust_mesh_ca(&mut draft);
    }
    let server = environment::server_variables(&draft, &request, known)?;
    let asked_for = environment::requested_variables(&draft, &request, &server)?;
    let mut sidecar = sidecar::sidecar_container(&request, settings, known, shard.is_some(), asked_for);
    previous.carry_over(&mut sidecar);
    if let Some(path) = &request.log_path {
        sidecar.add_mount(log_volume::mount_in_all_containers(&mut draft, path));
    }
    if mode == Mode::Kubeconfig {
        kubeconfig::point_containers_to_sidecar(&mut draft, &request, &known.namespace)?;
    }
    sidecar::insert_container(sidecar, is_native, &mut draft);
    if mode == Mode::Iptables {
        let mut init = iptables::init_container(&request, settings, known, server);
        previous.carry_over(&mut init);
        iptables::insert_container(init, is_native, &mut draft.init_containers);
    }
    draft.volumes.extend(volumes::pod_volumes(&request));
    pull_secrets(&mut draft, settings);
    Ok(draft.finish())
}

/// Removes containers and volumes of an earlier injection, so that they are rebuilt: another webhook may have added containers
/// since.
fn take_out(draft: &mut Draft) -> PreviousContainers {
    let mut previous = PreviousContainers::default();
    if draft.annotations.remove(annotations::INJECTED).is_none() {
        return previous;
    }
    for list in [&mut draft.containers, &mut draft.init_containers] {
        previous.take(list);
    }
    draft
        .volumes
        .retain(|volume| !volumes::NAMES.contains(&name_of(volume)));
    draft.annotations.remove(annotations::KUBECONFIG);
    for container in draft.init_containers.iter_mut().chain(&mut draft.containers) {
        container.remove_mounts_of(names_of_pod::KUBECONFIG_VOLUME);
    }
    previous
}

/// Sets the labels by which the manager and people find the pod. Returns its shard.
fn label_pod(draft: &mut Draft, known: &ClusterInfo) -> Result<Option<String>, Refusal> {
    draft.labels.remove(labels::SHARDING_CONFIG_INJECTED);
    draft.labels.insert(labels::WATCHING.to_owned(), "true".to_owned());
    let shard = select::shard_of_pod(&draft.labels, &known.namespace, &known.rules)?.map(str::to_owned);
    // The label is for people; the chain decides. It is left out if the name is too long for a label.
    if let Some(shard) = shard.as_ref().filter(|shard| shard.len() <= MAX_LABEL) {
        let label = labels::SHARDING_CONFIG_INJECTED.to_owned();
        draft.labels.insert(label, shard.clone());
    }
    let mode = if draft.has_label(labels::ENABLE_IPTABLES) {
        "iptables"
    } else {
        "kubeconfig"
    };
    draft
        .annotations
        .insert(annotations::INJECTED.to_owned(), mode.to_owned());
    Ok(shard)
}

fn pull_secrets(draft: &mut Draft, settings: &Settings) {
    for name in &settings.pull_secrets {
        if !draft.pull_secrets.iter().any(|secret| name_of(secret) == name) {
            draft.pull_secrets.push(json!({"name": name}));
        }
    }
}
