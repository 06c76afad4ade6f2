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
async fn on_complete_reports_answers_failures_and_vanished_clients() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![guest_entry("recorder", json!({}))]).await?;
    let client = env.client();
    client.get("/api/v1/namespaces/default/configmaps/none").await?;
    wait_line(&env, "configmaps/none status=404 upstream=404 failure=None").await?;
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
