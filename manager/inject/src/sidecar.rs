//! Builds the sidecar's container, and inserts it where it starts before the containers that it serves.

use ctrlmesh_contract::names::{annotations, env, pod, ports};
use ctrlmesh_manager_planner::built_in::BuiltIn;
use serde_json::{Map, Value, json};

use super::environment::{identity_variables, merge_variables};
use super::injection_request::{InjectionRequest, Mode};
use super::pod::{Container, Draft, name_of, variable_with_value};
use super::refusal::Refusal;
use super::settings::{ClusterInfo, Settings};
use super::volumes;

/// Seconds within which a sidecar must answer after its start.
const START_SECONDS: u32 = 300;

/// The annotation with the container that kubectl uses by default.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// A security context that the strictest Pod Security Standard allows.
pub(super) fn restricted_security_context() -> Value {
    json!({
        "runAsUser": pod::UID,
        "runAsGroup": pod::UID,
        "runAsNonRoot": true,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// The sidecar's container. `asked_for` are variables that the pod requests for it.
pub(super) fn sidecar_container(
    request: &InjectionRequest,
    settings: &Settings,
    known: &ClusterInfo,
    is_shard: bool,
    asked_for: Vec<Value>,
) -> Container {
    let mut fields = Map::new();
    let mut put = |field: &str, value: Value| drop(fields.insert(field.to_owned(), value));
    put("name", json!(pod::SIDECAR));
    put("image", json!(settings.image));
    put("imagePullPolicy", json!(settings.pull_policy));
    put("args", json!(sidecar_arguments(request, settings)));
    let environment = sidecar_environment(request, settings, known, is_shard, asked_for);
    put("env", Value::Array(environment));
    put(
        "ports",
        json!([{"name": "ctrlmesh-admin", "containerPort": settings.admin.port(), "protocol": "TCP"}]),
    );
    put("resources", request.resources(settings));
    put("securityContext", restricted_security_context());
    put("volumeMounts", Value::Array(volumes::sidecar_mounts(request)));
    put("readinessProbe", http_probe(settings, "/readyz", 5, 3));
    put("livenessProbe", http_probe(settings, "/livez", 10, 6));
    put(
        "lifecycle",
        json!({"postStart": {"exec": {"command": startup_probe_command(settings)}}}),
    );
    if request.is_native {
        put("restartPolicy", json!("Always"));
    }
    Container(fields)
}

/// Puts the container at its place in the pod. It must not become the default container of `kubectl logs` and `exec`.
pub(super) fn insert_container(container: Container, is_native: bool, draft: &mut Draft) {
    if is_native {
        draft.init_containers.insert(0, container);
        return;
    }
    if let Some(first) = draft.containers.first() {
        let annotation = draft.annotations.entry(DEFAULT_CONTAINER.to_owned());
        annotation.or_insert_with(|| first.name().to_owned());
    }
    draft.containers.insert(0, container);
}

fn sidecar_arguments(request: &InjectionRequest, settings: &Settings) -> Vec<String> {
    let mut arguments = vec![
        format!("--admin-address={}", settings.admin),
        format!("--chain-dir={}", volumes::CHAIN_DIR),
        format!("--labels-file={}", volumes::labels_file()),
        format!("--cache-dir={}", volumes::cache_dir()),
    ];
    if let Some(file) = volumes::upstream_file(request) {
        arguments.push(format!("--kubeconfig={file}"));
    }
    if request.has_tls {
        arguments.push(format!("--tls-dir={}", volumes::TLS_DIR));
    }
    if request.mode == Mode::Iptables {
        // Traffic of either address family reaches the loopback of that family.
        arguments.push(format!("--api-address=127.0.0.1:{0},[::1]:{0}", ports::API));
    }
    arguments
}

/// Fails if the pod sets a variable of the sidecar whose flag injection sets: flags win over variables, so it would have no effect.
pub(super) fn check_variables(request: &InjectionRequest, settings: &Settings) -> Result<(), Refusal> {
    let synced = request.env_sync.iter().map(|it| (annotations::ENV_SYNC, it.name()));
    let for_sidecar = request.env_inject.iter().filter(|inject| inject.name == pod::SIDECAR);
    let injected = for_sidecar
        .flat_map(|inject| &inject.env)
        .map(|it| (annotations::ENV_INJECT, it.key.as_str()));
    let arguments = sidecar_arguments(request, settings);
    let flags: Vec<&str> = arguments.iter().filter_map(|it| it.split('=').next()).collect();
    for (annotation, name) in synced.chain(injected) {
        if let Some(flag) = flags.iter().find(|flag| variable_of_flag(flag) == name) {
            let problem =
                format!("{name} has no effect on the sidecar, because ctrlmesh sets its flag {flag}; remove it");
            return Err(Refusal::key(annotation, problem));
        }
    }
    Ok(())
}

/// The variable that the sidecar reads if a flag is absent: `CTRLMESH_CHAIN_DIR` for `--chain-dir`.
fn variable_of_flag(flag: &str) -> String {
    let name = flag.trim_start_matches('-').replace('-', "_");
    format!("CTRLMESH_{}", name.to_uppercase())
}

/// Variables of the pod override those of the manager's flags. Neither can override those that the sidecar needs.
fn sidecar_environment(
    request: &InjectionRequest,
    settings: &Settings,
    known: &ClusterInfo,
    is_shard: bool,
    asked_for: Vec<Value>,
) -> Vec<Value> {
    let needed = [
        variable_with_value(env::PUBLIC_KEY, &known.public_key),
        variable_with_value(env::STATE_DIR, &volumes::state_dir()),
    ];
    // The chain may be older than the shard, and without a shard's entry the pod would see everything. Any shard's entry will do:
    // by the time the pod starts it may belong to another shard, or keep an earlier view.
    let awaited =
        is_shard.then(|| variable_with_value(env::AWAIT_ENTRY, &format!("{}/", BuiltIn::ShardSelector.name())));
    let needed: Vec<Value> = identity_variables().into_iter().chain(needed).chain(awaited).collect();
    let asked_for = asked_for.into_iter().filter(|it| name_of(it) != env::AWAIT_ENTRY);
    let external = request.external_port;
    let external = external.map(|port| variable_with_value(env::EXTERNAL_ADDRESS, &format!("127.0.0.1:{port}")));
    let usual = [
        variable_with_value(env::LOG, &settings.log),
        variable_with_value(env::LOG_FORMAT, settings.log_format),
    ];
    let flags = settings
        .env
        .iter()
        .map(|(name, value)| variable_with_value(name, value));
    let all = needed.iter().cloned().chain(usual).chain(external);
    merge_variables(all.chain(flags).chain(asked_for).chain(needed.iter().cloned()))
}

/// Kubelet starts the later containers once this command has ended. If it fails, the sidecar is restarted, and an Event says why.
fn startup_probe_command(settings: &Settings) -> [String; 4] {
    let address = settings.admin_from_inside();
    let address = format!("--admin-address={address}");
    let seconds = format!("--seconds={START_SECONDS}");
    [pod::PROGRAM.to_owned(), "wait-ready".to_owned(), address, seconds]
}

fn http_probe(settings: &Settings, path: &str, period: u32, tries: u32) -> Value {
    json!({
        "httpGet": {"path": path, "port": settings.admin.port(), "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": tries,
    })
}
