//! Few file descriptors: the sidecar raises its soft limit, and clients that use up theirs can't block probes.

use tokio::process::Command;

use ctrlmesh_tests::{Sidecar, TestEnv, binary_path, wait_until};
use tokio::net::TcpStream;

/// Starts a sidecar with these `ulimit` settings.
async fn start_with_limits(env: &TestEnv, limits: &str) -> anyhow::Result<Sidecar> {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limits} && exec \"$0\" \"$@\"")])
        .arg(binary_path("ctrlmesh-proxy")?)
        .arg("--kubeconfig")
        .arg(env.chain.path().with_file_name("kubeconfig"));
    let sidecar = Sidecar::from_command(command).await?;
    sidecar.wait_ready().await?;
    Ok(sidecar)
}

async fn open_connections(sidecar: &Sidecar, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(TcpStream::connect(sidecar.api_address()).await?);
    }
    Ok(held)
}

#[tokio::test]
async fn idle_connections_beyond_the_limit_do_not_block_admin_port_and_api_server() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let sidecar = start_with_limits(&env, "ulimit -n 256").await?;
    let client = ctrlmesh_tests::Client::http2(sidecar.api_address());
    let served = client.open_stream("/api/v1/configmaps?watch=1").await?;
    let held = open_connections(&sidecar, 400).await?;
    wait_until("the rest is turned away", || async {
        Ok(sidecar.metric_value("ctrlmesh_connections_refused_total").await? >= 300.0)
    })
    .await?;
    assert_eq!(sidecar.admin_client().get("/livez").await?.status, 200);
    let log = sidecar.log();
    assert!(log.contains("--max-connections") && log.contains("limit=256"), "{log}");
    assert!(!log.contains("failed to accept connection"), "{log}");
    let refusals = log.matches("connection refused").count();
    assert!(refusals < 5, "{refusals} warnings");
    drop(held);
    wait_until("there is room again", || async {
        Ok(client
            .get("/api/v1/configmaps")
            .await
            .is_ok_and(|answer| answer.status == 200))
    })
    .await?;
    drop(served);
    Ok(())
}

#[tokio::test]
async fn soft_limit_is_raised_to_the_hard_limit() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let sidecar = start_with_limits(&env, "ulimit -Sn 128 && ulimit -Hn 1024").await?;
    let _held = open_connections(&sidecar, 200).await?;
    wait_until("all are taken", || async {
        Ok(sidecar.metric_value("ctrlmesh_connections").await? == 200.0)
    })
    .await
}
