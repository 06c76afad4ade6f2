//! Bundles and certificates of namespaces, at an API server.

use std::time::{Duration, SystemTime};

use ctrlmesh_testkit::{ApiServer, Fault, Rule as FaultRule, Snapshot};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::*;
use crate::certificates::ca::{Credential, Stored, parse_certificates, verify_certificate};
use crate::certificates::lifetimes::{DAY, Schedule, WEBHOOKS};
use crate::test_env::{self, Running, notes, put, until};

const API_SERVER: [&str; 4] = ["kubernetes.default.svc", "10.96.0.1", "fd00::1", "127.0.0.1"];

fn cluster_ca() -> String {
    Credential::issue(&["kubernetes".to_owned()], SystemTime::now(), &WEBHOOKS)
        .unwrap()
        .ca
}

async fn server_with_cluster_ca() -> ApiServer {
    let names = ["default", "demo", "other", "quiet"];
    let builder = names
        .into_iter()
        .fold(test_env::builder(), |it, name| it.namespace(name));
    let server = builder.start().await.unwrap();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"]},
    });
    put(&server, service);
    server
}

/// Publishes the cluster's CA.
fn publish(server: &ApiServer, ca: &str) {
    put(server, config_map("ctrlmesh", "kube-root-ca.crt", ca));
}

/// A cluster with a published CA, and that CA.
async fn server_with_trusted_ca() -> (ApiServer, String) {
    let (server, ca) = (server_with_cluster_ca().await, cluster_ca());
    publish(&server, &ca);
    (server, ca)
}

async fn start(server: &ApiServer) -> Running {
    let context = test_env::context(server, &[]).await;
    Running::start(&context, run(context.clone()))
}

fn config_map(namespace: &str, name: &str, ca: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace},
        "data": {"ca.crt": ca},
    })
}

/// A pod after injection.
fn pod(namespace: &str, name: &str, key: &str) -> Value {
    let mut metadata = json!({
        "name": name, "namespace": namespace,
        "labels": {"ctrlmesh.kusionstack.io/enable-proxy": "true"}, "annotations": {},
    });
    let place = if key == "loopback-tls" { "annotations" } else { "labels" };
    metadata[place][format!("ctrlmesh.kusionstack.io/{key}")] = json!("true");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}})
}

fn bundle(state: &Snapshot<'_>, namespace: &str) -> Option<String> {
    let map = state.get("configmaps", namespace, "ctrlmesh-ca")?;
    Some(test_env::text(map, "/data/ca.crt").to_owned())
}

/// Certificate and key that sidecars of a namespace serve.
fn served_certificate(state: &Snapshot<'_>, namespace: &str) -> Option<[String; 2]> {
    let secret = state.get("secrets", namespace, "ctrlmesh-serving-cert")?;
    let text = |key: &str| {
        let bytes: ByteString = serde_json::from_value(secret["data"][key].clone()).unwrap();
        String::from_utf8(bytes.0).unwrap()
    };
    Some([text("tls.crt"), text("tls.key")])
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

/// Whether a client with the namespace's bundle accepts its certificate for every name of the API server.
fn is_whole(state: &Snapshot<'_>, namespace: &str, cluster: &str) -> bool {
    let (Some(bundle), Some([certificate, _])) = (bundle(state, namespace), served_certificate(state, namespace))
    else {
        return false;
    };
    bundle.starts_with(cluster.trim_end())
        && verify_certificate(
            &certificate,
            &parse_certificates(&bundle),
            &names(&API_SERVER),
            SystemTime::now(),
        )
}

#[tokio::test]
async fn namespace_gets_bundle_and_certificate_when_pod_needs_them() {
    let (server, ca) = server_with_trusted_ca().await;
    put(&server, pod("quiet", "a", "disable-fake-kubeconfig-arg"));
    let context = test_env::context(&server, &["--proxy-serving-names=api.example.org"]).await;
    let running = Running::start(&context, run(context.clone()));
    put(&server, pod("demo", "a", "enable-iptables"));
    until(&server, "redirected", |state| is_whole(state, "demo", &ca)).await;
    put(&server, pod("other", "a", "loopback-tls"));
    until(&server, "TLS on loopback", |state| is_whole(state, "other", &ca)).await;
    server.store().read(|state| {
        assert_eq!(bundle(state, "quiet").or(bundle(state, "ctrlmesh")), None);
        assert_eq!(
            served_certificate(state, "quiet").or(served_certificate(state, "ctrlmesh")),
            None
        );
        let bundle = bundle(state, "demo").unwrap();
        assert_eq!(parse_certificates(&bundle).len(), 2, "the cluster's and ours");
        let [certificate, key] = served_certificate(state, "demo").unwrap();
        let more = names(&["api.example.org", "kubernetes", "localhost", "::1"]);
        assert!(verify_certificate(
            &certificate,
            &parse_certificates(&bundle),
            &more,
            SystemTime::now()
        ));
        assert!(!verify_certificate(
            &certificate,
            &parse_certificates(&ca),
            &[],
            SystemTime::now()
        ));
        // The CA's key stays in the manager's namespace, and its Secret is deleted with the namespace.
        let secret = state.get("secrets", "ctrlmesh", "ctrlmesh-mesh-ca-demo").unwrap();
        let stored = Stored::from_secret(&serde_json::from_value(secret.clone()).unwrap());
        assert_eq!(stored.current.unwrap().key, key);
        let owner = &secret["metadata"]["ownerReferences"][0];
        let uid = &state.get("namespaces", "", "demo").unwrap()["metadata"]["uid"];
        assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Namespace"), uid));
        let copy = state.get("secrets", "demo", "ctrlmesh-serving-cert").unwrap();
        assert_eq!(copy["data"].as_object().unwrap().len(), 2);
        assert_eq!(copy["type"], "kubernetes.io/tls");
    });
    running.stop().await;
}

#[tokio::test]
async fn certificate_of_one_namespace_is_not_trusted_in_another() {
    let (server, ca) = server_with_trusted_ca().await;
    for namespace in ["demo", "other"] {
        put(&server, pod(namespace, "a", "enable-iptables"));
    }
    let running = start(&server).await;
    until(&server, "both", |state| {
        ["demo", "other"].iter().all(|it| is_whole(state, it, &ca))
    })
    .await;
    server.store().read(|state| {
        for (of, at) in [("demo", "other"), ("other", "demo")] {
            let [certificate, _] = served_certificate(state, of).unwrap();
            let trusted = bundle(state, at).unwrap();
            let is_accepted = verify_certificate(&certificate, &parse_certificates(&trusted), &[], SystemTime::now());
            assert!(!is_accepted, "pods of {at} trust who has the key of {of}");
        }
    });
    running.stop().await;
}

#[tokio::test]
async fn ca_is_not_created_before_pod_needs_it() {
    let (server, _) = server_with_trusted_ca().await;
    let theirs = config_map("other", "ctrlmesh-ca", "theirs");
    put(&server, theirs);
    let running = start(&server).await;
    put(&server, pod("demo", "a", "enable-iptables"));
    until(&server, "where a pod asks", |state| {
        served_certificate(state, "demo").is_some()
    })
    .await;
    server.store().read(|state| {
        let secrets = state
            .list("secrets")
            .map(|secret| test_env::text(secret, "/metadata/name"));
        let secrets: Vec<&str> = secrets.collect();
        assert_eq!(secrets, ["ctrlmesh-mesh-ca-demo", "ctrlmesh-serving-cert"]);
    });
    running.stop().await;
}

#[tokio::test]
async fn recreated_namespace_gets_new_ca() {
    let (server, ca) = server_with_trusted_ca().await;
    put(&server, pod("demo", "a", "enable-iptables"));
    let running = start(&server).await;
    until(&server, "at first", |state| is_whole(state, "demo", &ca)).await;
    let before = server.store().read(|state| bundle(state, "demo")).unwrap();
    // As the namespace controller and the garbage collector do.
    for (resource, namespace, name) in [
        ("pods", "demo", "a"),
        ("configmaps", "demo", "ctrlmesh-ca"),
        ("secrets", "demo", "ctrlmesh-serving-cert"),
        ("namespaces", "", "demo"),
    ] {
        server.store().delete(resource, namespace, name).unwrap();
    }
    server.requests().clear();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}});
    put(&server, namespace);
    put(&server, pod("demo", "b", "enable-iptables"));
    // The garbage collector is slow, and a Secret that it will delete must not be used any more.
    let requests = server.requests();
    let is_tried = |verb: &str, target: &str| verb == "create" && target.contains("/namespaces/ctrlmesh/secrets");
    requests
        .wait_until(|all| all.iter().any(|seen| is_tried(seen.verb, &seen.target)))
        .await
        .unwrap();
    server
        .store()
        .delete("secrets", "ctrlmesh", "ctrlmesh-mesh-ca-demo")
        .unwrap();
    until(&server, "once more", |state| {
        is_whole(state, "demo", &ca) && bundle(state, "demo").is_some_and(|bundle| bundle != before)
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn changed_or_deleted_object_is_restored() {
    let (server, ca) = server_with_trusted_ca().await;
    put(&server, pod("demo", "a", "enable-iptables"));
    let running = start(&server).await;
    until(&server, "at first", |state| is_whole(state, "demo", &ca)).await;
    let (mut map, mut secret) = server.store().read(|state| {
        let get = |resource, name| state.get(resource, "demo", name).unwrap().clone();
        (
            get("configmaps", "ctrlmesh-ca"),
            get("secrets", "ctrlmesh-serving-cert"),
        )
    });
    map["data"]["ca.crt"] = json!(ca);
    put(&server, map);
    until(&server, "the bundle was edited", |state| is_whole(state, "demo", &ca)).await;
    secret["data"]["tls.key"] = json!("");
    put(&server, secret);
    let key =
        |state: &Snapshot<'_>| served_certificate(state, "demo").is_some_and(|[_, key]| key.contains("PRIVATE KEY"));
    until(&server, "the key was edited", key).await;
    for (resource, name) in [("configmaps", "ctrlmesh-ca"), ("secrets", "ctrlmesh-serving-cert")] {
        server.store().delete(resource, "demo", name).unwrap();
        until(&server, "it was deleted", |state| is_whole(state, "demo", &ca)).await;
    }
    // The cluster gets another CA.
    let next = cluster_ca();
    publish(&server, &next);
    until(&server, "another cluster's", |state| {
        is_whole(state, "demo", &next) && bundle(state, "demo").is_some_and(|bundle| !bundle.contains(ca.trim_end()))
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn foreign_object_is_left_unchanged_and_reported() {
    let (server, ca) = server_with_trusted_ca().await;
    put(&server, config_map("demo", "ctrlmesh-ca", "theirs"));
    put(&server, pod("demo", "a", "enable-iptables"));
    let running = start(&server).await;
    until(&server, "the certificate", |state| {
        served_certificate(state, "demo").is_some()
    })
    .await;
    put(&server, pod("other", "a", "enable-iptables"));
    until(&server, "another namespace", |state| is_whole(state, "other", &ca)).await;
    assert_eq!(server.store().read(|state| bundle(state, "demo")).unwrap(), "theirs");
    let events = notes(&server, "NotOurs");
    assert!(
        events.len() == 1 && events[0].contains("Delete it, or give it the label"),
        "{events:?}"
    );
    running.stop().await;
}

#[tokio::test]
async fn bundle_waits_for_ca_of_cluster() {
    let (server, ca) = (server_with_cluster_ca().await, cluster_ca());
    put(&server, pod("demo", "a", "enable-iptables"));
    let running = start(&server).await;
    until(&server, "the certificate", |state| {
        served_certificate(state, "demo").is_some()
    })
    .await;
    assert_eq!(server.store().read(|state| bundle(state, "demo")), None);
    publish(&server, &ca);
    until(&server, "the bundle", |state| is_whole(state, "demo", &ca)).await;
    running.stop().await;
}

#[tokio::test]
async fn namespace_that_refuses_writes_blocks_no_other() {
    let (server, ca) = server_with_trusted_ca().await;
    let rule = server.faults().add(bundle_write_fault("create"));
    for namespace in ["demo", "other"] {
        put(&server, pod(namespace, "a", "enable-iptables"));
    }
    let running = start(&server).await;
    until(&server, "the other one", |state| is_whole(state, "other", &ca)).await;
    while server.faults().times_applied(rule) < 3 {
        tokio::task::yield_now().await;
    }
    let events = notes(&server, "NotWritten");
    assert!(
        events.len() == 1 && events[0].contains("failed to write ConfigMap ctrlmesh-ca"),
        "{events:?}"
    );
    server.faults().remove(rule);
    put(&server, pod("quiet", "a", "enable-iptables"));
    until(&server, "all of them", |state| {
        ["demo", "other", "quiet"].iter().all(|it| is_whole(state, it, &ca))
    })
    .await;
    running.stop().await;
}

/// Writes of the bundle in namespace demo fail.
fn bundle_write_fault(verb: &str) -> FaultRule {
    let refusal = Fault::Status {
        code: 500,
        retry_after: None,
    };
    FaultRule::new(refusal)
        .verb(verb)
        .resource("configmaps")
        .namespace("demo")
}

/// A schedule for a CA that expires soon, without waits.
const HASTY: Schedule = Schedule {
    settle: Duration::from_millis(1),
    rest: Duration::from_millis(10),
    ..SIDECARS
};

/// A namespace whose CA expires soon, and that CA.
fn store_expiring_ca(server: &ApiServer, namespace: &str, cluster: &str) -> Credential {
    let old = Schedule {
        life: Duration::from_secs(200 * DAY.as_secs()),
        ..SIDECARS
    };
    let old = Credential::issue(&names(&API_SERVER), SystemTime::now(), &old).unwrap();
    let mut data = std::collections::BTreeMap::new();
    let stored = Stored {
        current: Some(old.clone()),
        ..Stored::default()
    };
    stored.write(&mut data);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "data": data,
        "metadata": {
            "name": format!("ctrlmesh-mesh-ca-{namespace}"), "namespace": "ctrlmesh",
            "labels": {"ctrlmesh.kusionstack.io/mesh-ca": namespace},
        },
    });
    put(server, secret);
    let ours = json!({"app.kubernetes.io/managed-by": "ctrlmesh-manager"});
    let mut map = config_map(namespace, "ctrlmesh-ca", &format!("{cluster}{}", old.ca));
    map["metadata"]["labels"] = ours.clone();
    put(server, map);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "ctrlmesh-serving-cert", "namespace": namespace, "labels": ours},
        "data": {"tls.crt": data["tls.crt"], "tls.key": data["tls.key"]},
    });
    put(server, secret);
    old
}

/// Whether the next CA is in use, and the bundle still has the one before.
fn has_rotated(state: &Snapshot<'_>, namespace: &str, old: &Credential, cluster: &str) -> bool {
    assert!(is_accepted(state, namespace), "{namespace} is cut off");
    let bundle = bundle(state, namespace).unwrap();
    let [certificate, _] = served_certificate(state, namespace).unwrap();
    let is_new = !verify_certificate(&certificate, &parse_certificates(&old.ca), &[], SystemTime::now());
    is_new && bundle.contains(&old.ca) && is_whole(state, namespace, cluster)
}

#[tokio::test]
async fn new_ca_is_trusted_before_its_certificate_is_served() {
    let (server, ca) = server_with_trusted_ca().await;
    let demo = store_expiring_ca(&server, "demo", &ca);
    let other = store_expiring_ca(&server, "other", &ca);
    // A namespace whose bundle can't be written keeps what it has and blocks no other.
    let rule = server.faults().add(bundle_write_fault("update"));
    let context = test_env::context(&server, &[]).await;
    let running = Running::start(&context, Namespaces::new(context.clone(), HASTY).run());
    until(&server, "the rotation", |state| {
        assert!(is_accepted(state, "demo"), "demo is cut off");
        has_rotated(state, "other", &other, &ca)
    })
    .await;
    while server.faults().times_applied(rule) < 2 {
        tokio::task::yield_now().await;
    }
    assert!(!server.store().read(|state| has_rotated(state, "demo", &demo, &ca)));
    server.faults().remove(rule);
    until(&server, "its rotation", |state| has_rotated(state, "demo", &demo, &ca)).await;
    running.stop().await;
}

fn is_accepted(state: &Snapshot<'_>, namespace: &str) -> bool {
    let bundle = parse_certificates(&bundle(state, namespace).unwrap());
    let [certificate, _] = served_certificate(state, namespace).unwrap();
    verify_certificate(&certificate, &bundle, &[], SystemTime::now())
}
