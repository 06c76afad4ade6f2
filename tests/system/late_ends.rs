//! An answer is complete when the client has as many bytes as its head says: an HTTP/2 server may tell in a later frame that
//! these were all (Go's do), and an HTTP/1.1 client does not wait for that.

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::{Client, Stand, Target, guest, wait_until};
use serde_json::json;

use crate::circuits::{all, breaker, failing, statuses, wait_state};
use crate::external::trusting;
use crate::limits::LIST;

const GONE: &str = r#"ctrlmesh_request_failures_total{reason="client_gone"}"#;

/// All answers end late; the gate opens the end.
fn end_late(stand: &Stand) -> Gate {
    let gate = Gate::new();
    stand.api.faults().add(Rule::new(Fault::LateEnd(gate.clone())));
    gate
}

#[tokio::test]
async fn an_answer_whose_end_comes_late_is_complete_for_metrics_log_and_plugins() -> anyhow::Result<()> {
    let stand = Stand::start(vec![guest("recorder", json!({}))]).await?;
    stand.seed("default", "a", 3)?;
    let gate = end_late(&stand);
    let client = Client::http1(stand.sidecar.api());
    let name = "/api/v1/namespaces/default/configmaps/a0";
    for path in [LIST, name] {
        assert_eq!(client.get(path).await?.status, 200);
    }
    wait_until("the requests are over", || async {
        Ok(stand.sidecar.metric("ctrlmesh_requests_in_flight").await? == 0.0)
    })
    .await?;
    assert_eq!(stand.sidecar.metric(GONE).await?, 0.0);
    let log = stand.sidecar.log();
    assert!(log.contains("verb=list") && !log.contains("ClientGone"), "{log}");
    gate.open();
    let told = client.with("user-agent", "recorder").get("/api/v1/pods").await?;
    let told = told.json()["message"].to_string();
    assert!(
        told.contains("configmaps/a0 status=200 upstream=200 failure=None") && !told.contains("ClientGone"),
        "{told}"
    );
    Ok(())
}

#[tokio::test]
async fn failures_whose_end_comes_late_open_a_circuit() -> anyhow::Result<()> {
    let stand = Stand::start(vec![breaker(json!([all(json!({}))]))]).await?;
    let _failing = failing(&stand, 500);
    let _closed = end_late(&stand);
    let client = Client::http1(stand.sidecar.api());
    assert_eq!(statuses(&client, LIST, 3).await?, [500; 3]);
    wait_state(&stand, "api", "Opened").await.map(drop)
}

#[tokio::test]
async fn external_answers_are_complete_at_their_length() -> anyhow::Result<()> {
    let target = Target::tls(&["h2"]).await?;
    let (stand, client, _files) = trusting(&target).await?;
    let url = format!("https://localhost:{}/length", target.port());
    let answer = client.with("mesh-real-endpoint", &url).get("/").await?;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"first"[..]));
    wait_until("the target hears that nobody reads on", || async {
        Ok(target.held() == 0)
    })
    .await?;
    let failures = r#"ctrlmesh_external_request_failures_total{reason="client_gone"}"#;
    assert_eq!(stand.sidecar.metric(failures).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_client_that_goes_before_the_last_byte_is_still_told_apart() -> anyhow::Result<()> {
    let stand = Stand::start(vec![]).await?;
    stand.seed("default", "a", 200)?;
    let slow = Fault::SlowBody {
        chunk: 64,
        every: std::time::Duration::from_millis(20),
    };
    stand.api.faults().add(Rule::new(slow));
    let mut reading = Client::http1(stand.sidecar.api()).stream(LIST).await?;
    reading.next().await?;
    drop(reading);
    wait_until("it is told", || async { Ok(stand.sidecar.metric(GONE).await? == 1.0) }).await
}
