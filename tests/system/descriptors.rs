//! Few file descriptors: as many as the system grants are taken, and whoever uses theirs up can't keep probes out.

use tokio::process::Command;

use ctrlmesh_tests::{Sidecar, Stand, binary, wait_until};
use tokio::net::TcpStream;

/// A sidecar of the stand's API server under these limits of `ulimit`.
async fn limited(stand: &Stand, limits: &str) -> anyhow::Result<Sidecar> {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limits} && exec \"$0\" \"$@\"")])
        .arg(binary("ctrlmesh-proxy")?)
        .arg("--kubeconfig")
        .arg(stand.chain.path().with_file_name("kubeconfig"));
    let sidecar = Sidecar::from_command(command).await?;
    sidecar.wait_ready().await?;
    Ok(sidecar)
}

async fn connect(sidecar: &Sidecar, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(TcpStream::connect(sidecar.api()).await?);
    }
    Ok(held)
}

#[tokio::test]
async fn idle_connections_beyond_the_limit_leave_the_admin_port_and_the_api_server_in_reach() -> anyhow::Result<()> {
    let stand = Stand::start(vec![]).await?;
    let sidecar = limited(&stand, "ulimit -n 256").await?;
    let client = ctrlmesh_tests::Client::http2(sidecar.api());
    let served = client.stream("/api/v1/configmaps?watch=1").await?;
    let held = connect(&sidecar, 400).await?;
    wait_until("the rest is turned away", || async {
        Ok(sidecar.metric("ctrlmesh_connections_refused_total").await? >= 300.0)
    })
    .await?;
    assert_eq!(sidecar.admin().get("/livez").await?.status, 200);
    let log = sidecar.log();
    assert!(log.contains("--max-connections") && log.contains("limit=256"), "{log}");
    assert!(!log.contains("accept failed"), "{log}");
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
async fn a_soft_limit_is_raised_to_the_hard_one() -> anyhow::Result<()> {
    let stand = Stand::start(vec![]).await?;
    let sidecar = limited(&stand, "ulimit -Sn 128 && ulimit -Hn 1024").await?;
    let _held = connect(&sidecar, 200).await?;
    wait_until("all are taken", || async {
        Ok(sidecar.metric("ctrlmesh_connections").await? == 200.0)
    })
    .await
}
