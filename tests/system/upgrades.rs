//! exec, attach, port-forward: after 101 bytes pass both ways.

use ctrlmesh_testkit::ApiServer;
use ctrlmesh_tests::{Client, Stand, shard};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn exchange(stand: &Stand, subresource: &str, protocol: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(stand.sidecar.api()).await?;
    let head = format!(
        "POST /api/v1/namespaces/default/pods/p/{subresource}?command=sh&stdin=true HTTP/1.1\r\nhost: x\r\n\
         connection: Upgrade\r\nupgrade: {protocol}\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let head = if protocol == "websocket" {
        head.replacen("POST", "GET", 1)
    } else {
        head
    };
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await?);
    }
    let text = String::from_utf8(answer)?.to_lowercase();
    assert!(text.starts_with("http/1.1 101"), "{subresource} {protocol}: {text}");
    assert!(
        text.contains(&format!("upgrade: {}", protocol.to_lowercase())),
        "{text}"
    );
    let sent = vec![7; 200_000];
    let (mut reader, mut writer) = stream.split();
    let mut back = vec![0; sent.len()];
    let (wrote, read) = tokio::join!(writer.write_all(&sent), reader.read_exact(&mut back));
    wrote?;
    read?;
    assert!(back == sent, "the echo is byte-exact");
    Ok(())
}

#[tokio::test]
async fn bytes_pass_both_ways_after_101() -> anyhow::Result<()> {
    let stand = Stand::around(ApiServer::builder().start().await?, vec![shard("a")], &[]).await?;
    stand.api.store().put(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "default" },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    }))?;
    for (subresource, protocol) in [
        ("exec", "SPDY/3.1"),
        ("attach", "SPDY/3.1"),
        ("portforward", "SPDY/3.1"),
        ("exec", "websocket"),
    ] {
        exchange(&stand, subresource, protocol).await?;
    }
    stand.api.wait_until(|activity| activity.tunnels == 0).await?;
    Ok(())
}

#[tokio::test]
async fn a_refused_upgrade_is_an_ordinary_answer() -> anyhow::Result<()> {
    let stand = Stand::start(vec![]).await?;
    let client = Client::http1(stand.sidecar.api())
        .with("connection", "Upgrade")
        .with("upgrade", "SPDY/3.1");
    let answer = client.get("/api/v1/namespaces/default/pods/missing/exec").await?;
    assert_eq!((answer.status, answer.json()["kind"].as_str()), (404, Some("Status")));
    Ok(())
}

#[tokio::test]
async fn an_upgrade_where_there_is_none_is_an_ordinary_request() -> anyhow::Result<()> {
    let stand = Stand::start(vec![shard("a")]).await?;
    stand.seed("default", "a", 1)?;
    stand.seed("default", "b", 1)?;
    let client = stand
        .client()
        .with("connection", "Upgrade")
        .with("upgrade", "websocket");
    assert_eq!(
        client.get("/api/v1/configmaps").await?.names(),
        ["a0"],
        "a list is a list"
    );
    let lock = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";
    let body =
        r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"lock","namespace":"operator"}}"#;
    stand
        .api
        .store()
        .put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "operator" } }))?;
    let created = client
        .with("content-type", "application/json")
        .send(http::Method::POST, lock, body)
        .await?;
    assert_eq!(
        (created.status, created.json()["metadata"]["name"].as_str()),
        (201, Some("lock"))
    );
    let renamed = |name: &str| {
        stand
            .api
            .store()
            .read(|state| state.get("leases.coordination.k8s.io", "operator", name).is_some())
    };
    assert!(renamed("lock---a") && !renamed("lock"));
    Ok(())
}
