//! A chain that comes into force in the middle of a watch's beginning, or while a watch is open that can't be told.

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::client::Stream;
use ctrlmesh_tests::{Client, Stand, config_map, guest, shard, wait_until};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const WATCH: &str = "/api/v1/configmaps?watch=1&resourceVersion=";

/// Begins a watch from a list's resource version; when this returns, the sidecar has asked its chain about it and sent it
/// on, and waits for the response.
async fn half_begun(
    stand: &Stand,
    client: &Client,
) -> anyhow::Result<(Gate, tokio::task::JoinHandle<anyhow::Result<Stream>>)> {
    let list = client.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let target = format!("{WATCH}{version}");
    let gate = Gate::new();
    stand
        .api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).verb("watch").times(1));
    let client = client.clone();
    let begun = tokio::spawn(async move { client.stream(&target).await });
    gate.wait_for_arrivals(1).await?;
    Ok((gate, begun))
}

#[tokio::test]
async fn a_watch_that_began_under_the_chain_before_is_expired_at_its_first_event() -> anyhow::Result<()> {
    for (before, after) in [(vec![shard("a")], vec![shard("b")]), (vec![], vec![shard("b")])] {
        let mut stand = Stand::start(before).await?;
        for client in [stand.client(), Client::http2(stand.sidecar.api())] {
            let (gate, begun) = half_begun(&stand, &client).await?;
            stand.publish(after.clone()).await?;
            gate.open();
            let mut watch = begun.await??;
            assert_eq!(watch.head.status, 200);
            let event = watch.event().await?;
            assert_eq!(
                (&event["type"], &event["object"]["code"]),
                (&"ERROR".into(), &410.into())
            );
            assert_eq!(watch.next().await?, None, "a clean end");
            stand.publish(vec![shard("a")]).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_watch_whose_view_the_new_chain_leaves_begins_as_if_nothing_had_been() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let (gate, begun) = half_begun(&stand, &stand.client()).await?;
    stand.publish(vec![shard("a"), guest("recorder", json!({}))]).await?;
    gate.open();
    let mut watch = begun.await??;
    stand.api.store().put(config_map("default", "mine", "a"))?;
    assert_eq!(watch.event().await?["object"]["metadata"]["name"], "mine");
    assert!(stand.sidecar.metric("ctrlmesh_rechecks_total").await? >= 1.0);
    Ok(())
}

#[tokio::test]
async fn a_list_that_waits_for_its_watch_is_not_hidden_by_another_clients_list() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let client = stand.client();
    let list = client.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    stand.publish(vec![shard("b")]).await?;
    client.get("/api/v1/configmaps").await?;
    let watch = client.get(&format!("{WATCH}{version}")).await?;
    assert_eq!((watch.status, &watch.json()["reason"]), (410, &"Expired".into()));
    Ok(())
}

/// Asks for a watch over WebSocket; what follows the head is the tunnel.
async fn websocket(stand: &Stand) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(stand.sidecar.api()).await?;
    let head = "GET /api/v1/configmaps?watch=1 HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    Ok(stream)
}

async fn status(stream: &mut TcpStream) -> anyhow::Result<String> {
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
async fn ends(stream: &mut TcpStream) -> anyhow::Result<bool> {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(ctrlmesh_tests::DEADLINE, stream.read_to_end(&mut rest)).await?;
    Ok(read.is_err() || rest.is_empty())
}

#[tokio::test]
async fn a_watch_over_websocket_ends_when_a_rule_comes_and_no_sooner() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![]).await?;
    stand.api.faults().add(Rule::new(Fault::Tunnel).verb("watch"));
    let mut watch = websocket(&stand).await?;
    assert_eq!(status(&mut watch).await?, "101");
    assert!(is_open(&mut watch).await?);

    stand.publish(vec![guest("recorder", json!({}))]).await?;
    wait_until("the watch was asked again", || async {
        Ok(stand.sidecar.metric("ctrlmesh_rechecks_total").await? >= 1.0)
    })
    .await?;
    assert!(is_open(&mut watch).await?, "the new chain shows it the same");

    stand.publish(vec![shard("a")]).await?;
    assert!(ends(&mut watch).await?);
    assert_eq!(stand.sidecar.metric("ctrlmesh_watches_expired_total").await?, 1.0);
    stand.api.wait_until(|activity| activity.tunnels == 0).await?;
    let mut again = websocket(&stand).await?;
    assert_eq!(status(&mut again).await?, "400", "a shaped one can't be told its end");
    Ok(())
}

#[tokio::test]
async fn a_watch_over_websocket_that_began_under_the_chain_before_ends_at_once() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![]).await?;
    let gate = Gate::new();
    stand.api.faults().add(Rule::new(Fault::Tunnel).verb("watch"));
    stand
        .api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).verb("watch"));
    let mut watch = websocket(&stand).await?;
    gate.wait_for_arrivals(1).await?;
    stand.publish(vec![shard("a")]).await?;
    gate.open();
    assert_eq!(status(&mut watch).await?, "101");
    assert!(ends(&mut watch).await?);
    Ok(())
}

/// A watch from a list's resource version that has ended as watches do; the version that its client comes back with.
async fn ended(stand: &Stand, client: &Client) -> anyhow::Result<String> {
    let list = client.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let mut watch = client.stream(&format!("{WATCH}{version}")).await?;
    stand.api.wait_until(|activity| activity.watches == 1).await?;
    stand.api.end_watches();
    assert_eq!(watch.next().await?, None, "its time was up");
    Ok(version.to_owned())
}

#[tokio::test]
async fn a_list_from_elsewhere_in_the_program_does_not_let_an_old_watch_resume() -> anyhow::Result<()> {
    for before in [vec![shard("a")], vec![]] {
        let mut stand = Stand::start(before).await?;
        stand.seed("default", "b", 1)?;
        let client = stand.client().with("user-agent", "manager/1");
        let version = ended(&stand, &client).await?;
        stand.publish(vec![shard("b")]).await?;
        assert_eq!(client.get("/api/v1/configmaps").await?.names(), ["b0"], "no informer's");
        let resumed = client.get(&format!("{WATCH}{version}")).await?;
        assert_eq!(
            (resumed.status, resumed.json()["reason"].as_str()),
            (410, Some("Expired"))
        );
        let version = ended(&stand, &client).await?;
        let mut watch = client.stream(&format!("{WATCH}{version}")).await?;
        stand.api.store().put(config_map("default", "fresh", "b"))?;
        assert_eq!(watch.event().await?["object"]["metadata"]["name"], "fresh");
    }
    Ok(())
}
