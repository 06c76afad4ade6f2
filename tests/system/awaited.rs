//! A pod's first sidecar serves nothing before the chain knows the pod's shard.

use ctrlmesh_testkit::ApiServer;
use ctrlmesh_tests::{Stand, shard};

use crate::handover::LIST;

async fn what_is_missing(stand: &Stand) -> anyhow::Result<(u16, String)> {
    let answer = stand.sidecar.admin().get("/readyz").await?;
    Ok((answer.status, String::from_utf8_lossy(&answer.body).into_owned()))
}

#[tokio::test]
async fn nothing_is_served_before_the_shard_is_in_the_chain_and_nothing_is_taken_back_after() -> anyhow::Result<()> {
    nothing_is_served_before("shard-selector/test").await
}

#[tokio::test]
async fn any_shard_is_enough_where_any_is_awaited() -> anyhow::Result<()> {
    nothing_is_served_before("shard-selector/").await
}

async fn nothing_is_served_before(name: &str) -> anyhow::Result<()> {
    let api = ApiServer::builder().start().await?;
    let mut stand = Stand::unready(api, vec![], &["--await-entry", name]).await?;
    stand.seed("default", "a", 1)?;
    stand.seed("default", "b", 1)?;
    // One that is started again before it has served anything waits as the first did.
    for _ in 0..2 {
        stand.sidecar.wait_generation(1).await?;
        let (status, missing) = what_is_missing(&stand).await?;
        assert_eq!(status, 503, "{missing}");
        assert!(
            missing.contains("--await-entry") && !missing.contains("first chain"),
            "{missing}"
        );
        let told = stand.sidecar.status().await?.not_ready;
        assert_eq!(missing.trim_end(), format!("not ready: {}", told.join(", ")));
        stand.start_again().await?;
    }
    stand.publish(vec![shard("a")]).await?;
    stand.sidecar.wait_ready().await?;
    assert!(stand.sidecar.status().await?.not_ready.is_empty());
    assert_eq!(stand.client().get(LIST).await?.names(), ["a0"]);
    // Its shard was deleted: pods that ran go on, also after a crash.
    stand.publish(vec![]).await?;
    assert_eq!(what_is_missing(&stand).await?.0, 200);
    stand.restart_sidecar(|_| Ok(())).await?;
    assert_eq!(stand.client().get(LIST).await?.names(), ["a0", "b0"]);
    Ok(())
}
