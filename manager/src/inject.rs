//! The sidecar in the pod: from a pod that asks for one, and what is known of its namespace, to the pod as it is made.
//!
//! Pure. The webhook ([`crate::webhook`]) reads what must be known; what the sidecar does in the pod is `ctrlmesh-proxy`'s.
//!
//! Guarantees:
//! - Injected once more, a pod stays as it is, also after other webhooks changed it or the sidecar.
//! - Of what the pod had, nothing is changed but what leads its containers to the sidecar.
//! - What runs in containers of ours follows from the manager's settings alone, also if the pod brings such containers itself.
//! - A pod that can't be served is refused, and never made without its sidecar.

mod arguments;
mod before;
mod clash;
mod environment;
mod iptables;
mod kubeconfig;
mod logs;
mod patch;
mod pod;
mod refusal;
mod select;
mod settings;
mod sidecar;
#[cfg(test)]
mod tests;
mod upstream;
mod volumes;
mod wishes;

use ctrlmesh_contract::names::{annotations, labels, pod as names_of_pod};
use serde_json::{Value, json};

use before::Before;
use pod::{Draft, name_of};
pub use refusal::Refusal;
pub use select::Rule;
pub use settings::{Known, Settings};
use wishes::{Mode, Wishes};

/// Characters of a label's value.
const MAX_LABEL: usize = 63;

/// Whether a pod asks for a sidecar.
#[must_use]
pub fn is_asked_for(pod: &Value) -> bool {
    Draft::of(pod).is_some_and(|pod| pod.has(labels::ENABLE_PROXY))
}

/// Whether it asks for what it sends to the API server to be redirected, so that the addresses of that must be known.
#[must_use]
pub fn is_redirected(pod: &Value) -> bool {
    Draft::of(pod).is_some_and(|pod| pod.has(labels::ENABLE_IPTABLES))
}

/// The JSON patch that gives a pod its sidecar; empty if it has it.
///
/// # Errors
/// Why it can't have one.
pub fn inject(pod: &Value, known: &Known, settings: &Settings) -> Result<Vec<Value>, Refusal> {
    let injected = injected(pod, known, settings)?;
    Ok(patch::patch(pod, &injected))
}

/// The pod with its sidecar.
fn injected(pod: &Value, known: &Known, settings: &Settings) -> Result<Value, Refusal> {
    let mut draft = Draft::of(pod).ok_or(Refusal::NoPod)?;
    if settings.image.is_empty() {
        return Err(Refusal::NoImage);
    }
    let before = take_out(&mut draft);
    let shard = mark(&mut draft, known)?;
    clash::check(&draft)?;
    let wishes = Wishes::of(&draft, known, settings)?;
    clash::ports(&draft, &wishes, settings)?;
    let (mode, is_native) = (wishes.mode, wishes.is_native);
    clash::starts_before(&draft, &wishes)?;

    environment::inject(&mut draft, &wishes)?;
    if mode == Mode::Iptables {
        iptables::check_users(&draft)?;
        // Before the sidecar gets copies of variables, which would be others the next time.
        iptables::trust_the_mesh(&mut draft);
    }
    let server = environment::server(&draft, &wishes, known)?;
    let asked_for = environment::asked_for(&draft, &wishes, &server)?;
    let mut sidecar = sidecar::container(&wishes, settings, known, shard.is_some(), asked_for);
    before.carry_over(&mut sidecar);
    if let Some(path) = &wishes.log_path {
        sidecar.mount(logs::share(&mut draft, path));
    }
    if mode == Mode::Kubeconfig {
        kubeconfig::lead(&mut draft, &wishes, &known.namespace)?;
    }
    sidecar::place(sidecar, is_native, &mut draft);
    if mode == Mode::Iptables {
        let mut init = iptables::container(&wishes, settings, known, server);
        before.carry_over(&mut init);
        iptables::place(init, is_native, &mut draft.init_containers);
    }
    draft.volumes.extend(volumes::volumes(&wishes));
    pull_secrets(&mut draft, settings);
    Ok(draft.finish())
}

/// Takes out what was put in before, so that it is put in as it is now: another webhook may have added containers since.
fn take_out(draft: &mut Draft) -> Before {
    let mut before = Before::default();
    if draft.annotations.remove(annotations::INJECTED).is_none() {
        return before;
    }
    for list in [&mut draft.containers, &mut draft.init_containers] {
        before.take(list);
    }
    draft
        .volumes
        .retain(|volume| !volumes::NAMES.contains(&name_of(volume)));
    draft.annotations.remove(annotations::KUBECONFIG);
    for container in draft.init_containers.iter_mut().chain(&mut draft.containers) {
        container.unmount(names_of_pod::KUBECONFIG_VOLUME);
    }
    before
}

/// Labels that say what the pod is, for the manager and for people. Returns its shard.
fn mark(draft: &mut Draft, known: &Known) -> Result<Option<String>, Refusal> {
    draft.labels.remove(labels::SHARDING_CONFIG_INJECTED);
    draft.labels.insert(labels::WATCHING.to_owned(), "true".to_owned());
    let shard = select::shard(&draft.labels, &known.namespace, &known.rules)?.map(str::to_owned);
    // It says for people what the chain decides; a name may be too long for that.
    if let Some(shard) = shard.as_ref().filter(|shard| shard.len() <= MAX_LABEL) {
        let label = labels::SHARDING_CONFIG_INJECTED.to_owned();
        draft.labels.insert(label, shard.clone());
    }
    let mode = if draft.has(labels::ENABLE_IPTABLES) {
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
