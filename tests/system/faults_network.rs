//! The real fault-inject plugin: network faults and a restarting server, over HTTP/1.1 and HTTP/2.

use std::time::{Duration, Instant};

use anyhow::Context;
use ctrlmesh_tests::{Client, ReceivedResponse, TestEnv, wait_until};
use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::connection_verdicts::{connect_http2, get_request, wait_until_port_is_closed};
use crate::faults::{MAPS, fault_rule, faults_entry, http1_and_http2_clients, rule_counts, start_with_fault};
use crate::limits::LIST;

#[tokio::test]
async fn reset_breaks_off_before_anything_is_forwarded() -> anyhow::Result<()> {
    for how in ["internalError", "cancel", "close"] {
        let env = start_with_fault(json!({ "reset": { "how": how } })).await?;
        for client in http1_and_http2_clients(&env) {
            assert!(client.send(Method::POST, MAPS, "{}").await.is_err(), "{how}");
            assert_eq!(client.get("/api/v1/secrets").await?.status, 200, "others work");
        }
        assert_eq!(env.api.requests().count("create"), 0, "{how}");
        assert_eq!(rule_counts(&env, "x").await?, (2, 2));
    }
    Ok(())
}

#[tokio::test]
async fn body_is_cut_after_given_bytes() -> anyhow::Result<()> {
    for how in ["internalError", "cancel", "close"] {
        let env = start_with_fault(json!({ "cutBody": { "afterBytes": 10, "how": how } })).await?;
        for client in http1_and_http2_clients(&env) {
            let mut body = client.open_stream(LIST).await?;
            assert_eq!(body.head.status, 200);
            let mut read = Vec::new();
            let end = loop {
                match body.next().await {
                    Ok(Some(bytes)) => read.extend(bytes),
                    end => break end,
                }
            };
            assert!(read.len() == 10 && end.is_err(), "{how}: {} bytes, {end:?}", read.len());
        }
        assert_eq!(rule_counts(&env, "x").await?, (2, 2));
    }
    Ok(())
}

#[tokio::test]
async fn slow_body_is_complete_and_paced() -> anyhow::Result<()> {
    const PACE: usize = 1000;
    let env = start_with_fault(json!({ "slowBody": { "bytesPerSecond": PACE } })).await?;
    env.seed_config_maps("default", "more", 6)?;
    for client in http1_and_http2_clients(&env) {
        let start = Instant::now();
        let answer = client.get(LIST).await?;
        assert_eq!((answer.status, answer.names().len()), (200, 7), "nothing is missing");
        // The bytes of the first second come at once.
        let expected = Duration::from_millis(u64::try_from(answer.body.len() - PACE)?);
        assert!(
            start.elapsed() >= expected,
            "{} bytes in {:?}",
            answer.body.len(),
            start.elapsed()
        );
    }
    Ok(())
}

#[tokio::test]
async fn connection_is_retired_after_its_response() -> anyhow::Result<()> {
    let env = start_with_fault(json!("goaway")).await?;
    let answer = env.client().get(LIST).await?;
    assert_eq!((answer.status, &answer.headers["connection"]), (200, &"close".parse()?));
    let (mut sender, connection) = connect_http2(&env).await?;
    assert_eq!(sender.send_request(get_request(&env, LIST)?).await?.status(), 200);
    wait_until("GOAWAY arrives", || {
        let (mut sender, request) = (sender.clone(), get_request(&env, "/api/v1/secrets"));
        async move { Ok(sender.send_request(request?).await.is_err()) }
    })
    .await?;
    assert!(connection.await?, "the connection ended cleanly");
    Ok(())
}

#[tokio::test]
async fn port_is_closed_for_the_given_time() -> anyhow::Result<()> {
    let fault = json!({ "refuseConnections": { "for": "2s", "allRequests": true } });
    let env = TestEnv::start(vec![faults_entry(json!([fault_rule(fault, json!({ "maxCount": 1 }))]))]).await?;
    let (mut sender, connection) = connect_http2(&env).await?;
    assert_eq!(
        sender
            .send_request(get_request(&env, "/api/v1/secrets")?)
            .await?
            .status(),
        200
    );
    let start = Instant::now();
    assert!(env.client().get(LIST).await.is_err());
    connection.await?;
    wait_until_port_is_closed(&env).await?;
    let client = Client::http1(env.sidecar.api_address());
    wait_until("the port is open again", || async {
        Ok(client.get(LIST).await.is_ok())
    })
    .await?;
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    // The request after the only hit is not matched.
    assert_eq!(rule_counts(&env, "x").await?, (1, 1));
    Ok(())
}

/// The stage of the server's restart that a response belongs to.
fn stage_of_response(answer: anyhow::Result<ReceivedResponse>) -> anyhow::Result<&'static str> {
    let Ok(answer) = answer else {
        return Ok("down");
    };
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let is_retired = answer.headers.get("connection").is_some_and(|value| value == "close");
    let said = |part: &str| text.contains(part);
    match answer.status {
        200 if is_retired => Ok("goaway"),
        200 => Ok("up"),
        429 if said("is shutting down") && answer.headers["retry-after"] == "5" => Ok("drain"),
        429 if said("storage is (re)initializing") => Ok("cold"),
        504 if said("Too large resource version") => Ok("behind"),
        status => anyhow::bail!("{status}: {text}"),
    }
}

#[tokio::test]
async fn server_restart_goes_through_its_stages() -> anyhow::Result<()> {
    let fault = json!({ "restartServer": {
        "goaway": "500ms", "drain": "500ms", "down": "500ms", "warm": "1s", "allRequests": true,
    } });
    let env = start_with_fault(fault).await?;
    let client = env.client();
    let path = format!("{LIST}?resourceVersion=1");
    let mut stages: Vec<&str> = Vec::new();
    let start = Instant::now();
    while stages.last() != Some(&"up") {
        let stage = stage_of_response(client.get(&path).await)?;
        if stages.last() != Some(&stage) {
            stages.push(stage);
        }
        anyhow::ensure!(start.elapsed() < ctrlmesh_tests::DEADLINE, "{stages:?}");
    }
    assert_eq!(stages, ["goaway", "drain", "down", "cold", "behind", "up"]);
    assert!(start.elapsed() >= Duration::from_millis(2400), "{:?}", start.elapsed());
    Ok(())
}

#[tokio::test]
async fn overload_throttles_some_and_delays_others() -> anyhow::Result<()> {
    let fault = json!({ "overload": { "rise": "1h", "retryAfter": 7 } });
    let env = start_with_fault(fault).await?;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let client = env.client();
        clients.spawn(async move {
            let start = Instant::now();
            anyhow::Ok((client.get(LIST).await?, start.elapsed()))
        });
    }
    let mut throttled = 0;
    while let Some(answered) = clients.join_next().await {
        let (answer, took) = answered??;
        if answer.status == 429 {
            assert_eq!(answer.headers["retry-after"], "7");
            throttled += 1;
        } else {
            assert!(answer.status == 200 && took >= Duration::from_millis(200), "{took:?}");
        }
    }
    assert!(
        (5..40).contains(&throttled),
        "{throttled} of 60 are not about 30 in 100"
    );
    assert_eq!(env.api.requests().count("list"), 60 - throttled);
    Ok(())
}

#[tokio::test]
async fn black_holed_connection_answers_nothing_any_more() -> anyhow::Result<()> {
    let env = start_with_fault(json!("blackHole")).await?;
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let mut builder = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
    // Pings begin soon; on a busy machine a reply to one takes a while.
    builder
        .timer(hyper_util::rt::TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(100))
        .keep_alive_timeout(Duration::from_secs(3));
    let (mut sender, connection) = builder.handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let error = sender
        .send_request(get_request(&env, LIST)?)
        .await
        .err()
        .context("no response")?;
    assert!(format!("{error:?}").contains("KeepAliveTimedOut"), "{error:?}");
    assert!(connection.await?.is_err());
    assert_eq!(env.api.requests().count("list"), 0);
    Ok(())
}

/// The settings must be refused, and the last good ones stay in force.
#[tokio::test]
async fn illegal_fault_is_refused_unless_asked_for() -> anyhow::Result<()> {
    let illegal = json!({ "answer": { "code": 200, "body": "{\"cut\":" } });
    let settings =
        |class: &str| -> Value { json!({ "class": class, "faults": [fault_rule(illegal.clone(), json!({}))] }) };
    let mut env = start_with_fault(json!("refuse")).await?;
    let generation = env.chain.publish(vec![crate::faults::faults_with(settings("legal"))])?;
    let refused = env
        .sidecar
        .wait_status("it is refused", |status| status.refused.is_some())
        .await?
        .refused
        .context("it is")?;
    assert_eq!(refused.generation, Some(generation));
    assert!(refused.message.contains("illegal"), "{}", refused.message);
    assert_eq!(env.client().get(LIST).await?.status, 503, "the last good settings");
    env.publish(vec![crate::faults::faults_with(settings("illegal"))])
        .await?;
    assert_eq!(env.client().get(LIST).await?.body, "{\"cut\":");
    Ok(())
}
