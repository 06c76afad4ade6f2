//! Pods and their sidecars, over the socket.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ctrlmesh_manager_planner::samples;
use ctrlmesh_testkit::{Fault, Gate, Rule};
use serde_json::{Value, json};

use super::reviews::Server;
use crate::webhook::routes::MUTATE_POD;

const IMAGE: &str = "--proxy-image=ctrlmesh-proxy:1";
/// A public key in the form of the Secret.
const KEY: &str = "ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A server with the Secret of a leading manager, and a shard.
async fn server(flags: &[&str]) -> Server {
    let flags: Vec<&str> = [IMAGE].iter().chain(flags).copied().collect();
    let server = Server::start(&flags).await;
    put_key(&server, KEY);
    server.env.server.store().put(samples::shard("a", &[])).unwrap();
    server
}

fn put_key(server: &Server, key: &str) {
    let data = json!({"public": STANDARD.encode(key), "private": ""});
    let metadata = json!({"name": "ctrlmesh-chain-key", "namespace": "ctrlmesh"});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data});
    server.env.server.store().put(secret).unwrap();
}

fn pod(labels: &[(&str, &str)]) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "operator-", "namespace": "demo", "labels": {}},
        "spec": {"containers": [{"name": "manager", "image": "m"}]},
    });
    for (key, value) in labels {
        pod["metadata"]["labels"][*key] = json!(value);
    }
    pod
}

const ASKS: (&str, &str) = ("ctrlmesh.kusionstack.io/enable-proxy", "true");

fn of_shard(shard: &str) -> Value {
    pod(&[ASKS, ("shard", shard)])
}

/// The pod with the response's patch.
fn patched_pod(pod: &Value, response: &Value) -> Value {
    assert_eq!(
        (&response["allowed"], &response["patchType"]),
        (&json!(true), &json!("JSONPatch")),
        "{response}"
    );
    let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

#[track_caller]
fn assert_refused(response: &Value, code: u16, says: &str) {
    assert_eq!(
        (&response["allowed"], &response["status"]["code"]),
        (&json!(false), &json!(code)),
        "{response}"
    );
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.contains(says) && !message.contains("Status {"), "{message}");
}

#[tokio::test]
async fn pod_that_requests_sidecar_is_injected() {
    let server = server(&[]).await;
    let before = of_shard("a");
    let after = patched_pod(&before, &server.create(MUTATE_POD, &before).await);
    assert_eq!(
        after["metadata"]["labels"]["ctrlmesh.kusionstack.io/sharding-config-injected"],
        "a"
    );
    let sidecar = &after["spec"]["initContainers"][0];
    assert_eq!(
        (&sidecar["name"], &sidecar["image"]),
        (&json!("ctrlmesh-proxy"), &json!("ctrlmesh-proxy:1"))
    );
    let key = json!({"name": "CTRLMESH_PUBLIC_KEY", "value": KEY});
    assert!(sidecar["env"].as_array().unwrap().contains(&key), "{sidecar}");
    let kubeconfig = after["metadata"]["annotations"]["ctrlmesh.kusionstack.io/kubeconfig"]
        .as_str()
        .unwrap();
    assert!(kubeconfig.contains("namespace: \"demo\""), "{kubeconfig}");
    assert_eq!(server.create(MUTATE_POD, &after).await.get("patch"), None, "it has it");
    let metrics = server.env.context.metrics.render().unwrap();
    assert!(
        metrics.contains("webhook_reviews_total{webhook=\"Pod\",outcome=\"Patched\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn pod_selected_by_breaker_or_fault_is_injected() {
    let server = server(&[]).await;
    let before = of_shard("b");
    assert_refused(
        &server.create(MUTATE_POD, &before).await,
        403,
        "in namespace demo selects this pod",
    );
    let pods = json!({"matchLabels": {"shard": "b"}});
    let store = server.env.server.store();
    store.put(samples::breaker("calm", &pods, &[], &[])).unwrap();
    let after = patched_pod(&before, &server.create(MUTATE_POD, &before).await);
    let label = &after["metadata"]["labels"]["ctrlmesh.kusionstack.io/sharding-config-injected"];
    assert!(label.is_null());
    let before = of_shard("c");
    assert_refused(&server.create(MUTATE_POD, &before).await, 403, "in namespace demo");
    store.put(samples::faults("all")).unwrap();
    patched_pod(&before, &server.create(MUTATE_POD, &before).await);
}

#[tokio::test]
async fn pod_of_deleted_shard_is_injected_as_long_as_the_shard_is_held() {
    let server = server(&[]).await;
    let store = server.env.server.store();
    let mut held = samples::shard("b", &[]);
    held["metadata"]["finalizers"] = json!([ctrlmesh_contract::names::finalizers::HAND_OVER]);
    store.put(held.clone()).unwrap();
    let kind = "shardingconfigs.ctrlmesh.kusionstack.io";
    store.delete(kind, "demo", "b").unwrap();
    let before = of_shard("b");
    patched_pod(&before, &server.create(MUTATE_POD, &before).await);
    let mut released = store.read(|state| state.get(kind, "demo", "b").cloned()).unwrap();
    released["metadata"]["finalizers"] = json!([]);
    store.put(released).unwrap();
    assert_refused(
        &server.create(MUTATE_POD, &before).await,
        403,
        "a pod without a sidecar sees everything",
    );
}

#[tokio::test]
async fn pod_without_label_is_admitted_unchanged() {
    let server = server(&[]).await;
    // The API server answers nothing that would be requested.
    server
        .env
        .server
        .faults()
        .add(Rule::new(Fault::Hold(Gate::new())).resource("shardingconfigs"));
    let plain = server.create(MUTATE_POD, &pod(&[("shard", "a")])).await;
    assert_eq!((&plain["allowed"], plain.get("patch")), (&json!(true), None));
    let (old, new) = (of_shard("a"), of_shard("b"));
    for request in [
        json!({"operation": "UPDATE", "object": new, "oldObject": old}),
        json!({"operation": "DELETE", "object": null, "oldObject": old}),
        json!({"operation": "CREATE", "subResource": "eviction", "object": new}),
    ] {
        let response = server.ask(MUTATE_POD, &request).await;
        assert_eq!(
            (&response["allowed"], response.get("patch")),
            (&json!(true), None),
            "{request}"
        );
    }
}

#[tokio::test]
async fn pod_that_cannot_be_injected_is_rejected() {
    let server = server(&["--lease-seconds=3"]).await;
    let mut pod = of_shard("a");
    pod["spec"]["hostNetwork"] = json!(true);
    let response = server.create(MUTATE_POD, &pod).await;
    assert_refused(&response, 403, "remove hostNetwork");
    assert_eq!(response["status"]["reason"], "Forbidden");

    put_key(&server, "none");
    assert_refused(
        &server.create(MUTATE_POD, &of_shard("a")).await,
        503,
        "can't get one now",
    );
    server
        .env
        .server
        .store()
        .delete("secrets", "ctrlmesh", "ctrlmesh-chain-key")
        .unwrap();
    let response = server.create(MUTATE_POD, &of_shard("a")).await;
    assert_refused(&response, 503, "the manager that leads makes it");
    put_key(&server, KEY);
    server
        .env
        .server
        .faults()
        .add(Rule::new(Fault::Hold(Gate::new())).resource("faultinjections"));
    assert_refused(&server.create(MUTATE_POD, &of_shard("a")).await, 503, "try again");
}

#[tokio::test]
async fn pod_is_rejected_without_sidecar_image() {
    let server = Server::start(&[]).await;
    put_key(&server, KEY);
    server.env.server.store().put(samples::shard("a", &[])).unwrap();
    assert_refused(
        &server.create(MUTATE_POD, &of_shard("a")).await,
        403,
        "--proxy-image (CTRLMESH_PROXY_IMAGE)",
    );
}

#[tokio::test]
async fn native_sidecar_flag_decides_kind_of_container() {
    for (flag, list) in [
        ("auto", "initContainers"),
        ("on", "initContainers"),
        ("off", "containers"),
    ] {
        let server = server(&[&format!("--native-sidecar={flag}")]).await;
        let before = of_shard("a");
        let after = patched_pod(&before, &server.create(MUTATE_POD, &before).await);
        assert_eq!(after["spec"][list][0]["name"], "ctrlmesh-proxy", "{flag}");
    }
}

/// Arguments of the init container.
fn init_arguments(pod: &Value) -> &Value {
    let init = &pod["spec"]["initContainers"][0];
    assert_eq!(init["name"], "ctrlmesh-init");
    &init["args"]
}

#[tokio::test]
async fn both_addresses_of_api_server_are_redirected() {
    let server = server(&[]).await;
    let store = server.env.server.store();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"]},
    });
    store.put(service).unwrap();
    let before = pod(&[
        ASKS,
        ("shard", "a"),
        ("ctrlmesh.kusionstack.io/enable-iptables", "true"),
    ]);
    let response = server.create(MUTATE_POD, &before).await;
    assert_eq!(
        init_arguments(&patched_pod(&before, &response)),
        &json!(["init", "--host=10.96.0.1,fd00::1"])
    );
    assert_eq!(response.get("warnings"), None);

    // The Service is read only for pods with redirected traffic.
    let lists = |code| {
        let refusal = Fault::Status {
            code,
            retry_after: None,
        };
        server.env.server.faults().add(Rule::new(refusal).resource("services"))
    };
    let rule = lists(500);
    assert_refused(&server.create(MUTATE_POD, &before).await, 503, "can't get one now");
    patched_pod(&of_shard("a"), &server.create(MUTATE_POD, &of_shard("a")).await);
    server.env.server.faults().remove(rule);

    lists(403);
    let response = server.create(MUTATE_POD, &before).await;
    assert_eq!(
        init_arguments(&patched_pod(&before, &response)),
        &json!(["init"]),
        "kubelet tells of one"
    );
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains("only that to KUBERNETES_SERVICE_HOST is redirected"),
        "{warning}"
    );
}

#[tokio::test]
async fn pods_with_switches_of_kusionstack_are_warned_of() {
    let server = server(&[]).await;
    let mut before = of_shard("a");
    before["spec"]["containers"][0]["env"] = json!([{"name": "DISABLE_CIRCUIT_BREAKER", "value": "true"}]);
    let response = server.create(MUTATE_POD, &before).await;
    patched_pod(&before, &response);
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("container manager sets DISABLE_CIRCUIT_BREAKER"),
        "{warning}"
    );
}
