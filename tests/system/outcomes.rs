//! `on-complete` is told how each request ended, once.

use ctrlmesh_testkit::{Fault, Gate, Rule, When};
use ctrlmesh_tests::{Stand, guest, wait_until};
use serde_json::json;

async fn lines(stand: &Stand) -> anyhow::Result<String> {
    let answer = stand
        .client()
        .with("user-agent", "recorder")
        .get("/api/v1/pods")
        .await?;
    Ok(answer.json()["message"].as_str().unwrap_or_default().to_owned())
}

async fn wait_line(stand: &Stand, part: &str) -> anyhow::Result<()> {
    wait_until(part, || async { Ok(lines(stand).await?.contains(part)) }).await
}

#[tokio::test]
async fn answers_failures_and_vanished_clients_are_told() -> anyhow::Result<()> {
    let stand = Stand::start(vec![guest("recorder", json!({}))]).await?;
    let client = stand.client();
    client.get("/api/v1/namespaces/default/configmaps/none").await?;
    wait_line(&stand, "configmaps/none status=404 upstream=404 failure=None").await?;
    stand.api.faults().add(
        Rule::new(Fault::ResetStream(When::AfterExecuting))
            .verb("delete")
            .times(1),
    );
    client
        .send(http::Method::DELETE, "/api/v1/namespaces/default/configmaps/lost", "")
        .await?;
    wait_line(
        &stand,
        "configmaps/lost status=502 upstream=0 failure=Some(Failure::UpstreamReset)",
    )
    .await?;
    let gate = Gate::new();
    stand
        .api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).name("slow"));
    let gone = tokio::spawn({
        let client = client.clone();
        async move { client.get("/api/v1/namespaces/default/secrets/slow").await }
    });
    gate.wait_for_arrivals(1).await?;
    gone.abort();
    wait_line(
        &stand,
        "secrets/slow status=0 upstream=0 failure=Some(Failure::ClientGone)",
    )
    .await?;
    gate.open();
    let text = lines(&stand).await?;
    assert_eq!(text.matches("secrets/slow").count(), 1, "{text}");
    assert!(!text.contains("timed=false"), "{text}");
    Ok(())
}
