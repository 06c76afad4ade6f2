//! SIGTERM: new connections are refused, running requests finish, watches end cleanly, the process ends.

use std::time::Duration;

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::{Client, Sidecar, TestEnv, shard_entry, wait_until};

#[tokio::test]
async fn requests_in_flight_finish_and_watches_end_cleanly() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("get"));
    let (one, two) = (env.client(), Client::http2(env.sidecar.api_address()));
    let list = one.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let target = format!("/api/v1/configmaps?watch=1&resourceVersion={version}");
    let mut watches = [one.open_stream(&target).await?, two.open_stream(&target).await?];
    let held = [one.clone(), two]
        .map(|client| tokio::spawn(async move { client.get("/api/v1/namespaces/default/configmaps/x").await }));
    gate.wait_for_arrivals(2).await?;
    env.sidecar.send_sigterm()?;
    for watch in &mut watches {
        assert_eq!(watch.next().await?, None, "a clean end, no reset");
    }
    let not_ready = env.sidecar.admin_client().get("/readyz").await?;
    assert_eq!(not_ready.status, 503);
    assert!(env.sidecar.is_running()?, "requests are in flight");
    gate.open();
    for answer in held {
        assert_eq!(answer.await??.status, 404, "answered in full");
    }
    let status = env.sidecar.wait_end().await?;
    assert!(status.success(), "{status}: {}", env.sidecar.log());
    Ok(())
}

#[tokio::test]
async fn unfinished_requests_are_cut_off_at_the_deadline() -> anyhow::Result<()> {
    let mut env = TestEnv::start_with(vec![], &["--drain-timeout", "1"]).await?;
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("get"));
    let client = env.client();
    let held = tokio::spawn(async move { client.get("/api/v1/namespaces/default/configmaps/x").await });
    gate.wait_for_arrivals(1).await?;
    let asked = std::time::Instant::now();
    env.sidecar.send_sigterm()?;
    let status = env.sidecar.wait_end().await?;
    assert!(
        !status.success() && asked.elapsed() < Duration::from_secs(10),
        "{status}"
    );
    assert!(held.await?.is_err());
    Ok(())
}

/// Waits until the sidecar has a client connection.
pub(crate) async fn wait_until_connected(sidecar: &Sidecar) -> anyhow::Result<()> {
    wait_until("it is taken", || async {
        Ok(sidecar.metric_value("ctrlmesh_connections").await? >= 1.0)
    })
    .await
}

/// Checks that nothing delays the end of a terminated sidecar.
pub(crate) async fn assert_ends_soon(sidecar: &mut Sidecar) -> anyhow::Result<()> {
    let asked = std::time::Instant::now();
    sidecar.send_sigterm()?;
    assert!(sidecar.wait_end().await?.success());
    assert!(asked.elapsed() < Duration::from_secs(5));
    Ok(())
}

#[tokio::test]
async fn idle_sidecar_ends_at_once() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    assert_ends_soon(&mut env.sidecar).await
}

#[tokio::test]
async fn silent_connection_does_not_delay_the_end() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let _silent = tokio::net::TcpStream::connect(env.sidecar.api_address()).await?;
    wait_until_connected(&env.sidecar).await?;
    assert_ends_soon(&mut env.sidecar).await
}

#[tokio::test]
async fn sidecar_without_entries_ends_its_watches() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let kubeconfig = env.chain.path().with_file_name("kubeconfig").display().to_string();
    let mut plain = Sidecar::start(&["--kubeconfig".to_owned(), kubeconfig]).await?;
    plain.wait_ready().await?;
    let mut watch = Client::http1(plain.api_address())
        .open_stream("/api/v1/configmaps?watch=1")
        .await?;
    plain.send_sigterm()?;
    assert_eq!(watch.next().await?, None, "a clean end");
    assert!(plain.wait_end().await?.success());
    Ok(())
}
