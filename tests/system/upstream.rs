//! Failures of the API server: what the client is told, and which requests are never repeated.

use ctrlmesh_testkit::{ApiServer, Fault, FaultTime, Rule};
use ctrlmesh_tests::{TestEnv, config_map, wait_until};
use http::Method;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map_body(name: &str) -> String {
    config_map("default", name, "a").to_string()
}

#[tokio::test]
async fn goaway_and_lost_connections_cost_no_request() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let client = env.client().with_header("content-type", "application/json");
    env.api.faults().add(Rule::new(Fault::Goaway));
    for number in 0..20 {
        assert_eq!(client.get(MAPS).await?.status, 200);
        assert_eq!(
            client
                .send(Method::POST, MAPS, config_map_body(&format!("n{number}")))
                .await?
                .status,
            201
        );
    }
    Ok(())
}

#[tokio::test]
async fn write_is_not_repeated_and_has_no_retry_after_when_its_response_is_lost() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let client = env.client().with_header("content-type", "application/json");
    env.api.faults().add(
        Rule::new(Fault::ResetStream(FaultTime::AfterExecuting))
            .verb("create")
            .times(1),
    );
    let answer = client.send(Method::POST, MAPS, config_map_body("once")).await?;
    assert_eq!((answer.status, answer.json()["kind"].as_str()), (502, Some("Status")));
    assert!(
        !answer.headers.contains_key("retry-after"),
        "client-go would repeat the write"
    );
    assert_eq!(env.api.requests().count("create"), 1);
    assert!(
        env.api
            .store()
            .read(|state| state.get("configmaps", "default", "once").is_some())
    );
    Ok(())
}

#[tokio::test]
async fn outage_is_503_with_retry_after_and_ends_by_itself() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![]).await?;
    let client = env.client();
    assert_eq!(client.get(MAPS).await?.status, 200);
    env.api.stop().await;
    wait_until("the outage is told", || async {
        let answer = client.get(MAPS).await?;
        Ok(answer.status == 503 && answer.headers.contains_key("retry-after"))
    })
    .await?;
    env.api.restart().await?;
    wait_until("it is over", || async { Ok(client.get(MAPS).await?.status == 200) }).await?;
    assert!(env.sidecar.is_running()?);
    Ok(())
}

#[tokio::test]
async fn broken_body_is_broken_for_the_client() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    env.seed_config_maps("default", "a", 5)?;
    env.api
        .faults()
        .add(Rule::new(Fault::CutBody { after: 50 }).verb("list"));
    assert!(
        env.client().get(MAPS).await.is_err(),
        "never a short body that looks whole"
    );
    Ok(())
}

#[tokio::test]
async fn upstream_response_passes_with_its_retry_after() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    env.api.faults().add(
        Rule::new(Fault::Status {
            code: 429,
            retry_after: Some(9),
        })
        .verb("list"),
    );
    let answer = env.client().get(MAPS).await?;
    assert_eq!((answer.status, answer.headers["retry-after"].to_str()?), (429, "9"));
    Ok(())
}

#[tokio::test]
async fn server_with_few_streams_gets_more_connections() -> anyhow::Result<()> {
    let api = ApiServer::builder().max_concurrent_streams(10).start().await?;
    let env = TestEnv::start_around(api, vec![], &[]).await?;
    let client = env.client();
    let mut watches = Vec::new();
    for _ in 0..60 {
        watches.push(client.open_stream("/api/v1/configmaps?watch=1").await?);
    }
    assert_eq!(client.get(MAPS).await?.status, 200);
    let connections = env.api.activity().connections;
    assert!((6..=24).contains(&connections), "{connections}");
    Ok(())
}

#[tokio::test]
async fn upstream_may_speak_http1_only() -> anyhow::Result<()> {
    let api = ApiServer::builder().alpn(&["http/1.1"]).start().await?;
    let env = TestEnv::start_around(api, vec![], &[]).await?;
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(env.client().open_stream("/api/v1/configmaps?watch=1").await?);
    }
    assert_eq!(env.client().get(MAPS).await?.status, 200);
    Ok(())
}
