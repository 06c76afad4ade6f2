//! Pods whose traffic would silently go past the sidecar, or to another cluster.

use serde_json::{Value, json};

use super::refused::accepted_pod;

/// The API server's address that the containers of a pod get, or the refusal.
fn api_server_variables(is_redirected: bool, is_native: &str, spec: &[(&str, Value)]) -> Result<Vec<Value>, String> {
    let mut pod_under_test = accepted_pod("")
        .with_metadata("labels", "enable-iptables", &is_redirected.to_string())
        .with_metadata("annotations", "native-sidecar", is_native);
    for (field, value) in spec {
        pod_under_test.pod["spec"][field] = value.clone();
    }
    pod_under_test.inject().map_err(|refusal| refusal.to_string())
}

#[test]
fn redirected_containers_must_use_same_api_server() {
    let says =
        |name: &str, variable: &str, value: &str| json!({"name": name, "env": [{"name": variable, "value": value}]});
    let silent = |name: &str| json!({"name": name});
    let (host, port) = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT");
    for (variable, value) in [(host, "10.1.1.1"), (port, "6443")] {
        let helper = [(
            "containers",
            json!([silent("manager"), says("helper", variable, value)]),
        )];
        let problem = api_server_variables(true, "true", &helper).unwrap_err();
        let expected = format!("containers manager and helper have different values of {variable}");
        assert!(problem.starts_with(&expected), "{problem}");
        assert!(
            api_server_variables(false, "true", &helper).is_ok(),
            "nothing is redirected"
        );
        let both = [says("manager", variable, value), says("helper", variable, value)];
        assert!(api_server_variables(true, "true", &[("containers", json!(both))]).is_ok());

        let init = [
            ("initContainers", json!([says("prepare", variable, value)])),
            ("containers", json!([silent("manager")])),
        ];
        let problem = api_server_variables(true, "true", &init).unwrap_err();
        let expected = format!("containers prepare and manager have different values of {variable}");
        assert!(problem.starts_with(&expected), "{problem}");
        assert!(api_server_variables(true, "false", &init).is_ok(), "it ends before");
    }
    // A variable with the default value is no difference.
    for (variable, value) in [(host, "10.96.0.1"), (port, "443")] {
        let same = json!([silent("manager"), says("helper", variable, value)]);
        assert!(
            api_server_variables(true, "true", &[("containers", same)]).is_ok(),
            "{value}"
        );
    }
}

#[test]
fn redirected_pod_with_own_kubeconfig_is_refused() {
    let mut pod_under_test = accepted_pod("").with_metadata("labels", "kubeconfig-volume", "up");
    let items = json!([{"key": "a", "path": "config"}]);
    pod_under_test.pod["spec"]["volumes"] = json!([{"name": "up", "secret": {"secretName": "x", "items": items}}]);
    assert!(pod_under_test.inject().is_ok());
    let problem = pod_under_test
        .with_metadata("labels", "enable-iptables", "true")
        .inject()
        .unwrap_err()
        .to_string();
    let expected =
        "ctrlmesh.kusionstack.io/kubeconfig-volume: does not go with label ctrlmesh.kusionstack.io/enable-iptables";
    assert!(problem.starts_with(expected), "{problem}");
}

#[test]
fn copied_variable_has_same_value_in_sidecar() {
    let ask = |name: &str, value: &str, env_from: &Value| {
        let mut pod_under_test = accepted_pod("").with_metadata("annotations", "env-sync", "ZONE");
        let variable = |name: &str, value: &str| json!({"name": name, "value": value});
        let env = [
            variable("NODE", "10.0.0.1"),
            variable(name, value),
            variable("LATER", "x"),
        ];
        let container = &mut pod_under_test.pod["spec"]["containers"][0];
        container["env"] = json!(env);
        container["envFrom"] = env_from.clone();
        pod_under_test.inject().map_err(|refusal| refusal.to_string())
    };
    let (none, map) = (json!([]), json!([{"configMapRef": {"name": "theirs"}}]));
    for name in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "ZONE"] {
        for (value, other, env_from) in [
            ("$(NODE)", "NODE", &none),
            ("$$$(NODE)", "NODE", &none),
            ("$(ELSEWHERE)a$(NODE)", "NODE", &none),
            ("a-$(ELSEWHERE)", "ELSEWHERE", &map),
        ] {
            let problem = ask(name, value, env_from).unwrap_err();
            let expected = format!("container manager refers to $({other}) in {name}, which is copied to the sidecar");
            assert!(problem.starts_with(&expected), "{problem}");
        }
        // In the container, too, these are not replaced, or kubelet defines them for every container.
        for value in ["$$(NODE)", "$(LATER)", "$(ELSEWHERE)", "$(NODE", "$NODE", "10.0.0.1"] {
            assert!(ask(name, value, &none).is_ok(), "{name}: {value}");
        }
    }
    assert!(ask("OTHER", "$(NODE)", &map).is_ok(), "it is not copied");
}

#[test]
fn copied_variable_may_refer_to_variable_of_sidecar() {
    let ask = |sync: &str, path: &str| {
        let mut pod_under_test = accepted_pod("").with_metadata("annotations", "env-sync", sync);
        let name = json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}});
        pod_under_test.pod["spec"]["containers"][0]["env"] = json!([
            {"name": "POD_NAME", "valueFrom": name},
            {"name": "NODE", "value": "10.0.0.1"},
            {"name": "URL", "value": "https://$(NODE)/$(POD_NAME)"},
        ]);
        pod_under_test.inject().map_err(|refusal| refusal.to_string())
    };
    assert!(ask("NODE,URL", "metadata.name").is_ok());
    for (sync, path, other) in [
        ("URL,NODE", "metadata.name", "NODE"),
        ("NODE=x,URL", "metadata.name", "NODE"),
        ("NODE,URL", "metadata.uid", "POD_NAME"),
    ] {
        let problem = ask(sync, path).unwrap_err();
        let expected = format!("container manager refers to $({other}) in URL");
        assert!(problem.starts_with(&expected), "{problem}");
    }
}

#[test]
fn requested_argument_that_cannot_be_added_is_refused() {
    let with = |label: &str, native: &str, containers: &str| {
        let mut pod_under_test = accepted_pod("")
            .with_metadata("labels", label, "true")
            .with_metadata("annotations", "native-sidecar", native)
            .with_metadata("annotations", "kubeconfig-arg", containers);
        pod_under_test.pod["spec"]["initContainers"] = json!([{"name": "prepare"}]);
        pod_under_test.inject().map_err(|refusal| refusal.to_string())
    };
    for label in ["enable-iptables", "disable-fake-kubeconfig-arg"] {
        let problem = with(label, "true", "manager").unwrap_err();
        let expected =
            format!("ctrlmesh.kusionstack.io/kubeconfig-arg: does not go with label ctrlmesh.kusionstack.io/{label}: ");
        assert!(problem.starts_with(&expected), "{problem}");
        assert!(with(label, "true", " ,").is_ok(), "nobody is named");
    }
    let other = "disable-fake-kubeconfig-env";
    let problem = with(other, "false", "manager,prepare").unwrap_err();
    let expected = "ctrlmesh.kusionstack.io/kubeconfig-arg: init container prepare ends before the sidecar starts";
    assert!(problem.starts_with(expected), "{problem}");
    assert!(
        problem.contains("annotation ctrlmesh.kusionstack.io/native-sidecar"),
        "{problem}"
    );
    assert!(with(other, "false", "manager").is_ok());
    assert!(with(other, "true", "manager,prepare").is_ok(), "the sidecar is first");
}
