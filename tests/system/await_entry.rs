//! `--await-entry`: a pod's first sidecar serves nothing until the chain has an entry for the pod's shard.

use ctrlmesh_testkit::ApiServer;
use ctrlmesh_tests::{TestEnv, shard_entry};

use crate::in_flight_requests::LIST;

async fn readyz_response(env: &TestEnv) -> anyhow::Result<(u16, String)> {
    let answer = env.sidecar.admin_client().get("/readyz").await?;
    Ok((answer.status, String::from_utf8_lossy(&answer.body).into_owned()))
}

#[tokio::test]
async fn sidecar_serves_nothing_before_its_shard_is_in_the_chain() -> anyhow::Result<()> {
    check_nothing_is_served_before("shard-selector/test").await
}

#[tokio::test]
async fn any_shard_is_enough_when_any_is_awaited() -> anyhow::Result<()> {
    check_nothing_is_served_before("shard-selector/").await
}

async fn check_nothing_is_served_before(name: &str) -> anyhow::Result<()> {
    let api = ApiServer::builder().start().await?;
    let mut env = TestEnv::start_unready(api, vec![], &["--await-entry", name]).await?;
    env.seed_config_maps("default", "a", 1)?;
    env.seed_config_maps("default", "b", 1)?;
    // A sidecar that restarts before it has served anything waits like the first one.
    for _ in 0..2 {
        env.sidecar.wait_generation(1).await?;
        let (status, missing) = readyz_response(&env).await?;
        assert_eq!(status, 503, "{missing}");
        assert!(
            missing.contains("--await-entry") && !missing.contains("first chain"),
            "{missing}"
        );
        let not_ready = env.sidecar.status().await?.not_ready;
        assert_eq!(missing.trim_end(), format!("not ready: {}", not_ready.join(", ")));
        env.start_sidecar_again().await?;
    }
    env.publish(vec![shard_entry("a")]).await?;
    env.sidecar.wait_ready().await?;
    assert!(env.sidecar.status().await?.not_ready.is_empty());
    assert_eq!(env.client().get(LIST).await?.names(), ["a0"]);
    // The shard was deleted: running pods continue, even after a crash.
    env.publish(vec![]).await?;
    assert_eq!(readyz_response(&env).await?.0, 200);
    env.restart_sidecar(|_| Ok(())).await?;
    assert_eq!(env.client().get(LIST).await?.names(), ["a0", "b0"]);
    Ok(())
}
