//! Slow, odd or hostile clients are answered or refused; none bypasses the shard or reaches another host.

use ctrlmesh_tests::client::smuggled_framings;
use ctrlmesh_tests::{DEADLINE, TestEnv, shard_entry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start_env() -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.seed_config_maps("default", "a", 1)?;
    env.seed_config_maps("default", "b", 1)?;
    Ok(env)
}

/// Sends raw bytes and reads until the end.
async fn send_raw(env: &TestEnv, bytes: &[u8]) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(env.sidecar.api_address()).await?;
    // The other side may close the connection while bytes are still being sent.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await?;
    if read.is_err() && answer.is_empty() {
        return Ok(String::new());
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn raw_request(target: &str, headers: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n").into_bytes()
}

#[tokio::test]
async fn unusual_targets_never_show_a_foreign_object() -> anyhow::Result<()> {
    let env = start_env().await?;
    for target in [
        "http://evil.example/api/v1/configmaps",
        "//api/v1/configmaps",
        "/api/v1//configmaps",
        "/api/v1/./configmaps",
        "/api/v1/../v1/configmaps",
        "/api/v1/configmaps;x=1",
        "/API/v1/configmaps",
        "/api/v1/namespaces/default%2Fconfigmaps",
        "/api/v1/namespaces//configmaps",
        "/api/v1/%63onfigmaps",
        "/api/v1/watch/configmaps?timeoutSeconds=1",
        "/api/v1/configmaps%00",
        "/api/v1/configmaps?labelSelector=%00",
    ] {
        let answer = send_raw(&env, &raw_request(target, "")).await?;
        assert!(
            answer.starts_with("HTTP/1.1 ") || answer.is_empty(),
            "{target}: {answer}"
        );
        assert!(!answer.contains("\"b0\""), "{target}: {answer}");
    }
    let direct = send_raw(&env, &raw_request("http://evil.example/api/v1/configmaps", "")).await?;
    assert!(
        direct.starts_with("HTTP/1.1 200") && direct.contains("a0"),
        "the path decides, the host is ours: {direct}"
    );
    Ok(())
}

#[tokio::test]
async fn requests_without_host_or_with_two_are_refused() -> anyhow::Result<()> {
    let env = start_env().await?;
    for hosts in ["", "host: x\r\nhost: y\r\n", "host: x\r\nHost: x\r\n", "host: a/b\r\n"] {
        let bytes = format!("GET /api/v1/configmaps HTTP/1.1\r\nconnection: close\r\n{hosts}\r\n");
        let answer = send_raw(&env, bytes.as_bytes()).await?;
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("\"kind\":\"Status\""),
            "{hosts:?}: {answer}"
        );
    }
    assert_eq!(env.api.requests().count("list"), 0);
    let old = send_raw(&env, b"GET /api/v1/configmaps HTTP/1.0\r\n\r\n").await?;
    assert!(old.contains(" 200 "), "HTTP/1.0 knows no Host: {old}");
    Ok(())
}

#[tokio::test]
async fn connection_header_cannot_strip_identity() -> anyhow::Result<()> {
    let env = start_env().await?;
    for headers in [
        "connection: close, Impersonate-User\r\nimpersonate-user: jane\r\n",
        "connection: close\r\nconnection: Impersonate-User\r\nimpersonate-user: jane\r\n",
        "connection: Authorization, close\r\nauthorization: Bearer x\r\n",
    ] {
        let bytes = format!("GET /api/v1/configmaps HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        let answer = send_raw(&env, bytes.as_bytes()).await?;
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("\"kind\":\"Status\""),
            "{headers}: {answer}"
        );
    }
    assert_eq!(env.api.requests().count("list"), 0);
    Ok(())
}

#[tokio::test]
async fn smuggled_requests_are_never_served() -> anyhow::Result<()> {
    let env = start_env().await?;
    let smuggled = "DELETE /api/v1/namespaces/default/configmaps/b0 HTTP/1.1\r\nhost: x\r\n\r\n";
    for framing in smuggled_framings(smuggled) {
        let bytes =
            format!("POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{framing}");
        let answer = send_raw(&env, bytes.as_bytes()).await?;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{framing}: {answer}"
        );
        assert!(answer.matches("HTTP/1.1").count() <= 1, "{answer}");
    }
    assert_eq!(env.api.requests().count("delete"), 0);
    assert!(
        env.api
            .store()
            .read(|state| state.get("configmaps", "default", "b0").is_some())
    );
    Ok(())
}

#[tokio::test]
async fn large_heads_are_bounded() -> anyhow::Result<()> {
    let env = start_env().await?;
    let fits = format!("x-large: {}\r\n", "x".repeat(64 << 10));
    assert!(
        send_raw(&env, &raw_request("/api/v1/configmaps", &fits))
            .await?
            .starts_with("HTTP/1.1 200"),
        "64 KiB are taken"
    );
    let large = format!("x-large: {}\r\n", "x".repeat(300 << 10));
    let answer = send_raw(&env, &raw_request("/api/v1/configmaps", &large)).await?;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let long = format!("/api/v1/configmaps?x={}", "x".repeat(40 << 10));
    let answer = send_raw(&env, &raw_request(&long, "")).await?;
    assert!(
        answer.starts_with("HTTP/1.1 414") && answer.contains("\"kind\":\"Status\""),
        "{answer}"
    );
    Ok(())
}

#[tokio::test]
async fn silent_and_vanished_clients_block_nothing() -> anyhow::Result<()> {
    let env = start_env().await?;
    let mut slow = Vec::new();
    // A silent one is idle: `idle.rs`.
    for start in [
        &b"G"[..],
        b"GET /api/v1/configmaps HTTP/1.1\r\nhost:",
        b"PRI * HTTP/2.0\r\n",
        b"\x16\x03\x01",
    ] {
        let mut stream = TcpStream::connect(env.sidecar.api_address()).await?;
        stream.write_all(start).await?;
        slow.push(stream);
    }
    let mut body = TcpStream::connect(env.sidecar.api_address()).await?;
    body.write_all(b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        .await?;
    assert_eq!(
        env.client().get("/api/v1/configmaps").await?.names(),
        ["a0"],
        "others are served"
    );
    drop(body);
    // The deadline for heads closes those that never finish one; the test ends when all are closed.
    for mut stream in slow {
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn idle_connections_do_not_block_probes() -> anyhow::Result<()> {
    let env = start_env().await?;
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(env.sidecar.admin_address()).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost:").await?;
        held.push(stream);
    }
    assert_eq!(env.sidecar.admin_client().get("/livez").await?.status, 200);
    let mut asks = TcpStream::connect(env.sidecar.admin_address()).await?;
    asks.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await?;
    let mut answer = String::new();
    tokio::time::timeout(DEADLINE, asks.read_to_string(&mut answer)).await??;
    assert!(answer.contains("connection: close"), "{answer}");
    Ok(())
}
