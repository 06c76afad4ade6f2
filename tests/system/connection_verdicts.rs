//! Verdicts of plugins on connections, and answers beyond a Status, as a client sees them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ctrlmesh_tests::{Client, TestEnv, guest_entry, wait_until};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

async fn start_scripted(script: Value) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![guest_entry("scripted", script)]).await?;
    env.seed_config_maps("default", "a", 1)?;
    Ok(env)
}

async fn start_with_request_verdict(then: Value) -> anyhow::Result<TestEnv> {
    start_scripted(json!({ "onRequest": [{ "when": { "resource": "configmaps" }, "then": then }] })).await
}

#[tokio::test]
async fn non_status_answer_is_sent_verbatim() -> anyhow::Result<()> {
    let answer = json!({ "answer": {
        "code": 429,
        "headers": [
            { "name": "content-type", "value": "text/plain; charset=utf-8" },
            { "name": "retry-after", "value": "1" },
            { "name": "x-kubernetes-pf-flowschema-uid", "value": "u" },
        ],
        "body": "Too many requests, please try again later.\n",
    }});
    let env = start_with_request_verdict(answer.clone()).await?;
    let got = env.client().get("/api/v1/configmaps").await?;
    assert_eq!(
        (got.status, &got.body[..]),
        (429, &b"Too many requests, please try again later.\n"[..])
    );
    assert_eq!(got.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(
        (&got.headers["retry-after"], &got.headers["content-length"]),
        (&"1".parse()?, &"43".parse()?)
    );
    assert_eq!(got.headers.len(), 4, "{:?}", got.headers);
    assert_eq!(env.api.requests().count("list"), 0);
    let line = json!({ "when": { "resource": "configmaps" }, "then": answer });
    let env = start_scripted(json!({ "onResponse": [line] })).await?;
    assert_eq!(env.client().get("/api/v1/configmaps").await?.status, 429);
    assert_eq!(env.api.requests().count("list"), 1, "it was executed");
    Ok(())
}

#[tokio::test]
async fn answer_may_close_its_connection() -> anyhow::Result<()> {
    for closes in [false, true] {
        let answer = json!({ "answer": { "code": 429, "closeConnection": closes } });
        let env = start_with_request_verdict(answer).await?;
        let got = env.client().get("/api/v1/configmaps").await?;
        assert_eq!(got.status, 429);
        let says_so = got.headers.get("connection").is_some_and(|value| value == "close");
        assert_eq!(says_so, closes, "{:?}", got.headers);
    }
    Ok(())
}

#[tokio::test]
async fn out_of_bounds_answer_is_a_plugin_fault() -> anyhow::Result<()> {
    for answer in [
        json!({ "code": 100 }),
        json!({ "code": 600 }),
        json!({ "code": 200, "headers": [{ "name": "transfer-encoding", "value": "chunked" }] }),
        json!({ "code": 200, "body": "x".repeat(70_000) }),
    ] {
        let env = start_with_request_verdict(json!({ "answer": answer })).await?;
        let got = env.client().get("/api/v1/configmaps").await?;
        assert_eq!(
            (got.status, &got.json()["details"]["causes"][0]["reason"]),
            (500, &"PluginFailed".into())
        );
    }
    Ok(())
}

#[tokio::test]
async fn refusal_names_its_object() -> anyhow::Result<()> {
    let refusal = json!({ "refuse": {
        "code": 409,
        "reason": "AlreadyExists",
        "message": "configmaps \"{name}\" already exists",
        "details": { "kind": "configmaps", "causes": ["FieldValueInvalid"] },
    }});
    let env = start_with_request_verdict(refusal).await?;
    let object = json!({ "metadata": { "name": "mine" }, "data": { "k": "v" } }).to_string();
    let got = env
        .client()
        .send(http::Method::POST, "/api/v1/namespaces/default/configmaps", object)
        .await?;
    let status = got.json();
    assert_eq!((got.status, &status["reason"]), (409, &"AlreadyExists".into()));
    assert_eq!(status["message"], "configmaps \"mine\" already exists");
    let cause = json!({ "reason": "FieldValueInvalid", "message": "message", "field": "field" });
    assert_eq!(
        status["details"],
        json!({ "name": "mine", "kind": "configmaps", "causes": [cause] })
    );
    Ok(())
}

/// A kept connection for several requests.
pub(crate) async fn connect_http2(
    env: &TestEnv,
) -> anyhow::Result<(
    hyper::client::conn::http2::SendRequest<Empty<Bytes>>,
    tokio::task::JoinHandle<bool>,
)> {
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    Ok((sender, tokio::spawn(async move { connection.await.is_ok() })))
}

pub(crate) fn get_request(env: &TestEnv, target: &str) -> anyhow::Result<http::Request<Empty<Bytes>>> {
    let uri = format!("http://{}{target}", env.sidecar.api_address());
    Ok(http::Request::get(uri).body(Empty::new())?)
}

#[tokio::test]
async fn retired_connection_keeps_its_watch() -> anyhow::Result<()> {
    let edits = json!(["closeConnection"]);
    let line = json!({ "when": { "resource": "secrets" }, "then": { "proceed": { "edits": edits } } });
    let env = start_scripted(json!({ "onResponse": [line] })).await?;
    let (mut sender, connection) = connect_http2(&env).await?;
    let watch = sender
        .send_request(get_request(&env, "/api/v1/configmaps?watch=1")?)
        .await?;
    let mut events = watch.into_body();
    assert!(events.frame().await.transpose()?.is_some());
    assert_eq!(
        sender
            .send_request(get_request(&env, "/api/v1/secrets")?)
            .await?
            .status(),
        200
    );
    // hyper notices a GOAWAY only when it has something to send.
    wait_until("GOAWAY arrives", || {
        let (mut sender, request) = (sender.clone(), get_request(&env, "/api/v1/secrets"));
        async move { Ok(sender.send_request(request?).await.is_err()) }
    })
    .await?;
    env.seed_config_maps("default", "b", 1)?;
    let event = events.frame().await.transpose()?;
    assert!(event.is_some(), "what is open goes on");
    drop(events);
    assert!(connection.await?, "and then the connection ends cleanly");

    let got = env.client().get("/api/v1/secrets").await?;
    assert_eq!((got.status, &got.headers["connection"]), (200, &"close".parse()?));
    Ok(())
}

#[tokio::test]
async fn silenced_connection_answers_nothing_any_more() -> anyhow::Result<()> {
    let env = start_with_request_verdict(json!({ "reset": "black-hole" })).await?;
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    // Pings begin soon; on a busy machine a reply to one takes a while.
    builder
        .timer(hyper_util::rt::TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(100))
        .keep_alive_timeout(Duration::from_secs(3));
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    assert_eq!(
        sender
            .send_request(get_request(&env, "/api/v1/secrets")?)
            .await?
            .status(),
        200
    );
    let error = sender
        .send_request(get_request(&env, "/api/v1/configmaps")?)
        .await
        .unwrap_err();
    assert!(format!("{error:?}").contains("KeepAliveTimedOut"), "{error:?}");
    assert!(connection.await?.is_err());
    assert_eq!(env.api.requests().count("list"), 1, "only the secrets were asked for");
    assert_eq!(
        env.client().get("/api/v1/secrets").await?.status,
        200,
        "other connections work"
    );
    Ok(())
}

/// Waits until new connections are refused. The end of open ones does not imply it: other threads close them, in any order.
pub(crate) async fn wait_until_port_is_closed(env: &TestEnv) -> anyhow::Result<()> {
    wait_until("the port is closed", || async {
        Ok(match TcpStream::connect(env.sidecar.api_address()).await {
            Ok(_) => false,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        })
    })
    .await
}

#[tokio::test]
async fn refused_connections_close_the_port_and_every_connection() -> anyhow::Result<()> {
    let env = start_with_request_verdict(json!({ "refuseConnections": 2000 })).await?;
    let (mut sender, connection) = connect_http2(&env).await?;
    assert_eq!(
        sender
            .send_request(get_request(&env, "/api/v1/secrets")?)
            .await?
            .status(),
        200
    );
    let start = Instant::now();
    assert!(env.client().get("/api/v1/configmaps").await.is_err());
    connection.await?;
    wait_until_port_is_closed(&env).await?;
    let client = Client::http1(env.sidecar.api_address());
    wait_until("the port is open again", || async {
        Ok(client.get("/api/v1/secrets").await.is_ok())
    })
    .await?;
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(env.api.requests().count("list"), 2);
    Ok(())
}
