//! The requests of a pod, by labels and annotations. Invalid values are refused, so that a typo is not silently ignored.

use ctrlmesh_contract::names::{annotations, labels};
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::Deserialize;
use serde_json::{Value, json};

use super::own_paths::is_of_sidecar;
use super::pod::Draft;
use super::refusal::Refusal;
use super::select::has_external_rules;
use super::settings::{ClusterInfo, Settings};
use super::upstream::{self, Upstream};

/// The way of a controller's traffic to its sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The controller has a kubeconfig that leads to the sidecar.
    Kubeconfig,
    Iptables,
}

/// The injection that a pod requests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InjectionRequest {
    pub(super) mode: Mode,
    pub(super) is_native: bool,
    /// Whether the controller uses TLS to the sidecar.
    pub(super) has_tls: bool,
    pub(super) rewrites_args: bool,
    pub(super) rewrites_env: bool,
    /// Containers that get `--kubeconfig` although they do not have the flag.
    pub(super) arg_containers: Vec<String>,
    pub(super) upstream: Option<Upstream>,
    /// Resources of the sidecar, which replace those of the manager's flags.
    pub(super) resources: Option<Value>,
    /// The pod has resources of its own at pod level, and our containers must not exceed these (KEP-2837).
    pub(super) has_pod_level_resources: bool,
    pub(super) env_sync: Vec<SyncedVariable>,
    pub(super) env_inject: Vec<Inject>,
    pub(super) log_path: Option<String>,
    /// Port on which the sidecar serves calls to external services.
    pub(super) external_port: Option<u16>,
}

/// A variable of the sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SyncedVariable {
    Value(String, String),
    /// A copy from the first container that has it.
    Copy(String),
}

impl SyncedVariable {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Value(name, _) | Self::Copy(name) => name,
        }
    }
}

/// Variables of a container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Inject {
    pub(super) name: String,
    #[serde(default)]
    pub(super) env: Vec<Variable>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variable {
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
}

impl InjectionRequest {
    pub(super) fn read(pod: &Draft, known: &ClusterInfo, settings: &Settings) -> Result<Self, Refusal> {
        let mode = if pod.has_label(labels::ENABLE_IPTABLES) {
            Mode::Iptables
        } else {
            Mode::Kubeconfig
        };
        let is_native = boolean_annotation(pod, annotations::NATIVE_SIDECAR)?.unwrap_or(known.has_native_sidecars);
        let has_tls = boolean_annotation(pod, annotations::LOOPBACK_TLS)?.unwrap_or(false);
        if !settings.has_mesh_ca {
            check_certificates(mode, has_tls)?;
        }
        Ok(Self {
            mode,
            is_native,
            has_tls: has_tls || mode == Mode::Iptables,
            rewrites_args: !pod.has_label(labels::DISABLE_KUBECONFIG_ARG),
            rewrites_env: !pod.has_label(labels::DISABLE_KUBECONFIG_ENV),
            arg_containers: arg_containers(pod, mode, is_native)?,
            upstream: upstream_of(pod, mode)?,
            resources: resources_annotation(pod)?,
            has_pod_level_resources: pod
                .spec_field("resources")
                .is_some_and(|it| it.as_object().is_some_and(|it| !it.is_empty())),
            env_sync: env_sync(pod)?,
            env_inject: env_inject(pod)?,
            log_path: log_path(pod)?,
            external_port: external_port(pod, known, settings)?,
        })
    }

    /// The resources of each injected container. They are equal, so that a container that runs before the sidecar reserves nothing
    /// more.
    pub(super) fn resources(&self, settings: &Settings) -> Value {
        match &self.resources {
            Some(requested) => requested.clone(),
            None if self.has_pod_level_resources => json!({}),
            None => settings.resources.clone(),
        }
    }
}

/// Fails if the pod needs certificates and the manager does not issue any.
fn check_certificates(mode: Mode, has_tls: bool) -> Result<(), Refusal> {
    let key = match mode {
        Mode::Iptables => labels::ENABLE_IPTABLES,
        Mode::Kubeconfig if has_tls => annotations::LOOPBACK_TLS,
        Mode::Kubeconfig => return Ok(()),
    };
    let problem = "the sidecar needs a certificate for it, and the manager of this cluster makes none (--mesh-ca=false, CTRLMESH_MESH_CA); \
                   remove it from the pod, or ask the cluster's administrator to enable it";
    Err(Refusal::key(key, problem))
}

/// The external port is off unless the pod or a rule for it asks for it: clients that reach that port send requests from the pod's
/// place in the network.
fn external_port(pod: &Draft, known: &ClusterInfo, settings: &Settings) -> Result<Option<u16>, Refusal> {
    let key = annotations::EXTERNAL_TRAFFIC;
    let is_asked_for = boolean_annotation(pod, key)?;
    let port = (settings.external_port != 0).then_some(settings.external_port);
    match is_asked_for {
        Some(true) if port.is_none() => Err(Refusal::key(
            key,
            "sidecars of this cluster accept no calls to other services (--proxy-external-port=0 or CTRLMESH_PROXY_EXTERNAL_PORT of the \
             manager); remove the annotation, or ask the cluster's administrator to enable it",
        )),
        Some(is_on) => Ok(port.filter(|_| is_on)),
        None => Ok(port.filter(|_| has_external_rules(&pod.labels, &known.rules))),
    }
}

/// Fails if traffic is redirected and the pod has a kubeconfig of its own: containers then send their own token, which the sidecar
/// passes on, and another cluster must not get it.
fn upstream_of(pod: &Draft, mode: Mode) -> Result<Option<Upstream>, Refusal> {
    let upstream = upstream::read_upstream(pod)?;
    if upstream.is_some() && mode == Mode::Iptables {
        let problem = format!(
            "does not go with label {}: containers whose traffic is redirected send the token of this cluster's service account, and the \
             cluster of that kubeconfig would get it; remove one of the two labels",
            labels::ENABLE_IPTABLES
        );
        return Err(Refusal::key(labels::KUBECONFIG_VOLUME, problem));
    }
    Ok(upstream)
}

fn annotation_value<'a>(pod: &'a Draft, key: &str) -> Option<&'a str> {
    let text = pod.annotations.get(key)?.trim();
    (!text.is_empty()).then_some(text)
}

fn boolean_annotation(pod: &Draft, key: &'static str) -> Result<Option<bool>, Refusal> {
    match annotation_value(pod, key) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => Err(Refusal::key(key, format!("is {other:?}; write \"true\" or \"false\""))),
    }
}

fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty())
}

fn arg_containers(pod: &Draft, mode: Mode, is_native: bool) -> Result<Vec<String>, Refusal> {
    let key = annotations::KUBECONFIG_ARG;
    let names: Vec<String> = split_words(annotation_value(pod, key).unwrap_or_default())
        .map(str::to_owned)
        .collect();
    let is_there = |name: &String| pod.all_containers().any(|it| it.name() == name);
    if let Some(name) = names.iter().find(|name| !is_there(name)) {
        return Err(Refusal::key(key, format!("the pod has no container {name}")));
    }
    let off = match mode {
        Mode::Iptables => Some((labels::ENABLE_IPTABLES, "traffic is redirected and no argument changed")),
        Mode::Kubeconfig if pod.has_label(labels::DISABLE_KUBECONFIG_ARG) => {
            Some((labels::DISABLE_KUBECONFIG_ARG, "it leaves arguments alone"))
        }
        Mode::Kubeconfig => None,
    };
    if let Some((label, why)) = off.filter(|_| !names.is_empty()) {
        let problem = format!("does not go with label {label}: {why}; remove one of the two");
        return Err(Refusal::key(key, problem));
    }
    let is_init = |name: &&String| pod.init_containers.iter().any(|it| it.name() == *name);
    match names.iter().find(is_init).filter(|_| !is_native) {
        Some(name) => Err(Refusal::key(
            key,
            format!(
                "init container {name} ends before the sidecar starts; leave it out, or have the sidecar start first (annotation {}: \"true\")",
                annotations::NATIVE_SIDECAR
            ),
        )),
        None => Ok(names),
    }
}

fn resources_annotation(pod: &Draft) -> Result<Option<Value>, Refusal> {
    let key = annotations::PROXY_RESOURCE;
    let Some(text) = annotation_value(pod, key) else {
        return Ok(None);
    };
    let wrong = |problem: String| {
        let example = r#"{"requests": {"cpu": "100m"}, "limits": {"memory": "256Mi"}}"#;
        Refusal::key(key, format!("{problem}; write JSON such as {example}"))
    };
    let value: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let fields = value.as_object().ok_or_else(|| wrong("is not an object".to_owned()))?;
    if let Some(other) = fields.keys().find(|it| !["requests", "limits"].contains(&it.as_str())) {
        return Err(wrong(format!("has an unknown field {other}")));
    }
    serde_json::from_value::<ResourceRequirements>(value.clone()).map_err(|error| wrong(error.to_string()))?;
    Ok(Some(value))
}

fn env_sync(pod: &Draft) -> Result<Vec<SyncedVariable>, Refusal> {
    let key = annotations::ENV_SYNC;
    let synced = split_words(annotation_value(pod, key).unwrap_or_default()).map(|word| match word.split_once('=') {
        Some(("", _)) => Err(Refusal::key(
            key,
            format!("{word:?} has no name; write NAME=value or NAME"),
        )),
        Some((name, value)) => Ok(SyncedVariable::Value(name.to_owned(), value.to_owned())),
        // The containers' own KUBECONFIG leads to the sidecar.
        None if word == "KUBECONFIG" => Err(Refusal::key(
            key,
            format!(
                "the sidecar does not read KUBECONFIG; use label {}",
                labels::KUBECONFIG_VOLUME
            ),
        )),
        None => Ok(SyncedVariable::Copy(word.to_owned())),
    });
    synced.collect()
}

fn env_inject(pod: &Draft) -> Result<Vec<Inject>, Refusal> {
    let key = annotations::ENV_INJECT;
    let Some(text) = annotation_value(pod, key) else {
        return Ok(Vec::new());
    };
    serde_json::from_str(text).map_err(|error| {
        let example = r#"[{"name": "manager", "env": [{"key": "LEVEL", "value": "debug"}]}]"#;
        Refusal::key(key, format!("{error}; write JSON such as {example}"))
    })
}

fn log_path(pod: &Draft) -> Result<Option<String>, Refusal> {
    let key = annotations::LOG_PATH;
    match annotation_value(pod, key) {
        None => Ok(None),
        Some(path) if path.starts_with('/') && path.len() > 1 && is_of_sidecar(path) => Err(Refusal::key(
            key,
            format!("{path:?} would hide files of the sidecar, which mounts this folder, too; choose another"),
        )),
        Some(path) if path.starts_with('/') && path.len() > 1 && !path.contains(':') => {
            Ok(Some(path.trim_end_matches('/').to_owned()))
        }
        Some(path) => Err(Refusal::key(
            key,
            format!("{path:?} can't be mounted; write an absolute path"),
        )),
    }
}
