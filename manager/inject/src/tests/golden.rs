//! `testdata`: each file has a pod and facts about its namespace; the file `.after.yaml` beside it has the pod after injection.
//!
//! `CTRLMESH_WRITE_GOLDEN=1` writes the latter; then review the difference.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use clap::Parser as _;
use ctrlmesh_contract::names::ports;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::flags::ProxyArgs;
use crate::{ClusterInfo, Rule, Settings, inject, inject_sidecar};

const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The manager's flags about sidecars.
#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    proxy: ProxyArgs,
    /// The manager's flag of the same name.
    #[arg(long, default_value_t = ports::ADMIN)]
    sidecar_port: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Case {
    #[serde(rename = "about")]
    _about: String,
    #[serde(default)]
    flags: Vec<String>,
    /// Absent: one ShardingConfig, `operator-a`, for pods with `app: operator`.
    rules: Option<Vec<Value>>,
    /// Absent: yes.
    native: Option<bool>,
    /// Absent: one, which the clusters of the end-to-end tests use, too.
    service_addresses: Option<Vec<IpAddr>>,
    pub(super) pod: Value,
}

impl Case {
    pub(super) fn read(text: &str) -> Self {
        serde_saphyr::from_str(text).unwrap()
    }

    pub(super) fn known(&self) -> ClusterInfo {
        let usual = json!({
            "kind": "ShardingConfig", "metadata": {"name": "operator-a"},
            "spec": {"selector": {"matchLabels": {"app": "operator"}}},
        });
        let rules = self.rules.clone().unwrap_or_else(|| vec![usual]);
        ClusterInfo {
            namespace: "demo".to_owned(),
            rules: rules.iter().filter_map(Rule::from_document).collect(),
            public_key: "ed25519:AAAA".to_owned(),
            has_native_sidecars: self.native.unwrap_or(true),
            service_addresses: self
                .service_addresses
                .clone()
                .unwrap_or_else(|| vec![Ipv4Addr::new(10, 96, 0, 1).into()]),
        }
    }

    pub(super) fn settings(&self) -> Settings {
        let fixed = [
            "ctrlmesh-manager".to_owned(),
            "--proxy-image=ctrlmesh-proxy:1".to_owned(),
        ];
        let flags = Flags::parse_from(fixed.iter().chain(&self.flags));
        Settings::new(&flags.proxy, flags.sidecar_port)
    }
}

pub(super) fn cases() -> Vec<(PathBuf, Case)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testdata");
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let is_case = |path: &PathBuf| {
        let name = path.to_str().unwrap();
        name.ends_with(".yaml") && !name.ends_with(".after.yaml")
    };
    let mut files: Vec<PathBuf> = files.filter(is_case).collect();
    files.sort();
    assert!(files.len() >= 30, "{files:?}");
    let read = |path: PathBuf| {
        let case = Case::read(&fs::read_to_string(&path).unwrap());
        (path, case)
    };
    files.into_iter().map(read).collect()
}

#[test]
fn injected_pods_equal_golden_files() {
    let is_writing = std::env::var_os("CTRLMESH_WRITE_GOLDEN").is_some();
    for (path, case) in cases() {
        let after = inject_sidecar(&case.pod, &case.known(), &case.settings()).unwrap();
        let file = path.with_extension("after.yaml");
        if is_writing {
            fs::write(&file, serde_saphyr::to_string(&after).unwrap()).unwrap();
        }
        let expected: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(after, expected, "{}", path.display());
    }
}

#[test]
fn patch_produces_injected_pod() {
    for (path, case) in cases() {
        let (known, settings) = (case.known(), case.settings());
        let patch = inject(&case.pod, &known, &settings).unwrap();
        let patch: json_patch::Patch = serde_json::from_value(patch.into()).unwrap();
        let mut pod = case.pod.clone();
        json_patch::patch(&mut pod, &patch).unwrap();
        assert_eq!(
            pod,
            inject_sidecar(&case.pod, &known, &settings).unwrap(),
            "{}",
            path.display()
        );
        k8s_openapi_reads(&pod);
    }
}

/// Fails if a field does not have the type that an API server expects.
fn k8s_openapi_reads(pod: &Value) {
    serde_json::from_value::<k8s_openapi::api::core::v1::Pod>(pod.clone()).unwrap();
}

#[test]
fn second_injection_changes_nothing() {
    for (path, case) in cases() {
        let (known, settings) = (case.known(), case.settings());
        let once = inject_sidecar(&case.pod, &known, &settings).unwrap();
        assert!(
            inject(&once, &known, &settings).unwrap().is_empty(),
            "{}",
            path.display()
        );
    }
}

#[test]
fn containers_added_by_later_webhooks_use_sidecar() {
    for (path, case) in cases() {
        let (known, settings) = (case.known(), case.settings());
        let mut pod = inject_sidecar(&case.pod, &known, &settings).unwrap();
        let mut late = json!({"name": "late", "image": "late:1", "args": ["--kubeconfig", "/theirs"]});
        late["env"] = json!(server(&case.pod));
        pod["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .insert(0, late.clone());
        let mut before = case.pod.clone();
        before["spec"]["containers"].as_array_mut().unwrap().insert(0, late);
        // kubectl still goes to the container that was first.
        if let Some(default) = pod["metadata"]["annotations"].get(DEFAULT_CONTAINER) {
            before["metadata"]["annotations"][DEFAULT_CONTAINER] = default.clone();
        }
        let again = inject_sidecar(&pod, &known, &settings).unwrap();
        assert_eq!(
            again,
            inject_sidecar(&before, &known, &settings).unwrap(),
            "{}",
            path.display()
        );
    }
}

#[test]
fn kubectl_default_container_is_pods_own() {
    for (path, case) in cases() {
        let after = |pod: &Value| inject_sidecar(pod, &case.known(), &case.settings()).unwrap();
        let once = after(&case.pod);
        let containers = &once["spec"]["containers"];
        let is_sidecar_first = containers[0]["name"] == "ctrlmesh-proxy";
        let said = case.pod["metadata"]["annotations"].get(DEFAULT_CONTAINER).cloned();
        let expected = said.or_else(|| is_sidecar_first.then(|| containers[1]["name"].clone()));
        let default = once["metadata"]["annotations"].get(DEFAULT_CONTAINER).cloned();
        assert_eq!(default, expected, "{}", path.display());
        let mut pod = case.pod.clone();
        pod["metadata"]["annotations"][DEFAULT_CONTAINER] = json!("theirs");
        let theirs = after(&pod);
        let default = &theirs["metadata"]["annotations"][DEFAULT_CONTAINER];
        assert_eq!(default, "theirs", "{}", path.display());
    }
}

/// The address of the API server in the pod's first container. With redirected traffic all containers must have the same.
fn server(pod: &Value) -> Vec<&Value> {
    let variables = pod["spec"]["containers"][0]["env"].as_array().into_iter().flatten();
    variables
        .filter(|it| it["name"].as_str().unwrap().starts_with("KUBERNETES_SERVICE_"))
        .collect()
}

/// All other fields of a pod stay, also those of later releases of Kubernetes.
#[test]
fn rest_of_pod_is_unchanged() {
    for (path, case) in cases() {
        let after = inject_sidecar(&case.pod, &case.known(), &case.settings()).unwrap();
        let untouched = |pod: &Value| {
            let mut pod = pod.clone();
            for (part, field) in [
                ("metadata", "labels"),
                ("metadata", "annotations"),
                ("spec", "imagePullSecrets"),
            ] {
                pod[part].as_object_mut().unwrap().remove(field);
            }
            for list in ["containers", "initContainers"] {
                let Some(containers) = pod["spec"].get_mut(list).and_then(Value::as_array_mut) else {
                    continue;
                };
                containers.retain(|it| !["ctrlmesh-proxy", "ctrlmesh-init"].contains(&it["name"].as_str().unwrap()));
                for container in containers.iter_mut() {
                    let fields = container.as_object_mut().unwrap();
                    fields.retain(|field, _| !["args", "command", "env", "volumeMounts"].contains(&field.as_str()));
                }
            }
            let spec = pod["spec"].as_object_mut().unwrap();
            spec.remove("volumes");
            spec.retain(|field, value| field != "initContainers" || value != &json!([]));
            pod
        };
        assert_eq!(untouched(&after), untouched(&case.pod), "{}", path.display());
    }
}
