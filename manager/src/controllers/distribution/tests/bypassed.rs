//! Pods that bypass their sidecars: from reports to conditions and Events.

use ctrlmesh_contract::status::ApiTraffic;

use super::*;

const STARTED: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-01-01T00:02:00Z";

/// The status of a pod's sidecar two minutes after its containers have started. `last`: the time of the last request, if there was one.
fn status_with_traffic(chain: &Chain, last: Option<&str>) -> Status {
    let traffic = ApiTraffic {
        now: LATER.to_owned(),
        since: Some(STARTED.to_owned()),
        last: last.map(str::to_owned),
        in_flight: Some(0),
    };
    Status {
        api_traffic: Some(traffic),
        ..status_running("left-0", chain.generation, Some(chain))
    }
}

#[tokio::test]
async fn pod_without_api_traffic_is_named_in_condition_and_event() {
    let (sidecar, port, server) = start_with_sidecar(111, |ip| {
        let mut pod = pod("left-0", ip);
        pod["metadata"]["labels"]["shard"] = json!("left");
        let running = json!({"running": {"startedAt": STARTED}});
        pod["status"]["containerStatuses"] =
            json!([{"name": "a", "image": "a", "imageID": "", "ready": true, "restartCount": 0, "state": running}]);
        pod
    })
    .await;
    put(&server, samples::shard("left", &[]));
    let (_, task) = start(&server, port, &["--poll-seconds=1"]).await;
    let chain = until_entries(&server, 1).await;
    let bypassed = |state: &Snapshot<'_>| condition_of(state, "shardingconfigs", "left", "Bypassed");
    sidecar.set_status(status_with_traffic(&chain, None));
    until(&server, "it is bypassed", |state| bypassed(state)[0] == "True").await;
    let [_, reason, message] = server.store().read(bypassed);
    assert_eq!(reason, "NoTraffic");
    assert!(message.contains("containers of left-0 have sent nothing"), "{message}");
    let has_event = |state: &Snapshot<'_>| {
        state
            .list("events.events.k8s.io")
            .any(|event| text(event, "/reason") == "NoTraffic")
    };
    until(&server, "an Event says so", has_event).await;
    sidecar.set_status(status_with_traffic(&chain, Some(STARTED)));
    until(&server, "it is bypassed no more", |state| bypassed(state)[0] == "False").await;
    task.stop().await;
}
