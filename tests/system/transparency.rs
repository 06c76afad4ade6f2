//! Requests and responses pass unchanged when no entry matches them.

use ctrlmesh_testkit::{ApiServer, Fault, Rule};
use ctrlmesh_tests::{Client, TestEnv, config_map};
use http::{HeaderMap, Method};

#[tokio::test]
async fn responses_have_the_bytes_of_the_api_server() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    env.seed_config_maps("default", "a", 3)?;
    let direct = Client::http1(env.api.address());
    for target in [
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/configmaps/a0",
        "/api/v1/configmaps?limit=2&labelSelector=shard%3Da",
        "/api/v1/namespaces/default/configmaps/missing",
        "/apis",
        "/version",
        "/nothing",
    ] {
        let expected = direct.get(target).await?;
        for client in [env.client(), Client::http2(env.sidecar.api_address())] {
            let answer = client.get(target).await?;
            assert_eq!(answer.status, expected.status, "{target}");
            assert_eq!(
                without_date(answer.headers),
                without_date(expected.headers.clone()),
                "{target}"
            );
            assert_eq!(answer.body, expected.body, "{target}");
        }
    }
    Ok(())
}

/// Headers without those that differ between responses of the same server.
fn without_date(mut headers: HeaderMap) -> HeaderMap {
    headers.remove("date");
    headers.remove("audit-id");
    // HTTP/2 needs no length; both forms are the same message.
    headers.remove("content-length");
    headers.remove("transfer-encoding");
    headers
}

#[tokio::test]
async fn credentials_and_user_agent_are_added_only_when_missing() -> anyhow::Result<()> {
    let api = ApiServer::builder().token("sidecars-own").start().await?;
    let env = TestEnv::start_around(api, vec![], &[]).await?;
    env.api.faults().require_tokens(["sidecars-own", "controllers-own"]);
    let answer = env.client().get("/api/v1/configmaps").await?;
    assert_eq!(answer.status, 200, "the sidecar's own token");
    let own = env
        .client()
        .with_header("authorization", "Bearer controllers-own")
        .with_header("user-agent", "manager/1");
    assert_eq!(own.get("/api/v1/configmaps").await?.status, 200);
    let wrong = env.client().with_header("authorization", "Bearer wrong");
    assert_eq!(
        wrong.get("/api/v1/configmaps").await?.status,
        401,
        "a bad token is not replaced by a good one"
    );
    let seen = env.api.requests().recent();
    let field = |place: usize, name: &str| {
        seen[place]
            .headers
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    let lists: Vec<usize> = (0..seen.len())
        .filter(|place| seen[*place].target.starts_with("/api/v1/configmaps"))
        .collect();
    assert_eq!(field(lists[0], "authorization").as_deref(), Some("Bearer sidecars-own"));
    assert!(field(lists[0], "user-agent").unwrap().starts_with("ctrlmesh-proxy/"));
    assert_eq!(
        field(lists[1], "authorization").as_deref(),
        Some("Bearer controllers-own")
    );
    assert_eq!(field(lists[1], "user-agent").as_deref(), Some("manager/1"));
    Ok(())
}

#[tokio::test]
async fn end_to_end_headers_pass_in_order_and_hop_by_hop_headers_do_not() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let client = env
        .client()
        .with_header("impersonate-user", "jane")
        .with_header("impersonate-group", "b")
        .with_header("impersonate-group", "a")
        .with_header("impersonate-extra-scopes", "x")
        .with_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .with_header("connection", "keep-alive")
        .with_header("keep-alive", "timeout=5");
    client.get("/api/v1/configmaps").await?;
    let seen = env.api.requests().recent();
    let headers = &seen
        .iter()
        .find(|seen| seen.target == "/api/v1/configmaps")
        .unwrap()
        .headers;
    let groups: Vec<_> = headers.get_all("impersonate-group").iter().collect();
    assert_eq!(groups, ["b", "a"]);
    assert_eq!(headers["impersonate-user"], "jane");
    assert_eq!(headers["impersonate-extra-scopes"], "x");
    assert!(headers.contains_key("traceparent"));
    assert!(!headers.contains_key("keep-alive"));
    Ok(())
}

#[tokio::test]
async fn writes_pass_with_their_bodies() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let client = env.client().with_header("content-type", "application/json");
    let body = serde_json::to_vec(&config_map("default", "new", "a"))?;
    let answer = client
        .send(Method::POST, "/api/v1/namespaces/default/configmaps", body)
        .await?;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    assert!(
        env.api
            .store()
            .read(|state| state.get("configmaps", "default", "new").is_some())
    );
    let again = serde_json::to_vec(&config_map("default", "new", "a"))?;
    let conflict = client
        .send(Method::POST, "/api/v1/namespaces/default/configmaps", again)
        .await?;
    assert_eq!(
        (conflict.status, conflict.json()["reason"].as_str()),
        (409, Some("AlreadyExists"))
    );
    let gone = client
        .send(Method::DELETE, "/api/v1/namespaces/default/configmaps/new", "")
        .await?;
    assert_eq!(gone.status, 200);
    Ok(())
}

#[tokio::test]
async fn response_trailers_reach_client() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let trailers: HeaderMap = [("x-checksum".parse()?, "1".parse()?)].into_iter().collect();
    env.api
        .faults()
        .add(Rule::new(Fault::Trailers(trailers.clone())).verb("list"));
    let answer = Client::http2(env.sidecar.api_address())
        .get("/api/v1/configmaps")
        .await?;
    assert_eq!(answer.trailers, Some(trailers));
    Ok(())
}

#[tokio::test]
async fn interim_response_does_not_disturb_the_final_one() -> anyhow::Result<()> {
    let api = ApiServer::builder().alpn(&["http/1.1"]).start().await?;
    let env = TestEnv::start_around(api, vec![], &[]).await?;
    env.api.faults().add(Rule::new(Fault::EarlyHints).verb("list"));
    assert_eq!(env.client().get("/api/v1/configmaps").await?.status, 200);
    let body = serde_json::to_vec(&config_map("default", "new", "a"))?;
    let client = env
        .client()
        .with_header("content-type", "application/json")
        .with_header("expect", "100-continue");
    assert_eq!(
        client
            .send(Method::POST, "/api/v1/namespaces/default/configmaps", body)
            .await?
            .status,
        201
    );
    Ok(())
}
