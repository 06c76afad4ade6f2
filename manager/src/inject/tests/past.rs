//! Pods whose traffic would go past the sidecar, or to another cluster, without a word.

use serde_json::{Value, json};

use super::refused::stand;

/// What a pod with these containers says that is redirected, or is not.
fn servers(is_redirected: bool, is_native: &str, spec: &[(&str, Value)]) -> Result<Vec<Value>, String> {
    let mut stand = stand("")
        .with("labels", "enable-iptables", &is_redirected.to_string())
        .with("annotations", "native-sidecar", is_native);
    for (field, value) in spec {
        stand.pod["spec"][field] = value.clone();
    }
    stand.ask().map_err(|refusal| refusal.to_string())
}

#[test]
fn redirected_containers_go_to_one_api_server_also_where_they_do_not_say_so() {
    let says =
        |name: &str, variable: &str, value: &str| json!({"name": name, "env": [{"name": variable, "value": value}]});
    let silent = |name: &str| json!({"name": name});
    let (host, port) = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT");
    for (variable, value) in [(host, "10.1.1.1"), (port, "6443")] {
        let helper = [(
            "containers",
            json!([silent("manager"), says("helper", variable, value)]),
        )];
        let problem = servers(true, "true", &helper).unwrap_err();
        let expected = format!("containers manager and helper have different values of {variable}");
        assert!(problem.starts_with(&expected), "{problem}");
        assert!(servers(false, "true", &helper).is_ok(), "nothing is redirected");
        let both = [says("manager", variable, value), says("helper", variable, value)];
        assert!(servers(true, "true", &[("containers", json!(both))]).is_ok());

        let init = [
            ("initContainers", json!([says("prepare", variable, value)])),
            ("containers", json!([silent("manager")])),
        ];
        let problem = servers(true, "true", &init).unwrap_err();
        let expected = format!("containers prepare and manager have different values of {variable}");
        assert!(problem.starts_with(&expected), "{problem}");
        assert!(servers(true, "false", &init).is_ok(), "it ends before");
    }
    // What is so anyway is no difference.
    for (variable, value) in [(host, "10.96.0.1"), (port, "443")] {
        let same = json!([silent("manager"), says("helper", variable, value)]);
        assert!(servers(true, "true", &[("containers", same)]).is_ok(), "{value}");
    }
}

#[test]
fn tokens_of_this_cluster_do_not_go_to_another() {
    let mut stand = stand("").with("labels", "kubeconfig-volume", "up");
    let items = json!([{"key": "a", "path": "config"}]);
    stand.pod["spec"]["volumes"] = json!([{"name": "up", "secret": {"secretName": "x", "items": items}}]);
    assert!(stand.ask().is_ok());
    let problem = stand
        .with("labels", "enable-iptables", "true")
        .ask()
        .unwrap_err()
        .to_string();
    let expected =
        "ctrlmesh.kusionstack.io/kubeconfig-volume: does not go with label ctrlmesh.kusionstack.io/enable-iptables";
    assert!(problem.starts_with(expected), "{problem}");
}
