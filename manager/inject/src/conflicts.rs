//! Parts of a pod that conflict with a sidecar: names, ports, host network, init containers.

use ctrlmesh_contract::names::pod;
use serde_json::Value;

use super::injection_request::{InjectionRequest, Mode};
use super::pod::{Container, Draft, name_of};
use super::refusal::Refusal;
use super::settings::Settings;
use super::volumes;

pub(super) fn check_pod(draft: &Draft) -> Result<(), Refusal> {
    if draft.spec_field("hostNetwork").and_then(Value::as_bool) == Some(true) {
        return Err(Refusal::HostNetwork);
    }
    let os = draft.spec_field("os").map(name_of).unwrap_or_default();
    if !matches!(os, "" | "linux") {
        return Err(Refusal::NotLinux { os: os.to_owned() });
    }
    check_names(draft)
}

/// Refuses init containers that would go past a classic sidecar: its iptables rules are set after the other init containers, and
/// existing connections are not redirected. With a kubeconfig, init containers are not led to it at all.
pub(super) fn check_init_containers(draft: &Draft, request: &InjectionRequest) -> Result<(), Refusal> {
    let leads = request.mode == Mode::Iptables || request.rewrites_args || request.rewrites_env;
    if request.is_native || !leads {
        return Ok(());
    }
    let goes_on = |it: &&Container| it.0.get("restartPolicy").and_then(Value::as_str) == Some("Always");
    match draft.init_containers.iter().find(goes_on) {
        Some(container) => Err(Refusal::StartsBefore {
            container: container.name().to_owned(),
        }),
        None => Ok(()),
    }
}

fn check_names(draft: &Draft) -> Result<(), Refusal> {
    let ours = |name: &str| [pod::SIDECAR, pod::INIT].contains(&name);
    let taken = |kind, name: &str| {
        Err(Refusal::NameTaken {
            kind,
            name: name.to_owned(),
        })
    };
    for (kind, containers) in [
        ("container", &draft.containers),
        ("init container", &draft.init_containers),
    ] {
        if let Some(container) = containers.iter().find(|it| ours(it.name())) {
            return taken(kind, container.name());
        }
    }
    match draft.volumes.iter().find(|it| volumes::NAMES.contains(&name_of(it))) {
        Some(volume) => taken("volume", name_of(volume)),
        None => Ok(()),
    }
}

/// Refuses ports that containers declare and the sidecar needs. A container need not declare its ports; then it fails to listen and
/// says so itself.
pub(super) fn check_ports(draft: &Draft, request: &InjectionRequest, settings: &Settings) -> Result<(), Refusal> {
    for container in draft.all_containers() {
        let tcp = container.items("ports").iter().filter(|port| {
            let protocol = port.get("protocol").and_then(Value::as_str);
            protocol.is_none_or(|protocol| protocol == "TCP")
        });
        let mut numbers = tcp.filter_map(|port| port.get("containerPort")?.as_u64());
        let ours = |number: u64| {
            let mut ports = settings.sidecar_ports().into_iter().chain(request.external_port);
            ports.find(|port| u64::from(*port) == number)
        };
        if let Some(port) = numbers.find_map(ours) {
            return Err(Refusal::PortTaken {
                container: container.name().to_owned(),
                port,
            });
        }
    }
    Ok(())
}
