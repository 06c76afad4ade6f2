//! A sidecar is killed and started again in its pod: what the next one knows of it.

use ctrlmesh_contract::status::InFlight;
use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::client::Stream;
use ctrlmesh_tests::{ChainDir, EntrySpec, Stand, config_map, shard};
use http::Method;

use crate::handover::{LIST, in_flight};

/// An object of no use.
const TARGET: &str = "/api/v1/namespaces/default/configmaps/a0";

async fn list(stand: &Stand) -> anyhow::Result<String> {
    let list = stand.client().get(LIST).await?.json();
    Ok(list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

async fn watch(stand: &Stand, version: &str) -> anyhow::Result<Stream> {
    let target = format!("{LIST}?watch=1&resourceVersion={version}");
    stand.client().stream(&target).await
}

fn unchanged(_: &mut ChainDir) -> anyhow::Result<()> {
    Ok(())
}

#[tokio::test]
async fn a_watch_goes_on_after_a_restart_under_the_same_chain() -> anyhow::Result<()> {
    for entries in [vec![shard("a")], vec![]] {
        let mut stand = Stand::start(entries).await?;
        let version = list(&stand).await?;
        for _ in 0..2 {
            stand.restart_sidecar(unchanged).await?;
            assert_eq!(watch(&stand, &version).await?.head.status, 200);
        }
        let mut watch = watch(&stand, &version).await?;
        stand.api.store().put(config_map("default", "mine", "a"))?;
        assert_eq!(watch.event().await?["object"]["metadata"]["name"], "mine");
    }
    Ok(())
}

/// What was read before a restart is stale after it, and listing once is enough.
async fn is_stale(stand: &Stand, version: &str) -> anyhow::Result<()> {
    assert_eq!(watch(stand, version).await?.head.status, 410);
    let version = list(stand).await?;
    let mut answers = Vec::new();
    // Nobody can tell who has listed, so one more may be answered so.
    for _ in 0..3 {
        answers.push(watch(stand, &version).await?.head.status.as_u16());
    }
    assert!(answers.ends_with(&[200, 200]), "{answers:?}");
    Ok(())
}

#[tokio::test]
async fn a_watch_from_before_a_restart_is_expired_if_the_chain_changed_meanwhile() -> anyhow::Result<()> {
    let none = Vec::<EntrySpec>::new;
    for (before, after) in [
        (vec![shard("a")], vec![shard("b")]),
        (vec![shard("a")], none()),
        (none(), vec![shard("a")]),
    ] {
        let mut stand = Stand::start(before).await?;
        let version = list(&stand).await?;
        stand.restart_sidecar(|chain| chain.publish(after).map(drop)).await?;
        is_stale(&stand, &version).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_watch_from_before_a_restart_is_expired_if_the_chain_had_changed_before() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let version = list(&stand).await?;
    stand.publish(vec![shard("b")]).await?;
    stand.restart_sidecar(unchanged).await?;
    is_stale(&stand, &version).await
}

#[tokio::test]
async fn writes_of_the_sidecar_before_are_told_of_after_a_restart() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    assert_eq!(stand.sidecar.status().await?.chain.earlier, InFlight::default());
    let gate = Gate::new();
    stand
        .api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).verb("delete"));
    let client = stand.client();
    let delete = tokio::spawn(async move { client.send(Method::DELETE, TARGET, "").await });
    gate.wait_for_arrivals(1).await?;
    stand.restart_sidecar(unchanged).await?;
    assert_eq!(stand.sidecar.status().await?.chain.earlier, in_flight(1, 0));
    gate.open();
    assert!(delete.await?.is_err(), "its connection broke");
    Ok(())
}
