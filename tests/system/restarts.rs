//! A sidecar is killed and restarted in its pod: what the next one knows.

use ctrlmesh_contract::status::InFlight;
use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::client::Stream;
use ctrlmesh_tests::{ChainDir, EntrySpec, TestEnv, config_map, shard_entry};
use http::Method;

use crate::in_flight_requests::{LIST, in_flight};

const TARGET: &str = "/api/v1/namespaces/default/configmaps/a0";

async fn list_version(env: &TestEnv) -> anyhow::Result<String> {
    let list = env.client().get(LIST).await?.json();
    Ok(list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

async fn open_watch(env: &TestEnv, version: &str) -> anyhow::Result<Stream> {
    let target = format!("{LIST}?watch=1&resourceVersion={version}");
    env.client().open_stream(&target).await
}

fn keep_chain(_: &mut ChainDir) -> anyhow::Result<()> {
    Ok(())
}

#[tokio::test]
async fn watch_resumes_after_a_restart_under_the_same_chain() -> anyhow::Result<()> {
    for entries in [vec![shard_entry("a")], vec![]] {
        let mut env = TestEnv::start(entries).await?;
        let version = list_version(&env).await?;
        for _ in 0..2 {
            env.restart_sidecar(keep_chain).await?;
            assert_eq!(open_watch(&env, &version).await?.head.status, 200);
        }
        let mut watch = open_watch(&env, &version).await?;
        env.api.store().put(config_map("default", "mine", "a"))?;
        assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "mine");
    }
    Ok(())
}

/// A version read before a restart is stale after it, and one list is enough to continue.
async fn assert_stale(env: &TestEnv, version: &str) -> anyhow::Result<()> {
    assert_eq!(open_watch(env, version).await?.head.status, 410);
    let version = list_version(env).await?;
    let mut answers = Vec::new();
    // The sidecar can't know who has listed, so one more watch may be answered like this.
    for _ in 0..3 {
        answers.push(open_watch(env, &version).await?.head.status.as_u16());
    }
    assert!(answers.ends_with(&[200, 200]), "{answers:?}");
    Ok(())
}

#[tokio::test]
async fn watch_expires_after_a_restart_when_the_chain_changed_meanwhile() -> anyhow::Result<()> {
    let none = Vec::<EntrySpec>::new;
    for (before, after) in [
        (vec![shard_entry("a")], vec![shard_entry("b")]),
        (vec![shard_entry("a")], none()),
        (none(), vec![shard_entry("a")]),
    ] {
        let mut env = TestEnv::start(before).await?;
        let version = list_version(&env).await?;
        env.restart_sidecar(|chain| chain.publish(after).map(drop)).await?;
        assert_stale(&env, &version).await?;
    }
    Ok(())
}

#[tokio::test]
async fn watch_expires_after_a_restart_when_the_chain_changed_before() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let version = list_version(&env).await?;
    env.publish(vec![shard_entry("b")]).await?;
    env.restart_sidecar(keep_chain).await?;
    assert_stale(&env, &version).await
}

#[tokio::test]
async fn writes_before_a_restart_are_reported_after_it() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    assert_eq!(env.sidecar.status().await?.chain.earlier, InFlight::default());
    let gate = Gate::new();
    env.api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).verb("delete"));
    let client = env.client();
    let delete = tokio::spawn(async move { client.send(Method::DELETE, TARGET, "").await });
    gate.wait_for_arrivals(1).await?;
    env.restart_sidecar(keep_chain).await?;
    assert_eq!(env.sidecar.status().await?.chain.earlier, in_flight(1, 0));
    gate.open();
    assert!(delete.await?.is_err(), "its connection broke");
    Ok(())
}
