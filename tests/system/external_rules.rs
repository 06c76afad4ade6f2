//! The same plugins apply to all three ways of external calls, with every verdict.

use anyhow::Context;
use ctrlmesh_tests::{Client, Target, TestEnv, guest_entry, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::external::{read_until, start_env};

async fn start_scripted(script: Value) -> anyhow::Result<(TestEnv, Client, Target)> {
    let (env, client) = start_env(vec![guest_entry("scripted", script)], &[]).await?;
    Ok((env, client, Target::start_plain().await?))
}

/// Sends one request each way to the same target; returns the heads of the responses.
async fn send_in_all_forms(env: &TestEnv, host: &str, port: u16) -> anyhow::Result<Vec<String>> {
    let requests = [
        format!("GET http://{host}:{port}/p HTTP/1.1\r\nhost: x\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: x\r\nmesh-real-endpoint: http://{host}:{port}/p\r\n\r\n"),
        format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: x\r\n\r\n"),
    ];
    let mut heads = Vec::new();
    for request in requests {
        let mut stream = TcpStream::connect(env.sidecar.external_address().context("it is on")?).await?;
        stream.write_all(request.as_bytes()).await?;
        heads.push(read_until(&mut stream, b"\r\n\r\n").await?);
    }
    Ok(heads)
}

#[tokio::test]
async fn rest_05_rule_holds_for_every_way_in_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let (mut env, _, target) = start_scripted(json!({
        "subscribe": [{ "traffic": ["external"], "hosts": ["localhost"] }],
        "onRequest": [{ "then": { "refuse": { "code": 403, "message": "localhost is on the deny list" } } }],
    }))
    .await?;
    for host in ["localhost", "LocalHost", "localhost."] {
        for head in send_in_all_forms(&env, host, target.port()).await? {
            assert!(head.starts_with("HTTP/1.1 403"), "{host}: {head}");
            assert!(head.contains("application/json"), "{head}");
        }
    }
    assert_eq!(target.connection_count(), 0, "not even a connection");
    for head in send_in_all_forms(&env, "127.0.0.1", target.port()).await? {
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
    assert_eq!(
        env.client().get("/api/v1/configmaps").await?.status,
        200,
        "not its traffic"
    );
    env.publish(vec![]).await?;
    for head in send_in_all_forms(&env, "localhost", target.port()).await? {
        assert!(head.starts_with("HTTP/1.1 200"), "a rule that is gone is gone: {head}");
    }
    Ok(())
}

#[tokio::test]
async fn plugins_see_the_target_of_a_request() -> anyhow::Result<()> {
    let echo = json!({ "echo": "x-case", "then": { "proceed": {} } });
    let (env, client, target) = start_scripted(json!({ "onResponse": [echo] })).await?;
    let url = format!("http://LOCALHOST:{}/a%20b?x-case=1%202", target.port());
    let client = client
        .with_header("mesh-real-endpoint", &url)
        .with_header("x-case", "7")
        .with_header("user-agent", "op");
    let seen = client.get("/api/v1/pods").await?.headers;
    for (name, value) in [
        ("traffic", "external"),
        ("verb", "nonresource"),
        ("resource", ""),
        ("method", "GET"),
        ("path", "/a b"),
        ("host", "localhost"),
        ("port", &target.port().to_string()),
        ("user-agent", "op"),
        ("request-header", "7"),
        ("query", "1 2"),
        ("leader-lock", "false"),
    ] {
        assert_eq!(seen[format!("x-seen-{name}")], value, "{name}");
    }
    let mut stream = TcpStream::connect(env.sidecar.external_address().context("it is on")?).await?;
    stream
        .write_all(format!("CONNECT localhost:{} HTTP/1.1\r\nhost: x\r\n\r\n", target.port()).as_bytes())
        .await?;
    let head = read_until(&mut stream, b"\r\n\r\n").await?;
    assert!(
        head.contains("x-seen-method: CONNECT\r\n") && head.contains("x-seen-path: \r\n"),
        "{head}"
    );
    Ok(())
}

#[tokio::test]
async fn rule_for_a_path_holds_for_every_spelling() -> anyhow::Result<()> {
    let (_stand, client, target) = start_scripted(json!({
        "subscribe": [{ "traffic": ["external"], "paths": ["/admin*"] }],
        "onRequest": [{ "then": { "refuse": { "code": 403 } } }],
    }))
    .await?;
    for (path, status) in [("/admin/x", 403), ("/%61dmin", 403), ("/public", 200)] {
        let url = format!("http://127.0.0.1:{}{path}", target.port());
        assert_eq!(client.get(&url).await?.status, status, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn requests_are_refused_answered_and_broken_off() -> anyhow::Result<()> {
    let line = |path: &str, then: Value| json!({ "when": { "path": path }, "then": then });
    let (env, client, target) = start_scripted(json!({ "countCompleted": true, "onRequest": [
        line("/refused", json!({ "refuse": { "code": 429, "retryAfterSeconds": 3, "cause": "rule" } })),
        line("/answered", json!({ "answer": { "code": 207, "body": "mine" } })),
        line("/broken", json!({ "reset": "close" })),
        line("/selected", json!({ "proceed": [{ "andLabelSelector": "a=b" }] })),
    ]}))
    .await?;
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", target.port());
    let refused = client.get(&url("/refused")).await?;
    assert_eq!((refused.status, &refused.headers["retry-after"]), (429, &"3".parse()?));
    assert_eq!(refused.json()["details"]["causes"][0]["message"], "rule");
    let answered = client.get(&url("/answered")).await?;
    assert_eq!((answered.status, &answered.body[..]), (207, &b"mine"[..]));
    assert!(client.get(&url("/broken")).await.is_err());
    let selected = client.get(&url("/selected")).await?;
    assert_eq!(selected.status, 500, "a fault of the plugin");
    assert_eq!(target.arrived_requests().len(), 0);
    let metric = "ctrlmesh_plugin_completed_total{entry=\"scripted/test\",label=\"429\"}";
    wait_until("on-complete is told", || async {
        Ok(env.sidecar.metric_value(metric).await? >= 1.0)
    })
    .await
}

#[tokio::test]
async fn requests_are_edited_and_delayed() -> anyhow::Result<()> {
    let edits = json!([
        { "setHeader": { "name": "x-set", "value": "1" } },
        { "removeHeader": "x-kept" },
        { "setHeader": { "name": "mesh-real-endpoint", "value": "http://x/" } },
        { "setQuery": { "name": "q", "value": "2" } },
        { "removeQuery": "gone" },
    ]);
    let (_stand, client, target) = start_scripted(json!({ "onRequest": [
        { "when": { "path": "/edited" }, "then": { "proceed": edits } },
        { "when": { "path": "/slow" }, "delayMs": 300, "then": { "proceed": [] } },
    ]}))
    .await?;
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", target.port());
    let start = std::time::Instant::now();
    assert_eq!(client.get(&url("/slow")).await?.status, 200);
    assert!(start.elapsed().as_millis() >= 300);
    let keeping = client.clone().with_header("x-kept", "1");
    let edited = keeping.get(&url("/edited?gone=1&keep=%2f")).await?;
    assert_eq!(edited.status, 200);
    let arrived = target.arrived_requests().pop().context("it arrived")?;
    assert_eq!(arrived.uri.to_string(), "/edited?keep=%2f&q=2");
    assert_eq!(arrived.headers["x-set"], "1");
    for gone in ["x-kept", "mesh-real-endpoint"] {
        assert!(!arrived.headers.contains_key(gone), "{gone}");
    }
    Ok(())
}

#[tokio::test]
async fn refused_connections_close_only_the_external_port() -> anyhow::Result<()> {
    let line = json!({ "when": { "path": "/closed" }, "then": { "refuseConnections": 300 } });
    let (env, client, target) = start_scripted(json!({ "onRequest": [line] })).await?;
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", target.port());
    let mut kept = TcpStream::connect(env.sidecar.external_address().context("it is on")?).await?;
    kept.write_all(format!("GET {} HTTP/1.1\r\nhost: x\r\n\r\n", url("/")).as_bytes())
        .await?;
    read_until(&mut kept, b"hello").await?;
    assert!(client.get(&url("/closed")).await.is_err());
    let ended = tokio::time::timeout(ctrlmesh_tests::DEADLINE, kept.read(&mut [0; 8])).await?;
    assert!(
        ended.map_or(true, |read| read == 0),
        "connections that are open end too"
    );
    let api = env.client().get("/api/v1/pods").await?;
    assert_eq!(api.status, 200, "the API port stays open");
    wait_until("the port is open again", || async {
        Ok(client.get(&url("/")).await.is_ok())
    })
    .await
}

#[tokio::test]
async fn every_verdict_on_a_response_holds() -> anyhow::Result<()> {
    let line = |path: &str, then: Value| json!({ "when": { "path": path }, "then": then });
    let edits = json!([{ "setHeader": { "name": "x-set", "value": "1" } }, { "removeHeader": "x-kept" }]);
    let (_stand, client, target) = start_scripted(json!({ "onResponse": [
        line("/edited", json!({ "proceed": { "edits": edits } })),
        line("/cut", json!({ "proceed": { "body": { "cutAfter": 2, "reset": "close" } } })),
        line("/replaced", json!({ "replace": { "code": 503, "message": "lost" } })),
        line("/answered", json!({ "answer": { "code": 500, "body": "mine" } })),
        line("/lost", json!({ "reset": "cancel" })),
    ]}))
    .await?;
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", target.port());
    let edited = client.get(&url("/edited")).await?.headers;
    assert!(edited["x-set"] == "1" && !edited.contains_key("x-kept"));
    let mut cut = client.open_stream(&url("/cut")).await?;
    assert_eq!(cut.next().await?.as_deref(), Some(&b"he"[..]));
    assert!(cut.next().await.is_err(), "cut, not ended");
    assert_eq!(client.get(&url("/replaced")).await?.status, 503);
    assert_eq!(client.get(&url("/answered")).await?.body, "mine");
    assert!(client.get(&url("/lost")).await.is_err());
    assert_eq!(target.arrived_requests().len(), 5, "each was executed");
    Ok(())
}
