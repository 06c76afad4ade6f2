//! `on-complete` is called once with the outcome of each request.

use ctrlmesh_testkit::{Fault, FaultTime, Gate, Rule};
use ctrlmesh_tests::{TestEnv, guest_entry, wait_until};
use serde_json::json;

async fn recorded_outcomes(env: &TestEnv) -> anyhow::Result<String> {
    let answer = env
        .client()
        .with_header("user-agent", "recorder")
        .get("/api/v1/pods")
        .await?;
    Ok(answer.json()["message"].as_str().unwrap_or_default().to_owned())
}

async fn wait_line(env: &TestEnv, part: &str) -> anyhow::Result<()> {
    wait_until(part, || async { Ok(recorded_outcomes(env).await?.contains(part)) }).await
}

#[tokio::test]
async fn on_complete_reports_responses_failures_and_vanished_clients() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![guest_entry("recorder", json!({}))]).await?;
    let client = env.client();
    client
        .clone()
        .with_header("user-agent", "some-operator")
        .get("/api/v1/namespaces/default/configmaps/none")
        .await?;
    wait_line(&env, "configmaps/none status=404 upstream=404 failure=None").await?;
    // Header fields can still be read when the request is over.
    wait_line(&env, "timed=true agent=some-operator\n").await?;
    env.api.faults().add(
        Rule::new(Fault::ResetStream(FaultTime::AfterExecuting))
            .verb("delete")
            .times(1),
    );
    client
        .send(http::Method::DELETE, "/api/v1/namespaces/default/configmaps/lost", "")
        .await?;
    wait_line(
        &env,
        "configmaps/lost status=502 upstream=0 failure=Some(Failure::UpstreamReset)",
    )
    .await?;
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).name("slow"));
    let gone = tokio::spawn({
        let client = client.clone();
        async move { client.get("/api/v1/namespaces/default/secrets/slow").await }
    });
    gate.wait_for_arrivals(1).await?;
    gone.abort();
    wait_line(
        &env,
        "secrets/slow status=0 upstream=0 failure=Some(Failure::ClientGone)",
    )
    .await?;
    gate.open();
    let text = recorded_outcomes(&env).await?;
    assert_eq!(text.matches("secrets/slow").count(), 1, "{text}");
    assert!(!text.contains("timed=false"), "{text}");
    Ok(())
}

#[tokio::test]
async fn only_phases_that_the_verdict_wants_are_called() -> anyhow::Result<()> {
    let line = |resource: &str, later: &[&str]| json!({ "when": { "resource": resource }, "later": later, "then": { "proceed": [] } });
    let mark = json!({ "then": { "proceed": { "edits": [{ "setHeader": { "name": "x-seen", "value": "yes" } }] } } });
    let settings = json!({
        "onRequest": [line("pods", &[]), line("secrets", &["on-response"]), line("configmaps", &["on-complete"])],
        "onResponse": [mark],
        "countCompleted": true,
    });
    let env = TestEnv::start(vec![guest_entry("scripted", settings)]).await?;
    let client = env.client();
    for (resource, is_marked) in [
        ("pods", false),
        ("secrets", true),
        ("configmaps", false),
        ("services", true),
    ] {
        let answer = client.get(&format!("/api/v1/{resource}")).await?;
        assert_eq!(answer.headers.contains_key("x-seen"), is_marked, "{resource}");
    }
    let completed = || async {
        let series = r#"ctrlmesh_plugin_completed_total{entry="scripted/test",label="200"}"#;
        env.sidecar.metric_value(series).await
    };
    wait_until("configmaps and services are completed", || async {
        Ok(completed().await? >= 2.0)
    })
    .await?;
    assert_eq!(completed().await?, 2.0);
    Ok(())
}
