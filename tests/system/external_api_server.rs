//! External calls cannot reach the API server, wherever it is.

use std::net::SocketAddr;

use anyhow::Context;
use ctrlmesh_testkit::ApiServer;
use ctrlmesh_tests::{TestEnv, wait_until};
use tokio::net::TcpListener;

use crate::external::start_env;
use crate::external_limits::send_raw;

async fn send_connect(env: &TestEnv, place: &str) -> anyhow::Result<String> {
    send_raw(
        env,
        &format!("CONNECT {place} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
    )
    .await
}

/// An environment whose API server advertises another address.
async fn start_advertising(address: &str, token: Option<&str>) -> anyhow::Result<TestEnv> {
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
    TestEnv::start_around(api.start().await?, vec![], &flags).await
}

/// A server that accepts connections and closes them.
async fn start_closing_server(address: &str) -> anyhow::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let closing = async move { while listener.accept().await.is_ok() {} };
    Ok((address, tokio::spawn(closing)))
}

#[tokio::test]
async fn advertised_api_server_address_is_refused() -> anyhow::Result<()> {
    let (balancer, _balancing) = start_closing_server("127.0.0.2:0").await?;
    let (other, _serving) = start_closing_server("127.0.0.2:0").await?;
    // The API server tells nobody without credentials.
    let env = start_advertising(&balancer.to_string(), Some("sidecars-own")).await?;
    for place in [balancer.to_string(), format!("localhost:{}", balancer.port())] {
        wait_until("the API server was asked, and connections are refused", || async {
            let answer = send_connect(&env, &place).await?;
            Ok(answer.starts_with("HTTP/1.1 403") && answer.contains("is the API server"))
        })
        .await
        .with_context(|| place.clone())?;
    }
    let answer = send_connect(&env, &other.to_string()).await?;
    assert!(answer.starts_with("HTTP/1.1 200"), "another port of it: {answer}");
    Ok(())
}

#[tokio::test]
async fn advertised_api_server_name_is_refused() -> anyhow::Result<()> {
    let env = start_advertising("API.Example.:6443", None).await?;
    wait_until("the API server was asked, and the name is refused", || async {
        let answer = send_connect(&env, "api.example:6443").await?;
        Ok(answer.starts_with("HTTP/1.1 403") && answer.contains("is the API server"))
    })
    .await
}

#[tokio::test]
async fn sidecar_warns_once_when_the_api_server_advertises_no_address() -> anyhow::Result<()> {
    let (place, _serving) = start_closing_server("127.0.0.2:0").await?;
    let env = start_advertising(&place.to_string(), None).await?;
    env.api.faults().require_tokens(["other"]);
    let mut env = env;
    env.start_sidecar_again().await?;
    env.sidecar.wait_ready().await?;
    let warning = "addresses that the API server advertises (GET /api) can't be read";
    wait_until("it warns", || async { Ok(env.sidecar.log().contains(warning)) }).await?;
    assert_eq!(env.sidecar.log().matches(warning).count(), 1);
    let answer = send_connect(&env, &place.to_string()).await?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = send_connect(&env, &env.api.tls_address().to_string()).await?;
    assert!(
        answer.starts_with("HTTP/1.1 403"),
        "its configured address is known without asking: {answer}"
    );
    env.api.faults().require_no_token();
    wait_until("it is asked again", || async {
        Ok(send_connect(&env, &place.to_string())
            .await?
            .starts_with("HTTP/1.1 403"))
    })
    .await
}

#[tokio::test]
async fn api_server_is_refused_whatever_is_allowed() -> anyhow::Result<()> {
    let flags = ["--external-allow", "0.0.0.0/0,::/0,localhost,kubernetes.default.svc"];
    let (env, client) = start_env(vec![], &flags).await?;
    let port = env.api.tls_address().port();
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
        let answer = send_raw(&env, &connect).await?;
        assert!(
            answer.starts_with("HTTP/1.1 403") && answer.contains("is the API server"),
            "{host}: {answer}"
        );
        let url = format!("https://{host}:{port}/api/v1/configmaps");
        let answer = client.clone().with_header("mesh-real-endpoint", &url).get("/").await?;
        assert_eq!(answer.status, 403, "{host}");
    }
    let refused = env.sidecar.metric("ctrlmesh_external_addresses_refused_total").await?;
    let asked = env.api.requests().all();
    let others: Vec<_> = asked.iter().filter(|it| it.target != "/api").collect();
    assert!(refused == 22.0 && others.is_empty(), "{refused} {others:?}");
    Ok(())
}
