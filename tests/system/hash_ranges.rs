//! Shards with ranges of a hash: each object is in one shard, together with the other objects of its controller.

use std::collections::BTreeMap;

use ctrlmesh_tests::{EntrySpec, TestEnv, config_map};
use http::Method;
use serde_json::{Value, json};

const ALL: &str = "/api/v1/configmaps";
const OF_NAMESPACE: &str = "/api/v1/namespaces/default/configmaps";

/// A shard of config maps.
pub(crate) fn hash_entry(key: &str, ranges: &[&str]) -> EntrySpec {
    let settings = json!({
        "shard": "a",
        "leaderElectionName": "lock",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
            "hashRanges": { "key": key, "ranges": ranges },
        }],
    });
    EntrySpec::new("shard-selector/test", ctrlmesh_plugins_builtin::SHARD_SELECTOR).with_settings(settings)
}

/// A config map in the namespace `default`. `owner`: the digit that tells its controller from others.
pub(crate) fn owned_config_map(name: &str, owner: u8) -> Value {
    let mut object = config_map("default", name, "none");
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "name": format!("w{owner}"),
        "uid": format!("{owner}f2c7a90-3b1d-4e55-8a6e-{owner}d4c1b7e9a52"),
        "controller": true,
    }]);
    object
}

/// Two config maps of each of eight controllers: `0-a`, `0-b`, `1-a` and so on.
async fn start_env(entry: EntrySpec) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![entry]).await?;
    for owner in 0..8 {
        for name in ["a", "b"] {
            env.api
                .store()
                .put(owned_config_map(&format!("{owner}-{name}"), owner))?;
        }
    }
    Ok(env)
}

#[tokio::test]
async fn each_object_is_in_one_shard_with_those_of_its_controller() -> anyhow::Result<()> {
    let quarters = [["0-255"], ["256-511"], ["512-767"], ["768-1023"]];
    let mut env = start_env(hash_entry("owner", &quarters[0])).await?;
    let mut shards: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (shard, ranges) in quarters.iter().enumerate() {
        env.publish(vec![hash_entry("owner", ranges)]).await?;
        for name in env.client().get(ALL).await?.names() {
            shards.entry(name).or_default().push(shard);
        }
    }
    assert_eq!(shards.len(), 16, "{shards:?}");
    assert!(shards.values().all(|shards| shards.len() == 1), "{shards:?}");
    for owner in 0..8 {
        assert_eq!(
            shards[&format!("{owner}-a")],
            shards[&format!("{owner}-b")],
            "{shards:?}"
        );
    }
    let used: Vec<&usize> = shards.values().flatten().collect();
    assert!(used.iter().any(|shard| *shard != used[0]), "all are in one shard");
    Ok(())
}

#[tokio::test]
async fn changed_ranges_end_watches() -> anyhow::Result<()> {
    let mut env = start_env(hash_entry("owner", &["0-1023"])).await?;
    let list = env.client().get(ALL).await?;
    assert_eq!(list.names().len(), 16);
    let version = list.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watch = env
        .client()
        .open_stream(&format!("{ALL}?watch=1&resourceVersion={version}"))
        .await?;
    assert_eq!(watch.head.status, 200, "{}", env.sidecar.log());
    env.publish(vec![hash_entry("owner", &["0-511"])]).await?;
    assert_eq!(watch.next_event().await?["object"]["code"], 410);
    Ok(())
}

#[tokio::test]
async fn object_is_created_whatever_its_hash_is() -> anyhow::Result<()> {
    let env = start_env(hash_entry("uid", &["0-511"])).await?;
    let client = env.client().with_header("content-type", "application/json");
    for number in 0..6 {
        // It is a create in spite of its query.
        let target = format!("{OF_NAMESPACE}?watch=1&labelSelector=absent");
        let name = format!("new-{number}");
        let body = config_map("default", &name, "none").to_string();
        let created = client.send(Method::POST, &target, body).await?;
        assert_eq!(
            (created.status, &created.json()["metadata"]["name"]),
            (201, &name.into())
        );
    }
    Ok(())
}
