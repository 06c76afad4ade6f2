//! Lists of which a plugin keeps some objects (`keep-objects`): their options, pages and encodings.

use ctrlmesh_tests::{Client, config_map};
use ctrlmesh_wire::protobuf::{Message, envelope};
use serde_json::{Value, json};

use crate::kept_objects::{ALL, FixedServer, PROTOBUF, items, keeping_entry, list_of, start_env};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const PROTOBUF_METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

#[tokio::test]
async fn list_of_which_nothing_is_kept_is_empty_in_every_form() -> anyhow::Result<()> {
    let env = start_env(json!({ "any": [] })).await?;
    let direct = Client::http1(env.api.address()).get(ALL).await?.json();
    for (accept, key) in [("application/json", "items"), (METADATA, "items"), (TABLE, "rows")] {
        let list = env.client().with_header("accept", accept).get(ALL).await?;
        let body = list.json();
        assert_eq!((list.status, &body[key]), (200, &json!([])), "{accept}");
        let version = &body["metadata"]["resourceVersion"];
        assert_eq!(version, &direct["metadata"]["resourceVersion"], "{accept}");
    }
    for accept in [PROTOBUF, PROTOBUF_METADATA] {
        let list = env.client().with_header("accept", accept).get(ALL).await?;
        assert_eq!((list.status, items(&list.body).len()), (200, 0), "{accept}");
    }
    Ok(())
}

#[tokio::test]
async fn lists_of_metadata_alone_are_filtered_like_those_of_objects() -> anyhow::Result<()> {
    let env = start_env(json!({ "labels": "shard=b" })).await?;
    let list = env.client().with_header("accept", METADATA).get(ALL).await?;
    assert_eq!(list.json()["kind"], "PartialObjectMetadataList");
    assert_eq!(list.names(), ["b0", "b1"]);
    let list = env.client().with_header("accept", PROTOBUF_METADATA).get(ALL).await?;
    let direct = Client::http1(env.api.address()).with_header("accept", PROTOBUF_METADATA);
    let direct = direct.get("/api/v1/namespaces/b/configmaps").await?;
    assert_eq!(items(&list.body).len(), 2);
    assert_eq!(items(&list.body), items(&direct.body));
    Ok(())
}

#[tokio::test]
async fn page_after_another_predicate_is_expired() -> anyhow::Result<()> {
    let mut env = start_env(json!({ "namespaces": ["a"] })).await?;
    let page = env.client().get(&format!("{ALL}?limit=1")).await?;
    let list = page.json();
    let token = list["metadata"]["continue"].as_str().unwrap();
    let target = format!("{ALL}?limit=1&continue={token}");
    assert_eq!(env.client().get(&target).await?.names(), ["a1"]);
    env.publish(vec![keeping_entry(json!({ "namespaces": ["b"] }))]).await?;
    let next = env.client().get(&target).await?;
    assert_eq!((next.status, next.json()["reason"].as_str()), (410, Some("Expired")));
    Ok(())
}

#[tokio::test]
async fn options_of_a_list_reach_the_api_server_unchanged() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    let list = env.client().get(ALL).await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    for query in [
        "resourceVersion=0&timeoutSeconds=7".to_owned(),
        format!("resourceVersionMatch=NotOlderThan&resourceVersion={version}"),
        format!("limit=500&resourceVersion={version}&resourceVersionMatch=Exact"),
        "labelSelector=shard%3Da&fieldSelector=metadata.namespace%3Da".to_owned(),
    ] {
        env.api.requests().clear();
        let target = format!("{ALL}?{query}");
        let list = env.client().get(&target).await?;
        assert_eq!((list.status, list.names().len()), (200, 3), "{query}");
        let seen = env.api.requests().recent();
        assert!(seen.iter().any(|request| request.target == target), "{query}");
    }
    let future = format!("{ALL}?resourceVersion=999999999");
    let refused = env.client().get(&future).await?;
    let direct = Client::http1(env.api.address()).get(&future).await?;
    assert_eq!((refused.status, refused.body), (504, direct.body));
    Ok(())
}

/// API servers answer so if a client wants custom resources in protobuf.
#[tokio::test]
async fn error_in_protobuf_passes_byte_for_byte() -> anyhow::Result<()> {
    let status = Message::new().string(2, "Failure").string(3, "only JSON");
    let body = envelope("v1", "Status", &status.string(4, "NotAcceptable").varint(6, 406));
    let server = FixedServer::start_with_status(406, &[("content-type", PROTOBUF)], &body).await?;
    let client = server.env.client().with_header("accept", PROTOBUF);
    let answer = client.get("/apis/example.com/v1/widgets").await?;
    assert_eq!((answer.status, &*answer.body), (406, body.as_slice()));
    assert_eq!(answer.headers["content-type"], PROTOBUF);
    Ok(())
}

#[tokio::test]
async fn list_is_filtered_in_the_encoding_in_which_it_comes() -> anyhow::Result<()> {
    let server = FixedServer::start(&JSON, list_of(&config_map("b", "foreign", "x"))).await?;
    let accept = format!("{PROTOBUF},application/json");
    let client = server.env.client().with_header("accept", &accept);
    let answer = client.get("/apis/example.com/v1/widgets").await?;
    assert_eq!((answer.status, &answer.json()["items"]), (200, &json!([])));
    Ok(())
}

/// Component statuses have no UID. The hash of the empty text is in the upper half.
#[tokio::test]
async fn objects_without_uid_are_in_one_shard_together() -> anyhow::Result<()> {
    let items = ["scheduler", "etcd-0"].map(|name| json!({ "metadata": { "name": name } }));
    let list = json!({ "kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": items });
    let middle = "0x8000000000000000";
    for (range, expected) in [
        ([middle, "0x10000000000000000"], &["etcd-0", "scheduler"][..]),
        (["0x0000000000000000", middle], &[]),
    ] {
        let entry = keeping_entry(json!({ "uidRanges": [range] }));
        let server = FixedServer::start_with_entry(entry, 200, &JSON, list.to_string()).await?;
        let answer = server.env.client().get("/api/v1/componentstatuses").await?;
        assert_eq!((answer.status, answer.names()), (200, owned(expected)));
    }
    Ok(())
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn large_list_takes_the_memory_of_its_largest_object() -> anyhow::Result<()> {
    // The list has 51 MiB. Growth also includes the instance of the plugin, and copies of an object on its way.
    const GROWTH: usize = 40 << 20;
    let with_data = |mut object: Value, length: usize| {
        object["data"]["k"] = "v".repeat(length).into();
        object
    };
    let mine = with_data(config_map("a", "mine", "x"), 3 << 20);
    let foreign = with_data(config_map("b", "foreign", "x"), 1 << 20).to_string();
    let foreign = vec![foreign; 48].join(",");
    let head = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":["#;
    let server = FixedServer::start(&JSON, format!("{head}{foreign},{mine}]}}")).await?;
    let sidecar = &server.env.sidecar;
    sidecar.forget_peak_memory()?;
    let before = sidecar.peak_memory()?;
    let answer = server.env.client().get(ALL).await?;
    assert_eq!(answer.json()["items"], json!([mine]));
    let grown = sidecar.peak_memory()?.saturating_sub(before);
    assert!(grown < GROWTH, "{} MiB", grown >> 20);
    Ok(())
}
