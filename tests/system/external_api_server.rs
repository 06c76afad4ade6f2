//! External calls cannot reach the API server, wherever it is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use ctrlmesh_testkit::ApiServer;
use ctrlmesh_tests::{DEADLINE, TestEnv, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::external::start_env;
use crate::external_limits::send_raw;

async fn send_connect(env: &TestEnv, place: &str) -> anyhow::Result<String> {
    send_raw(
        env,
        &format!("CONNECT {place} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
    )
    .await
}

/// An environment whose API server advertises other addresses; each connection gets the next one.
async fn env_with_advertised_addresses(addresses: &[&str], token: Option<&str>) -> anyhow::Result<TestEnv> {
    let api = ApiServer::builder();
    let mut api = addresses.iter().fold(api, |api, address| api.advertise(address));
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
async fn address_that_the_api_server_advertises_is_out_of_reach() -> anyhow::Result<()> {
    let (balancer, _balancing) = start_closing_server("127.0.0.2:0").await?;
    let (other, _serving) = start_closing_server("127.0.0.2:0").await?;
    // It tells nobody who brings no credentials.
    let env = env_with_advertised_addresses(&[&balancer.to_string()], Some("sidecars-own")).await?;
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

/// Behind a Service or a load balancer each connection leads to another API server, which advertises itself alone.
#[tokio::test]
async fn addresses_of_all_api_servers_that_answer_in_turn_are_out_of_reach() -> anyhow::Result<()> {
    let (first, _first) = start_closing_server("127.0.0.2:0").await?;
    let (second, _second) = start_closing_server("127.0.0.3:0").await?;
    let env = env_with_advertised_addresses(&[&first.to_string(), &second.to_string()], None).await?;
    for place in [first, second] {
        wait_until("it has answered, and connections are refused", || async {
            Ok(send_connect(&env, &place.to_string())
                .await?
                .starts_with("HTTP/1.1 403"))
        })
        .await
        .with_context(|| place.to_string())?;
    }
    Ok(())
}

#[tokio::test]
async fn tunnel_and_request_to_an_api_server_end_when_it_advertises_its_address() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.2:0").await?;
    let place = listener.local_addr()?;
    // It takes connections and says nothing.
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let _serving = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            taken.push(stream);
            counted.store(taken.len(), Ordering::Relaxed);
        }
    });
    let mut env = env_with_advertised_addresses(&[&place.to_string()], None).await?;
    env.api.faults().require_tokens(["other"]);
    env.start_sidecar_again().await?;
    env.sidecar.wait_ready().await?;
    let warning = "failed to read the addresses that the API server advertises (GET /api)";
    wait_until("it was asked in vain", || async {
        Ok(env.sidecar.log().contains(warning))
    })
    .await?;
    let external = env.sidecar.external_address().context("no external port")?;
    let mut tunnel = TcpStream::connect(external).await?;
    let head = format!("CONNECT {place} HTTP/1.1\r\nhost: x\r\n\r\n");
    tunnel.write_all(head.as_bytes()).await?;
    let mut established = [0; 12];
    tunnel.read_exact(&mut established).await?;
    assert_eq!(&established, b"HTTP/1.1 200");
    let request = format!("GET http://{place}/watch HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let request = send_raw(&env, &request);
    let ends = async {
        wait_until("both are connected", || async {
            Ok(count.load(Ordering::Relaxed) == 2)
        })
        .await?;
        env.api.faults().require_no_token();
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ = tunnel.read_to_end(&mut rest).await;
        anyhow::Ok(())
    };
    let (answer, _) = tokio::time::timeout(DEADLINE, async { tokio::try_join!(request, ends) }).await??;
    assert!(answer.starts_with("HTTP/1.1 50"), "{answer}");
    Ok(())
}

#[tokio::test]
async fn name_that_the_api_server_advertises_is_out_of_reach() -> anyhow::Result<()> {
    let env = env_with_advertised_addresses(&["API.Example.:6443"], None).await?;
    wait_until("the API server was asked, and the name is refused", || async {
        let answer = send_connect(&env, "api.example:6443").await?;
        Ok(answer.starts_with("HTTP/1.1 403") && answer.contains("is the API server"))
    })
    .await
}

#[tokio::test]
async fn sidecar_serves_external_traffic_and_warns_once_when_the_api_server_does_not_tell() -> anyhow::Result<()> {
    let (place, _serving) = start_closing_server("127.0.0.2:0").await?;
    let env = env_with_advertised_addresses(&[&place.to_string()], None).await?;
    env.api.faults().require_tokens(["other"]);
    let mut env = env;
    env.start_sidecar_again().await?;
    env.sidecar.wait_ready().await?;
    let warning = "failed to read the addresses that the API server advertises (GET /api)";
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
    let refused = env
        .sidecar
        .metric_value("ctrlmesh_external_addresses_refused_total")
        .await?;
    let asked = env.api.requests().recent();
    let others: Vec<_> = asked.iter().filter(|it| it.target != "/api").collect();
    assert!(refused == 22.0 && others.is_empty(), "{refused} {others:?}");
    Ok(())
}
