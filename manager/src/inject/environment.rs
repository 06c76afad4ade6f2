//! Environment: what the sidecar gets besides its settings, and what containers get by annotation.

use std::collections::BTreeMap;

use ctrlmesh_contract::names::{annotations, pod};
use serde_json::Value;

use super::pod::{Container, Draft, name_of, variable};
use super::refusal::Refusal;
use super::wishes::{Inject, Synced, Wishes};

/// Where a container finds the API server when it is told nothing else.
pub(super) const HOST: &str = "KUBERNETES_SERVICE_HOST";
const SERVER: [&str; 2] = [HOST, "KUBERNETES_SERVICE_PORT"];

/// Variables that the pod asks for, in the order in which they are set.
pub(super) fn asked_for(draft: &Draft, wishes: &Wishes) -> Result<Vec<Value>, Refusal> {
    let mut variables = Vec::new();
    for sync in &wishes.env_sync {
        match sync {
            Synced::Value(name, value) => variables.push(variable(name, value)),
            Synced::Copy(name) => variables.extend(first(&draft.containers, name).cloned()),
        }
    }
    variables.extend(server(draft)?);
    let for_sidecar = wishes.env_inject.iter().filter(|inject| inject.name == pod::SIDECAR);
    variables.extend(for_sidecar.flat_map(listed));
    Ok(variables)
}

/// As the first container has it that has one.
fn first<'a>(containers: &'a [Container], name: &str) -> Option<&'a Value> {
    containers.iter().find_map(|container| container.variable(name))
}

/// Where the pod's own containers are told that the API server is.
pub(super) fn server(draft: &Draft) -> Result<Vec<Value>, Refusal> {
    let mut variables = Vec::new();
    for name in SERVER {
        let told = draft.containers.iter().filter_map(|it| Some((it, it.variable(name)?)));
        let told: Vec<(&Container, &Value)> = told.collect();
        let Some((first, value)) = told.first() else { continue };
        if let Some((second, _)) = told.iter().find(|(_, other)| other != value) {
            return Err(Refusal::TwoServers {
                first: first.name().to_owned(),
                second: second.name().to_owned(),
                variable: name,
            });
        }
        variables.push((*value).clone());
    }
    Ok(variables)
}

/// Sets what the annotation says in the pod's containers.
pub(super) fn inject(draft: &mut Draft, wishes: &Wishes) -> Result<(), Refusal> {
    let mut wanted: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for inject in wishes.env_inject.iter().filter(|inject| inject.name != pod::SIDECAR) {
        wanted.entry(&inject.name).or_default().extend(listed(inject));
    }
    for container in draft.init_containers.iter_mut().chain(&mut draft.containers) {
        for variable in wanted.remove(container.name()).into_iter().flatten() {
            container.set_variable(variable);
        }
    }
    match wanted.keys().next() {
        Some(name) => {
            let problem = format!("the pod has no container {name}");
            Err(Refusal::key(annotations::ENV_INJECT, problem))
        }
        None => Ok(()),
    }
}

fn listed(inject: &Inject) -> impl Iterator<Item = Value> {
    inject.env.iter().map(|it| variable(&it.key, &it.value))
}

/// Later ones of a name replace earlier ones, where those stand.
pub(super) fn merged(variables: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    for variable in variables {
        match merged.iter_mut().find(|it| name_of(it) == name_of(&variable)) {
            Some(place) => *place = variable,
            None => merged.push(variable),
        }
    }
    merged
}
