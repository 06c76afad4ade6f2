//! The leader of a shard, from reports of sidecars to status.

use ctrlmesh_contract::status::LeaderElection;

use super::*;

const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-01-01T00:00:10Z";

/// A pod of the shard `left` that runs this chain and leads since then, or does not.
fn status_with_election(pod: &str, chain: &Chain, since: Option<&str>) -> Status {
    let election = LeaderElection {
        lock: "lock---left".to_owned(),
        holder: format!("{pod}_id"),
        leads: since.is_some(),
        since: since.map(str::to_owned),
        ..LeaderElection::default()
    };
    Status {
        leader_elections: vec![election],
        ..status_running(pod, chain.generation, Some(chain))
    }
}

fn leader(state: &Snapshot<'_>) -> Option<Value> {
    let shard = state.get("shardingconfigs.ctrlmesh.kusionstack.io", DEMO, "left")?;
    shard["status"].get("leader").cloned()
}

async fn until_leader(server: &ApiServer, expected: Option<(&str, &str)>) {
    let expected = expected.map(|(pod, since)| {
        let holder = format!("{pod}_id");
        json!({ "podName": pod, "holderIdentity": holder, "since": since })
    });
    let what = format!("the leader is {expected:?}");
    until(server, &what, |state| leader(state) == expected).await;
}

#[tokio::test]
async fn status_of_a_shard_follows_its_leader() {
    let (first, port) = Sidecar::start(101, 0).await;
    let (second, _) = Sidecar::start(102, port).await;
    first.set_status(status_running("left-0", 0, None));
    second.set_status(status_running("left-1", 0, None));
    let server = server().await;
    for (name, sidecar) in [("left-0", &first), ("left-1", &second)] {
        let mut pod = pod(name, &sidecar.ip);
        pod["metadata"]["labels"]["shard"] = json!("left");
        put(&server, pod);
    }
    put(&server, samples::shard("left", &[]));
    let (_, task) = start(&server, port, &["--poll-seconds=1"]).await;
    let chain = until_entries(&server, 1).await;
    first.set_status(status_with_election("left-0", &chain, Some(EARLY)));
    second.set_status(status_with_election("left-1", &chain, None));
    until_leader(&server, Some(("left-0", EARLY))).await;
    until(&server, "all is done", |state| {
        condition_of(state, "shardingconfigs", "left", "Enforced")[0] == "True"
    })
    .await;
    let published = || {
        let seen = server.requests().recent().into_iter();
        seen.filter(|seen| seen.verb == "patch" && seen.target.contains("/left/status"))
            .count()
    };
    let (before, asked) = (published(), first.poll_count() + 3);
    until_counted(|| first.poll_count() >= asked).await;
    assert_eq!(published(), before, "it only goes on to lead");

    // The first one is asked later, or its clock is behind.
    second.set_status(status_with_election("left-1", &chain, Some(LATE)));
    until_leader(&server, Some(("left-1", LATE))).await;
    first.set_status(status_with_election("left-0", &chain, None));
    second.set_status(status_with_election("left-1", &chain, None));
    until_leader(&server, None).await;
    first.set_status(status_with_election("left-0", &chain, Some(LATE)));
    until_leader(&server, Some(("left-0", LATE))).await;
    *first.says.lock().unwrap() = None;
    until_leader(&server, None).await;
    task.stop().await;
}
