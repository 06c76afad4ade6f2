//! Watches: streamed event by event, and ended when a new chain changes their view.

use ctrlmesh_contract::status::EntryState;
use ctrlmesh_tests::{Client, TestEnv, config_map, shard_entry, wait_until};

const WATCH: &str = "/api/v1/configmaps?watch=1&resourceVersion=";

/// Lists and watches like a reflector.
async fn list_and_watch(env: &TestEnv, client: &Client) -> anyhow::Result<ctrlmesh_tests::client::Stream> {
    let list = client.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let stream = client.open_stream(&format!("{WATCH}{version}")).await?;
    assert_eq!(stream.head.status, 200, "{}", env.sidecar.log());
    Ok(stream)
}

#[tokio::test]
async fn event_is_sent_when_it_happens() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    for client in [env.client(), Client::http2(env.sidecar.api_address())] {
        let mut watch = list_and_watch(&env, &client).await?;
        env.api.store().put(config_map("default", "foreign", "b"))?;
        env.api.store().put(config_map("default", "mine", "a"))?;
        let event = watch.next_event().await?;
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&"ADDED".into(), &"mine".into())
        );
        env.api.store().delete("configmaps", "default", "mine")?;
        assert_eq!(watch.next_event().await?["type"], "DELETED");
        env.api.store().delete("configmaps", "default", "foreign")?;
    }
    Ok(())
}

#[tokio::test]
async fn changed_selector_expires_the_watch() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.seed_config_maps("default", "a", 2)?;
    env.seed_config_maps("default", "b", 3)?;
    let client = env.client();
    let mut watch = list_and_watch(&env, &client).await?;
    env.publish(vec![shard_entry("b")]).await?;
    let event = watch.next_event().await?;
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&"ERROR".into(), &410.into())
    );
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(watch.next().await?, None, "a clean end");
    assert_eq!(client.get("/api/v1/configmaps").await?.names(), ["b0", "b1", "b2"]);
    assert_eq!(env.sidecar.metric_value("ctrlmesh_watches_expired_total").await?, 1.0);
    Ok(())
}

#[tokio::test]
async fn unshaped_watch_ends_when_a_rule_is_added() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![]).await?;
    let mut watch = list_and_watch(&env, &env.client()).await?;
    env.publish(vec![shard_entry("a")]).await?;
    assert_eq!(watch.next_event().await?["object"]["code"], 410);
    Ok(())
}

#[tokio::test]
async fn new_plugin_binary_with_same_decision_keeps_watches_open() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let mut watch = list_and_watch(&env, &env.client()).await?;
    let next = ctrlmesh_tests::EntrySpec::new(
        "shard-selector/test",
        ctrlmesh_plugins_builtin::samples::SHARD_SELECTOR_NEXT,
    );
    let settings = serde_json::json!({
        "shard": "a", "leaderElectionName": "lock",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
            "selector": { "matchLabels": { "shard": "a" } },
        }],
    });
    env.publish(vec![next.with_settings(settings)]).await?;
    wait_until("the watch was asked again", || async {
        Ok(env.sidecar.metric_value("ctrlmesh_rechecks_total").await? >= 1.0)
    })
    .await?;
    env.api.store().put(config_map("default", "after", "a"))?;
    let event = watch.next_event().await?;
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&"ADDED".into(), &"after".into())
    );
    let status = env.sidecar.status().await?;
    assert_eq!(status.chain.entries[0].state, EntryState::Active);
    Ok(())
}

#[tokio::test]
async fn watch_or_page_of_another_view_is_answered_410() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.seed_config_maps("default", "a", 2)?;
    env.seed_config_maps("default", "b", 2)?;
    let client = env.client().with_header("user-agent", "manager/1");
    let page = client.get("/api/v1/configmaps?limit=1").await?.json();
    let version = page["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    env.publish(vec![shard_entry("b")]).await?;
    let watch = client.get(&format!("{WATCH}{version}")).await?;
    assert_eq!(
        (watch.status, watch.json()["reason"].as_str()),
        (410, Some("Expired")),
        "listed under the old rule"
    );
    let page = client
        .get(&format!("/api/v1/configmaps?limit=1&continue={token}"))
        .await?;
    assert_eq!((page.status, page.json()["reason"].as_str()), (410, Some("Expired")));
    let mut watch = list_and_watch(&env, &client).await?;
    env.api.store().put(config_map("default", "fresh", "b"))?;
    assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "fresh");
    Ok(())
}

/// The second list is from another part of the program, which has not begun its watch when the shard changes. One thread gets both lists, so
/// that it narrows the second one as it did the first.
#[tokio::test]
async fn watch_from_repeated_list_of_another_view_is_answered_410() -> anyhow::Result<()> {
    let mut env = TestEnv::start_with(vec![shard_entry("a")], &["--workers", "1"]).await?;
    env.seed_config_maps("default", "a", 2)?;
    let client = env.client();
    let mut watch = list_and_watch(&env, &client).await?;
    let repeated = client.get("/api/v1/configmaps").await?.json();
    let version = repeated["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    env.publish(vec![shard_entry("b")]).await?;
    assert_eq!(watch.next_event().await?["object"]["code"], 410);
    assert_eq!(client.get("/api/v1/configmaps").await?.status, 200);
    let late = client.open_stream(&format!("{WATCH}{version}")).await?;
    assert_eq!(late.head.status, 410, "listed under the old rule");
    Ok(())
}

#[tokio::test]
async fn upstream_watch_ends_when_the_client_goes_away() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let watch = list_and_watch(&env, &Client::http2(env.sidecar.api_address())).await?;
    env.api.wait_until(|activity| activity.watches == 1).await?;
    drop(watch);
    env.api.wait_until(|activity| activity.watches == 0).await?;
    let watch = list_and_watch(&env, &env.client()).await?;
    env.api.wait_until(|activity| activity.watches == 1).await?;
    drop(watch);
    env.api.wait_until(|activity| activity.watches == 0).await?;
    Ok(())
}

#[tokio::test]
async fn many_watches_do_not_delay_an_ordinary_request() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    let client = env.client();
    let mut watches = Vec::new();
    for _ in 0..150 {
        watches.push(list_and_watch(&env, &client).await?);
    }
    env.api.wait_until(|activity| activity.watches == 150).await?;
    assert_eq!(client.get("/api/v1/namespaces/default/configmaps").await?.status, 200);
    env.api.store().put(config_map("default", "all", "a"))?;
    for watch in &mut watches {
        assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "all");
    }
    Ok(())
}
