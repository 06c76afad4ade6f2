//! Lists and watches whose objects lack fields that a plugin drops (`drop-fields`).

use ctrlmesh_tests::{Client, EntrySpec, TestEnv, config_map, guest_entry};
use http::Method;
use serde_json::{Value, json};

use crate::kept_objects::{contents, items};

const ALL: &str = "/api/v1/configmaps";
const OF_A: &str = "/api/v1/namespaces/a/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const MANAGED_FIELDS: &str = "metadata.managedFields";

/// Field number of `managedFields` in `ObjectMeta`.
const MANAGED_FIELDS_NUMBER: u32 = 17;

fn entry_with(edits: Value) -> EntrySpec {
    guest_entry("scripted", json!({ "onRequest": [{ "then": { "proceed": edits } }] }))
}

/// Drops fields of lists and watches. Other requests pass.
fn dropping_entry(paths: &[&str]) -> EntrySpec {
    let edits = json!([{ "dropFields": paths }]);
    let on_verb = |verb: &str| json!({ "when": { "verb": verb }, "then": { "proceed": edits } });
    guest_entry("scripted", json!({ "onRequest": [on_verb("list"), on_verb("watch")] }))
}

/// Config maps `a0` to `a2` in namespace `a`.
async fn start_env(entry: EntrySpec) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![entry]).await?;
    env.api
        .store()
        .put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "a" } }))?;
    env.seed_config_maps("a", "a", 3)?;
    Ok(env)
}

fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    let dropped = object["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert!(dropped.is_some_and(|dropped| dropped.is_array()), "{object}");
    object
}

#[tokio::test]
async fn list_lacks_dropped_fields_and_nothing_else() -> anyhow::Result<()> {
    let env = start_env(dropping_entry(&[MANAGED_FIELDS])).await?;
    let direct = Client::http1(env.api.address()).get(ALL).await?.json();
    let expected: Vec<Value> = direct["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(without_managed_fields)
        .collect();
    for client in [env.client(), Client::http2(env.sidecar.api_address())] {
        let list = client.get(ALL).await?;
        assert_eq!(list.status, 200, "{}", env.sidecar.log());
        assert_eq!(list.json()["items"], Value::Array(expected.clone()));
        assert_eq!(list.json()["metadata"], direct["metadata"]);
    }
    Ok(())
}

#[tokio::test]
async fn objects_in_a_watch_lack_dropped_fields() -> anyhow::Result<()> {
    let env = start_env(dropping_entry(&[MANAGED_FIELDS])).await?;
    let version = env.client().get(ALL).await?.json()["metadata"]["resourceVersion"].clone();
    let target = format!("{ALL}?watch=1&resourceVersion={}", version.as_str().unwrap());
    let mut watch = env.client().open_stream(&target).await?;
    let mut direct = Client::http1(env.api.address()).open_stream(&target).await?;
    env.api.store().put(config_map("a", "new", "x"))?;
    env.api.store().put(config_map("a", "new", "y"))?;
    env.api.store().delete("configmaps", "a", "new")?;
    for event_type in ["ADDED", "MODIFIED", "DELETED"] {
        let (event, whole) = (watch.next_event().await?, direct.next_event().await?);
        assert_eq!(event["type"], event_type);
        assert_eq!(event["object"], without_managed_fields(&whole["object"]));
    }
    Ok(())
}

/// The metadata of the items of a list in protobuf.
fn items_metadata(body: &[u8]) -> Vec<&[u8]> {
    items(body).into_iter().map(|item| contents(item, 1)[0]).collect()
}

#[tokio::test]
async fn protobuf_list_lacks_dropped_fields_of_metadata() -> anyhow::Result<()> {
    let env = start_env(dropping_entry(&[MANAGED_FIELDS])).await?;
    let direct = Client::http1(env.api.address()).with_header("accept", PROTOBUF);
    let direct = direct.get(ALL).await?;
    let list = env.client().with_header("accept", PROTOBUF).get(ALL).await?;
    assert_eq!(
        (list.status, &list.headers["content-type"]),
        (200, &direct.headers["content-type"])
    );
    let (trimmed, whole) = (items_metadata(&list.body), items_metadata(&direct.body));
    assert_eq!((trimmed.len(), whole.len()), (3, 3));
    for (trimmed, whole) in trimmed.into_iter().zip(whole) {
        assert_eq!(contents(whole, MANAGED_FIELDS_NUMBER).len(), 1);
        assert!(contents(trimmed, MANAGED_FIELDS_NUMBER).is_empty());
        // Name, UID and labels.
        for number in [1, 5, 11] {
            assert_eq!(contents(trimmed, number), contents(whole, number), "field {number}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn field_outside_metadata_is_never_asked_for_in_protobuf() -> anyhow::Result<()> {
    let env = start_env(dropping_entry(&["data"])).await?;
    env.api.requests().clear();
    let refused = env.client().with_header("accept", PROTOBUF).get(ALL).await?;
    assert_eq!(refused.status, 406);
    // A `Status` in protobuf.
    let reason = b"NotAcceptable";
    assert!(refused.body.windows(reason.len()).any(|bytes| bytes == reason));
    assert_eq!(env.api.requests().count("list"), 0);
    let both = format!("{PROTOBUF}, application/json");
    let list = env.client().with_header("accept", &both).get(ALL).await?;
    assert_eq!(list.names(), ["a0", "a1", "a2"]);
    let list = list.json();
    for item in list["items"].as_array().unwrap() {
        assert!(item.get("data").is_none(), "{item}");
        assert!(item["metadata"]["managedFields"].is_array(), "{item}");
    }
    Ok(())
}

#[tokio::test]
async fn objects_are_kept_by_labels_that_are_dropped() -> anyhow::Result<()> {
    let edits = json!([
        { "dropFields": ["metadata.labels"] },
        { "keepObjects": { "labels": "shard=a" } },
        { "dropFields": [MANAGED_FIELDS, "data"] },
    ]);
    let env = start_env(entry_with(edits)).await?;
    env.api.store().put(config_map("a", "other", "b"))?;
    let list = env.client().get(ALL).await?;
    assert_eq!(list.names(), ["a0", "a1", "a2"]);
    let list = list.json();
    for item in list["items"].as_array().unwrap() {
        assert!(item.get("data").is_none(), "{item}");
        let metadata = item["metadata"].as_object().unwrap();
        assert!(
            !metadata.contains_key("labels") && !metadata.contains_key("managedFields"),
            "{item}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn update_of_a_trimmed_object_keeps_its_managed_fields() -> anyhow::Result<()> {
    let env = start_env(dropping_entry(&[MANAGED_FIELDS])).await?;
    let mut object = env.client().get(OF_A).await?.json()["items"][0].clone();
    assert!(object["metadata"].get("managedFields").is_none(), "{object}");
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    // Items of a list have neither.
    object["apiVersion"] = "v1".into();
    object["kind"] = "ConfigMap".into();
    object["data"]["k"] = "new".into();
    let stored = || {
        let found = env
            .api
            .store()
            .read(|state| state.get("configmaps", "a", &name).cloned());
        found.unwrap()
    };
    let owned_labels = |object: &Value| {
        let owners = object["metadata"]["managedFields"].as_array().unwrap().iter();
        let owners = owners.filter(|owner| owner["fieldsV1"]["f:metadata"].get("f:labels").is_some());
        owners.map(|owner| owner["manager"].clone()).collect::<Vec<_>>()
    };
    let before = owned_labels(&stored());
    assert_eq!(before.len(), 1);
    let client = env.client().with_header("content-type", "application/json");
    let updated = client
        .send(Method::PUT, &format!("{OF_A}/{name}"), object.to_string())
        .await?;
    assert_eq!(updated.status, 200, "{}", String::from_utf8_lossy(&updated.body));
    let after = stored();
    assert_eq!((&after["data"]["k"], owned_labels(&after)), (&"new".into(), before));
    Ok(())
}

#[tokio::test]
async fn other_dropped_fields_end_open_watch_and_same_ones_do_not() -> anyhow::Result<()> {
    let mut env = start_env(dropping_entry(&[MANAGED_FIELDS, "data"])).await?;
    let version = env.client().get(ALL).await?.json()["metadata"]["resourceVersion"].clone();
    let target = format!("{ALL}?watch=1&resourceVersion={}", version.as_str().unwrap());
    let mut watch = env.client().open_stream(&target).await?;
    assert_eq!(watch.head.status, 200, "{}", env.sidecar.log());
    env.publish(vec![
        dropping_entry(&["data", MANAGED_FIELDS]).with_field("order", 7.into()),
    ])
    .await?;
    env.api.store().put(config_map("a", "new", "x"))?;
    assert_eq!(watch.next_event().await?["type"], "ADDED");
    env.publish(vec![dropping_entry(&["data"])]).await?;
    let last = watch.next_event().await?;
    assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &410.into()));
    Ok(())
}

#[tokio::test]
async fn trim_objects_drops_managed_fields_for_named_clients() -> anyhow::Result<()> {
    let rules = json!([{ "resources": [{ "resources": ["configmaps"] }], "userAgents": ["operator/*"] }]);
    let entry = EntrySpec::new("trim-objects/test", ctrlmesh_plugins_builtin::TRIM_OBJECTS);
    let env = start_env(entry.with_settings(json!({ "rules": rules }))).await?;
    for (agent, is_trimmed) in [("operator/v1", true), ("other/v1", false)] {
        let list = env.client().with_header("user-agent", agent).get(ALL).await?.json();
        let metadata = &list["items"][0]["metadata"];
        assert_eq!(
            metadata.get("managedFields").is_none(),
            is_trimmed,
            "{agent}: {metadata}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn edit_of_other_verbs_is_the_plugins_fault() -> anyhow::Result<()> {
    let env = start_env(entry_with(json!([{ "dropFields": [MANAGED_FIELDS] }]))).await?;
    let answer = env.client().get(&format!("{OF_A}/a0")).await?;
    let status = answer.json();
    assert_eq!((answer.status, &status["reason"]), (500, &"InternalError".into()));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("drop-fields on get"), "{message}");
    let answer = env.client().send(Method::DELETE, OF_A, "").await?;
    assert_eq!(answer.status, 400);
    let left = env.api.store().read(|state| state.list("configmaps").count());
    assert_eq!(left, 3);
    Ok(())
}
