//! Pods without a sidecar beside the first that have one.

use super::losing::{pod_of, shard};
use super::*;
use crate::hand_over::shows_nothing;

fn without_sidecar(mut pod: Value) -> Value {
    pod["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove(labels::WATCHING);
    pod
}

/// Whether any shard shows anything.
fn shows(state: &Snapshot<'_>) -> bool {
    let entries = chain(state).map(|chain| chain.entries).unwrap_or_default();
    entries.iter().any(|entry| !shows_nothing(entry))
}

#[tokio::test]
async fn a_rolling_restart_into_the_mesh_has_one_owner_at_any_time() {
    let (left, port) = Sidecar::start(91, 0).await;
    left.say(running("left-0", 0, None));
    let server = server().await;
    put(&server, pod_of("left", &left.ip));
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
    left.say(running("left-0", first.generation, Some(&first)));
    for name in ["left", "right"] {
        until(&server, "it is told for whom it waits", |state| {
            let [status, reason, message] = condition_of(state, "shardingconfigs", name, "Distributed");
            (status.as_str(), reason.as_str()) == ("False", "WithoutSidecar")
                && message.contains("right-0; restart")
                && !message.contains("over")
        })
        .await;
    }
    assert!(!server.store().read(shows));
    task.stop().await;
    // Another manager knows, too.
    let (_, task) = start(&server, port, &["--settle-ms=0"]).await;
    let asked = left.asked();
    until_counted(|| left.asked() > asked + 3).await;
    assert!(!server.store().read(shows));
    server.store().delete("pods", DEMO, "right-0").unwrap();
    until(&server, "both begin", |state| {
        let entries = chain(state).unwrap().entries;
        !entries.iter().any(shows_nothing)
    })
    .await;
    let last = server.store().read(chain).unwrap();
    left.say(running("left-0", last.generation, Some(&last)));
    // One that comes later takes nothing from who works.
    put(&server, old);
    put(&server, shard("left", "d", 60));
    until(&server, "left shows something else", |state| {
        let chain = chain(state).unwrap();
        chain.entries.iter().all(|entry| !shows_nothing(entry)) && chain.generation > last.generation
    })
    .await;
    task.stop().await;
}
