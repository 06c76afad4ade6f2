//! External traffic does not lead to the API server, wherever it is.

use std::net::SocketAddr;

use anyhow::Context;
use ctrlmesh_testkit::ApiServer;
use ctrlmesh_tests::{Stand, wait_until};
use tokio::net::TcpListener;

use crate::external::stand;
use crate::external_limits::raw;

/// The answer to CONNECT.
async fn connect(stand: &Stand, place: &str) -> anyhow::Result<String> {
    raw(
        stand,
        &format!("CONNECT {place} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
    )
    .await
}

/// A stand whose API server says that it is somewhere else.
async fn advertising(address: &str, token: Option<&str>) -> anyhow::Result<Stand> {
    let mut api = ApiServer::builder().advertise(address);
    if let Some(token) = token {
        api = api.token(token);
    }
    let flags = [
        "--external-address",
        "127.0.0.1:0",
        "--external-allow",
        "0.0.0.0/0,::/0,localhost",
    ];
    Stand::around(api.start().await?, vec![], &flags).await
}

/// Somebody who takes connections and closes them.
async fn closing(address: &str) -> anyhow::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let closing = async move { while listener.accept().await.is_ok() {} };
    Ok((address, tokio::spawn(closing)))
}

#[tokio::test]
async fn address_that_the_api_server_advertises_is_out_of_reach() -> anyhow::Result<()> {
    let (balancer, _balancing) = closing("127.0.0.2:0").await?;
    let (other, _serving) = closing("127.0.0.2:0").await?;
    // It tells nobody who brings no credentials.
    let stand = advertising(&balancer.to_string(), Some("sidecars-own")).await?;
    for place in [balancer.to_string(), format!("localhost:{}", balancer.port())] {
        wait_until("the API server was asked, and connections are refused", || async {
            let answer = connect(&stand, &place).await?;
            Ok(answer.starts_with("HTTP/1.1 403") && answer.contains("is the API server"))
        })
        .await
        .with_context(|| place.clone())?;
    }
    let answer = connect(&stand, &other.to_string()).await?;
    assert!(answer.starts_with("HTTP/1.1 200"), "another port of it: {answer}");
    Ok(())
}

#[tokio::test]
async fn name_that_the_api_server_advertises_is_out_of_reach() -> anyhow::Result<()> {
    let stand = advertising("API.Example.:6443", None).await?;
    wait_until("the API server was asked, and the name is refused", || async {
        let answer = connect(&stand, "api.example:6443").await?;
        Ok(answer.starts_with("HTTP/1.1 403") && answer.contains("is the API server"))
    })
    .await
}

#[tokio::test]
async fn sidecar_serves_external_traffic_and_warns_once_when_the_api_server_does_not_tell() -> anyhow::Result<()> {
    let (place, _serving) = closing("127.0.0.2:0").await?;
    let stand = advertising(&place.to_string(), None).await?;
    stand.api.faults().require_tokens(["other"]);
    let mut stand = stand;
    stand.start_again().await?;
    stand.sidecar.wait_ready().await?;
    let warning = "addresses that the API server advertises (GET /api) can't be read";
    wait_until("it warns", || async { Ok(stand.sidecar.log().contains(warning)) }).await?;
    assert_eq!(stand.sidecar.log().matches(warning).count(), 1);
    let answer = connect(&stand, &place.to_string()).await?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = connect(&stand, &stand.api.tls_address().to_string()).await?;
    assert!(
        answer.starts_with("HTTP/1.1 403"),
        "its configured address is known without asking: {answer}"
    );
    stand.api.faults().require_no_token();
    wait_until("it is asked again", || async {
        Ok(connect(&stand, &place.to_string()).await?.starts_with("HTTP/1.1 403"))
    })
    .await
}

#[tokio::test]
async fn the_api_server_is_out_of_reach_whatever_is_allowed() -> anyhow::Result<()> {
    let flags = ["--external-allow", "0.0.0.0/0,::/0,localhost,kubernetes.default.svc"];
    let (stand, client) = stand(vec![], &flags).await?;
    let port = stand.api.tls_address().port();
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "127.9.9.9",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "kubernetes.default.svc",
        "Kubernetes.default.svc.cluster.local.",
        "kubernetes",
    ] {
        let connect = format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = raw(&stand, &connect).await?;
        assert!(
            answer.starts_with("HTTP/1.1 403") && answer.contains("is the API server"),
            "{host}: {answer}"
        );
        let url = format!("https://{host}:{port}/api/v1/configmaps");
        let answer = client.clone().with("mesh-real-endpoint", &url).get("/").await?;
        assert_eq!(answer.status, 403, "{host}");
    }
    let refused = stand
        .sidecar
        .metric("ctrlmesh_external_addresses_refused_total")
        .await?;
    let asked = stand.api.requests().all();
    let others: Vec<_> = asked.iter().filter(|it| it.target != "/api").collect();
    assert!(refused == 22.0 && others.is_empty(), "{refused} {others:?}");
    Ok(())
}
