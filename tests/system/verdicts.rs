//! Every verdict and edit of the plugin interface, given by the guest `scripted`, as seen by a client.

use ctrlmesh_tests::{Client, ReceivedResponse, TestEnv, guest_entry};
use http::Method;
use serde_json::{Value, json};

async fn start_scripted(script: Value) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![guest_entry("scripted", script)]).await?;
    env.seed_config_maps("default", "a", 2)?;
    env.seed_config_maps("default", "b", 2)?;
    Ok(env)
}

async fn start_with_request_verdict(then: Value) -> anyhow::Result<TestEnv> {
    start_scripted(json!({ "onRequest": [{ "when": { "resource": "configmaps" }, "then": then }] })).await
}

async fn start_with_response_line(line: Value) -> anyhow::Result<TestEnv> {
    let mut line = line;
    line["when"] = json!({ "resource": "configmaps" });
    start_scripted(json!({ "onResponse": [line] })).await
}

async fn list_config_maps(env: &TestEnv) -> anyhow::Result<ReceivedResponse> {
    env.client().get("/api/v1/configmaps").await
}

/// The last request for config maps at the API server.
fn last_request(env: &TestEnv) -> ctrlmesh_testkit::RecordedRequest {
    env.api
        .requests()
        .recent()
        .into_iter()
        .rfind(|seen| seen.target.contains("configmaps"))
        .unwrap()
}

#[tokio::test]
async fn selectors_query_and_headers_are_edited() -> anyhow::Result<()> {
    let env = start_with_request_verdict(json!({ "proceed": [
        { "andLabelSelector": "shard=a" },
        { "andFieldSelector": "metadata.name!=a1" },
        { "setQuery": { "name": "limit", "value": "7" } },
        { "removeQuery": "pretty" },
        { "setHeader": { "name": "x-added", "value": "1" } },
        { "removeHeader": "x-gone" },
    ] }))
    .await?;
    let answer = env
        .client()
        .with_header("x-gone", "1")
        .get("/api/v1/configmaps?pretty=true")
        .await?;
    assert_eq!((answer.status, answer.names()), (200, vec!["a0".to_owned()]));
    let seen = last_request(&env);
    assert!(
        seen.target.contains("limit=7") && !seen.target.contains("pretty"),
        "{}",
        seen.target
    );
    assert_eq!(seen.headers["x-added"], "1");
    assert!(!seen.headers.contains_key("x-gone"));
    Ok(())
}

#[tokio::test]
async fn dry_run_of_a_delete_takes_effect_with_and_without_body() -> anyhow::Result<()> {
    let env = start_with_request_verdict(json!({ "proceed": [{ "setQuery": { "name": "dryRun", "value": "All" } }] }))
        .await?;
    let is_there = || {
        env.api
            .store()
            .read(|state| state.get("configmaps", "default", "a0").is_some())
    };
    let (one, all) = (
        "/api/v1/namespaces/default/configmaps/a0",
        "/api/v1/namespaces/default/configmaps",
    );
    let client = env.client().with_header("content-type", "application/json");
    for target in [one, all] {
        for body in [
            "",
            "{}",
            r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"dryRun":[]}"#,
        ] {
            let answer = client.send(Method::DELETE, target, body).await?;
            assert_eq!(answer.status, 200, "{target} {body}");
            assert!(is_there(), "{target} {body}");
        }
    }
    let cbor = env.client().with_header("content-type", "application/cbor");
    assert_eq!(
        cbor.send(Method::DELETE, one, &b"\xd9\xd9\xf7\xa0"[..]).await?.status,
        415
    );
    assert!(is_there());
    Ok(())
}

#[tokio::test]
async fn ignored_query_edit_follows_the_failure_policy() -> anyhow::Result<()> {
    let ignored = json!({ "proceed": [{ "setQuery": { "name": "dryRun", "value": "All" } }] });
    let line = json!({ "when": { "resource": "configmaps" }, "then": ignored });
    let entry = guest_entry("scripted", json!({ "onRequest": [line] })).with_field("onFailure", "Closed".into());
    let env = TestEnv::start(vec![entry]).await?;
    let answer = list_config_maps(&env).await?;
    let message = answer.json()["message"].to_string();
    assert_eq!(answer.status, 500, "{message}");
    assert!(message.contains("set-query dryRun on list"), "{message}");
    Ok(())
}

#[tokio::test]
async fn object_is_renamed() -> anyhow::Result<()> {
    let env =
        start_with_request_verdict(json!({ "proceed": [{ "renameObject": { "from": "mine", "to": "a0" } }] })).await?;
    let answer = env.client().get("/api/v1/namespaces/default/configmaps/mine").await?;
    assert_eq!(
        (answer.status, answer.json()["metadata"]["name"].as_str()),
        (200, Some("mine"))
    );
    assert_eq!(last_request(&env).target, "/api/v1/namespaces/default/configmaps/a0");
    Ok(())
}

#[tokio::test]
async fn refusal_is_a_status_and_nothing_is_sent() -> anyhow::Result<()> {
    let refusal =
        json!({ "refuse": { "code": 429, "message": "slow down", "retryAfterSeconds": 3, "cause": "rule/x" } });
    let env = start_with_request_verdict(refusal).await?;
    let answer = list_config_maps(&env).await?;
    assert_eq!((answer.status, answer.headers["retry-after"].to_str()?), (429, "3"));
    let status = answer.json();
    assert_eq!(
        (&status["kind"], &status["reason"], &status["message"]),
        (&"Status".into(), &"TooManyRequests".into(), &"slow down".into())
    );
    assert_eq!(status["details"]["causes"][0]["message"], "rule/x");
    assert_eq!(env.api.requests().count("list"), 0);
    let protobuf = env
        .client()
        .with_header("accept", "application/vnd.kubernetes.protobuf")
        .get("/api/v1/configmaps")
        .await?;
    assert!(protobuf.body.starts_with(b"k8s\0"));
    Ok(())
}

#[tokio::test]
async fn delay_precedes_the_action() -> anyhow::Result<()> {
    let line = json!({ "delayMs": 80, "then": { "proceed": [] } });
    let env = start_scripted(
        json!({ "onRequest": [line.clone()], "onResponse": [{ "delayMs": 80, "then": { "proceed": {} } }] }),
    )
    .await?;
    let start = std::time::Instant::now();
    assert_eq!(list_config_maps(&env).await?.status, 200);
    assert!(start.elapsed().as_millis() >= 160, "{:?}", start.elapsed());
    Ok(())
}

#[tokio::test]
async fn reset_reaches_the_client_as_asked() -> anyhow::Result<()> {
    for (how, reason) in [("cancel", "no longer needed"), ("internal-error", "internal error")] {
        let env = start_with_request_verdict(json!({ "reset": how })).await?;
        let client = Client::http2(env.sidecar.api_address());
        let error = format!("{:?}", client.get("/api/v1/configmaps").await.unwrap_err());
        assert!(error.contains(reason), "{how}: {error}");
        assert_eq!(env.api.requests().count("list"), 0);
        assert!(
            list_config_maps(&env).await.is_err(),
            "HTTP/1.1 has no streams: the connection ends"
        );
    }
    let env = start_with_request_verdict(json!({ "reset": "close" })).await?;
    assert!(
        Client::http2(env.sidecar.api_address())
            .get("/api/v1/configmaps")
            .await
            .is_err()
    );
    Ok(())
}

#[tokio::test]
async fn response_head_is_edited() -> anyhow::Result<()> {
    let edits = json!([{ "setHeader": { "name": "x-shard", "value": "a" } }, { "removeHeader": "content-type" }]);
    let env = start_with_response_line(json!({ "status": 200, "then": { "proceed": { "edits": edits } } })).await?;
    let answer = list_config_maps(&env).await?;
    assert_eq!((answer.status, answer.headers["x-shard"].to_str()?), (200, "a"));
    assert!(!answer.headers.contains_key("content-type"));
    assert_eq!(answer.names().len(), 4);
    Ok(())
}

#[tokio::test]
async fn response_is_replaced_or_lost_after_execution() -> anyhow::Result<()> {
    let env = start_with_response_line(json!({ "then": { "replace": { "code": 504, "message": "lost" } } })).await?;
    let answer = list_config_maps(&env).await?;
    assert_eq!((answer.status, answer.json()["message"].as_str()), (504, Some("lost")));
    assert_eq!(env.api.requests().count("list"), 1, "it was executed");
    let env = start_with_response_line(json!({ "then": { "reset": "internal-error" } })).await?;
    let error = Client::http2(env.sidecar.api_address())
        .get("/api/v1/configmaps")
        .await
        .unwrap_err();
    assert!(format!("{error:?}").contains("internal error"), "{error:?}");
    assert_eq!(env.api.requests().count("list"), 1);
    Ok(())
}

#[tokio::test]
async fn body_is_held_paced_and_cut() -> anyhow::Result<()> {
    let shape = |body: Value| start_with_response_line(json!({ "then": { "proceed": { "body": body } } }));
    let start = std::time::Instant::now();
    let env = shape(json!({ "holdMs": 120 })).await?;
    let asked = std::time::Instant::now();
    assert_eq!(list_config_maps(&env).await?.names().len(), 4);
    assert!(asked.elapsed().as_millis() >= 120 && start.elapsed() > asked.elapsed());
    let env = shape(json!({ "cutAfter": 10, "reset": "internal-error" })).await?;
    let error = Client::http2(env.sidecar.api_address())
        .get("/api/v1/configmaps")
        .await
        .unwrap_err();
    assert!(format!("{error:?}").contains("internal error"), "{error:?}");
    let mut stream = env.client().open_stream("/api/v1/configmaps").await?;
    assert_eq!(stream.next().await?.map(|bytes| bytes.len()), Some(10));
    assert!(stream.next().await.is_err(), "a short body never looks whole");
    let env = shape(json!({ "pace": 20_000 })).await?;
    assert_eq!(list_config_maps(&env).await?.names().len(), 4);
    Ok(())
}

#[tokio::test]
async fn watch_is_ended_with_or_without_expired() -> anyhow::Result<()> {
    for expired in [true, false] {
        let body = json!({ "endAfterMs": 50, "expired": expired });
        let env = start_with_response_line(json!({ "then": { "proceed": { "body": body } } })).await?;
        let list = env.client().get("/api/v1/secrets").await?.json();
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let mut watch = env
            .client()
            .open_stream(&format!("/api/v1/configmaps?watch=1&resourceVersion={version}"))
            .await?;
        let first = watch.next().await?;
        if expired {
            let event: Value = serde_json::from_slice(&first.unwrap())?;
            assert_eq!(event["object"]["code"], 410, "{event}");
        } else {
            assert_eq!(first, None);
        }
    }
    Ok(())
}

#[tokio::test]
async fn plugin_sees_facts_but_never_credentials() -> anyhow::Result<()> {
    let env = start_scripted(json!({ "onResponse": [{ "echo": "authorization", "then": { "proceed": {} } }] })).await?;
    let client = env
        .client()
        .with_header("authorization", "Bearer secret")
        .with_header("user-agent", "manager/1");
    let answer = client
        .get("/api/v1/namespaces/default/configmaps/a0?labelSelector=x%3D1")
        .await?;
    let text = format!("{:?}", answer.headers);
    assert!(!text.contains("secret"), "{text}");
    for (name, value) in [
        ("verb", "get"),
        ("resource", "configmaps"),
        ("namespace", "default"),
        ("name", "a0"),
    ] {
        let found = answer
            .headers
            .iter()
            .any(|(header, text)| header.as_str().ends_with(name) && text == value);
        assert!(found, "{name}={value} in {text}");
    }
    Ok(())
}

#[tokio::test]
async fn rule_for_user_agents_leaves_others_alone() -> anyhow::Result<()> {
    let env = start_scripted(json!({
        "subscribe": [{ "traffic": ["api"], "userAgents": ["manager/*"] }],
        "onRequest": [{ "then": { "proceed": [{ "andLabelSelector": "shard=a" }] } }],
    }))
    .await?;
    let calls = r#"ctrlmesh_plugin_calls_total{entry="scripted/test",phase="request"}"#;
    let mut called = 0.0;
    for (agent, names, is_called) in [
        ("manager/v1 (linux/amd64)", ["a0", "a1"].as_slice(), true),
        ("kubectl/v1", &["a0", "a1", "b0", "b1"], false),
        ("the manager/v1", &["a0", "a1", "b0", "b1"], false),
    ] {
        let answer = env
            .client()
            .with_header("user-agent", agent)
            .get("/api/v1/configmaps")
            .await?;
        assert_eq!(
            (answer.status, answer.names()),
            (200, names.iter().map(ToString::to_string).collect()),
            "{agent}"
        );
        called += f64::from(u8::from(is_called));
        assert_eq!(env.sidecar.metric_value(calls).await?, called, "{agent}");
    }
    Ok(())
}
