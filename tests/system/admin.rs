//! The admin port is read-only.

use ctrlmesh_tests::{Client, Sidecar, TestEnv, shard_entry};
use http::Method;

#[tokio::test]
async fn readiness_and_traffic_wait_for_the_first_chain() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let path = |name: &str| env.chain.path().with_file_name(name).display().to_string();
    let mut late = ctrlmesh_tests::ChainDir::create(env.chain.path().with_file_name("late"))?;
    let flags = ["--kubeconfig", &path("kubeconfig"), "--chain-dir", &path("late")].map(ToOwned::to_owned);
    let sidecar = Sidecar::start(&flags).await?;
    let answer = sidecar.admin_client().get("/readyz").await?;
    assert_eq!(answer.status, 503);
    assert!(
        String::from_utf8_lossy(&answer.body).contains("first chain"),
        "{:?}",
        answer.body
    );
    assert_eq!(sidecar.admin_client().get("/livez").await?.status, 200);
    let early = tokio::spawn({
        let client = Client::http1(sidecar.api_address());
        async move { client.get("/api/v1/configmaps").await }
    });
    late.publish(vec![shard_entry("a")])?;
    sidecar.wait_ready().await?;
    let answer = early.await??;
    assert_eq!(answer.status, 200, "it waited, and was guarded");
    let seen = env.api.requests().recent();
    assert!(
        seen.iter()
            .all(|seen| !seen.target.starts_with("/api/v1/configmaps") || seen.target.contains("labelSelector"))
    );
    Ok(())
}

#[tokio::test]
async fn admin_port_accepts_no_writes_and_serves_its_paths() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    let admin = env.sidecar.admin_client();
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        assert_eq!(admin.send(method, "/status", "{}").await?.status, 405);
    }
    assert_eq!(admin.get("/elsewhere").await?.status, 404);
    let status = env.sidecar.status().await?;
    assert_eq!(
        (status.pod.namespace.as_str(), status.pod.name.as_str()),
        (ctrlmesh_tests::NAMESPACE, "operator-0")
    );
    let entry = &status.chain.entries[0];
    assert_eq!(entry.name, "shard-selector/test");
    assert!(!entry.settings_hash.is_empty());
    let traffic = status.api_traffic.unwrap_or_default();
    assert!(traffic.since.is_some() && traffic.last.is_none(), "{traffic:?}");
    env.client().get("/api/v1/configmaps").await?;
    let traffic = env.sidecar.status().await?.api_traffic.unwrap_or_default();
    assert!(
        traffic.last >= traffic.since && traffic.last.as_ref() <= Some(&traffic.now),
        "{traffic:?}"
    );
    assert_eq!(
        env.sidecar
            .metric_value(r#"ctrlmesh_requests_total{verb="list",code="2xx"}"#)
            .await?,
        1.0
    );
    let calls = r#"ctrlmesh_plugin_calls_total{entry="shard-selector/test",phase="request"}"#;
    assert_eq!(env.sidecar.metric_value(calls).await?, 1.0);
    let log = env.sidecar.log();
    assert!(
        log.contains("verb=list") && log.contains("resource=\"configmaps\"") && log.contains("status=200"),
        "{log}"
    );
    assert!(
        log.contains("requests go to the API server") && log.contains("api_server="),
        "{log}"
    );
    Ok(())
}

#[tokio::test]
async fn open_watch_is_in_flight() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    let traffic = env.sidecar.status().await?.api_traffic.unwrap_or_default();
    assert_eq!(traffic.in_flight, Some(0));
    let _watch = env.client().open_stream("/api/v1/configmaps?watch=1").await?;
    let traffic = env.sidecar.status().await?.api_traffic.unwrap_or_default();
    assert_eq!(traffic.in_flight, Some(1), "{traffic:?}");
    Ok(())
}
