//! The manager's own process, in front of a large cluster: how much memory it takes, and how many requests it sends.

use std::process::Stdio;
use std::time::{Duration, Instant};

use ctrlmesh_testkit::{ApiServer, Snapshot};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

const NAMESPACES: usize = 1_000;
const OBJECTS: usize = 50_000;
/// Requests per second, and how many may follow each other: high, so that the test is short.
const RATE: (u32, u32) = (2_000, 100);
/// The manager may take so much. MiB.
const LIMIT: u64 = 200;
/// A minute on a machine that has nothing else to do.
const PATIENCE: Duration = Duration::from_mins(15);

async fn cluster() -> ApiServer {
    let server = ApiServer::builder().namespace("ctrlmesh").start().await.unwrap();
    let content = "x".repeat(1_000);
    for namespace in 0..NAMESPACES {
        let namespace = format!("tenant-{namespace}");
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
        server.store().put(object).unwrap();
        for number in 0..OBJECTS / NAMESPACES {
            let kind = if number % 2 == 0 { "ConfigMap" } else { "Service" };
            let metadata = json!({
                "namespace": namespace,
                "name": format!("object-{number}"),
                "annotations": { "example.com/note": content },
            });
            let object = json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "data": { "key": content } });
            server.store().put(object).unwrap();
        }
    }
    server
}

fn manager(server: &ApiServer, directory: &TempDir) -> Child {
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, server.plain_kubeconfig()).unwrap();
    Command::new(env!("CARGO_BIN_EXE_ctrlmesh-manager"))
        .env("KUBECONFIG", kubeconfig)
        .args([
            "--metrics-bind-address=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
        ])
        .arg(format!("--rest-config-qps={}", RATE.0))
        .arg(format!("--rest-config-burst={}", RATE.1))
        .arg("--log=warn")
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// The most memory that a process ever had. MiB.
fn peak(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kibibytes / 1024
}

fn is_finished(state: &Snapshot<'_>) -> bool {
    let is_end = |event: &Value| event["reason"] == "LabellingFinished";
    state.list("events.events.k8s.io").any(is_end)
}

fn labelled(state: &Snapshot<'_>) -> usize {
    let objects = ["configmaps", "services"].into_iter().flat_map(|kind| state.list(kind));
    let has = |object: &Value| object["metadata"]["labels"]["ctrlmesh.kusionstack.io/control"] == "true";
    objects.filter(|object| has(object)).count()
}

#[tokio::test]
async fn fifty_thousand_objects_are_labelled_in_bounded_memory_and_at_the_allowed_rate() {
    let (server, directory) = (cluster().await, tempfile::tempdir().unwrap());
    let start = Instant::now();
    let manager = manager(&server, &directory);
    let ended = server.store().wait_until_within(PATIENCE, is_finished).await;
    let (elapsed, requests, peak) = (start.elapsed(), server.requests().total(), peak(&manager));
    let labelled = server.store().read(labelled);
    assert!(ended.is_ok(), "{labelled} objects in {elapsed:?}");
    assert_eq!(labelled, OBJECTS);
    assert!(peak < LIMIT, "{peak} MiB");
    let allowed = u64::from(RATE.1) + u64::from(RATE.0) * (elapsed.as_secs() + 1);
    assert!(requests <= allowed, "{requests} requests in {elapsed:?}");
    println!("{peak} MiB, {requests} requests in {elapsed:?}");
}
