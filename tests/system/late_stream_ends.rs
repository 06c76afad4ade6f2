//! A response is complete when the client has all bytes of its length: an HTTP/2 server may end the stream in a later frame (Go's do), and
//! an HTTP/1.1 client does not wait for that.

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::{Client, Target, TestEnv, guest_entry, wait_until};
use serde_json::json;

use crate::breakers::{breaker_entry, fail_config_maps, get_statuses, rule_for_all, wait_state};
use crate::external::start_env_trusting;
use crate::limits::LIST;

const GONE: &str = r#"ctrlmesh_request_failures_total{reason="client_gone"}"#;

/// Lets all responses end late; the gate releases the end.
fn delay_ends_of_responses(env: &TestEnv) -> Gate {
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::LateEnd(gate.clone())));
    gate
}

#[tokio::test]
async fn response_is_complete_for_metrics_log_and_plugins_when_its_end_comes_late() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![guest_entry("recorder", json!({}))]).await?;
    env.seed_config_maps("default", "a", 3)?;
    let gate = delay_ends_of_responses(&env);
    let client = Client::http1(env.sidecar.api_address());
    let name = "/api/v1/namespaces/default/configmaps/a0";
    for path in [LIST, name] {
        assert_eq!(client.get(path).await?.status, 200);
    }
    wait_until("the requests are over", || async {
        Ok(env.sidecar.metric_value("ctrlmesh_requests_in_flight").await? == 0.0)
    })
    .await?;
    assert_eq!(env.sidecar.metric_value(GONE).await?, 0.0);
    let log = env.sidecar.log();
    assert!(log.contains("verb=list") && !log.contains("client_gone"), "{log}");
    gate.open();
    let message = client.with_header("user-agent", "recorder").get("/api/v1/pods").await?;
    let message = message.json()["message"].to_string();
    assert!(
        message.contains("configmaps/a0 status=200 upstream=200 failure=None") && !message.contains("ClientGone"),
        "{message}"
    );
    Ok(())
}

#[tokio::test]
async fn failures_open_a_breaker_when_their_end_comes_late() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![breaker_entry(json!([rule_for_all(json!({}))]))]).await?;
    let _failing = fail_config_maps(&env, 500);
    let _closed = delay_ends_of_responses(&env);
    let client = Client::http1(env.sidecar.api_address());
    assert_eq!(get_statuses(&client, LIST, 3).await?, [500; 3]);
    wait_state(&env, "api", "Opened").await.map(drop)
}

#[tokio::test]
async fn external_responses_are_complete_at_their_length() -> anyhow::Result<()> {
    let target = Target::start_tls(&["h2"]).await?;
    let (env, client, _files) = start_env_trusting(&target).await?;
    let url = format!("https://localhost:{}/length", target.port());
    let answer = client.with_header("mesh-real-endpoint", &url).get("/").await?;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"first"[..]));
    wait_until("the target hears that nobody reads on", || async {
        Ok(target.held_count() == 0)
    })
    .await?;
    let failures = r#"ctrlmesh_external_request_failures_total{reason="client_gone"}"#;
    assert_eq!(env.sidecar.metric_value(failures).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn client_that_leaves_before_the_last_byte_is_distinguished() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    env.seed_config_maps("default", "a", 200)?;
    let slow = Fault::SlowBody {
        chunk: 64,
        every: std::time::Duration::from_millis(20),
    };
    env.api.faults().add(Rule::new(slow));
    let mut reading = Client::http1(env.sidecar.api_address()).open_stream(LIST).await?;
    reading.next().await?;
    drop(reading);
    wait_until("it is told", || async {
        Ok(env.sidecar.metric_value(GONE).await? == 1.0)
    })
    .await
}
