//! Forbidden targets of external calls, and odd or hostile clients.

use anyhow::Context;
use ctrlmesh_tests::client::smuggled_framings;
use ctrlmesh_tests::{Client, DEADLINE, Target, TestEnv};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::external::start_env;

/// Sends raw bytes and reads until the end.
pub(crate) async fn send_raw(env: &TestEnv, request: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(env.sidecar.external_address().context("it is on")?).await?;
    // The other side may close the connection while bytes are still being sent.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await?;
    if read.is_err() && answer.is_empty() {
        return Ok(String::new());
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn loopback_and_metadata_services_are_refused_unless_allowed() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let env = TestEnv::start_with(vec![], &["--external-address", "127.0.0.1:0"]).await?;
    let hosts = [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "[::]",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "100.100.100.200",
        "[64:ff9b::7f00:1]",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0",
    ];
    for host in hosts {
        for request in [
            format!("GET http://{host}:{port}/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
            format!(
                "GET / HTTP/1.1\r\nhost: x\r\nmesh-real-endpoint: http://{host}:{port}/\r\nconnection: close\r\n\r\n"
            ),
            format!(
                "GET / HTTP/1.1\r\nhost: x\r\nmesh-real-endpoint: https://{host}:{port}/\r\nconnection: close\r\n\r\n"
            ),
            format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        ] {
            let answer = send_raw(&env, &request).await?;
            let is_status = answer.contains("\"kind\":\"Status\"") && answer.contains("\"Forbidden\"");
            assert!(answer.starts_with("HTTP/1.1 403") && is_status, "{request}: {answer}");
        }
    }
    let refused = env
        .sidecar
        .metric_value("ctrlmesh_external_addresses_refused_total")
        .await?;
    assert!(refused >= 44.0, "{refused}");
    let none = tokio::time::timeout(std::time::Duration::ZERO, listener.accept()).await;
    assert!(none.is_err(), "nobody was connected to");
    Ok(())
}

#[tokio::test]
async fn host_or_address_can_be_allowed() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let flags = [
        "--external-address",
        "127.0.0.1:0",
        "--external-allow",
        "localhost,10.0.0.0/8",
    ];
    let env = TestEnv::start_with(vec![], &flags).await?;
    let client = Client::http1(env.sidecar.external_address().context("it is on")?);
    let status = async |host: &str| -> anyhow::Result<u16> {
        Ok(client.get(&format!("http://{host}:{}/", target.port())).await?.status)
    };
    assert_eq!((status("localhost").await?, status("127.0.0.1").await?), (200, 403));
    Ok(())
}

#[tokio::test]
async fn own_ports_are_refused_whatever_is_allowed() -> anyhow::Result<()> {
    let flags = ["--external-allow", "0.0.0.0/0,::/0,localhost"];
    let (env, client) = start_env(vec![], &flags).await?;
    let external = env.sidecar.external_address().context("it is on")?;
    let admin: u16 = env.sidecar.admin_address().port();
    for port in [env.sidecar.api_address().port(), admin, external.port()] {
        for host in [
            "127.0.0.1",
            "localhost",
            "127.9.9.9",
            "0.0.0.0",
            "[::1]",
            "[::ffff:127.0.0.1]",
        ] {
            let answer = client.get(&format!("http://{host}:{port}/metrics")).await?;
            let message = answer.json()["message"].to_string();
            assert!(
                answer.status == 403 && message.contains("a port of this sidecar"),
                "{host}: {message}"
            );
        }
    }
    assert_eq!(env.api.requests().count("list"), 0);
    Ok(())
}

#[tokio::test]
async fn rest_04_request_without_target_is_answered_with_what_to_send() -> anyhow::Result<()> {
    let (env, client) = start_env(vec![], &[]).await?;
    let answer = client.get("/api/v1/pods").await?;
    let message = answer.json()["message"].to_string();
    assert_eq!(
        (answer.status, answer.json()["reason"].as_str()),
        (400, Some("BadRequest"))
    );
    assert!(
        message.contains("Mesh-Real-Endpoint") && message.contains("CONNECT"),
        "{message}"
    );
    for request in [
        "GET localhost:80 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        "GET ftp://localhost/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        "GET http://user:secret@localhost/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        "GET http://localhost/ HTTP/1.1\r\nhost: x\r\nhost: y\r\nconnection: close\r\n\r\n",
        "GET http://localhost/ HTTP/1.1\r\nconnection: close\r\n\r\n",
        "CONNECT localhost:443 HTTP/1.1\r\nconnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\nmesh-real-endpoint: http://a/\r\nmesh-real-endpoint: http://b/\r\nconnection: close\r\n\r\n",
    ] {
        let answer = send_raw(&env, request).await?;
        assert!(
            answer.starts_with("HTTP/1.1 400") && !answer.contains("secret"),
            "{request}: {answer}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn smuggled_requests_are_never_served() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (env, _) = start_env(vec![], &[]).await?;
    let smuggled = "GET http://127.0.0.1/stolen HTTP/1.1\r\nhost: x\r\n\r\n";
    for framing in smuggled_framings(smuggled) {
        let request = format!(
            "POST http://127.0.0.1:{}/p HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{framing}",
            target.port()
        );
        let answer = send_raw(&env, &request).await?;
        assert!(answer.matches("HTTP/1.1").count() <= 1, "{framing}: {answer}");
    }
    let arrived = target.arrived_requests();
    assert!(
        arrived.iter().all(|it| it.uri == "/p" && it.method == "POST"),
        "{arrived:?}"
    );
    Ok(())
}

#[tokio::test]
async fn large_heads_are_bounded() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (env, client) = start_env(vec![], &[]).await?;
    let port = target.port();
    let long = format!("http://127.0.0.1:{port}/{}", "x".repeat(40 << 10));
    assert_eq!(client.get(&long).await?.status, 414);
    let headed = client.clone().with_header("mesh-real-endpoint", &long).get("/").await?;
    assert_eq!(headed.status, 414);
    for fields in [format!("x: {}\r\n", "x".repeat(300 << 10)), "x: y\r\n".repeat(1000)] {
        let answer = send_raw(
            &env,
            &format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nhost: x\r\n{fields}\r\n"),
        )
        .await?;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    assert_eq!(target.arrived_requests().len(), 0);
    Ok(())
}

#[tokio::test]
async fn connections_are_bounded_separately_from_those_of_the_api_port() -> anyhow::Result<()> {
    let (env, client) = start_env(vec![], &["--max-connections", "2"]).await?;
    let address = env.sidecar.external_address().context("it is on")?;
    let held = [TcpStream::connect(address).await?, TcpStream::connect(address).await?];
    ctrlmesh_tests::wait_until("a third one is turned away", || async {
        Ok(client.get("/").await.is_err())
    })
    .await?;
    assert_eq!(
        env.client().get("/api/v1/pods").await?.status,
        200,
        "the API port has its own"
    );
    drop(held);
    ctrlmesh_tests::wait_until("there is room again", || async { Ok(client.get("/").await.is_ok()) }).await
}
