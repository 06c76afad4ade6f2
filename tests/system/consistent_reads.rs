//! Lists that are no older than their beginning: a shard that has gained objects reads what their last owner wrote.

use ctrlmesh_tests::{EntrySpec, Stand, config_map};
use serde_json::{Value, json};

use crate::handover::{LIST, in_flight, reflect, wait_earlier};

/// A shard of config maps with these limits, one for each selector.
pub(crate) fn limits(selectors: &[Value], consistent_reads: bool) -> EntrySpec {
    let limits: Vec<Value> = selectors
        .iter()
        .map(|selector| {
            json!({
                "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }], "selector": selector,
            })
        })
        .collect();
    EntrySpec::new("shard-selector/test", ctrlmesh_plugins_builtin::SHARD_SELECTOR)
        .settings(json!({ "limits": limits, "consistentReads": consistent_reads }))
}

pub(crate) fn one_of(shards: &[&str]) -> Value {
    json!({ "matchExpressions": [{ "key": "shard", "operator": "In", "values": shards }] })
}

#[tokio::test]
async fn a_shard_that_has_gained_objects_reads_what_their_last_owner_wrote() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![limits(&[one_of(&["a"])], false)]).await?;
    stand.seed("default", "b", 2)?;
    let client = stand.client();
    let known = client.get(LIST).await?.json()["metadata"]["resourceVersion"].clone();
    let known = known.as_str().unwrap_or_default();
    let mut watch = reflect(&client).await?;
    // The API server's cache does not see the loser's last write.
    stand.api.store().fall_behind();
    stand.api.store().delete("configmaps", "default", "b1")?;
    for (consistent_reads, seen) in [(false, ["b0", "b1"].as_slice()), (true, &["b0"])] {
        stand
            .publish(vec![limits(&[one_of(&["a", "b"])], consistent_reads)])
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
    assert_eq!(watch.event().await?["object"]["code"], 410, "when it gained them");
    // What is read so is a list like any other: a watch comes from it, and stays while only freshness changes.
    let mut watch = reflect(&client).await?;
    stand.publish(vec![limits(&[one_of(&["a", "b"])], false)]).await?;
    wait_earlier(&stand, in_flight(0, 0)).await?;
    stand.api.store().put(config_map("default", "b2", "b"))?;
    assert_eq!(watch.event().await?["object"]["metadata"]["name"], "b2");
    Ok(())
}

#[tokio::test]
async fn a_streamed_list_is_no_older_than_its_beginning_either() -> anyhow::Result<()> {
    let stand = Stand::start(vec![limits(&[one_of(&["b"])], true)]).await?;
    stand.seed("default", "b", 2)?;
    stand.api.store().fall_behind();
    stand.api.store().delete("configmaps", "default", "b1")?;
    for query in [
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=1&allowWatchBookmarks=true",
        "resourceVersion=0&allowWatchBookmarks=true",
        "resourceVersion=00&allowWatchBookmarks=true",
    ] {
        let mut watch = stand.client().stream(&format!("{LIST}?watch=1&{query}")).await?;
        assert_eq!(watch.head.status, 200, "{query}");
        assert_eq!(watch.event().await?["object"]["metadata"]["name"], "b0", "{query}");
        stand.api.send_bookmarks();
        assert_eq!(watch.event().await?["type"], "BOOKMARK", "{query}");
    }
    Ok(())
}

#[tokio::test]
async fn reads_that_are_of_one_state_anyway_reach_the_api_server_as_they_are() -> anyhow::Result<()> {
    let stand = Stand::start(vec![limits(&[one_of(&["b"])], true)]).await?;
    stand.seed("default", "b", 3)?;
    let client = stand.client();
    let page = client.get(&format!("{LIST}?limit=1")).await?.json();
    let more = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    let version = page["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    stand.api.requests().clear();
    for query in [
        format!("limit=1&resourceVersion=0&continue={more}"),
        format!("resourceVersion={version}&resourceVersionMatch=Exact"),
    ] {
        assert_eq!(client.get(&format!("{LIST}?{query}")).await?.status, 200);
        let seen = stand.api.requests().all();
        let target = &seen.last().unwrap().target;
        assert!(
            target.starts_with(&format!("{LIST}?{query}&labelSelector=")),
            "{target}"
        );
    }
    let watch = client
        .stream(&format!("{LIST}?watch=1&resourceVersion={version}"))
        .await?;
    assert_eq!(watch.head.status, 200);
    let seen = stand.api.requests().all();
    assert!(
        seen.last()
            .unwrap()
            .target
            .contains(&format!("resourceVersion={version}&labelSelector="))
    );
    Ok(())
}
