//! A chain that comes into force while a watch is being opened, or while an open watch can't be notified.

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::client::Stream;
use ctrlmesh_tests::{Client, TestEnv, config_map, guest_entry, shard_entry, wait_until};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const WATCH: &str = "/api/v1/configmaps?watch=1&resourceVersion=";

/// Begins a watch from a list's resource version. Returns when the sidecar has asked its chain, forwarded the request, and waits for the
/// response.
async fn begin_watch(
    env: &TestEnv,
    client: &Client,
) -> anyhow::Result<(Gate, tokio::task::JoinHandle<anyhow::Result<Stream>>)> {
    let list = client.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let target = format!("{WATCH}{version}");
    let gate = Gate::new();
    env.api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).verb("watch").times(1));
    let client = client.clone();
    let begun = tokio::spawn(async move { client.open_stream(&target).await });
    gate.wait_for_arrivals(1).await?;
    Ok((gate, begun))
}

#[tokio::test]
async fn watch_of_the_previous_chain_expires_at_its_first_event() -> anyhow::Result<()> {
    for (before, after) in [
        (vec![shard_entry("a")], vec![shard_entry("b")]),
        (vec![], vec![shard_entry("b")]),
    ] {
        let mut env = TestEnv::start(before).await?;
        for client in [env.client(), Client::http2(env.sidecar.api_address())] {
            let (gate, begun) = begin_watch(&env, &client).await?;
            env.publish(after.clone()).await?;
            gate.open();
            let mut watch = begun.await??;
            assert_eq!(watch.head.status, 200);
            let event = watch.next_event().await?;
            assert_eq!(
                (&event["type"], &event["object"]["code"]),
                (&"ERROR".into(), &410.into())
            );
            assert_eq!(watch.next().await?, None, "a clean end");
            env.publish(vec![shard_entry("a")]).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn watch_begins_normally_when_the_new_chain_keeps_its_view() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let (gate, begun) = begin_watch(&env, &env.client()).await?;
    env.publish(vec![shard_entry("a"), guest_entry("recorder", json!({}))])
        .await?;
    gate.open();
    let mut watch = begun.await??;
    env.api.store().put(config_map("default", "mine", "a"))?;
    assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "mine");
    assert!(env.sidecar.metric_value("ctrlmesh_rechecks_total").await? >= 1.0);
    Ok(())
}

#[tokio::test]
async fn list_awaiting_its_watch_is_not_hidden_by_list_of_another_client() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let client = env.client();
    let list = client.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    env.publish(vec![shard_entry("b")]).await?;
    client.get("/api/v1/configmaps").await?;
    let watch = client.get(&format!("{WATCH}{version}")).await?;
    assert_eq!((watch.status, &watch.json()["reason"]), (410, &"Expired".into()));
    Ok(())
}

/// Requests a watch over WebSocket; the bytes after the head are the tunnel.
async fn open_websocket_watch(env: &TestEnv) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let head = "GET /api/v1/configmaps?watch=1 HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    Ok(stream)
}

async fn read_status(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    Ok(head.split(' ').nth(1).unwrap_or_default().to_owned())
}

async fn is_open(stream: &mut TcpStream) -> anyhow::Result<bool> {
    stream.write_all(b"ping").await?;
    let mut back = [0; 4];
    stream.read_exact(&mut back).await?;
    Ok(&back == b"ping")
}

/// Waits for the end, clean or not; true if nothing came before it.
async fn ends_silently(stream: &mut TcpStream) -> anyhow::Result<bool> {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(ctrlmesh_tests::DEADLINE, stream.read_to_end(&mut rest)).await?;
    Ok(read.is_err() || rest.is_empty())
}

#[tokio::test]
async fn websocket_watch_ends_only_when_a_rule_is_added() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![]).await?;
    env.api.faults().add(Rule::new(Fault::Tunnel).verb("watch"));
    let mut watch = open_websocket_watch(&env).await?;
    assert_eq!(read_status(&mut watch).await?, "101");
    assert!(is_open(&mut watch).await?);

    env.publish(vec![guest_entry("recorder", json!({}))]).await?;
    wait_until("the watch was asked again", || async {
        Ok(env.sidecar.metric_value("ctrlmesh_rechecks_total").await? >= 1.0)
    })
    .await?;
    assert!(is_open(&mut watch).await?, "the new chain shows it the same");

    env.publish(vec![shard_entry("a")]).await?;
    assert!(ends_silently(&mut watch).await?);
    assert_eq!(env.sidecar.metric_value("ctrlmesh_watches_expired_total").await?, 1.0);
    env.api.wait_until(|activity| activity.tunnels == 0).await?;
    let mut again = open_websocket_watch(&env).await?;
    assert_eq!(
        read_status(&mut again).await?,
        "400",
        "a shaped one can't be told its end"
    );
    Ok(())
}

#[tokio::test]
async fn websocket_watch_of_the_previous_chain_ends_at_once() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![]).await?;
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Tunnel).verb("watch"));
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("watch"));
    let mut watch = open_websocket_watch(&env).await?;
    gate.wait_for_arrivals(1).await?;
    env.publish(vec![shard_entry("a")]).await?;
    gate.open();
    assert_eq!(read_status(&mut watch).await?, "101");
    assert!(ends_silently(&mut watch).await?);
    Ok(())
}

/// Opens a watch from a list's version and ends it normally; returns the version from which its client resumes.
async fn end_watch(env: &TestEnv, client: &Client) -> anyhow::Result<String> {
    let list = client.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let mut watch = client.open_stream(&format!("{WATCH}{version}")).await?;
    env.api.wait_until(|activity| activity.watches == 1).await?;
    env.api.end_watches();
    assert_eq!(watch.next().await?, None, "its time was up");
    Ok(version.to_owned())
}

#[tokio::test]
async fn unrelated_list_does_not_let_an_old_watch_resume() -> anyhow::Result<()> {
    for before in [vec![shard_entry("a")], vec![]] {
        let mut env = TestEnv::start(before).await?;
        env.seed_config_maps("default", "b", 1)?;
        let client = env.client().with_header("user-agent", "manager/1");
        let version = end_watch(&env, &client).await?;
        env.publish(vec![shard_entry("b")]).await?;
        assert_eq!(client.get("/api/v1/configmaps").await?.names(), ["b0"], "no informer's");
        let resumed = client.get(&format!("{WATCH}{version}")).await?;
        assert_eq!(
            (resumed.status, resumed.json()["reason"].as_str()),
            (410, Some("Expired"))
        );
        let version = end_watch(&env, &client).await?;
        let mut watch = client.open_stream(&format!("{WATCH}{version}")).await?;
        env.api.store().put(config_map("default", "fresh", "b"))?;
        assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "fresh");
    }
    Ok(())
}
