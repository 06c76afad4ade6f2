//! Several limits at once, as during a hand-over (the old ones and the new ones), even if no object satisfies them all.

use ctrlmesh_tests::{Client, EntrySpec, TestEnv, config_map};
use http::Method;
use serde_json::{Value, json};

use crate::consistent_reads::{selector_of_shards, shard_with_limits};
use crate::in_flight_requests::{LIST, list_and_watch};

/// The same limits in one list, and in one entry each.
fn entries_in_both_forms(selectors: [Value; 2]) -> [Vec<EntrySpec>; 2] {
    let entry = |name: &str, selector: &Value| {
        shard_with_limits(std::slice::from_ref(selector), false).with_field("name", name.into())
    };
    let [first, second] = &selectors;
    let apart = vec![entry("shard-selector/one", first), entry("shard-selector/two", second)];
    [vec![shard_with_limits(&selectors, false)], apart]
}

#[tokio::test]
async fn limits_are_anded_in_one_entry_or_in_two() -> anyhow::Result<()> {
    for chain in entries_in_both_forms([selector_of_shards(&["a", "b"]), selector_of_shards(&["b", "c"])]) {
        let env = TestEnv::start(chain).await?;
        for shard in ["a", "b", "c"] {
            env.seed_config_maps("default", shard, 1)?;
        }
        let client = env.client();
        let list = client.get(LIST).await?;
        assert_eq!((list.status, list.names()), (200, vec!["b0".to_owned()]));
        let mut watch = list_and_watch(&client).await?;
        for shard in ["a", "c", "b"] {
            env.api
                .store()
                .put(config_map("default", &format!("{shard}1"), shard))?;
        }
        assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "b1");
        let target = "/api/v1/namespaces/default/configmaps";
        assert_eq!(client.send(Method::DELETE, target, "").await?.status, 200);
        let left = env.api.store().read(|state| state.list("configmaps").count());
        assert_eq!(left, 4, "those of the other shards");
    }
    Ok(())
}

/// An empty list and an empty watch, and the end of the watch when objects are gained.
async fn check_shows_nothing(env: &mut TestEnv, client: &Client) -> anyhow::Result<()> {
    let list = client.get(LIST).await?;
    assert_eq!((list.status, list.json()["items"].as_array()), (200, Some(&Vec::new())));
    let version = list.json()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap_or_default();
    let target = format!("{LIST}?watch=1&allowWatchBookmarks=true&resourceVersion={version}");
    let mut watch = client.open_stream(&target).await?;
    assert_eq!(watch.head.status, 200);
    for shard in ["a", "b"] {
        env.api
            .store()
            .put(config_map("default", &format!("{shard}-late"), shard))?;
    }
    let mut plain = config_map("default", "plain", "");
    plain["metadata"]["labels"] = json!({});
    env.api.store().put(plain)?;
    env.api.send_bookmarks();
    assert_eq!(watch.next_event().await?["type"], "BOOKMARK", "no event came before");
    env.publish(vec![shard_with_limits(&[selector_of_shards(&["b"])], true)])
        .await?;
    let end = watch.next_event().await?;
    assert_eq!((&end["type"], &end["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(watch.next().await?, None);
    let relist = client.get(&format!("{LIST}?resourceVersion={version}")).await?;
    assert_eq!(
        (relist.status, relist.names()),
        (200, vec!["b-late".to_owned(), "b0".to_owned()])
    );
    Ok(())
}

#[tokio::test]
async fn unsatisfiable_limits_show_nothing_until_objects_are_gained() -> anyhow::Result<()> {
    let has = |operator: &str| json!({ "matchExpressions": [{ "key": "shard", "operator": operator }] });
    let at_once = json!({ "matchLabels": { "shard": "a" }, "matchExpressions": [
        { "key": "shard", "operator": "In", "values": ["b"] },
    ] });
    let mut chains = vec![vec![shard_with_limits(&[at_once], false)]];
    chains.extend(entries_in_both_forms([
        selector_of_shards(&["a"]),
        selector_of_shards(&["b"]),
    ]));
    chains.extend(entries_in_both_forms([has("Exists"), has("DoesNotExist")]));
    for chain in chains {
        let mut env = TestEnv::start(chain).await?;
        env.seed_config_maps("default", "a", 1)?;
        env.seed_config_maps("default", "b", 1)?;
        let client = env.client();
        check_shows_nothing(&mut env, &client).await?;
    }
    Ok(())
}

/// The child lacks the shard's label: the operator never sees it and creates it again and again.
#[tokio::test]
async fn creates_of_existing_objects_are_counted_when_a_limit_narrows_their_kind() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_with_limits(&[selector_of_shards(&["a"])], false)]).await?;
    let client = env.client().with_header("content-type", "application/json");
    let series = r#"ctrlmesh_creates_already_exist_total{entry="shard-selector/test"}"#;
    let count = || async { env.sidecar.metric_value(series).await.unwrap_or_default() };
    let target = "/api/v1/namespaces/default/configmaps";
    let mut child = config_map("default", "child", "");
    child["metadata"]["labels"] = json!({});
    for status in [201, 409, 409] {
        assert_eq!(
            client.send(Method::POST, target, child.to_string()).await?.status,
            status
        );
    }
    assert!(!client.get(LIST).await?.names().contains(&"child".to_owned()));
    assert!((count().await - 2.0).abs() < 0.5);
    // Nothing narrows Secrets.
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "child", "namespace": "default" } });
    for status in [201, 409] {
        assert_eq!(
            client.send(Method::POST, secrets, secret.to_string()).await?.status,
            status
        );
    }
    assert!((count().await - 2.0).abs() < 0.5);
    Ok(())
}
