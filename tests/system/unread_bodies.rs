//! Clients that still send the body of a request that was refused by its head.

use anyhow::Context;
use ctrlmesh_tests::{TestEnv, guest_entry};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::external::read_until;

/// An environment that refuses updates. Creates, whose refusals name the object, and ConfigMaps, which may be locks, wait for the body.
async fn start_refusing_updates() -> anyhow::Result<TestEnv> {
    let line = json!({ "then": { "refuse": { "code": 429, "message": "slow down", "retryAfterSeconds": 1 } } });
    let script = json!({ "subscribe": [{ "traffic": ["api"], "verbs": ["update"] }], "onRequest": [line] });
    let flags = ["--external-address", "127.0.0.1:0"];
    TestEnv::start_with(vec![guest_entry("scripted", script)], &flags).await
}

const BODY: &str = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}"#;

fn put_head(path: &str, fields: &str) -> String {
    format!(
        "PUT {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{fields}\r\n",
        BODY.len()
    )
}

const UPDATE: &str = "/api/v1/namespaces/default/secrets/x";

#[tokio::test]
async fn connection_takes_the_next_request_after_the_body_of_a_refused_one() -> anyhow::Result<()> {
    let env = start_refusing_updates().await?;
    let external = env.sidecar.external_address().context("it is on")?;
    // Refused by a plugin, by the sidecar itself, and on the other port.
    for (address, path, code) in [
        (env.sidecar.api_address(), UPDATE, 429),
        (env.sidecar.api_address(), "/api/v1/../x", 400),
        (external, "/no-target", 400),
    ] {
        let mut stream = TcpStream::connect(address).await?;
        for _ in 0..3 {
            stream.write_all(put_head(path, "").as_bytes()).await?;
            let refused = read_until(&mut stream, b"}").await?;
            assert!(refused.starts_with(&format!("HTTP/1.1 {code}")), "{refused}");
            let rest = read_rest(&mut stream, &refused).await?;
            assert!(!refused.to_lowercase().contains("connection: close"), "{refused}{rest}");
            stream.write_all(BODY.as_bytes()).await?;
        }
    }
    Ok(())
}

/// Reads the rest of a response by its length.
async fn read_rest(stream: &mut TcpStream, begun: &str) -> anyhow::Result<String> {
    let (head, body) = begun.split_once("\r\n\r\n").context("no body")?;
    let fields = head.to_lowercase();
    let length = fields.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.context("no length")?.parse()?;
    let mut rest = vec![0; length - body.len()];
    tokio::time::timeout(ctrlmesh_tests::DEADLINE, stream.read_exact(&mut rest)).await??;
    Ok(String::from_utf8(rest)?)
}

#[tokio::test]
async fn client_waiting_for_100_continue_learns_that_the_connection_ends() -> anyhow::Result<()> {
    let env = start_refusing_updates().await?;
    let mut stream = TcpStream::connect(env.sidecar.api_address()).await?;
    stream
        .write_all(put_head(UPDATE, "expect: 100-continue\r\n").as_bytes())
        .await?;
    let mut answer = String::new();
    tokio::time::timeout(ctrlmesh_tests::DEADLINE, stream.read_to_string(&mut answer)).await??;
    assert!(answer.starts_with("HTTP/1.1 429"), "not 100: {answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    Ok(())
}
