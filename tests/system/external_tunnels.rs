//! CONNECT tunnels: bytes both ways, ends, bounds, draining.

use anyhow::Context;
use ctrlmesh_tests::{Target, TestEnv, guest_entry, wait_until};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::external::{read_until, start_env};

const TUNNELS: &str = "ctrlmesh_external_tunnels";

async fn open_connect(env: &TestEnv, target: &str) -> anyhow::Result<(TcpStream, String)> {
    let mut stream = TcpStream::connect(env.sidecar.external_address().context("it is on")?).await?;
    let head = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\nproxy-authorization: Basic x\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let head = read_until(&mut stream, b"\r\n\r\n").await?;
    Ok((stream, head))
}

/// A tunnel to a server of raw bytes: the client's end and the server's end.
async fn open_tunnel(env: &TestEnv) -> anyhow::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (client, head) = open_connect(env, &listener.local_addr()?.to_string()).await?;
    assert!(
        head.starts_with("HTTP/1.1 200") && !head.contains("content-length"),
        "{head}"
    );
    Ok((client, listener.accept().await?.0))
}

#[tokio::test]
async fn rest_03_connect_carries_bytes_both_ways_until_both_sides_end() -> anyhow::Result<()> {
    let (env, _) = start_env(vec![], &[]).await?;
    let (mut client, mut server) = open_tunnel(&env).await?;
    wait_until("it is counted", || async {
        Ok(env.sidecar.metric_value(TUNNELS).await? == 1.0)
    })
    .await?;
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    let (mut back, mut there) = (vec![0; sent.len()], vec![0; sent.len()]);
    {
        let ((mut client_reader, mut client_writer), (mut server_reader, mut server_writer)) =
            (client.split(), server.split());
        tokio::try_join!(
            client_writer.write_all(&sent),
            server_writer.write_all(&sent),
            client_reader.read_exact(&mut back),
            server_reader.read_exact(&mut there),
        )?;
    }
    assert!(back == sent && there == sent, "both at once, byte for byte");
    client.shutdown().await?;
    assert_eq!(server.read(&mut [0; 8]).await?, 0, "one side's end arrives");
    server.write_all(b"rest").await?;
    drop(server);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await?;
    assert_eq!(rest, b"rest", "and what the other still had to say");
    wait_until("it is over", || async {
        Ok(env.sidecar.metric_value(TUNNELS).await? == 0.0)
    })
    .await?;
    let opened = "ctrlmesh_external_requests_total{way=\"connect\",code=\"2xx\"}";
    assert_eq!(env.sidecar.metric_value(opened).await?, 1.0);
    let line = "request_bytes=1000000 response_bytes=1000004";
    wait_until(line, || async { Ok(env.sidecar.log().contains(line)) }).await
}

#[tokio::test]
async fn rest_03_https_client_reaches_its_target_through_connect() -> anyhow::Result<()> {
    let target = Target::start_tls(&["http/1.1"]).await?;
    let (env, _) = start_env(vec![], &[]).await?;
    let (stream, head) = open_connect(&env, &format!("localhost:{}", target.port())).await?;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let mut roots = rustls::RootCertStore::empty();
    let der = rustls::pki_types::CertificateDer::from_pem_slice(target.certificate().as_bytes())?;
    roots.add(der)?;
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = connector.connect("localhost".try_into()?, stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::get("/p")
        .header("host", "localhost")
        .body(Empty::<bytes::Bytes>::new())?;
    let answer = sender.send_request(request).await?.collect().await?.to_bytes();
    assert_eq!(&answer[..], b"hello");
    assert!(!target.arrived_requests()[0].headers.contains_key("proxy-authorization"));
    Ok(())
}

#[tokio::test]
async fn rest_03_connect_works_over_http2() -> anyhow::Result<()> {
    let (env, _) = start_env(vec![], &[]).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let stream = TcpStream::connect(env.sidecar.external_address().context("it is on")?).await?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::connect(listener.local_addr()?.to_string()).body(Empty::<bytes::Bytes>::new())?;
    let response = sender.send_request(request).await?;
    assert_eq!(response.status(), 200);
    let mut client = TokioIo::new(hyper::upgrade::on(response).await?);
    let (mut server, _) = listener.accept().await?;
    client.write_all(b"ping").await?;
    let mut got = [0; 4];
    server.read_exact(&mut got).await?;
    server.write_all(b"pong").await?;
    client.read_exact(&mut got).await?;
    assert_eq!(&got, b"pong");
    Ok(())
}

#[tokio::test]
async fn rest_03_missing_target_is_answered_with_a_status() -> anyhow::Result<()> {
    let (env, client) = start_env(vec![], &[]).await?;
    let free = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let (_, head) = open_connect(&env, &free.to_string()).await?;
    assert!(
        head.starts_with("HTTP/1.1 503") && head.contains("application/json"),
        "{head}"
    );
    for target in ["localhost", "http://localhost/", "localhost:0", "user@localhost:80"] {
        let (_, head) = open_connect(&env, target).await?;
        assert!(head.starts_with("HTTP/1.1 400"), "{target}: {head}");
    }
    drop(client);
    Ok(())
}

#[tokio::test]
async fn tunnel_ends_when_the_other_side_vanishes() -> anyhow::Result<()> {
    let (env, _) = start_env(vec![], &[]).await?;
    let (mut client, server) = open_tunnel(&env).await?;
    server.set_zero_linger()?;
    drop(server);
    let ended = client.read(&mut [0; 8]).await;
    assert!(ended.as_ref().map_or(true, |read| *read == 0), "{ended:?}");
    drop(client);
    let broken = "ctrlmesh_external_request_failures_total{reason=\"upstream_reset\"}";
    wait_until("it is the target's", || async {
        Ok(env.sidecar.metric_value(broken).await? == 1.0)
    })
    .await?;
    let (client, mut server) = open_tunnel(&env).await?;
    drop(client);
    assert_eq!(server.read(&mut [0; 8]).await?, 0);
    drop(server);
    wait_until("both are over", || async {
        Ok(env.sidecar.metric_value(TUNNELS).await? == 0.0)
    })
    .await
}

#[tokio::test]
async fn draining_ends_silent_tunnels_and_lets_busy_ones_finish() -> anyhow::Result<()> {
    let (mut env, _) = start_env(vec![], &["--drain-timeout", "30"]).await?;
    let (mut silent, _held) = open_tunnel(&env).await?;
    let (mut busy, mut server) = open_tunnel(&env).await?;
    let asked = std::time::Instant::now();
    env.sidecar.send_sigterm()?;
    let mut turn = tokio::time::interval(std::time::Duration::from_millis(100));
    let read = tokio::spawn(async move { silent.read(&mut [0; 8]).await });
    while !read.is_finished() {
        turn.tick().await;
        server.write_all(b"x").await?;
        busy.read_exact(&mut [0]).await?;
    }
    assert!(read.await?.map_or(true, |read| read == 0), "the silent one has ended");
    server.write_all(b"last").await?;
    drop(server);
    let mut rest = String::new();
    busy.read_to_string(&mut rest).await?;
    assert_eq!(rest, "last", "the busy one went on");
    drop(busy);
    assert!(env.sidecar.wait_end().await?.success(), "{}", env.sidecar.log());
    assert!(asked.elapsed().as_secs() < 15, "{:?}", asked.elapsed());
    Ok(())
}

#[tokio::test]
async fn plugins_break_tunnels_before_and_after_they_open() -> anyhow::Result<()> {
    for script in [
        json!({ "onRequest": [{ "then": { "reset": "close" } }] }),
        json!({ "onResponse": [{ "then": { "reset": "close" } }] }),
    ] {
        let (env, _) = start_env(vec![guest_entry("scripted", script)], &[]).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        assert!(open_connect(&env, &listener.local_addr()?.to_string()).await.is_err());
    }
    let script = json!({ "onResponse": [{ "then": { "replace": { "code": 502, "message": "no" } } }] });
    let (env, _) = start_env(vec![guest_entry("scripted", script)], &[]).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (_, head) = open_connect(&env, &listener.local_addr()?.to_string()).await?;
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    Ok(())
}

#[tokio::test]
async fn shape_of_body_is_not_reported_for_tunnel() -> anyhow::Result<()> {
    let shape = json!({ "cutAfter": 10, "reset": "close" });
    let script = json!({ "onResponse": [{ "then": { "proceed": { "body": shape } } }] });
    let (env, _) = start_env(vec![guest_entry("scripted", script)], &[]).await?;
    drop(open_tunnel(&env).await?);
    let is_expected = |line: &str| line.contains("upstream_status=200") && line.contains(r#"touched="""#);
    wait_until("the tunnel is logged without effects of plugins", || async {
        Ok(env.sidecar.log().lines().any(is_expected))
    })
    .await
}
