//! The real rate-limit plugin: which rules a request meets, what it costs, and what a client is told.

use ctrlmesh_tests::{Answer, Client, NAMESPACE, Stand, Target};
use ctrlmesh_wire::Status;
use http::Method;
use serde_json::{Value, json};

use crate::limits::{LIST, limiter, maps};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";

fn in_namespace(namespace: &str) -> Value {
    json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"], "namespaces": [namespace] }])
}

/// So many tokens, and no more while a test runs.
pub(crate) fn tokens(burst: u32) -> Value {
    json!({ "limit": 1, "interval": "24h", "burst": burst })
}

/// How many of `tries` requests are granted.
pub(crate) async fn granted(client: &Client, path: &str, tries: usize) -> anyhow::Result<usize> {
    let mut granted = 0;
    for _ in 0..tries {
        match client.get(path).await?.status {
            200 => granted += 1,
            status => assert_eq!(status, 429, "{path}"),
        }
    }
    Ok(granted)
}

fn of(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

#[tokio::test]
async fn every_rule_must_grant_and_a_refused_request_costs_none() -> anyhow::Result<()> {
    let narrow = json!({ "name": "narrow", "resourceRules": in_namespace("a"), "bucket": tokens(1) });
    let wide = json!({ "name": "wide", "resourceRules": maps(), "bucket": tokens(4) });
    let places = json!({ "name": "places", "resourceRules": in_namespace("*"), "maxInFlight": 1 });
    for rules in [
        json!([narrow, wide, places]),
        json!([places, wide, narrow]),
        json!([wide, places, narrow]),
    ] {
        let stand = Stand::start(vec![limiter(rules.clone())]).await?;
        let client = stand.client();
        assert_eq!(granted(&client, &of("a"), 10).await?, 1, "{rules}");
        let refused = client.get(&of("a")).await?;
        assert_eq!(refused.json()["details"]["causes"][0]["message"], "narrow", "{rules}");
        assert_eq!(granted(&client, &of("b"), 10).await?, 3, "{rules}");
        let refused = client.get(&of("b")).await?;
        assert_eq!(refused.json()["details"]["causes"][0]["message"], "wide", "{rules}");
        assert_eq!(stand.api.requests().count("list"), 4);
    }
    Ok(())
}

#[tokio::test]
async fn each_key_has_a_limit_of_its_own() -> anyhow::Result<()> {
    let all = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*", ""] }]);
    for (key, apart, together) in [
        (
            "namespace",
            [of("a"), of("b")],
            [of("a"), "/api/v1/namespaces/a/secrets".into()],
        ),
        ("resource", [LIST.into(), "/api/v1/secrets".into()], [of("a"), of("b")]),
        (
            "sidecar",
            [String::new(), String::new()],
            [of("a"), "/api/v1/secrets".into()],
        ),
    ] {
        let rule = json!({ "name": "keyed", "resourceRules": all, "bucket": tokens(2), "key": key });
        let stand = Stand::start(vec![limiter(json!([rule]))]).await?;
        let client = stand.client();
        for path in apart.iter().filter(|path| !path.is_empty()) {
            assert_eq!(granted(&client, path, 3).await?, 2, "{key}: {path}");
        }
        let stand = Stand::start(vec![limiter(json!([rule]))]).await?;
        let client = stand.client();
        assert_eq!(granted(&client, &together[0], 1).await?, 1, "{key}");
        assert_eq!(granted(&client, &together[1], 3).await?, 1, "{key}: they share");
    }
    let rule = json!({ "name": "keyed", "resourceRules": maps(), "bucket": tokens(2), "key": "userAgent" });
    let stand = Stand::start(vec![limiter(json!([rule]))]).await?;
    for agent in ["one/1", "two/1"] {
        let client = stand.client().with("user-agent", agent);
        assert_eq!(granted(&client, LIST, 3).await?, 2, "{agent}");
    }
    Ok(())
}

fn retry_after(answer: &Answer) -> u64 {
    answer.headers["retry-after"].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_refusal_names_its_rule_and_says_when_in_json_and_in_protobuf() -> anyhow::Result<()> {
    let bucket = json!({ "limit": 1, "interval": "100s", "burst": 1 });
    let rule = json!({ "name": "writes", "resourceRules": maps(), "bucket": bucket });
    let stand = Stand::start(vec![limiter(json!([rule]))]).await?;
    assert_eq!(stand.client().get(LIST).await?.status, 200);
    for client in [stand.client(), Client::http2(stand.sidecar.api())] {
        let answer = client.get(LIST).await?;
        let (status, seconds) = (answer.json(), retry_after(&answer));
        // Up to a fifth more at random, and the bucket fills while the test runs.
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
            .with("accept", "application/vnd.kubernetes.protobuf")
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
async fn the_lock_is_limited_only_where_a_rule_names_it() -> anyhow::Result<()> {
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
        let rule = json!({ "name": "all", "resourceRules": resources, "bucket": tokens(1) });
        let stand = Stand::around(api, vec![limiter(json!([rule]))], &[]).await?;
        let client = stand.client().with("content-type", "application/json");
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
async fn calls_to_other_services_are_limited_by_host() -> anyhow::Result<()> {
    let rule = json!({
        "name": "cloud", "restRules": [{ "url": "*", "method": "GET" }], "bucket": tokens(2), "key": "host",
    });
    let (stand, client) = crate::external::stand(vec![limiter(json!([rule]))], &[]).await?;
    let targets = [Target::plain().await?, Target::plain().await?];
    for target in &targets {
        let url = format!("http://127.0.0.1:{}/p", target.port());
        assert_eq!(granted(&client, &url, 2).await?, 2);
        let headed = client.clone().with("mesh-real-endpoint", &url).get("/").await?;
        assert_eq!(
            (headed.status, headed.json()["reason"].as_str()),
            (429, Some("TooManyRequests"))
        );
        assert_eq!(client.send(Method::POST, &url, "").await?.status, 200, "another method");
        assert_eq!(target.arrived().len(), 3);
    }
    assert_eq!(stand.client().get(LIST).await?.status, 200, "not its traffic");
    Ok(())
}

#[tokio::test]
async fn cb_04_urls_have_wildcards_for_their_path() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", target.port());
    let rule = json!({
        "name": "writes", "restRules": [{ "url": url("/v1/*"), "method": "post" }], "bucket": tokens(1),
    });
    let (_stand, client) = crate::external::stand(vec![limiter(json!([rule]))], &[]).await?;
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
