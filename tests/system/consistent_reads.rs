//! Consistent lists: a shard that has gained objects reads what their previous owner wrote.

use ctrlmesh_tests::{EntrySpec, TestEnv, config_map};
use serde_json::{Value, json};

use crate::in_flight_requests::{LIST, in_flight, list_and_watch, wait_earlier};

/// A shard of config maps with one limit for each selector.
pub(crate) fn shard_with_limits(selectors: &[Value], consistent_reads: bool) -> EntrySpec {
    let limits: Vec<Value> = selectors
        .iter()
        .map(|selector| {
            json!({
                "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }], "selector": selector,
            })
        })
        .collect();
    EntrySpec::new("shard-selector/test", ctrlmesh_plugins_builtin::SHARD_SELECTOR)
        .with_settings(json!({ "limits": limits, "consistentReads": consistent_reads }))
}

pub(crate) fn selector_of_shards(shards: &[&str]) -> Value {
    json!({ "matchExpressions": [{ "key": "shard", "operator": "In", "values": shards }] })
}

#[tokio::test]
async fn list_shows_last_write_of_previous_owner_when_shard_gains_objects() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_with_limits(&[selector_of_shards(&["a"])], false)]).await?;
    env.seed_config_maps("default", "b", 2)?;
    let client = env.client();
    let known = client.get(LIST).await?.json()["metadata"]["resourceVersion"].clone();
    let known = known.as_str().unwrap_or_default();
    let mut watch = list_and_watch(&client).await?;
    // The API server's cache lags behind the previous owner's last write.
    env.api.store().fall_behind();
    env.api.store().delete("configmaps", "default", "b1")?;
    for (consistent_reads, seen) in [(false, ["b0", "b1"].as_slice()), (true, &["b0"])] {
        env.publish(vec![shard_with_limits(
            &[selector_of_shards(&["a", "b"])],
            consistent_reads,
        )])
        .await?;
        for query in [
            "resourceVersion=0".to_owned(),
            "resourceVersion=0&limit=500".to_owned(),
            format!("resourceVersion={known}"),
            format!("resourceVersion={known}&resourceVersionMatch=NotOlderThan"),
        ] {
            let list = client.get(&format!("{LIST}?{query}")).await?;
            assert_eq!(
                (list.status, list.names()),
                (200, seen.iter().map(ToString::to_string).collect()),
                "{query}"
            );
        }
    }
    assert_eq!(watch.next_event().await?["object"]["code"], 410, "when it gained them");
    // Such a read is a list like any other: a watch may start from it, and stays open while only freshness changes.
    let mut watch = list_and_watch(&client).await?;
    env.publish(vec![shard_with_limits(&[selector_of_shards(&["a", "b"])], false)])
        .await?;
    wait_earlier(&env, in_flight(0, 0)).await?;
    env.api.store().put(config_map("default", "b2", "b"))?;
    assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "b2");
    Ok(())
}

#[tokio::test]
async fn streamed_list_is_no_older_than_its_beginning() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_with_limits(&[selector_of_shards(&["b"])], true)]).await?;
    env.seed_config_maps("default", "b", 2)?;
    env.api.store().fall_behind();
    env.api.store().delete("configmaps", "default", "b1")?;
    for query in [
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=1&allowWatchBookmarks=true",
        "resourceVersion=0&allowWatchBookmarks=true",
        "resourceVersion=00&allowWatchBookmarks=true",
    ] {
        let mut watch = env.client().open_stream(&format!("{LIST}?watch=1&{query}")).await?;
        assert_eq!(watch.head.status, 200, "{query}");
        assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "b0", "{query}");
        env.api.send_bookmarks();
        assert_eq!(watch.next_event().await?["type"], "BOOKMARK", "{query}");
    }
    Ok(())
}

#[tokio::test]
async fn reads_of_one_state_reach_the_api_server_unchanged() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_with_limits(&[selector_of_shards(&["b"])], true)]).await?;
    env.seed_config_maps("default", "b", 3)?;
    let client = env.client();
    let page = client.get(&format!("{LIST}?limit=1")).await?.json();
    let more = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    let version = page["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    env.api.requests().clear();
    for query in [
        format!("limit=1&resourceVersion=0&continue={more}"),
        format!("resourceVersion={version}&resourceVersionMatch=Exact"),
    ] {
        assert_eq!(client.get(&format!("{LIST}?{query}")).await?.status, 200);
        let seen = env.api.requests().recent();
        let target = &seen.last().unwrap().target;
        assert!(
            target.starts_with(&format!("{LIST}?{query}&labelSelector=")),
            "{target}"
        );
    }
    let watch = client
        .open_stream(&format!("{LIST}?watch=1&resourceVersion={version}"))
        .await?;
    assert_eq!(watch.head.status, 200);
    let seen = env.api.requests().recent();
    assert!(
        seen.last()
            .unwrap()
            .target
            .contains(&format!("resourceVersion={version}&labelSelector="))
    );
    Ok(())
}
