//! Labelling at an API server in memory, over real connections.

use ctrlmesh_testkit::{ApiServer, Resource, Snapshot};
use serde_json::{Value, json};

use super::*;
use crate::test_env::{self, NAMESPACE, PATIENCE, Running, notes, put, text, until};

mod failed_writes;

const HASH: &str = "ctrlmesh.kusionstack.io/shard-hash";
const IN: &str = "ctrlmesh.kusionstack.io/namespace";
const CONTROL: &str = "ctrlmesh.kusionstack.io/control";

/// Limits with short pauses.
const QUICK: Limits = Limits {
    repeat: Duration::from_millis(50),
    longest_repeat: Duration::from_millis(50),
    discover: Duration::from_millis(50),
    ..LIMITS
};
const FAST: [&str; 2] = ["--rest-config-qps=10000", "--rest-config-burst=10000"];

fn namespace(name: &str, labels: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
}

fn object(kind: &str, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": if kind == "Deployment" { "apps/v1" } else { "v1" },
        "kind": kind,
        "metadata": { "namespace": namespace, "name": name, "labels": { "app": name } },
    })
}

fn config(kinds: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "namespace": NAMESPACE, "name": "ctrlmesh-sharding-resource" },
        "data": { "resource-config": format!("groupVersionKinds: {kinds}") },
    })
}

/// A cluster with namespaces `test-0`, `test-1` and so on, and a ConfigMap and a Service in each.
async fn server_with_namespaces(namespaces: usize) -> ApiServer {
    let widgets = Resource::namespaced("example.com", "v1", "widgets", "Widget");
    let server = test_env::builder().resource(widgets).start().await.unwrap();
    for number in 0..namespaces {
        let name = format!("test-{number}");
        put(&server, namespace(&name, &json!({})));
        put(&server, object("ConfigMap", &name, "a"));
        put(&server, object("Service", &name, "a"));
    }
    server
}

async fn start_controller(server: &ApiServer) -> (Context, Running) {
    labelling_within(server, QUICK).await
}

async fn labelling_within(server: &ApiServer, limits: Limits) -> (Context, Running) {
    let context = test_env::context(server, &FAST).await;
    let running = Running::start(&context, run_within(context.clone(), limits));
    (context, running)
}

/// The manager's labels: bucket, namespace, control.
fn manager_labels(object: &Value) -> [Option<&str>; 3] {
    [HASH, IN, CONTROL].map(|key| object["metadata"]["labels"][key].as_str())
}

fn is_labelled(object: &Value) -> bool {
    let namespace = match text(object, "/kind") {
        "Namespace" => text(object, "/metadata/name"),
        _ => text(object, "/metadata/namespace"),
    };
    let hash = ctrlmesh_manager_planner::shard_hash(namespace).to_string();
    manager_labels(object) == [Some(hash.as_str()), Some(namespace), Some("true")]
}

fn is_unlabelled(object: &Value) -> bool {
    manager_labels(object) == [None; 3]
}

/// Objects in the namespaces of the test.
fn objects<'a>(state: &Snapshot<'a>) -> Vec<&'a Value> {
    let all = ["configmaps", "services", "deployments.apps"]
        .into_iter()
        .flat_map(|kind| state.list(kind));
    all.filter(|object| text(object, "/metadata/namespace").starts_with("test-"))
        .collect()
}

/// Waits for a condition that no write signals.
async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

/// Waits until a metric has this line.
async fn until_counted(context: &Context, line: &str) {
    let line = format!("ctrlmesh_manager_labels_{line}\n");
    wait_until(&line, || context.metrics.render().unwrap().contains(&line)).await;
}

async fn until_finished(server: &ApiServer) {
    until(server, "a pass ends", |state| {
        state
            .list("events.events.k8s.io")
            .any(|event| text(event, "/reason") == "LabellingFinished")
    })
    .await;
}

#[tokio::test]
async fn all_objects_of_cluster_are_labelled_page_by_page() {
    let server = server_with_namespaces(3).await;
    for number in 0..1200 {
        put(&server, object("ConfigMap", "test-1", &format!("c{number}")));
    }
    put(&server, object("ConfigMap", "default", "a"));
    let (context, running) = start_controller(&server).await;
    until_finished(&server).await;
    server.store().read(|state| {
        assert!(objects(state).into_iter().all(is_labelled));
        assert_eq!(
            text(objects(state)[0], "/metadata/labels/app"),
            "a",
            "other labels stay"
        );
        assert!(
            state
                .list("namespaces")
                .filter(|one| text(one, "/metadata/name").starts_with("test-"))
                .all(is_labelled)
        );
        assert!(is_unlabelled(state.get("configmaps", "default", "a").unwrap()));
    });
    let pages = server.requests().recent().into_iter();
    let pages = pages.filter(|seen| seen.verb == "list" && seen.target.starts_with("/api/v1/configmaps"));
    assert_eq!(pages.count(), 3, "500 to a page");
    let patches = server.requests().count("patch");
    assert_eq!(
        patches,
        1 + 3 + 6 + 1200,
        "the manager's namespace, namespaces, objects"
    );
    assert_eq!(notes(&server, "LabellingStarted").len(), 1);
    let said = notes(&server, "LabellingFinished").concat();
    assert!(said.contains("1210 labelled, 0 failed"), "{said}");
    let counted = context.metrics.render().unwrap();
    for line in [
        "labels_objects_written_total{kind=\"configmaps\"} 1203",
        "labels_objects_written_total{kind=\"services\"} 3",
        "labels_backfill_done{kind=\"configmaps\"} 1",
        "labels_config_good 1",
    ] {
        assert!(counted.contains(line), "{line}: {counted}");
    }
    running.stop().await;
}

#[tokio::test]
async fn restart_writes_only_missing_labels() {
    let server = server_with_namespaces(3).await;
    let (_, running) = start_controller(&server).await;
    until_finished(&server).await;
    running.stop().await;

    let mut foreign = object("Service", "test-2", "a");
    foreign["metadata"]["labels"] = json!({ HASH: "1", IN: "test-2", CONTROL: "true" });
    put(&server, foreign);
    put(&server, object("ConfigMap", "test-0", "new"));
    put(
        &server,
        namespace("test-1", &json!({ CONTROL: "false", HASH: "30", IN: "test-1" })),
    );
    server.requests().clear();
    let (_, running) = start_controller(&server).await;
    until(&server, "opted out while nobody looked", |state| {
        objects(state)
            .into_iter()
            .all(|object| match text(object, "/metadata/namespace") {
                "test-1" => is_unlabelled(object),
                _ => is_labelled(object),
            })
    })
    .await;
    until(&server, "a second pass ends", |state| {
        let events = state.list("events.events.k8s.io");
        events
            .filter(|event| text(event, "/reason") == "LabellingFinished")
            .count()
            == 2
    })
    .await;
    assert_eq!(
        server.requests().count("patch"),
        5,
        "a Service, a ConfigMap, and test-1 with its two"
    );
    running.stop().await;
}

#[tokio::test]
async fn namespace_can_opt_out_and_in_again() {
    let server = server_with_namespaces(2).await;
    let (_, running) = start_controller(&server).await;
    until_finished(&server).await;
    for (control, is_right) in [("false", is_unlabelled as fn(&Value) -> bool), ("true", is_labelled)] {
        put(
            &server,
            namespace(
                "test-1",
                &json!({ CONTROL: control, HASH: "30", IN: "test-1", "team": "a" }),
            ),
        );
        until(&server, control, |state| {
            let namespace = state.get("namespaces", "", "test-1").unwrap();
            let has_ours = manager_labels(namespace)[..2].iter().all(Option::is_some);
            has_ours == (control == "true")
                && text(namespace, "/metadata/labels/team") == "a"
                && objects(state)
                    .into_iter()
                    .all(|object| match text(object, "/metadata/namespace") {
                        "test-1" => is_right(object),
                        _ => is_labelled(object),
                    })
        })
        .await;
    }
    running.stop().await;
}

/// More namespaces than are checked one by one.
#[tokio::test]
async fn many_namespaces_opt_out_at_once() {
    let server = server_with_namespaces(100).await;
    let (_, running) = start_controller(&server).await;
    until_finished(&server).await;
    for number in 0..100 {
        put(
            &server,
            namespace(&format!("test-{number}"), &json!({ CONTROL: "false" })),
        );
    }
    until(&server, "no object has labels", |state| {
        objects(state).into_iter().all(is_unlabelled)
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn new_and_edited_objects_are_labelled() {
    let server = server_with_namespaces(1).await;
    let (_, running) = start_controller(&server).await;
    until_finished(&server).await;
    put(&server, namespace("test-new", &json!({})));
    put(&server, object("Service", "test-new", "a"));
    let mut edited = object("ConfigMap", "test-0", "a");
    edited["metadata"]["labels"][IN] = json!("elsewhere");
    put(&server, edited);
    let all = |state: &Snapshot<'_>| {
        let namespace = state.get("namespaces", "", "test-new").unwrap();
        is_labelled(namespace) && objects(state).into_iter().all(is_labelled)
    };
    until(&server, "new ones and edited ones", all).await;
    // The watches break, and the changes that they missed are compacted.
    server.stop().await;
    put(&server, object("Service", "test-new", "missed"));
    server.store().compact();
    server.restart().await.unwrap();
    until(&server, "after an outage", all).await;
    running.stop().await;
}

#[tokio::test]
async fn kinds_follow_the_config_map() {
    let server = server_with_namespaces(1).await;
    put(&server, object("Deployment", "test-0", "a"));
    put(&server, config("{v1: [Endpoint]}"));
    let (context, running) = start_controller(&server).await;
    let endpoints = |state: &Snapshot<'_>| state.get("endpoints", "test-0", "a").is_some_and(is_labelled);
    put(&server, object("Endpoints", "test-0", "a"));
    until(&server, "endpoints", endpoints).await;
    server
        .store()
        .read(|state| assert!(objects(state).into_iter().all(is_unlabelled), "no other kind"));

    // A kind that is added is checked completely, also if the cluster gets it later.
    put(&server, config("{v1: [Service, Nothing], apps/v1: ['*']}"));
    until(&server, "services and deployments", |state| {
        let is = |object: &&Value| is_labelled(object) == (text(object, "/kind") != "ConfigMap");
        objects(state).iter().all(is)
            && state
                .list("events.events.k8s.io")
                .any(|e| text(e, "/reason") == "KindsLeftAlone")
    })
    .await;
    let left = notes(&server, "KindsLeftAlone").concat();
    assert_eq!(left, "not labelled: v1 Nothing: the cluster has no such kind");
    // The kind is no longer configured, so the object is left as it is.
    put(&server, object("Endpoints", "test-0", "b"));

    // An unreadable list changes nothing and is reported.
    put(&server, config("{v1: services}"));
    until(&server, "the refusal", |state| {
        state
            .list("events.events.k8s.io")
            .any(|event| text(event, "/reason") == "ConfigRefused")
    })
    .await;
    assert!(context.metrics.render().unwrap().contains("labels_config_good 0"));
    let said = notes(&server, "ConfigRefused").concat();
    assert!(
        said.contains("groupVersionKinds") && said.ends_with("the list before is in force"),
        "{said}"
    );
    put(&server, object("Service", "test-0", "b"));
    until(&server, "the list before", |state| {
        state.get("services", "test-0", "b").is_some_and(is_labelled)
    })
    .await;

    server
        .store()
        .delete("configmaps", NAMESPACE, "ctrlmesh-sharding-resource")
        .unwrap();
    until(&server, "the default list", |state| {
        objects(state).into_iter().all(is_labelled) && endpoints(state)
    })
    .await;
    assert!(context.metrics.render().unwrap().contains("labels_config_good 1"));
    running.stop().await;
}

#[tokio::test]
async fn missing_group_has_no_kinds() {
    let server = server_with_namespaces(1).await;
    put(&server, config("{example.org/v1: [Other]}"));
    let (_, running) = start_controller(&server).await;
    until(&server, "an Event is there", |state| {
        let mut events = state.list("events.events.k8s.io");
        events.any(|event| text(event, "/reason") == "KindsLeftAlone")
    })
    .await;
    let left = notes(&server, "KindsLeftAlone").concat();
    assert_eq!(left, "not labelled: example.org/v1 Other: the cluster has no such kind");
    running.stop().await;
}

#[tokio::test]
async fn cluster_scoped_and_own_kinds_are_not_labelled() {
    let server = server_with_namespaces(1).await;
    let shard = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": { "namespace": "test-0", "name": "a" }, "spec": {},
    });
    put(&server, shard);
    put(
        &server,
        config("{ctrlmesh.kusionstack.io/v1alpha1: ['*'], v1: [Namespace, ConfigMap]}"),
    );
    let (_, running) = start_controller(&server).await;
    until_finished(&server).await;
    server.store().read(|state| {
        assert!(is_unlabelled(
            state
                .get("shardingconfigs.ctrlmesh.kusionstack.io", "test-0", "a")
                .unwrap()
        ));
        assert!(is_labelled(state.get("configmaps", "test-0", "a").unwrap()));
    });
    running.stop().await;
}
