//! Limits that hold together, as during a hand-over (the old ones, then the new ones): also where nothing can meet them all.

use ctrlmesh_tests::{Client, EntrySpec, Stand, config_map};
use http::Method;
use serde_json::{Value, json};

use crate::consistent_reads::{limits, one_of};
use crate::handover::{LIST, reflect};

/// The same limits in one list, and in an entry each.
fn both_ways(selectors: [Value; 2]) -> [Vec<EntrySpec>; 2] {
    let entry = |name: &str, selector: &Value| limits(std::slice::from_ref(selector), false).set("name", name.into());
    let [first, second] = &selectors;
    let apart = vec![entry("shard-selector/one", first), entry("shard-selector/two", second)];
    [vec![limits(&selectors, false)], apart]
}

#[tokio::test]
async fn all_limits_hold_together_in_one_entry_or_in_two() -> anyhow::Result<()> {
    for chain in both_ways([one_of(&["a", "b"]), one_of(&["b", "c"])]) {
        let stand = Stand::start(chain).await?;
        for shard in ["a", "b", "c"] {
            stand.seed("default", shard, 1)?;
        }
        let client = stand.client();
        let list = client.get(LIST).await?;
        assert_eq!((list.status, list.names()), (200, vec!["b0".to_owned()]));
        let mut watch = reflect(&client).await?;
        for shard in ["a", "c", "b"] {
            stand
                .api
                .store()
                .put(config_map("default", &format!("{shard}1"), shard))?;
        }
        assert_eq!(watch.event().await?["object"]["metadata"]["name"], "b1");
        let target = "/api/v1/namespaces/default/configmaps";
        assert_eq!(client.send(Method::DELETE, target, "").await?.status, 200);
        let left = stand.api.store().read(|state| state.list("configmaps").count());
        assert_eq!(left, 4, "those of the other shards");
    }
    Ok(())
}

/// A list and a watch of nothing, and the watch's end when objects are gained.
async fn shows_nothing(stand: &mut Stand, client: &Client) -> anyhow::Result<()> {
    let list = client.get(LIST).await?;
    assert_eq!((list.status, list.json()["items"].as_array()), (200, Some(&Vec::new())));
    let version = list.json()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap_or_default();
    let target = format!("{LIST}?watch=1&allowWatchBookmarks=true&resourceVersion={version}");
    let mut watch = client.stream(&target).await?;
    assert_eq!(watch.head.status, 200);
    for shard in ["a", "b"] {
        stand
            .api
            .store()
            .put(config_map("default", &format!("{shard}-late"), shard))?;
    }
    let mut plain = config_map("default", "plain", "");
    plain["metadata"]["labels"] = json!({});
    stand.api.store().put(plain)?;
    stand.api.send_bookmarks();
    assert_eq!(watch.event().await?["type"], "BOOKMARK", "no event came before");
    stand.publish(vec![limits(&[one_of(&["b"])], true)]).await?;
    let end = watch.event().await?;
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
async fn limits_that_nothing_meets_show_nothing_until_objects_are_gained() -> anyhow::Result<()> {
    let has = |operator: &str| json!({ "matchExpressions": [{ "key": "shard", "operator": operator }] });
    let at_once = json!({ "matchLabels": { "shard": "a" }, "matchExpressions": [
        { "key": "shard", "operator": "In", "values": ["b"] },
    ] });
    let mut chains = vec![vec![limits(&[at_once], false)]];
    chains.extend(both_ways([one_of(&["a"]), one_of(&["b"])]));
    chains.extend(both_ways([has("Exists"), has("DoesNotExist")]));
    for chain in chains {
        let mut stand = Stand::start(chain).await?;
        stand.seed("default", "a", 1)?;
        stand.seed("default", "b", 1)?;
        let client = stand.client();
        shows_nothing(&mut stand, &client).await?;
    }
    Ok(())
}

/// Its child lacks the shard's label: the operator never sees that it is there, and creates it again and again.
#[tokio::test]
async fn creates_of_objects_that_exist_are_counted_where_a_limit_narrows_their_kind() -> anyhow::Result<()> {
    let stand = Stand::start(vec![limits(&[one_of(&["a"])], false)]).await?;
    let client = stand.client().with("content-type", "application/json");
    let series = r#"ctrlmesh_creates_already_exist_total{entry="shard-selector/test"}"#;
    let count = || async { stand.sidecar.metric(series).await.unwrap_or_default() };
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
