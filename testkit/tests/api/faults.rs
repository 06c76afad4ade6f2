//! Each fault does what it says, to the requests it names, the given number of times.

use std::time::Duration;

use ctrlmesh_testkit::{Fault, FaultTime, Gate, Rule};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{
    CONFIGMAPS, Connection, PATIENCE, build_request, configmap, read_response, server_builder, start_server,
};

#[tokio::test]
async fn status_fault_fires_given_times_and_executes_nothing() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let rule = Rule::new(Fault::Status {
        code: 429,
        retry_after: Some(2),
    })
    .verb("create")
    .resource("configmaps")
    .times(2);
    let rule = server.faults().add(rule);
    for _ in 0..2 {
        let answer = client
            .call(Method::POST, CONFIGMAPS, Some(&configmap("default", "a", "x")))
            .await;
        assert_eq!(
            (answer.status, answer.headers["retry-after"].as_bytes()),
            (StatusCode::TOO_MANY_REQUESTS, &b"2"[..])
        );
        assert_eq!(answer.body["details"]["retryAfterSeconds"], 2);
        assert_eq!(
            client.get(CONFIGMAPS).await.status,
            StatusCode::OK,
            "another verb is spared"
        );
    }
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    assert_eq!(server.faults().times_applied(rule), 2);
}

#[tokio::test]
async fn rule_ends_when_removed() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let rule = server.faults().add(
        Rule::new(Fault::Status {
            code: 503,
            retry_after: None,
        })
        .path("/api/v1/namespaces"),
    );
    let refused = client.get(CONFIGMAPS).await;
    assert_eq!(
        (refused.status, refused.headers.get("retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, None)
    );
    assert_eq!(client.get("/api/v1/configmaps").await.status, StatusCode::OK);
    server.faults().remove(rule);
    assert_eq!(client.get(CONFIGMAPS).await.status, StatusCode::OK);
}

#[tokio::test]
async fn retry_after_of_zero_is_sent() {
    let server = start_server().await;
    server.faults().add(Rule::new(Fault::Status {
        code: 500,
        retry_after: Some(0),
    }));
    let refused = Connection::connect_h2c(&server).await.get(CONFIGMAPS).await;
    assert_eq!(refused.headers["retry-after"], "0");
}

#[tokio::test]
async fn gate_holds_requests_until_opened() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let gate = Gate::new();
    server.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("create"));
    let object = configmap("default", "a", "x");
    let create = client.call(Method::POST, CONFIGMAPS, Some(&object));
    let meanwhile = async {
        gate.wait_for_arrivals(1).await.expect("the request arrives");
        assert_eq!(
            client.get(&format!("{CONFIGMAPS}/a")).await.status,
            StatusCode::NOT_FOUND
        );
        gate.open();
    };
    let (created, ()) = tokio::join!(create, meanwhile);
    assert_eq!(created.status, StatusCode::CREATED);
}

#[tokio::test]
async fn delay_precedes_execution() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let delay = Duration::from_millis(30);
    server.faults().add(Rule::new(Fault::Delay(delay)));
    let before = tokio::time::Instant::now();
    assert_eq!(client.get(CONFIGMAPS).await.status, StatusCode::OK);
    assert!(before.elapsed() >= delay);
}

#[tokio::test]
async fn stream_reset_keeps_the_connection_alive() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    for (name, when, is_stored) in [
        ("a", FaultTime::BeforeExecuting, false),
        ("b", FaultTime::AfterExecuting, true),
    ] {
        server
            .faults()
            .add(Rule::new(Fault::ResetStream(when)).verb("create").times(1));
        let body = configmap("default", name, "x").to_string();
        let headers = [("content-type", "application/json")];
        let error = client
            .send(build_request(Method::POST, CONFIGMAPS, &headers, body))
            .await
            .expect_err("no response");
        assert!(!error.is_timeout(), "{error:?}");
        let stored = server
            .store()
            .read(|state| state.get("configmaps", "default", name).is_some());
        assert_eq!(stored, is_stored, "{when:?}");
    }
    assert_eq!(client.get(CONFIGMAPS).await.status, StatusCode::OK);
    assert_eq!(server.activity().accepted, 1);
}

#[tokio::test]
async fn connection_reset_ends_all_its_streams() {
    let server = start_server().await;
    for client in [
        Connection::connect_h2c(&server).await,
        Connection::connect_http1(&server).await,
    ] {
        server.faults().add(
            Rule::new(Fault::ResetConnection(FaultTime::AfterExecuting))
                .verb("create")
                .times(1),
        );
        let body = json!({ "metadata": { "generateName": "x-" } }).to_string();
        let headers = [("content-type", "application/json")];
        client
            .send(build_request(Method::POST, CONFIGMAPS, &headers, body))
            .await
            .expect_err("no response");
        client
            .send(build_request(Method::GET, CONFIGMAPS, &[], String::new()))
            .await
            .expect_err("no connection");
    }
    assert_eq!(server.store().read(|state| state.list("configmaps").count()), 2);
    server
        .wait_until(|activity| activity.connections == 0)
        .await
        .expect("both are gone");
}

#[tokio::test]
async fn connection_reset_is_a_tcp_reset() {
    let server = start_server().await;
    server
        .faults()
        .add(Rule::new(Fault::ResetConnection(FaultTime::BeforeExecuting)));
    let mut stream = TcpStream::connect(server.address()).await.expect("open");
    stream
        .write_all(b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .expect("written");
    let error = stream.read_to_end(&mut Vec::new()).await.expect_err("no end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn goaway_ends_the_connection_and_spares_open_watches() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let mut watch = client.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    server.faults().add(Rule::new(Fault::Goaway).verb("list").times(1));
    assert_eq!(client.get(CONFIGMAPS).await.status, StatusCode::OK);
    let refused = async {
        while client
            .send(build_request(Method::GET, "/version", &[], String::new()))
            .await
            .is_ok()
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, refused)
        .await
        .expect("the client is told to go away");
    server.store().put(configmap("default", "a", "x")).expect("stored");
    watch.expect_event("ADDED", "a").await;
    drop(watch);
    server
        .wait_until(|activity| activity.connections == 0)
        .await
        .expect("the connection ends with the watch");
}

#[tokio::test]
async fn goaway_closes_http1_connection_after_the_response() {
    let server = start_server().await;
    let client = Connection::connect_http1(&server).await;
    server.faults().add(Rule::new(Fault::Goaway).times(1));
    let answer = client.get(CONFIGMAPS).await;
    assert_eq!(
        (answer.status, answer.headers["connection"].as_bytes()),
        (StatusCode::OK, &b"close"[..])
    );
}

#[tokio::test]
async fn slow_body_comes_in_pieces() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    server.faults().add(
        Rule::new(Fault::SlowBody {
            chunk: 10,
            every: Duration::from_millis(1),
        })
        .path("/version"),
    );
    let response = client
        .send(build_request(Method::GET, "/version", &[], String::new()))
        .await
        .expect("a response");
    let mut body = response.into_body();
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        pieces.push(frame.expect("a frame").into_data().expect("data").len());
    }
    assert!(pieces.len() > 10 && pieces.iter().all(|size| *size <= 10), "{pieces:?}");
}

#[tokio::test]
async fn cut_body_breaks_off() {
    let server = start_server().await;
    for client in [
        Connection::connect_h2c(&server).await,
        Connection::connect_http1(&server).await,
    ] {
        server.faults().add(Rule::new(Fault::CutBody { after: 20 }).times(1));
        let response = client
            .send(build_request(Method::GET, CONFIGMAPS, &[], String::new()))
            .await
            .expect("a head");
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body();
        let first = body
            .frame()
            .await
            .expect("a frame")
            .expect("data")
            .into_data()
            .expect("data");
        assert_eq!(first.len(), 20);
        assert!(body.frame().await.expect("an end").is_err(), "the end is no clean one");
    }
}

#[tokio::test]
async fn early_hints_precede_the_response_on_http1() {
    let server = start_server().await;
    let client = Connection::connect_http1(&server).await;
    server.faults().add(Rule::new(Fault::EarlyHints).times(1));
    let (sender, hints) = std::sync::mpsc::sync_channel(4);
    let mut asked = build_request(Method::GET, "/version", &[], String::new());
    hyper::ext::on_informational(&mut asked, move |hint| sender.send(hint.status()).expect("a receiver"));
    let answer = read_response(client.send(asked).await.expect("a response"))
        .await
        .expect("a body");
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(hints.try_iter().collect::<Vec<_>>(), [StatusCode::EARLY_HINTS]);
    server.faults().add(Rule::new(Fault::EarlyHints).times(1));
    assert_eq!(
        Connection::connect_h2c(&server).await.get("/version").await.status,
        StatusCode::NOT_IMPLEMENTED
    );
}

#[tokio::test]
async fn trailers_follow_the_body() {
    let server = start_server().await;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "abc".parse().expect("a value"));
    server.faults().add(Rule::new(Fault::Trailers(trailers.clone())));
    for client in [
        Connection::connect_h2c(&server).await,
        Connection::connect_http1(&server).await,
    ] {
        let asked = build_request(Method::GET, "/version", &[("te", "trailers")], String::new());
        let body = client
            .send(asked)
            .await
            .expect("a response")
            .into_body()
            .collect()
            .await
            .expect("a body");
        assert_eq!(body.trailers(), Some(&trailers), "HTTP/2: {}", client.is_http2());
    }
}

#[tokio::test]
async fn token_is_required_and_rotated() {
    let server = server_builder().token("old").start().await.expect("started");
    let client = Connection::connect_h2c(&server).await;
    let ask = async |token: &str| {
        let bearer = format!("Bearer {token}");
        client
            .call_with(Method::GET, CONFIGMAPS, &[("authorization", &bearer)], None)
            .await
            .status
    };
    assert_eq!(client.get(CONFIGMAPS).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(ask("old").await, StatusCode::OK);
    server.faults().require_tokens(["new"]);
    assert_eq!(
        (ask("old").await, ask("new").await),
        (StatusCode::UNAUTHORIZED, StatusCode::OK)
    );
    server.faults().require_no_token();
    assert_eq!(client.get(CONFIGMAPS).await.status, StatusCode::OK);
}

#[tokio::test]
async fn requests_are_logged_and_counted() {
    let server = server_builder().request_log(2).start().await.expect("started");
    let client = Connection::connect_h2c(&server).await;
    client.get("/version").await;
    client
        .call_with(
            Method::GET,
            "/api/v1/configmaps?limit=3&x=%2F",
            &[("user-agent", "me/1")],
            None,
        )
        .await;
    client.get(&format!("{CONFIGMAPS}/a")).await;
    let seen = server.requests().recent();
    assert_eq!(seen.len(), 2, "the ring holds two");
    assert_eq!(
        (seen[0].target.as_str(), seen[0].verb),
        ("/api/v1/configmaps?limit=3&x=%2F", "list")
    );
    assert_eq!(seen[0].headers["user-agent"], "me/1");
    assert_eq!(
        (
            server.requests().count("list"),
            server.requests().count("get"),
            server.requests().count("")
        ),
        (1, 1, 1)
    );
    assert_eq!(server.requests().total(), 3);
    server.requests().clear();
    let seen = server
        .requests()
        .wait_until(|seen| seen.iter().any(|one| one.verb == "watch"));
    let target = format!("{CONFIGMAPS}?watch=1");
    let watch = client.watch(&target);
    let (seen, _watch) = tokio::join!(seen, watch);
    seen.expect("the watch is seen");
}
