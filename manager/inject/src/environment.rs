//! Environment variables of the sidecar, and of containers that get some by annotation.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ctrlmesh_contract::names::{annotations, env, pod};
use serde_json::{Value, json};

use super::injection_request::{Inject, InjectionRequest, Mode, SyncedVariable};
use super::pod::{Container, Draft, name_of, variable_with_value};
use super::refusal::Refusal;
use super::settings::ClusterInfo;

/// The variable by which containers find the API server by default.
pub(super) const HOST: &str = "KUBERNETES_SERVICE_HOST";
const SERVER: [&str; 2] = [HOST, "KUBERNETES_SERVICE_PORT"];
/// API servers always create their Service with this port.
const SERVICE_PORT: &str = "443";

/// Variables that the pod requests for the sidecar, in the order in which they are set.
pub(super) fn requested_variables(
    draft: &Draft,
    request: &InjectionRequest,
    server: &[Value],
) -> Result<Vec<Value>, Refusal> {
    let mut variables = Vec::new();
    for sync in &request.env_sync {
        match sync {
            SyncedVariable::Value(name, value) => variables.push(variable_with_value(name, value)),
            SyncedVariable::Copy(name) => {
                let copy = first_variable(&draft.containers, name, &variables)?;
                variables.extend(copy);
            }
        }
    }
    variables.extend_from_slice(server);
    let for_sidecar = request.env_inject.iter().filter(|inject| inject.name == pod::SIDECAR);
    variables.extend(for_sidecar.flat_map(listed_variables));
    Ok(variables)
}

/// Identity of the sidecar. These variables come first, because later ones may refer to them.
pub(super) fn identity_variables() -> [Value; 2] {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    [
        field(env::POD_NAME, "metadata.name"),
        field(env::POD_NAMESPACE, "metadata.namespace"),
    ]
}

/// A copy of the variable from the first container that has it. `given`: the variables that precede it in the sidecar.
fn first_variable(containers: &[Container], name: &str, given: &[Value]) -> Result<Option<Value>, Refusal> {
    let Some(container) = containers.iter().find(|it| it.effective_variable(name).is_some()) else {
        return Ok(None);
    };
    check_copy(container, name, given)?;
    Ok(container.effective_variable(name).cloned())
}

/// Fails if a container's variable would have another value in the sidecar: kubelet replaces `$(OTHER)` by a variable that precedes
/// it in the same container, and the sidecar may be `given` another one.
fn check_copy(container: &Container, name: &str, given: &[Value]) -> Result<(), Refusal> {
    let mut before = container.items("env").iter().rev().skip_while(|it| name_of(it) != name);
    let value = before.next().and_then(|it| it.get("value")?.as_str());
    let has_more = !container.items("envFrom").is_empty();
    let own = identity_variables();
    let says_else = |other: &&str| match before.clone().find(|it| name_of(it) == *other) {
        Some(theirs) => !own.iter().chain(given).any(|ours| is_same(ours, theirs)),
        None => has_more,
    };
    match referenced_names(value.unwrap_or_default()).into_iter().find(says_else) {
        Some(other) => Err(Refusal::NotCopied {
            container: container.name().to_owned(),
            variable: name.to_owned(),
            other: other.to_owned(),
        }),
        None => Ok(()),
    }
}

/// Whether two variables are the same, apart from the defaults that API servers add to references to fields.
fn is_same(variable: &Value, other: &Value) -> bool {
    let field = |variable: &Value| variable.pointer("/valueFrom/fieldRef/fieldPath").cloned();
    match (field(variable), field(other)) {
        (Some(path), Some(others)) => path == others && name_of(variable) == name_of(other),
        _ => variable == other,
    }
}

/// Names that a value refers to: `$(NAME)`, where `$$` stands for a dollar.
fn referenced_names(value: &str) -> Vec<&str> {
    let (mut names, mut value) = (Vec::new(), value);
    while let Some((_, rest)) = value.split_once('$') {
        value = rest.strip_prefix('$').unwrap_or(rest);
        if let Some((name, rest)) = rest.strip_prefix('(').and_then(|it| it.split_once(')')) {
            names.push(name);
            value = rest;
        }
    }
    names
}

/// The address of the API server that the pod's own containers use.
pub(super) fn server_variables(
    draft: &Draft,
    request: &InjectionRequest,
    known: &ClusterInfo,
) -> Result<Vec<Value>, Refusal> {
    let mut variables = Vec::new();
    for name in SERVER {
        redirected_containers(draft, request).try_for_each(|it| check_copy(it, name, &[]))?;
        check_one_server(draft, request, known, name)?;
        variables.extend(
            redirected_containers(draft, request)
                .find_map(|it| it.effective_variable(name))
                .cloned(),
        );
    }
    Ok(variables)
}

/// Fails unless all containers use the same API server. If traffic is redirected, a container without the variable counts too: it
/// connects to the Service, past the rules for another address.
fn check_one_server(
    draft: &Draft,
    request: &InjectionRequest,
    known: &ClusterInfo,
    name: &'static str,
) -> Result<(), Refusal> {
    let is_redirected = request.mode == Mode::Iptables;
    let mut values = redirected_containers(draft, request)
        .map(|it| (it, it.effective_variable(name)))
        .filter(|(_, value)| is_redirected || value.is_some());
    let Some((first, value)) = values.next() else {
        return Ok(());
    };
    let of_service = |value: Option<&Value>| value.is_none_or(|value| is_service(value, known));
    let is_other = |other: Option<&Value>| other != value && !(is_redirected && of_service(other) && of_service(value));
    match values.find(|(_, other)| is_other(*other)) {
        Some((second, _)) => Err(Refusal::TwoServers {
            first: first.name().to_owned(),
            second: second.name().to_owned(),
            variable: name,
        }),
        None => Ok(()),
    }
}

/// Containers whose variables count. With a kubeconfig, those of init containers do not matter; in the classic shape, init
/// containers end before traffic is redirected.
fn redirected_containers<'a>(draft: &'a Draft, request: &InjectionRequest) -> impl Iterator<Item = &'a Container> {
    let has_init = request.mode == Mode::Iptables && request.is_native;
    let init = draft.init_containers.iter().filter(move |_| has_init);
    init.chain(&draft.containers)
}

/// Whether a variable has its default value: an address of the Service `kubernetes`, or its port.
pub(super) fn is_service(variable: &Value, known: &ClusterInfo) -> bool {
    let value = variable.get("value").and_then(Value::as_str).unwrap_or_default();
    if name_of(variable) != HOST {
        return value == SERVICE_PORT;
    }
    value
        .parse::<IpAddr>()
        .is_ok_and(|address| known.service_addresses.contains(&address))
}

/// Sets the annotation's variables in the pod's containers.
pub(super) fn inject_variables(draft: &mut Draft, request: &InjectionRequest) -> Result<(), Refusal> {
    let mut desired: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for inject in request.env_inject.iter().filter(|inject| inject.name != pod::SIDECAR) {
        desired
            .entry(&inject.name)
            .or_default()
            .extend(listed_variables(inject));
    }
    for container in draft.init_containers.iter_mut().chain(&mut draft.containers) {
        for variable in desired.remove(container.name()).into_iter().flatten() {
            container.set_variable(variable);
        }
    }
    match desired.keys().next() {
        Some(name) => {
            let problem = format!("the pod has no container {name}");
            Err(Refusal::key(annotations::ENV_INJECT, problem))
        }
        None => Ok(()),
    }
}

fn listed_variables(inject: &Inject) -> impl Iterator<Item = Value> {
    inject.env.iter().map(|it| variable_with_value(&it.key, &it.value))
}

/// Merges variables. A later one replaces an earlier one of the same name, at the place of the earlier one.
pub(super) fn merge_variables(variables: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    for variable in variables {
        match merged.iter_mut().find(|it| name_of(it) == name_of(&variable)) {
            Some(place) => *place = variable,
            None => merged.push(variable),
        }
    }
    merged
}
