//! Watches: event by event, and ended when a new chain shows them something else.

use ctrlmesh_contract::status::EntryState;
use ctrlmesh_tests::{Client, Stand, config_map, shard, wait_until};

const WATCH: &str = "/api/v1/configmaps?watch=1&resourceVersion=";

/// Lists, as a reflector does, and watches from there.
async fn reflect(stand: &Stand, client: &Client) -> anyhow::Result<ctrlmesh_tests::client::Stream> {
    let list = client.get("/api/v1/configmaps").await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let stream = client.stream(&format!("{WATCH}{version}")).await?;
    assert_eq!(stream.head.status, 200, "{}", stand.sidecar.log());
    Ok(stream)
}

#[tokio::test]
async fn an_event_comes_when_it_happens() -> anyhow::Result<()> {
    let stand = Stand::start(vec![shard("a")]).await?;
    for client in [stand.client(), Client::http2(stand.sidecar.api())] {
        let mut watch = reflect(&stand, &client).await?;
        stand.api.store().put(config_map("default", "foreign", "b"))?;
        stand.api.store().put(config_map("default", "mine", "a"))?;
        let event = watch.event().await?;
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&"ADDED".into(), &"mine".into())
        );
        stand.api.store().delete("configmaps", "default", "mine")?;
        assert_eq!(watch.event().await?["type"], "DELETED");
        stand.api.store().delete("configmaps", "default", "foreign")?;
    }
    Ok(())
}

#[tokio::test]
async fn a_changed_selector_ends_the_watch_with_expired_and_the_next_list_is_the_new_shards() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    stand.seed("default", "a", 2)?;
    stand.seed("default", "b", 3)?;
    let client = stand.client();
    let mut watch = reflect(&stand, &client).await?;
    stand.publish(vec![shard("b")]).await?;
    let event = watch.event().await?;
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&"ERROR".into(), &410.into())
    );
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(watch.next().await?, None, "a clean end");
    assert_eq!(client.get("/api/v1/configmaps").await?.names(), ["b0", "b1", "b2"]);
    assert_eq!(stand.sidecar.metric("ctrlmesh_watches_expired_total").await?, 1.0);
    Ok(())
}

#[tokio::test]
async fn a_watch_that_no_rule_shaped_ends_when_a_rule_comes() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![]).await?;
    let mut watch = reflect(&stand, &stand.client()).await?;
    stand.publish(vec![shard("a")]).await?;
    assert_eq!(watch.event().await?["object"]["code"], 410);
    Ok(())
}

#[tokio::test]
async fn a_new_binary_with_the_same_decision_leaves_watches_open() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let mut watch = reflect(&stand, &stand.client()).await?;
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
    stand.publish(vec![next.settings(settings)]).await?;
    wait_until("the watch was asked again", || async {
        Ok(stand.sidecar.metric("ctrlmesh_rechecks_total").await? >= 1.0)
    })
    .await?;
    stand.api.store().put(config_map("default", "after", "a"))?;
    let event = watch.event().await?;
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&"ADDED".into(), &"after".into())
    );
    let status = stand.sidecar.status().await?;
    assert_eq!(status.chain.entries[0].state, EntryState::Active);
    Ok(())
}

#[tokio::test]
async fn a_watch_or_page_from_another_view_is_answered_410() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    stand.seed("default", "a", 2)?;
    stand.seed("default", "b", 2)?;
    let client = stand.client().with("user-agent", "manager/1");
    let page = client.get("/api/v1/configmaps?limit=1").await?.json();
    let version = page["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    stand.publish(vec![shard("b")]).await?;
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
    let mut watch = reflect(&stand, &client).await?;
    stand.api.store().put(config_map("default", "fresh", "b"))?;
    assert_eq!(watch.event().await?["object"]["metadata"]["name"], "fresh");
    Ok(())
}

#[tokio::test]
async fn a_client_that_goes_away_frees_the_watch_upstream() -> anyhow::Result<()> {
    let stand = Stand::start(vec![]).await?;
    let watch = reflect(&stand, &Client::http2(stand.sidecar.api())).await?;
    stand.api.wait_until(|activity| activity.watches == 1).await?;
    drop(watch);
    stand.api.wait_until(|activity| activity.watches == 0).await?;
    let watch = reflect(&stand, &stand.client()).await?;
    stand.api.wait_until(|activity| activity.watches == 1).await?;
    drop(watch);
    stand.api.wait_until(|activity| activity.watches == 0).await?;
    Ok(())
}

#[tokio::test]
async fn a_hundred_and_fifty_watches_do_not_delay_an_ordinary_request() -> anyhow::Result<()> {
    let stand = Stand::start(vec![shard("a")]).await?;
    let client = stand.client();
    let mut watches = Vec::new();
    for _ in 0..150 {
        watches.push(reflect(&stand, &client).await?);
    }
    stand.api.wait_until(|activity| activity.watches == 150).await?;
    assert_eq!(client.get("/api/v1/namespaces/default/configmaps").await?.status, 200);
    stand.api.store().put(config_map("default", "all", "a"))?;
    for watch in &mut watches {
        assert_eq!(watch.event().await?["object"]["metadata"]["name"], "all");
    }
    Ok(())
}
