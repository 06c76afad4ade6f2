//! Claims, which are stored with the chain for a manager that takes over.

use super::lost_pods::{pod_of, shard};
use super::*;

/// The chain stays as it is, and the claims beside it change.
#[tokio::test]
async fn claims_of_a_leaving_pod_are_written_at_once() {
    let (sidecar, port) = Sidecar::start(53, 0).await;
    sidecar.set_status(status_running("left-0", 0, None));
    let server = server().await;
    let mut pod = pod_of("left", &sidecar.ip);
    put(&server, pod.clone());
    let uid = server.store().read(|state| {
        let pod = state.get("pods", DEMO, "left-0").unwrap();
        text(pod, "/metadata/uid").to_owned()
    });
    put(&server, shard("left", "b", 1));
    put(&server, shard("right", "c", 1));
    let (_, task) = start(&server, port, &[]).await;
    let mut chain = until_entries(&server, 2).await;
    chain.entries.retain(|entry| entry.name.ends_with("/left"));
    sidecar.set_status(status_running("left-0", chain.generation, Some(&chain)));
    let is_enforced = |state: &Snapshot<'_>| {
        let object = state.get("shardingconfigs.ctrlmesh.kusionstack.io", DEMO, "left");
        object.is_some_and(|object| object["status"]["enforced"] == "1/1")
    };
    until(&server, "it runs the chain", is_enforced).await;
    let claims = |state: &Snapshot<'_>| {
        let map = state.get("configmaps", DEMO, CHAIN).unwrap();
        text(map, "/data/claims.json").to_owned()
    };
    assert!(!server.store().read(claims).contains(&uid));
    pod["metadata"]["labels"]["shard"] = json!("none");
    put(&server, pod);
    until(&server, "it is remembered", |state| claims(state).contains(&uid)).await;
    let after = until_entries(&server, 2).await;
    assert_eq!(after.generation, chain.generation, "sidecars have nothing to load");
    task.stop().await;
}
