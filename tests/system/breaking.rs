//! What plugins can do to connections and answers beyond a Status, as a client sees it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ctrlmesh_tests::{Client, Stand, guest, wait_until};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

async fn scripted(script: Value) -> anyhow::Result<Stand> {
    let stand = Stand::start(vec![guest("scripted", script)]).await?;
    stand.seed("default", "a", 1)?;
    Ok(stand)
}

async fn on_request(then: Value) -> anyhow::Result<Stand> {
    scripted(json!({ "onRequest": [{ "when": { "resource": "configmaps" }, "then": then }] })).await
}

#[tokio::test]
async fn an_answer_that_is_no_status_goes_out_as_it_is() -> anyhow::Result<()> {
    let answer = json!({ "answer": {
        "code": 429,
        "headers": [
            { "name": "content-type", "value": "text/plain; charset=utf-8" },
            { "name": "retry-after", "value": "1" },
            { "name": "x-kubernetes-pf-flowschema-uid", "value": "u" },
        ],
        "body": "Too many requests, please try again later.\n",
    }});
    let stand = on_request(answer.clone()).await?;
    let got = stand.client().get("/api/v1/configmaps").await?;
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
    assert_eq!(stand.api.requests().count("list"), 0);
    let line = json!({ "when": { "resource": "configmaps" }, "then": answer });
    let stand = scripted(json!({ "onResponse": [line] })).await?;
    assert_eq!(stand.client().get("/api/v1/configmaps").await?.status, 429);
    assert_eq!(stand.api.requests().count("list"), 1, "it was executed");
    Ok(())
}

#[tokio::test]
async fn an_answer_may_be_the_last_one_of_its_connection() -> anyhow::Result<()> {
    for closes in [false, true] {
        let answer = json!({ "answer": { "code": 429, "closeConnection": closes } });
        let stand = on_request(answer).await?;
        let got = stand.client().get("/api/v1/configmaps").await?;
        assert_eq!(got.status, 429);
        let says_so = got.headers.get("connection").is_some_and(|value| value == "close");
        assert_eq!(says_so, closes, "{:?}", got.headers);
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_out_of_bounds_is_a_fault_of_the_plugin() -> anyhow::Result<()> {
    for answer in [
        json!({ "code": 100 }),
        json!({ "code": 600 }),
        json!({ "code": 200, "headers": [{ "name": "transfer-encoding", "value": "chunked" }] }),
        json!({ "code": 200, "body": "x".repeat(70_000) }),
    ] {
        let stand = on_request(json!({ "answer": answer })).await?;
        let got = stand.client().get("/api/v1/configmaps").await?;
        assert_eq!(
            (got.status, &got.json()["details"]["causes"][0]["reason"]),
            (500, &"PluginFailed".into())
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_refusal_says_what_it_is_about() -> anyhow::Result<()> {
    let refusal = json!({ "refuse": {
        "code": 409,
        "reason": "AlreadyExists",
        "message": "configmaps \"{name}\" already exists",
        "details": { "kind": "configmaps", "causes": ["FieldValueInvalid"] },
    }});
    let stand = on_request(refusal).await?;
    let object = json!({ "metadata": { "name": "mine" }, "data": { "k": "v" } }).to_string();
    let got = stand
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

/// One connection that is kept, over which several requests go.
pub(crate) async fn connect_http2(
    stand: &Stand,
) -> anyhow::Result<(
    hyper::client::conn::http2::SendRequest<Empty<Bytes>>,
    tokio::task::JoinHandle<bool>,
)> {
    let stream = TcpStream::connect(stand.sidecar.api()).await?;
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    Ok((sender, tokio::spawn(async move { connection.await.is_ok() })))
}

pub(crate) fn get(stand: &Stand, target: &str) -> anyhow::Result<http::Request<Empty<Bytes>>> {
    let uri = format!("http://{}{target}", stand.sidecar.api());
    Ok(http::Request::get(uri).body(Empty::new())?)
}

#[tokio::test]
async fn a_connection_is_retired_and_its_watch_goes_on() -> anyhow::Result<()> {
    let edits = json!(["closeConnection"]);
    let line = json!({ "when": { "resource": "secrets" }, "then": { "proceed": { "edits": edits } } });
    let stand = scripted(json!({ "onResponse": [line] })).await?;
    let (mut sender, connection) = connect_http2(&stand).await?;
    let watch = sender.send_request(get(&stand, "/api/v1/configmaps?watch=1")?).await?;
    let mut events = watch.into_body();
    assert!(events.frame().await.transpose()?.is_some());
    assert_eq!(
        sender.send_request(get(&stand, "/api/v1/secrets")?).await?.status(),
        200
    );
    // hyper looks for a GOAWAY when it has something to send.
    wait_until("GOAWAY arrives", || {
        let (mut sender, request) = (sender.clone(), get(&stand, "/api/v1/secrets"));
        async move { Ok(sender.send_request(request?).await.is_err()) }
    })
    .await?;
    stand.seed("default", "b", 1)?;
    let event = events.frame().await.transpose()?;
    assert!(event.is_some(), "what is open goes on");
    drop(events);
    assert!(connection.await?, "and then the connection ends cleanly");

    let got = stand.client().get("/api/v1/secrets").await?;
    assert_eq!((got.status, &got.headers["connection"]), (200, &"close".parse()?));
    Ok(())
}

#[tokio::test]
async fn a_silent_connection_answers_nothing_any_more() -> anyhow::Result<()> {
    let stand = on_request(json!({ "reset": "black-hole" })).await?;
    let stream = TcpStream::connect(stand.sidecar.api()).await?;
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    // Pings begin soon; on a busy machine an answer to one takes a while.
    builder
        .timer(hyper_util::rt::TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(100))
        .keep_alive_timeout(Duration::from_secs(3));
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    assert_eq!(
        sender.send_request(get(&stand, "/api/v1/secrets")?).await?.status(),
        200
    );
    let error = sender
        .send_request(get(&stand, "/api/v1/configmaps")?)
        .await
        .unwrap_err();
    assert!(format!("{error:?}").contains("KeepAliveTimedOut"), "{error:?}");
    assert!(connection.await?.is_err());
    assert_eq!(stand.api.requests().count("list"), 1, "only the secrets were asked for");
    assert_eq!(
        stand.client().get("/api/v1/secrets").await?.status,
        200,
        "other connections work"
    );
    Ok(())
}

/// Until new connections are refused. That open ones have ended does not say it: these are other threads, in no order.
pub(crate) async fn is_refused(stand: &Stand) -> anyhow::Result<()> {
    wait_until("the port is closed", || async {
        Ok(match TcpStream::connect(stand.sidecar.api()).await {
            Ok(_) => false,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        })
    })
    .await
}

#[tokio::test]
async fn the_port_is_closed_for_a_while_and_every_connection() -> anyhow::Result<()> {
    let stand = on_request(json!({ "refuseConnections": 2000 })).await?;
    let (mut sender, connection) = connect_http2(&stand).await?;
    assert_eq!(
        sender.send_request(get(&stand, "/api/v1/secrets")?).await?.status(),
        200
    );
    let start = Instant::now();
    assert!(stand.client().get("/api/v1/configmaps").await.is_err());
    connection.await?;
    is_refused(&stand).await?;
    let client = Client::http1(stand.sidecar.api());
    wait_until("the port is open again", || async {
        Ok(client.get("/api/v1/secrets").await.is_ok())
    })
    .await?;
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(stand.api.requests().count("list"), 2);
    Ok(())
}
