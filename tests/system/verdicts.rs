//! Every verdict and edit of the plugin interface, said by the guest `scripted`, seen by a client.

use ctrlmesh_tests::{Answer, Client, Stand, guest};
use http::Method;
use serde_json::{Value, json};

async fn scripted(script: Value) -> anyhow::Result<Stand> {
    let stand = Stand::start(vec![guest("scripted", script)]).await?;
    stand.seed("default", "a", 2)?;
    stand.seed("default", "b", 2)?;
    Ok(stand)
}

async fn on_request(then: Value) -> anyhow::Result<Stand> {
    scripted(json!({ "onRequest": [{ "when": { "resource": "configmaps" }, "then": then }] })).await
}

async fn on_response(line: Value) -> anyhow::Result<Stand> {
    let mut line = line;
    line["when"] = json!({ "resource": "configmaps" });
    scripted(json!({ "onResponse": [line] })).await
}

async fn list(stand: &Stand) -> anyhow::Result<Answer> {
    stand.client().get("/api/v1/configmaps").await
}

/// What the API server was sent last for config maps.
fn seen(stand: &Stand) -> ctrlmesh_testkit::Seen {
    stand
        .api
        .requests()
        .all()
        .into_iter()
        .rfind(|seen| seen.target.contains("configmaps"))
        .unwrap()
}

#[tokio::test]
async fn selectors_query_and_headers_are_edited() -> anyhow::Result<()> {
    let stand = on_request(json!({ "proceed": [
        { "andLabelSelector": "shard=a" },
        { "andFieldSelector": "metadata.name!=a1" },
        { "setQuery": { "name": "limit", "value": "7" } },
        { "removeQuery": "pretty" },
        { "setHeader": { "name": "x-added", "value": "1" } },
        { "removeHeader": "x-gone" },
    ] }))
    .await?;
    let answer = stand
        .client()
        .with("x-gone", "1")
        .get("/api/v1/configmaps?pretty=true")
        .await?;
    assert_eq!((answer.status, answer.names()), (200, vec!["a0".to_owned()]));
    let seen = seen(&stand);
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
async fn dry_run_of_a_delete_takes_effect_whether_it_has_a_body_or_not() -> anyhow::Result<()> {
    let stand = on_request(json!({ "proceed": [{ "setQuery": { "name": "dryRun", "value": "All" } }] })).await?;
    let is_there = || {
        stand
            .api
            .store()
            .read(|state| state.get("configmaps", "default", "a0").is_some())
    };
    let (one, all) = (
        "/api/v1/namespaces/default/configmaps/a0",
        "/api/v1/namespaces/default/configmaps",
    );
    let client = stand.client().with("content-type", "application/json");
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
    let cbor = stand.client().with("content-type", "application/cbor");
    assert_eq!(
        cbor.send(Method::DELETE, one, &b"\xd9\xd9\xf7\xa0"[..]).await?.status,
        415
    );
    assert!(is_there());
    Ok(())
}

#[tokio::test]
async fn query_edit_that_the_api_server_ignores_follows_the_failure_policy() -> anyhow::Result<()> {
    let ignored = json!({ "proceed": [{ "setQuery": { "name": "dryRun", "value": "All" } }] });
    let line = json!({ "when": { "resource": "configmaps" }, "then": ignored });
    let entry = guest("scripted", json!({ "onRequest": [line] })).set("onFailure", "Closed".into());
    let stand = Stand::start(vec![entry]).await?;
    let answer = list(&stand).await?;
    let message = answer.json()["message"].to_string();
    assert_eq!(answer.status, 500, "{message}");
    assert!(message.contains("set-query dryRun on list"), "{message}");
    Ok(())
}

#[tokio::test]
async fn an_object_is_called_by_another_name() -> anyhow::Result<()> {
    let stand = on_request(json!({ "proceed": [{ "renameObject": { "from": "mine", "to": "a0" } }] })).await?;
    let answer = stand.client().get("/api/v1/namespaces/default/configmaps/mine").await?;
    assert_eq!(
        (answer.status, answer.json()["metadata"]["name"].as_str()),
        (200, Some("mine"))
    );
    assert_eq!(seen(&stand).target, "/api/v1/namespaces/default/configmaps/a0");
    Ok(())
}

#[tokio::test]
async fn a_refusal_is_a_status_and_nothing_is_sent() -> anyhow::Result<()> {
    let refusal =
        json!({ "refuse": { "code": 429, "message": "slow down", "retryAfterSeconds": 3, "cause": "rule/x" } });
    let stand = on_request(refusal).await?;
    let answer = list(&stand).await?;
    assert_eq!((answer.status, answer.headers["retry-after"].to_str()?), (429, "3"));
    let status = answer.json();
    assert_eq!(
        (&status["kind"], &status["reason"], &status["message"]),
        (&"Status".into(), &"TooManyRequests".into(), &"slow down".into())
    );
    assert_eq!(status["details"]["causes"][0]["message"], "rule/x");
    assert_eq!(stand.api.requests().count("list"), 0);
    let protobuf = stand
        .client()
        .with("accept", "application/vnd.kubernetes.protobuf")
        .get("/api/v1/configmaps")
        .await?;
    assert!(protobuf.body.starts_with(b"k8s\0"));
    Ok(())
}

#[tokio::test]
async fn a_delay_comes_before_the_action() -> anyhow::Result<()> {
    let line = json!({ "delayMs": 80, "then": { "proceed": [] } });
    let stand =
        scripted(json!({ "onRequest": [line.clone()], "onResponse": [{ "delayMs": 80, "then": { "proceed": {} } }] }))
            .await?;
    let start = std::time::Instant::now();
    assert_eq!(list(&stand).await?.status, 200);
    assert!(start.elapsed().as_millis() >= 160, "{:?}", start.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_reset_reaches_the_client_as_asked() -> anyhow::Result<()> {
    for (how, reason) in [("cancel", "no longer needed"), ("internal-error", "internal error")] {
        let stand = on_request(json!({ "reset": how })).await?;
        let client = Client::http2(stand.sidecar.api());
        let error = format!("{:?}", client.get("/api/v1/configmaps").await.unwrap_err());
        assert!(error.contains(reason), "{how}: {error}");
        assert_eq!(stand.api.requests().count("list"), 0);
        assert!(
            list(&stand).await.is_err(),
            "HTTP/1.1 has no streams: the connection ends"
        );
    }
    let stand = on_request(json!({ "reset": "close" })).await?;
    assert!(
        Client::http2(stand.sidecar.api())
            .get("/api/v1/configmaps")
            .await
            .is_err()
    );
    Ok(())
}

#[tokio::test]
async fn a_response_head_is_edited() -> anyhow::Result<()> {
    let edits = json!([{ "setHeader": { "name": "x-shard", "value": "a" } }, { "removeHeader": "content-type" }]);
    let stand = on_response(json!({ "status": 200, "then": { "proceed": { "edits": edits } } })).await?;
    let answer = list(&stand).await?;
    assert_eq!((answer.status, answer.headers["x-shard"].to_str()?), (200, "a"));
    assert!(!answer.headers.contains_key("content-type"));
    assert_eq!(answer.names().len(), 4);
    Ok(())
}

#[tokio::test]
async fn a_response_is_replaced_or_lost_after_it_was_executed() -> anyhow::Result<()> {
    let stand = on_response(json!({ "then": { "replace": { "code": 504, "message": "lost" } } })).await?;
    let answer = list(&stand).await?;
    assert_eq!((answer.status, answer.json()["message"].as_str()), (504, Some("lost")));
    assert_eq!(stand.api.requests().count("list"), 1, "it was executed");
    let stand = on_response(json!({ "then": { "reset": "internal-error" } })).await?;
    let error = Client::http2(stand.sidecar.api())
        .get("/api/v1/configmaps")
        .await
        .unwrap_err();
    assert!(format!("{error:?}").contains("internal error"), "{error:?}");
    assert_eq!(stand.api.requests().count("list"), 1);
    Ok(())
}

#[tokio::test]
async fn a_body_is_held_paced_and_cut() -> anyhow::Result<()> {
    let shape = |body: Value| on_response(json!({ "then": { "proceed": { "body": body } } }));
    let start = std::time::Instant::now();
    let stand = shape(json!({ "holdMs": 120 })).await?;
    let asked = std::time::Instant::now();
    assert_eq!(list(&stand).await?.names().len(), 4);
    assert!(asked.elapsed().as_millis() >= 120 && start.elapsed() > asked.elapsed());
    let stand = shape(json!({ "cutAfter": 10, "reset": "internal-error" })).await?;
    let error = Client::http2(stand.sidecar.api())
        .get("/api/v1/configmaps")
        .await
        .unwrap_err();
    assert!(format!("{error:?}").contains("internal error"), "{error:?}");
    let mut stream = stand.client().stream("/api/v1/configmaps").await?;
    assert_eq!(stream.next().await?.map(|bytes| bytes.len()), Some(10));
    assert!(stream.next().await.is_err(), "a short body never looks whole");
    let stand = shape(json!({ "pace": 20_000 })).await?;
    assert_eq!(list(&stand).await?.names().len(), 4);
    Ok(())
}

#[tokio::test]
async fn a_watch_is_ended_with_or_without_expired() -> anyhow::Result<()> {
    for expired in [true, false] {
        let body = json!({ "endAfterMs": 50, "expired": expired });
        let stand = on_response(json!({ "then": { "proceed": { "body": body } } })).await?;
        let list = stand.client().get("/api/v1/secrets").await?.json();
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let mut watch = stand
            .client()
            .stream(&format!("/api/v1/configmaps?watch=1&resourceVersion={version}"))
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
async fn a_plugin_is_shown_the_facts_and_never_the_credentials() -> anyhow::Result<()> {
    let stand = scripted(json!({ "onResponse": [{ "echo": "authorization", "then": { "proceed": {} } }] })).await?;
    let client = stand
        .client()
        .with("authorization", "Bearer secret")
        .with("user-agent", "manager/1");
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
async fn a_rule_for_user_agents_leaves_the_others_alone() -> anyhow::Result<()> {
    let stand = scripted(json!({
        "subscribe": [{ "traffic": ["api"], "userAgents": ["manager/*"] }],
        "onRequest": [{ "then": { "proceed": [{ "andLabelSelector": "shard=a" }] } }],
    }))
    .await?;
    let calls = r#"ctrlmesh_plugin_calls_total{entry="scripted/test",phase="request"}"#;
    let mut called = 0.0;
    for (agent, names, wanted) in [
        ("manager/v1 (linux/amd64)", ["a0", "a1"].as_slice(), true),
        ("kubectl/v1", &["a0", "a1", "b0", "b1"], false),
        ("the manager/v1", &["a0", "a1", "b0", "b1"], false),
    ] {
        let answer = stand
            .client()
            .with("user-agent", agent)
            .get("/api/v1/configmaps")
            .await?;
        assert_eq!(
            (answer.status, answer.names()),
            (200, names.iter().map(ToString::to_string).collect()),
            "{agent}"
        );
        called += f64::from(u8::from(wanted));
        assert_eq!(stand.sidecar.metric(calls).await?, called, "{agent}");
    }
    Ok(())
}
