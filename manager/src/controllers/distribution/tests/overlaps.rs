//! Objects that two shards are to have, if only for a moment, and pods that two shards select.

use ctrlmesh_manager_planner::hand_over::shard_of;

use super::lost_pods::{pod_of, shard};
use super::two_shards::TwoShards;
use super::*;

pub(super) fn limits(chain: &Chain, shard: &str) -> String {
    let entry = chain.entries.iter().find(|entry| shard_of(&entry.name) == shard);
    entry.unwrap().settings.value()["limits"].to_string()
}

fn of_shard(state: &Snapshot<'_>, name: &str, kind: &str) -> [String; 3] {
    condition_of(state, "shardingconfigs", name, kind)
}

#[tokio::test]
async fn gaining_shard_may_be_applied_before_the_losing_one() {
    let mut two = TwoShards::start(61).await;
    let first = two.chain();
    // The objects of left.
    put(&two.server, shard("right", "b", 60));
    until(&two.server, "right waits for another edit", |state| {
        let [_, reason, message] = of_shard(state, "right", "Distributed");
        reason == "Settling" && message.contains("also belong to left") && message.contains("within 10 s")
    })
    .await;
    let held = two.chain();
    assert_eq!(limits(&held, "left"), limits(&first, "left"));
    assert!(!limits(&held, "right").contains("\"b\""), "{}", limits(&held, "right"));
    put(&two.server, shard("left", "d", 60));
    until(&two.server, "right waits for left's pod", |state| {
        let [_, reason, message] = of_shard(state, "right", "Distributed");
        reason == "HandingOver" && message.contains("left-0")
    })
    .await;
    let narrowed = two.chain();
    assert!(
        !limits(&narrowed, "right").contains("\"b\""),
        "{}",
        limits(&narrowed, "right")
    );
    two.acknowledge_chain("left");
    two.acknowledge_chain("right");
    until(&two.server, "right has it", |state| {
        limits(&chain(state).unwrap(), "right").contains("\"b\"")
    })
    .await;
    two.stop().await;
}

#[tokio::test]
async fn pod_of_two_shards_is_named_in_status() {
    let (sidecar, port, server) = start_with_sidecar(63, |ip| pod_of("left", ip)).await;
    put(&server, shard("left", "b", 60));
    let mut other = shard("other", "c", 60);
    other["spec"]["selector"]["matchLabels"]["shard"] = json!("left");
    put(&server, other);
    let (_, task) = start(&server, port, &[]).await;
    let first = until_entries(&server, 2).await;
    sidecar.set_status(status_running("left-0", first.generation, Some(&first)));
    until(&server, "both say so", |state| {
        [("left", "other"), ("other", "left")].iter().all(|(name, of)| {
            let [status, _, message] = of_shard(state, name, "Enforced");
            status == "False" && message.contains(&format!("left-0 is also selected by {of}"))
        })
    })
    .await;
    task.stop().await;
}

#[tokio::test]
async fn pod_may_be_in_shards_of_two_controllers() {
    let (sidecar, port, server) = start_with_sidecar(107, |ip| pod_of("left", ip)).await;
    put(&server, shard("left", "b", 60));
    let mut other = shard("other", "c", 60);
    other["spec"]["selector"]["matchLabels"]["shard"] = json!("left");
    other["spec"]["controller"]["leaderElectionName"] = json!("another");
    put(&server, other);
    let (_, task) = start(&server, port, &[]).await;
    let first = until_entries(&server, 2).await;
    sidecar.set_status(status_running("left-0", first.generation, Some(&first)));
    until(&server, "both are enforced", |state| {
        let mut shards = ["left", "other"].iter();
        shards.all(|name| of_shard(state, name, "Enforced")[0] == "True")
    })
    .await;
    task.stop().await;
}

#[tokio::test]
async fn sidecar_without_labels_file_is_named_in_status() {
    let (sidecar, port, server) = start_with_sidecar(64, |ip| pod_of("left", ip)).await;
    put(&server, shard("left", "b", 60));
    let (_, task) = start(&server, port, &[]).await;
    let first = until_entries(&server, 1).await;
    sidecar.set_status(status_running("left-0", first.generation, None));
    until(&server, "the condition says what is missing", |state| {
        let [status, _, message] = of_shard(state, "left", "Enforced");
        status == "False"
            && message.contains("left-0 runs the chain, but no entry of this object")
            && message.contains("--labels-file")
    })
    .await;
    task.stop().await;
}
