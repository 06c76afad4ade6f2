//! The real rate-limit plugin: which rules match a request, what it costs, and what a client is told.

use ctrlmesh_tests::{Client, NAMESPACE, ReceivedResponse, Target, TestEnv};
use ctrlmesh_wire::Status;
use http::Method;
use serde_json::{Value, json};

use crate::limits::{LIST, limiter_entry, match_config_maps};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";

fn in_namespace(namespace: &str) -> Value {
    json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"], "namespaces": [namespace] }])
}

/// A bucket with this many tokens and no refill during a test.
pub(crate) fn bucket_of(burst: u32) -> Value {
    json!({ "limit": 1, "interval": "24h", "burst": burst })
}

/// Number of granted requests out of `tries`.
pub(crate) async fn count_granted(client: &Client, path: &str, tries: usize) -> anyhow::Result<usize> {
    let mut granted = 0;
    for _ in 0..tries {
        match client.get(path).await?.status {
            200 => granted += 1,
            status => assert_eq!(status, 429, "{path}"),
        }
    }
    Ok(granted)
}

fn config_maps_in(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

#[tokio::test]
async fn every_rule_must_grant_and_refused_request_costs_none() -> anyhow::Result<()> {
    let narrow = json!({ "name": "narrow", "resourceRules": in_namespace("a"), "bucket": bucket_of(1) });
    let wide = json!({ "name": "wide", "resourceRules": match_config_maps(), "bucket": bucket_of(4) });
    let places = json!({ "name": "places", "resourceRules": in_namespace("*"), "maxInFlight": 1 });
    for rules in [
        json!([narrow, wide, places]),
        json!([places, wide, narrow]),
        json!([wide, places, narrow]),
    ] {
        let env = TestEnv::start(vec![limiter_entry(rules.clone())]).await?;
        let client = env.client();
        assert_eq!(count_granted(&client, &config_maps_in("a"), 10).await?, 1, "{rules}");
        let refused = client.get(&config_maps_in("a")).await?;
        assert_eq!(refused.json()["details"]["causes"][0]["message"], "narrow", "{rules}");
        assert_eq!(count_granted(&client, &config_maps_in("b"), 10).await?, 3, "{rules}");
        let refused = client.get(&config_maps_in("b")).await?;
        assert_eq!(refused.json()["details"]["causes"][0]["message"], "wide", "{rules}");
        assert_eq!(env.api.requests().count("list"), 4);
    }
    Ok(())
}

#[tokio::test]
async fn each_key_has_its_own_limit() -> anyhow::Result<()> {
    let all = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*", ""] }]);
    for (key, apart, together) in [
        (
            "namespace",
            [config_maps_in("a"), config_maps_in("b")],
            [config_maps_in("a"), "/api/v1/namespaces/a/secrets".into()],
        ),
        (
            "resource",
            [LIST.into(), "/api/v1/secrets".into()],
            [config_maps_in("a"), config_maps_in("b")],
        ),
        (
            "sidecar",
            [String::new(), String::new()],
            [config_maps_in("a"), "/api/v1/secrets".into()],
        ),
    ] {
        let rule = json!({ "name": "keyed", "resourceRules": all, "bucket": bucket_of(2), "key": key });
        let env = TestEnv::start(vec![limiter_entry(json!([rule]))]).await?;
        let client = env.client();
        for path in apart.iter().filter(|path| !path.is_empty()) {
            assert_eq!(count_granted(&client, path, 3).await?, 2, "{key}: {path}");
        }
        let env = TestEnv::start(vec![limiter_entry(json!([rule]))]).await?;
        let client = env.client();
        assert_eq!(count_granted(&client, &together[0], 1).await?, 1, "{key}");
        assert_eq!(count_granted(&client, &together[1], 3).await?, 1, "{key}: they share");
    }
    let rule =
        json!({ "name": "keyed", "resourceRules": match_config_maps(), "bucket": bucket_of(2), "key": "userAgent" });
    let env = TestEnv::start(vec![limiter_entry(json!([rule]))]).await?;
    for agent in ["one/1", "two/1"] {
        let client = env.client().with_header("user-agent", agent);
        assert_eq!(count_granted(&client, LIST, 3).await?, 2, "{agent}");
    }
    Ok(())
}

fn retry_after(answer: &ReceivedResponse) -> u64 {
    answer.headers["retry-after"].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn refusal_names_rule_and_retry_time_in_json_and_protobuf() -> anyhow::Result<()> {
    let bucket = json!({ "limit": 1, "interval": "100s", "burst": 1 });
    let rule = json!({ "name": "writes", "resourceRules": match_config_maps(), "bucket": bucket });
    let env = TestEnv::start(vec![limiter_entry(json!([rule]))]).await?;
    assert_eq!(env.client().get(LIST).await?.status, 200);
    for client in [env.client(), Client::http2(env.sidecar.api_address())] {
        let answer = client.get(LIST).await?;
        let (status, seconds) = (answer.json(), retry_after(&answer));
        // Up to a fifth more at random, and the bucket refills during the test.
        assert!((60..=122).contains(&seconds), "{seconds}");
        let message = format!("rate limit \"writes\" is used up; try again in {seconds} s");
        let cause = &status["details"]["causes"][0];
        assert_eq!(answer.status, 429);
        assert_eq!(answer.headers["content-type"], "application/json");
        assert_eq!(
            (&status["kind"], &status["reason"], &status["code"]),
            (&"Status".into(), &"TooManyRequests".into(), &429.into())
        );
        assert_eq!(status["message"], message);
        assert_eq!(status["details"]["retryAfterSeconds"], seconds);
        assert_eq!(cause["message"], "writes", "{cause}");

        let protobuf = client
            .with_header("accept", "application/vnd.kubernetes.protobuf")
            .get(LIST)
            .await?;
        assert_eq!(protobuf.status, 429);
        assert_eq!(protobuf.headers["content-type"], "application/vnd.kubernetes.protobuf");
        let same = String::from_utf8(answer.body.to_vec())?
            .replace(&format!("in {seconds} s"), &format!("in {} s", retry_after(&protobuf)))
            .replace(
                &format!("\"retryAfterSeconds\":{seconds}"),
                &format!("\"retryAfterSeconds\":{}", retry_after(&protobuf)),
            );
        let same = Status::from_json(same.as_bytes()).expect("a Status");
        assert_eq!(protobuf.body, same.to_protobuf());
    }
    Ok(())
}

#[tokio::test]
async fn lock_is_limited_only_when_a_rule_names_it() -> anyhow::Result<()> {
    let every = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"] }]);
    let named = json!([{ "apiGroups": ["*"], "resources": ["leases"], "verbs": ["*"], "namespaces": ["*"] }]);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "lock", "namespace": NAMESPACE }, "spec": { "holderIdentity": "me" },
    });
    for (resources, renewed) in [(every, 200), (named, 429)] {
        let api = ctrlmesh_testkit::ApiServer::builder()
            .namespace(NAMESPACE)
            .start()
            .await?;
        let lease = api.store().put(lease.clone())?;
        let rule = json!({ "name": "all", "resourceRules": resources, "bucket": bucket_of(1) });
        let env = TestEnv::start_around(api, vec![limiter_entry(json!([rule]))], &[]).await?;
        let client = env.client().with_header("content-type", "application/json");
        let used = format!("{LEASES}?limit=1");
        client.get(if renewed == 200 { LIST } else { &used }).await?;
        let renewal = client
            .send(Method::PUT, &format!("{LEASES}/lock"), lease.to_string())
            .await?;
        assert_eq!(renewal.status, renewed, "{:?}", renewal.body);
        if renewed == 200 {
            assert_eq!(client.get(LIST).await?.status, 429, "what is no lock is limited");
        }
    }
    Ok(())
}

#[tokio::test]
async fn external_calls_are_limited_by_host() -> anyhow::Result<()> {
    let rule = json!({
        "name": "cloud", "restRules": [{ "url": "*", "method": "GET" }], "bucket": bucket_of(2), "key": "host",
    });
    let (env, client) = crate::external::start_env(vec![limiter_entry(json!([rule]))], &[]).await?;
    let targets = [Target::start_plain().await?, Target::start_plain().await?];
    for target in &targets {
        let url = format!("http://127.0.0.1:{}/p", target.port());
        assert_eq!(count_granted(&client, &url, 2).await?, 2);
        let headed = client.clone().with_header("mesh-real-endpoint", &url).get("/").await?;
        assert_eq!(
            (headed.status, headed.json()["reason"].as_str()),
            (429, Some("TooManyRequests"))
        );
        assert_eq!(client.send(Method::POST, &url, "").await?.status, 200, "another method");
        assert_eq!(target.arrived_requests().len(), 3);
    }
    assert_eq!(env.client().get(LIST).await?.status, 200, "not its traffic");
    Ok(())
}

#[tokio::test]
async fn cb_04_urls_have_path_wildcards() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", target.port());
    let rule = json!({
        "name": "writes", "restRules": [{ "url": url("/v1/*"), "method": "post" }], "bucket": bucket_of(1),
    });
    let (_stand, client) = crate::external::start_env(vec![limiter_entry(json!([rule]))], &[]).await?;
    let mut statuses = Vec::new();
    for (method, path) in [
        (Method::POST, "/v1/a"),
        (Method::POST, "/v1/b/c"),
        (Method::GET, "/v1/a"),
        (Method::POST, "/v2/a"),
    ] {
        statuses.push(client.send(method, &url(path), "").await?.status);
    }
    assert_eq!(statuses, [200, 429, 200, 200]);
    Ok(())
}
