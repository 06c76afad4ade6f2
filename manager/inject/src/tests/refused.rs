//! Each reason to reject a pod, and its message.

use serde_json::{Value, json};

use super::golden::Case;
use crate::{ClusterInfo, Refusal, Settings, inject, is_asked_for};

pub(super) struct PodUnderTest {
    pub(super) pod: Value,
    pub(super) known: ClusterInfo,
    settings: Settings,
}

/// A pod that is accepted.
pub(super) fn accepted_pod(flags: &str) -> PodUnderTest {
    let case = Case::read(&format!(
        "about: a pod\nflags: [{flags}]\npod:\n  metadata: {{labels: {{app: operator, ctrlmesh.kusionstack.io/enable-proxy: 'true'}}}}\n  \
         spec: {{containers: [{{name: manager, image: m}}]}}\n"
    ));
    PodUnderTest {
        known: case.known(),
        settings: case.settings(),
        pod: case.pod,
    }
}

impl PodUnderTest {
    pub(super) fn inject(&self) -> Result<Vec<Value>, Refusal> {
        inject(&self.pod, &self.known, &self.settings)
    }

    /// Adds a label or annotation.
    pub(super) fn with_metadata(mut self, part: &str, key: &str, value: &str) -> Self {
        self.pod["metadata"][part][format!("ctrlmesh.kusionstack.io/{key}")] = json!(value);
        self
    }
}

/// The message for a pod with these labels and this change of its spec.
fn refusal_message(labels: &[(&str, &str)], change: impl FnOnce(&mut Value)) -> String {
    let mut pod_under_test = accepted_pod("");
    for (key, value) in labels {
        pod_under_test = pod_under_test.with_metadata("labels", key, value);
    }
    assert!(pod_under_test.inject().is_ok());
    change(&mut pod_under_test.pod["spec"]);
    pod_under_test.inject().unwrap_err().to_string()
}

fn first_container(spec: &mut Value) -> &mut Value {
    &mut spec["containers"][0]
}

#[test]
fn pods_that_request_sidecar_are_recognised() {
    let pod = accepted_pod("").pod;
    assert!(is_asked_for(&pod));
    for other in ["false", "True", ""] {
        let pod = accepted_pod("").with_metadata("labels", "enable-proxy", other).pod;
        assert!(!is_asked_for(&pod), "{other}");
    }
    assert!(!is_asked_for(&json!({})));
}

#[test]
fn conflicting_pod_is_refused() {
    let problem = refusal_message(&[], |spec| spec["hostNetwork"] = json!(true));
    assert!(
        problem.contains("hostNetwork") && problem.contains("sidecar's ports"),
        "{problem}"
    );
    let problem = refusal_message(&[], |spec| spec["os"] = json!({"name": "windows"}));
    assert!(
        problem.contains("for windows") && problem.contains("Linux"),
        "{problem}"
    );
    let mut pod_under_test = accepted_pod("");
    pod_under_test.pod["spec"]["containers"] = json!("none");
    assert_eq!(pod_under_test.inject(), Err(Refusal::NoPod));
}

#[test]
fn name_conflict_is_reported_with_kind() {
    for name in ["ctrlmesh-proxy", "ctrlmesh-init"] {
        let problem = refusal_message(&[], |spec| first_container(spec)["name"] = json!(name));
        assert!(
            problem.starts_with(&format!("container {name} of this pod has the same name")),
            "{problem}"
        );
        let problem = refusal_message(&[], |spec| spec["initContainers"] = json!([{"name": name}]));
        assert!(problem.starts_with(&format!("init container {name}")), "{problem}");
    }
    for name in [
        "ctrlmesh-chain",
        "ctrlmesh-podinfo",
        "ctrlmesh-data",
        "ctrlmesh-token",
        "ctrlmesh-tls",
        "fake-kubeconfig",
    ] {
        let problem = refusal_message(&[], |spec| spec["volumes"] = json!([{"name": name, "emptyDir": {}}]));
        assert!(problem.starts_with(&format!("volume {name}")), "{problem}");
    }
}

#[test]
fn port_conflict_is_reported_with_container() {
    for port in [5441, 5443] {
        let problem = refusal_message(&[], |spec| {
            first_container(spec)["ports"] = json!([{"containerPort": 80}, {"containerPort": port}])
        });
        let expected = format!("container manager has port {port}, on which the sidecar ctrlmesh-proxy listens");
        assert!(problem.starts_with(&expected), "{problem}");
    }
    let mut free = accepted_pod("");
    free.pod["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 15002}, {"containerPort": 5443, "protocol": "UDP"}]);
    assert!(free.inject().is_ok());
    let problem = free
        .with_metadata("annotations", "external-traffic", "true")
        .inject()
        .unwrap_err();
    assert!(
        problem.to_string().starts_with("container manager has port 15002"),
        "{problem}"
    );
    let mut moved = accepted_pod("--sidecar-port=7000");
    moved.pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 7000}]);
    assert!(moved.inject().is_err());
}

#[test]
fn mount_conflict_is_reported_with_both_volumes() {
    for path in [
        "/etc/kubernetes/kubeconfig",
        "/etc/kubernetes/",
        "/etc/kubernetes/kubeconfig/x",
    ] {
        let mount =
            |spec: &mut Value| first_container(spec)["volumeMounts"] = json!([{"name": "theirs", "mountPath": path}]);
        let problem = refusal_message(&[], mount);
        let expected =
            format!("container manager mounts volume theirs at {path}, and ctrlmesh mounts volume fake-kubeconfig at");
        assert!(problem.starts_with(&expected), "{problem}");
        let off = [
            ("disable-fake-kubeconfig-arg", "true"),
            ("disable-fake-kubeconfig-env", "true"),
        ];
        let mut pod_under_test = off.iter().fold(accepted_pod(""), |pod_under_test, (key, value)| {
            pod_under_test.with_metadata("labels", key, value)
        });
        mount(&mut pod_under_test.pod["spec"]);
        assert!(pod_under_test.inject().is_ok());
    }
    let mut pod_under_test = accepted_pod("");
    pod_under_test.pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "theirs", "mountPath": "/etc/kubernetes/kubeconfigs"}]);
    assert!(pod_under_test.inject().is_ok());
}

#[test]
fn container_with_uid_of_sidecar_is_refused() {
    let iptables = [("enable-iptables", "true")];
    let problem = refusal_message(&iptables, |spec| {
        first_container(spec)["securityContext"] = json!({"runAsUser": 1359})
    });
    assert!(problem.starts_with("container manager runs as user 1359"), "{problem}");
    let problem = refusal_message(&iptables, |spec| spec["securityContext"] = json!({"runAsUser": 1359}));
    assert!(problem.starts_with("container manager runs as user 1359"), "{problem}");
    let mut pod_under_test = accepted_pod("").with_metadata("labels", "enable-iptables", "true");
    pod_under_test.pod["spec"]["securityContext"] = json!({"runAsUser": 1359});
    pod_under_test.pod["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 1000});
    assert!(pod_under_test.inject().is_ok());
}

#[test]
fn containers_with_different_api_servers_are_refused() {
    let host = |value: &str| json!([{"name": "KUBERNETES_SERVICE_HOST", "value": value}]);
    let two = |one: &str, other: &str| json!([{"name": "a", "env": host(one)}, {"name": "b"}, {"name": "c", "env": host(other)}]);
    let problem = refusal_message(&[], |spec| spec["containers"] = two("10.0.0.1", "10.0.0.2"));
    assert!(
        problem.starts_with("containers a and c have different values of KUBERNETES_SERVICE_HOST"),
        "{problem}"
    );
    let mut pod_under_test = accepted_pod("");
    pod_under_test.pod["spec"]["containers"] = two("10.0.0.1", "10.0.0.1");
    assert!(pod_under_test.inject().is_ok());
}

#[test]
fn kubeconfig_flag_that_cannot_be_rewritten_is_refused() {
    let problem = refusal_message(&[], |spec| {
        first_container(spec)["args"] = json!(["-c", "/m --kubeconfig=/x"])
    });
    assert!(
        problem.starts_with("container manager has --kubeconfig inside"),
        "{problem}"
    );
}

#[test]
fn kubeconfig_variable_in_arguments_is_refused() {
    let change = |spec: &mut Value| first_container(spec)["command"] = json!(["env", "KUBECONFIG=/x", "/m"]);
    // Also where flags are not rewritten.
    for labels in [&[][..], &[("disable-fake-kubeconfig-arg", "true")]] {
        let problem = refusal_message(labels, change);
        assert!(
            problem.starts_with("container manager sets KUBECONFIG in its arguments (\"KUBECONFIG=/x\")"),
            "{problem}"
        );
    }
    let mut alone = accepted_pod("").with_metadata("labels", "disable-fake-kubeconfig-env", "true");
    change(&mut alone.pod["spec"]);
    assert!(alone.inject().is_ok(), "the variable is left alone");
}

#[test]
fn invalid_annotations_are_refused() {
    for (key, value, says) in [
        ("native-sidecar", "yes", "is \"yes\"; write \"true\" or \"false\""),
        ("loopback-tls", "1", "write \"true\" or \"false\""),
        ("kubeconfig-arg", "manager, other", "the pod has no container other"),
        ("proxy-resource", "{", "write JSON such as"),
        ("proxy-resource", "[]", "is not an object"),
        ("proxy-resource", r#"{"limit": {}}"#, "has an unknown field limit"),
        ("proxy-resource", r#"{"limits": {"cpu": ["1"]}}"#, "write JSON such as"),
        ("env-sync", "A=b,=c", "\"=c\" has no name"),
        ("env-sync", "KUBECONFIG", "does not read KUBECONFIG"),
        ("env-inject", "A=b", "write JSON such as"),
        (
            "env-inject",
            r#"[{"name": "manager", "env": [{"name": "A"}]}]"#,
            "write JSON such as",
        ),
        (
            "env-inject",
            r#"[{"name": "other", "env": []}]"#,
            "the pod has no container other",
        ),
        ("log-path", "logs", "write an absolute path"),
        ("log-path", "/", "write an absolute path"),
        ("log-path", "//", "would hide files of the sidecar"),
        ("log-path", "/etc/ctrlmesh/chain", "would hide files of the sidecar"),
        (
            "log-path",
            "/usr/lib/ctrlmesh/precompiled",
            "would hide files of the sidecar",
        ),
        ("log-path", "/ctrlmesh-proxy", "would hide files of the sidecar"),
        ("log-path", "/var/log/../lib", "would hide files of the sidecar"),
        ("log-path", "/var/run/secrets/tokens", "would hide files of the sidecar"),
        ("external-traffic", "on", "write \"true\" or \"false\""),
    ] {
        let problem = accepted_pod("")
            .with_metadata("annotations", key, value)
            .inject()
            .unwrap_err()
            .to_string();
        assert!(
            problem.starts_with(&format!("ctrlmesh.kusionstack.io/{key}: ")),
            "{problem}"
        );
        assert!(problem.contains(says), "{key} {value}: {problem}");
    }
}

#[test]
fn sidecar_variable_whose_flag_injection_sets_is_refused() {
    let inject = |metadata: &[(&str, &str)], key: &str, value: &str| {
        let mut pod_under_test = accepted_pod("").with_metadata("annotations", key, value);
        pod_under_test.pod["spec"]["volumes"] = json!([{"name": "up", "configMap": {"name": "up"}}]);
        let pod_under_test = metadata.iter().fold(pod_under_test, |pod_under_test, (key, value)| {
            let part = if *key == "loopback-tls" {
                "annotations"
            } else {
                "labels"
            };
            pod_under_test.with_metadata(part, key, value)
        });
        pod_under_test.inject().map_err(|refusal| refusal.to_string())
    };
    let always = ["ADMIN_ADDRESS", "CHAIN_DIR", "LABELS_FILE", "CACHE_DIR"].map(|name| (None, name));
    let sometimes = [
        (Some(("kubeconfig-volume", "up")), "KUBECONFIG"),
        (Some(("loopback-tls", "true")), "TLS_DIR"),
        (Some(("enable-iptables", "true")), "TLS_DIR"),
        (Some(("enable-iptables", "true")), "API_ADDRESS"),
    ];
    for (metadata, name) in always.into_iter().chain(sometimes) {
        let name = format!("CTRLMESH_{name}");
        let for_container =
            |container: &str| format!(r#"[{{"name": "{container}", "env": [{{"key": "{name}", "value": "x"}}]}}]"#);
        for (key, value) in [
            ("env-sync", format!("{name}=x")),
            ("env-sync", name.clone()),
            ("env-inject", for_container("ctrlmesh-proxy")),
        ] {
            let problem = inject(metadata.as_slice(), key, &value).unwrap_err();
            let expected = format!("ctrlmesh.kusionstack.io/{key}: {name} has no effect on the sidecar");
            assert!(problem.starts_with(&expected), "{problem}");
            assert_eq!(inject(&[], key, &value).is_ok(), metadata.is_some(), "{name}");
        }
        assert!(inject(metadata.as_slice(), "env-inject", &for_container("manager")).is_ok());
    }
}

#[test]
fn kubeconfig_volume_must_have_one_file() {
    let said = |volume: Value| {
        let mut pod_under_test = accepted_pod("").with_metadata("labels", "kubeconfig-volume", "up");
        pod_under_test.pod["spec"]["volumes"] = json!([volume]);
        pod_under_test.inject().map_err(|refusal| refusal.to_string())
    };
    let items = json!([{"key": "a", "path": "config"}]);
    for source in [
        json!({"configMap": {"name": "theirs"}}),
        json!({"secret": {"secretName": "theirs"}}),
        json!({"configMap": {"name": "theirs", "items": items}}),
        json!({"secret": {"secretName": "theirs", "items": items}}),
    ] {
        let mut volume = source.clone();
        volume["name"] = json!("up");
        assert!(said(volume).is_ok(), "{source}");
    }
    for (volume, says) in [
        (json!({"name": "down"}), "the pod has no volume up"),
        (
            json!({"name": "up", "secret": {"secretName": "x", "items": [{"path": "a"}, {"path": "b"}]}}),
            "has 2 items",
        ),
        (
            json!({"name": "up", "emptyDir": {}}),
            "neither a ConfigMap nor a Secret",
        ),
    ] {
        let problem = said(volume).unwrap_err();
        assert!(
            problem.starts_with("ctrlmesh.kusionstack.io/kubeconfig-volume: "),
            "{problem}"
        );
        assert!(problem.contains(says), "{problem}");
    }
}

#[test]
fn init_container_that_outlives_start_of_sidecar_is_refused() {
    let with = |labels: &[&str], is_native: &str, policy: &str| {
        let mut pod_under_test = accepted_pod("").with_metadata("annotations", "native-sidecar", is_native);
        for label in labels {
            pod_under_test = pod_under_test.with_metadata("labels", label, "true");
        }
        pod_under_test.pod["spec"]["initContainers"] = json!([{"name": "tail", "image": "t", "restartPolicy": policy}]);
        pod_under_test.inject()
    };
    for labels in [&["enable-iptables"][..], &[]] {
        let said = with(labels, "false", "Always").unwrap_err().to_string();
        assert!(
            said.starts_with("init container tail keeps running beside the containers"),
            "{said}"
        );
        assert!(
            said.contains("annotation ctrlmesh.kusionstack.io/native-sidecar"),
            "{said}"
        );
        assert!(said.ends_with("make tail an ordinary container"), "{said}");
        assert!(with(labels, "true", "Always").is_ok(), "the sidecar is first");
        assert!(with(labels, "false", "").is_ok(), "it ends before");
    }
    let off = ["disable-fake-kubeconfig-arg", "disable-fake-kubeconfig-env"];
    assert!(with(&off, "false", "Always").is_ok(), "nobody is led");
}

#[test]
fn pod_that_needs_certificates_is_refused_without_mesh_ca() {
    for (part, key) in [("labels", "enable-iptables"), ("annotations", "loopback-tls")] {
        let problem = accepted_pod("--mesh-ca=false")
            .with_metadata(part, key, "true")
            .inject()
            .unwrap_err()
            .to_string();
        assert!(
            problem.starts_with(&format!("ctrlmesh.kusionstack.io/{key}: ")),
            "{problem}"
        );
        assert!(problem.contains("makes none (--mesh-ca=false"), "{problem}");
        assert!(accepted_pod("").with_metadata(part, key, "true").inject().is_ok());
    }
    assert!(accepted_pod("--mesh-ca=false").inject().is_ok());
}

#[test]
fn pod_is_refused_without_rule_or_image() {
    let mut nobody = accepted_pod("");
    nobody.known.rules.clear();
    assert!(matches!(nobody.inject(), Err(Refusal::NotSelected { .. })));
    let mut without = accepted_pod("");
    without.settings.image.clear();
    assert_eq!(without.inject(), Err(Refusal::NoImage));
}
