//! Pods without a sidecar beside the first that have one.

use ctrlmesh_manager_planner::hand_over::{is_unbegun, shard_of};

use super::lost_pods::{pod_of, shard};
use super::overlaps::limits;
use super::*;

/// A pod with KusionStack's sidecar.
fn of_kusionstack(mut pod: Value) -> Value {
    pod["metadata"]["annotations"] = json!({});
    pod
}

fn without_sidecar(pod: Value) -> Value {
    let mut pod = of_kusionstack(pod);
    pod["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove(labels::WATCHING);
    pod
}

/// Whether any shard has begun.
fn has_begun(state: &Snapshot<'_>) -> bool {
    let entries = chain(state).map(|chain| chain.entries).unwrap_or_default();
    entries.iter().any(|entry| !is_unbegun(entry))
}

/// Whether a shard shows objects with this label.
fn shows(state: &Snapshot<'_>, shard: &str, label: &str) -> bool {
    let chain = chain(state).unwrap();
    let is_there = chain
        .entries
        .iter()
        .any(|entry| entry.name.ends_with(&format!("/{shard}")));
    is_there && limits(&chain, shard).contains(&format!("\"{label}\""))
}

#[tokio::test]
async fn rolling_restart_that_adds_sidecars_has_one_owner_at_any_time() {
    let (left, port, server) = start_with_sidecar(91, |ip| pod_of("left", ip)).await;
    let old = without_sidecar(pod_of("right", "127.0.0.92"));
    put(&server, old.clone());
    let mut over = without_sidecar(pod_of("over", "127.0.0.93"));
    over["metadata"]["labels"]["shard"] = json!("left");
    over["status"]["phase"] = json!("Succeeded");
    put(&server, over);
    put(&server, shard("left", "b", 60));
    put(&server, shard("right", "c", 60));
    let (_, task) = start(&server, port, &["--settle-ms=0"]).await;
    let first = until_entries(&server, 2).await;
    left.set_status(status_running(
        "left-0",
        first.generation,
        Some(&chain_of_shard(&first, "left")),
    ));
    for name in ["left", "right"] {
        until(&server, "the condition names the pod", |state| {
            let [status, reason, message] = condition_of(state, "shardingconfigs", name, "Distributed");
            (status.as_str(), reason.as_str()) == ("False", "WithoutSidecar")
                && message.contains("right-0; restart")
                && !message.contains("over")
        })
        .await;
    }
    assert!(!server.store().read(has_begun));
    task.stop().await;
    // Another manager knows, too.
    let (_, task) = start(&server, port, &["--settle-ms=0"]).await;
    let asked = left.poll_count();
    until_counted(|| left.poll_count() > asked + 3).await;
    assert!(!server.store().read(has_begun));
    server.store().delete("pods", DEMO, "right-0").unwrap();
    until(&server, "both begin", |state| {
        shows(state, "left", "b") && shows(state, "right", "c")
    })
    .await;
    let last = server.store().read(chain).unwrap();
    left.set_status(status_running(
        "left-0",
        last.generation,
        Some(&chain_of_shard(&last, "left")),
    ));
    // A pod that comes later takes nothing from shards that have begun.
    put(&server, old);
    put(&server, shard("left", "d", 60));
    until(&server, "left shows something else", |state| shows(state, "left", "d")).await;
    assert!(server.store().read(|state| shows(state, "right", "c")));
    task.stop().await;
}

#[tokio::test]
async fn shard_that_joins_others_that_have_begun_is_not_blocked_by_uninjected_pods() {
    let (left, port, server) = start_with_sidecar(94, |ip| pod_of("left", ip)).await;
    put(&server, shard("left", "b", 60));
    let (_, task) = start(&server, port, &["--settle-ms=0"]).await;
    let first = until_entries(&server, 1).await;
    left.set_status(status_running("left-0", first.generation, Some(&first)));
    put(&server, without_sidecar(pod_of("right", "127.0.0.95")));
    put(&server, shard("right", "c", 60));
    until(&server, "right has begun", |state| {
        let [status, _, _] = condition_of(state, "shardingconfigs", "right", "Distributed");
        status == "True" && shows(state, "right", "c")
    })
    .await;
    task.stop().await;
}

#[tokio::test]
async fn list_error_blocks_only_shards_that_have_not_begun() {
    let server = server().await;
    put(&server, shard("left", "b", 60));
    let (_, task) = start(&server, 1, &["--settle-ms=0"]).await;
    until_entries(&server, 1).await;
    let refuse = Rule::new(Fault::Status {
        code: 403,
        retry_after: None,
    });
    server
        .faults()
        .add(refuse.verb("list").resource("pods").namespace(DEMO));
    let mut other = shard("other", "c", 60);
    other["spec"]["controller"]["leaderElectionName"] = json!("another");
    put(&server, other);
    until(&server, "the condition has the refused list", |state| {
        let [status, reason, message] = condition_of(state, "shardingconfigs", "other", "Distributed");
        (status.as_str(), reason.as_str()) == ("False", "PodsUnknown") && message.contains("HTTP 403")
    })
    .await;
    assert!(!server.store().read(|state| shows(state, "other", "c")));
    put(&server, shard("left", "d", 60));
    until(&server, "left goes on", |state| shows(state, "left", "d")).await;
    assert!(!server.store().read(|state| shows(state, "other", "c")));
    server.faults().clear();
    put(&server, pod_of("other", "127.0.0.98"));
    until(&server, "the other begins", |state| shows(state, "other", "c")).await;
    task.stop().await;
}

/// The chain as the sidecar of one shard's pod runs it.
fn chain_of_shard(chain: &Chain, shard: &str) -> Chain {
    let mut own = chain.clone();
    own.entries.retain(|entry| shard_of(&entry.name) == shard);
    own
}

#[tokio::test]
async fn blocked_object_that_turns_invalid_begins_with_its_last_valid_rules() {
    let (left, port, server) = start_with_sidecar(96, |ip| pod_of("left", ip)).await;
    put(&server, of_kusionstack(pod_of("right", "127.0.0.97")));
    for (name, label) in [("left", "b"), ("right", "c")] {
        put(&server, shard(name, label, 60));
    }
    let (_, task) = start(&server, port, &["--settle-ms=0"]).await;
    let first = until_entries(&server, 2).await;
    left.set_status(status_running(
        "left-0",
        first.generation,
        Some(&chain_of_shard(&first, "left")),
    ));
    // An edit that changes nothing that is shown yet.
    put(&server, shard("right", "d", 60));
    until(&server, "the edit is seen", |state| {
        let right = state
            .get("shardingconfigs.ctrlmesh.kusionstack.io", DEMO, "right")
            .unwrap();
        right["metadata"]["generation"] != 1 && right["status"]["observedGeneration"] == right["metadata"]["generation"]
    })
    .await;
    let mut refused = shard("right", "e", 60);
    refused["spec"]["limits"] = json!([]);
    put(&server, refused);
    until(&server, "it is refused", |state| {
        condition_of(state, "shardingconfigs", "right", "Accepted")[0] == "False"
    })
    .await;
    // Another manager knows what it said.
    task.stop().await;
    let (_, task) = start(&server, port, &["--settle-ms=0"]).await;
    server.store().delete("pods", DEMO, "right-0").unwrap();
    until(&server, "both begin", |state| {
        shows(state, "left", "b") && shows(state, "right", "d")
    })
    .await;
    task.stop().await;
}

#[tokio::test]
async fn shards_swap_objects_beside_a_stray_uninjected_pod() {
    let (left, port) = Sidecar::start(99, 0).await;
    let (right, _) = Sidecar::start(100, port).await;
    let both = [("left", &left), ("right", &right)];
    let server = server().await;
    for (name, sidecar) in both {
        sidecar.set_status(status_running(&format!("{name}-0"), 0, None));
        put(&server, pod_of(name, &sidecar.ip));
    }
    put(&server, shard("left", "b", 60));
    put(&server, shard("right", "c", 60));
    let (_, task) = start(&server, port, &["--settle-ms=0"]).await;
    let first = until_entries(&server, 2).await;
    let run = |chain: &Chain| {
        for (name, sidecar) in both {
            sidecar.set_status(status_running(
                &format!("{name}-0"),
                chain.generation,
                Some(&chain_of_shard(chain, name)),
            ));
        }
    };
    run(&first);
    let mut stray = without_sidecar(pod_of("left", "127.0.0.101"));
    stray["metadata"]["name"] = json!("stray");
    put(&server, stray);
    put(&server, shard("left", "c", 60));
    put(&server, shard("right", "b", 60));
    until(&server, "nobody shows what moves", |state| {
        !shows(state, "left", "b") && !shows(state, "right", "c")
    })
    .await;
    run(&server.store().read(chain).unwrap());
    until(&server, "they have swapped", |state| {
        shows(state, "left", "c") && shows(state, "right", "b")
    })
    .await;
    task.stop().await;
}
