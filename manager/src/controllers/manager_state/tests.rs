//! ManagerState at an API server in memory, over real connections.

use ctrlmesh_testkit::Snapshot;
use serde_json::Value;

use super::*;
use crate::test_env::{self, NAMESPACE, Running, put, until};

const STATES: &str = "managerstates.ctrlmesh.kusionstack.io";

fn pod(name: &str, ip: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": NAMESPACE, "name": name, "labels": labels },
        "status": { "phase": "Running", "podIP": ip },
    })
}

fn service(selector: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": NAMESPACE, "name": "ctrlmesh-manager-webhook" },
        "spec": { "selector": selector },
    })
}

/// Names and addresses; the leader's with a star.
fn listed_endpoints(state: &Snapshot<'_>) -> Option<String> {
    let status = &state.get(STATES, "", NAME)?["status"];
    let one = |endpoint: &Value| {
        let star = if endpoint["leader"] == true { "*" } else { "" };
        Some(format!(
            "{}={}{star}",
            endpoint["name"].as_str()?,
            endpoint["podIP"].as_str()?
        ))
    };
    let list: Option<Vec<String>> = status["endpoints"].as_array()?.iter().map(one).collect();
    Some(format!("{}: {}", status["namespace"].as_str()?, list?.join(" ")))
}

#[test]
fn managers_are_pods_of_service_and_this_pod() {
    let pods = [
        pod("b", "10.0.0.2", &json!({ "app": "manager" })),
        pod("a", "10.0.0.1", &json!({ "app": "manager", "x": "y" })),
        pod("other", "10.0.0.3", &json!({ "app": "other" })),
        pod("early", "", &json!({ "app": "manager" })),
    ];
    let mut pods: Vec<Pod> = pods.map(|pod| serde_json::from_value(pod).unwrap()).into();
    let names = |pods: &[Pod], selector: Option<&str>, leader: &str| {
        let selector = selector.map(|app| BTreeMap::from([("app".to_owned(), app.to_owned())]));
        let found = manager_endpoints(pods.iter(), selector.as_ref(), leader);
        let name = |it: Endpoint| format!("{}{}", it.name, if it.leader { "*" } else { "" });
        found.into_iter().map(name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&pods, Some("manager"), "b"), "a b*");
    assert_eq!(names(&pods, Some("manager"), "other"), "a b other*");
    assert_eq!(
        names(&pods, None, "a"),
        "a*",
        "a selector that is not there selects nothing"
    );
    assert_eq!(
        service_selector(serde_json::from_value(service(&json!({}))).unwrap()),
        None,
        "nor does an empty one"
    );
    pods[0].status.as_mut().unwrap().phase = Some("Failed".to_owned());
    assert_eq!(names(&pods, Some("manager"), "a"), "a*");
}

#[tokio::test]
async fn manager_state_follows_pods_and_leader() {
    let server = test_env::builder().start().await.unwrap();
    let old = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ManagerState", "metadata": { "name": NAME }, "spec": {},
        "status": {
            "namespace": "old", "endpoints": [{ "name": "gone", "podIP": "10.0.0.9", "leader": true }],
            "ports": { "grpcLeaderElectionPort": 5448 },
        },
    });
    put(&server, old);
    put(&server, service(&json!({ "app": "manager" })));
    for (name, ip) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        put(&server, pod(name, ip, &json!({ "app": "manager" })));
    }
    put(&server, pod("other", "10.0.0.3", &json!({})));
    for leader in ["a", "b"] {
        let context = test_env::context(&server, &["--pod-name", leader]).await;
        let running = Running::start(&context, run(context.clone()));
        let want = ["a=10.0.0.1", "b=10.0.0.2"].map(|one| {
            if one.starts_with(leader) {
                format!("{one}*")
            } else {
                one.to_owned()
            }
        });
        let want = format!("{NAMESPACE}: {}", want.join(" "));
        until(&server, leader, |state| {
            listed_endpoints(state).as_deref() == Some(&want)
        })
        .await;
        running.stop().await;
    }
    assert!(
        server
            .store()
            .read(|state| state.get(STATES, "", NAME).unwrap()["status"]["ports"].is_null())
    );
}

#[tokio::test]
async fn manager_state_is_written_only_when_managers_change() {
    let server = test_env::builder().start().await.unwrap();
    put(&server, service(&json!({ "app": "manager" })));
    for (name, ip) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        put(&server, pod(name, ip, &json!({ "app": "manager" })));
    }
    let context = test_env::context(&server, &["--pod-name", "a"]).await;
    let running = Running::start(&context, run(context.clone()));
    until(&server, "it is made", |state| {
        listed_endpoints(state).as_deref() == Some("ctrlmesh: a=10.0.0.1* b=10.0.0.2")
    })
    .await;
    server.requests().clear();
    // A pod that the Service does not select. An unnecessary write would come before the next one.
    put(&server, pod("other", "10.0.0.4", &json!({ "x": "y" })));
    server.store().delete("pods", NAMESPACE, "b").unwrap();
    until(&server, "b is gone", |state| {
        listed_endpoints(state).as_deref() == Some("ctrlmesh: a=10.0.0.1*")
    })
    .await;
    put(&server, service(&json!({})));
    put(&server, pod("c", "10.0.0.5", &json!({ "app": "manager" })));
    put(&server, service(&json!({ "app": "manager" })));
    until(&server, "c is there", |state| {
        listed_endpoints(state).as_deref() == Some("ctrlmesh: a=10.0.0.1* c=10.0.0.5")
    })
    .await;
    assert_eq!(server.requests().count("patch"), 2);
    running.stop().await;
}
