//! SIGTERM: nothing new is taken, what runs is finished, watches end cleanly, the process ends.

use std::time::Duration;

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::{Client, Sidecar, Stand, shard, wait_until};

#[tokio::test]
async fn requests_in_flight_finish_and_watches_end_cleanly() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let gate = Gate::new();
    stand.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("get"));
    let (one, two) = (stand.client(), Client::http2(stand.sidecar.api()));
    let list = one.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let target = format!("/api/v1/configmaps?watch=1&resourceVersion={version}");
    let mut watches = [one.stream(&target).await?, two.stream(&target).await?];
    let held = [one.clone(), two]
        .map(|client| tokio::spawn(async move { client.get("/api/v1/namespaces/default/configmaps/x").await }));
    gate.wait_for_arrivals(2).await?;
    stand.sidecar.terminate()?;
    for watch in &mut watches {
        assert_eq!(watch.next().await?, None, "a clean end, no reset");
    }
    let not_ready = stand.sidecar.admin().get("/readyz").await?;
    assert_eq!(not_ready.status, 503);
    assert!(stand.sidecar.is_running()?, "requests are in flight");
    gate.open();
    for answer in held {
        assert_eq!(answer.await??.status, 404, "answered in full");
    }
    let status = stand.sidecar.wait_end().await?;
    assert!(status.success(), "{status}: {}", stand.sidecar.log());
    Ok(())
}

#[tokio::test]
async fn what_does_not_finish_is_cut_off_at_the_deadline() -> anyhow::Result<()> {
    let mut stand = Stand::start_with(vec![], &["--drain-timeout", "1"]).await?;
    let gate = Gate::new();
    stand.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("get"));
    let client = stand.client();
    let held = tokio::spawn(async move { client.get("/api/v1/namespaces/default/configmaps/x").await });
    gate.wait_for_arrivals(1).await?;
    let asked = std::time::Instant::now();
    stand.sidecar.terminate()?;
    let status = stand.sidecar.wait_end().await?;
    assert!(
        !status.success() && asked.elapsed() < Duration::from_secs(10),
        "{status}"
    );
    assert!(held.await?.is_err());
    Ok(())
}

/// Until the sidecar has a connection of a client.
pub(crate) async fn is_taken(sidecar: &Sidecar) -> anyhow::Result<()> {
    wait_until("it is taken", || async {
        Ok(sidecar.metric("ctrlmesh_connections").await? >= 1.0)
    })
    .await
}

/// That nothing holds up the end of a sidecar that is told to.
pub(crate) async fn ends_soon(sidecar: &mut Sidecar) -> anyhow::Result<()> {
    let asked = std::time::Instant::now();
    sidecar.terminate()?;
    assert!(sidecar.wait_end().await?.success());
    assert!(asked.elapsed() < Duration::from_secs(5));
    Ok(())
}

#[tokio::test]
async fn an_idle_sidecar_ends_at_once() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    ends_soon(&mut stand.sidecar).await
}

#[tokio::test]
async fn a_connection_that_has_said_nothing_holds_nothing_up() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let _silent = tokio::net::TcpStream::connect(stand.sidecar.api()).await?;
    is_taken(&stand.sidecar).await?;
    ends_soon(&mut stand.sidecar).await
}

#[tokio::test]
async fn a_plain_proxy_ends_its_watches_too() -> anyhow::Result<()> {
    let stand = Stand::start(vec![]).await?;
    let kubeconfig = stand.chain.path().with_file_name("kubeconfig").display().to_string();
    let mut plain = Sidecar::start(&["--kubeconfig".to_owned(), kubeconfig]).await?;
    plain.wait_ready().await?;
    let mut watch = Client::http1(plain.api()).stream("/api/v1/configmaps?watch=1").await?;
    plain.terminate()?;
    assert_eq!(watch.next().await?, None, "a clean end");
    assert!(plain.wait_end().await?.success());
    Ok(())
}
