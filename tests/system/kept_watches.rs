//! Watches of which a plugin keeps some objects (`keep-objects`): initial events, bookmarks, tables, and how they end.

use ctrlmesh_tests::client::Stream;
use ctrlmesh_tests::{Client, TestEnv, config_map};
use ctrlmesh_wire::objects::fnv1a_64;
use serde_json::{Value, json};

use crate::kept_objects::{ALL, FixedServer, event, keeping_entry, next_event, open_watch, start_env};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
/// A watch that begins with all objects.
const WATCH: &str = "/api/v1/configmaps?watch=1";
/// The same, with a bookmark behind these objects.
const STREAMED_LIST: &str = "/api/v1/configmaps?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                             &allowWatchBookmarks=true";

async fn open_streamed_list(env: &TestEnv) -> anyhow::Result<Stream> {
    let watch = env.client().open_stream(STREAMED_LIST).await?;
    assert_eq!(watch.head.status, 200, "{}", env.sidecar.log());
    Ok(watch)
}

/// Asserts that a streamed list has these objects, and the bookmark at its end.
async fn assert_initial_events(watch: &mut Stream, names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        assert_eq!(next_event(watch).await?, event("ADDED", name));
    }
    let end = watch.next_event().await?;
    let annotation = &end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"];
    assert_eq!((&end["type"], annotation), (&"BOOKMARK".into(), &"true".into()));
    Ok(())
}

#[tokio::test]
async fn streamed_list_ends_with_its_bookmark_and_is_streamed_anew_under_another_predicate() -> anyhow::Result<()> {
    let mut env = start_env(json!({ "namespaces": ["a"] })).await?;
    let mut watch = open_streamed_list(&env).await?;
    assert_initial_events(&mut watch, &["a0", "a1", "a2"]).await?;
    for namespace in ["b", "a"] {
        env.api.store().put(config_map(namespace, "new", "x"))?;
    }
    let added = watch.next_event().await?;
    let metadata = &added["object"]["metadata"];
    assert_eq!(
        (&metadata["namespace"], &metadata["name"]),
        (&"a".into(), &"new".into())
    );
    env.publish(vec![keeping_entry(json!({ "namespaces": ["b"] }))]).await?;
    let last = watch.next_event().await?;
    assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert_eq!(last["object"]["reason"], "Expired");
    assert_eq!(watch.next().await?, None, "a clean end");
    let mut watch = open_streamed_list(&env).await?;
    assert_initial_events(&mut watch, &["b0", "b1", "new"]).await
}

#[tokio::test]
async fn bookmarks_pass_in_every_form() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    let list = env.client().get(ALL).await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let target = format!("{WATCH}&allowWatchBookmarks=true&resourceVersion={version}");
    for (accept, kind) in [
        ("application/json", "ConfigMap"),
        (METADATA, "PartialObjectMetadata"),
        (TABLE, "Table"),
    ] {
        let client = env.client().with_header("accept", accept);
        let mut watch = client.open_stream(&target).await?;
        assert_eq!(watch.head.status, 200, "{accept}");
        env.api.send_bookmarks();
        let bookmark = watch.next_event().await?;
        let object = &bookmark["object"];
        assert_eq!((&bookmark["type"], &object["kind"]), (&"BOOKMARK".into(), &kind.into()));
        assert_eq!(object["metadata"]["resourceVersion"], version, "{accept}");
    }
    Ok(())
}

#[tokio::test]
async fn first_table_that_passes_has_the_columns() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["b"] })).await?;
    let mut watch = env.client().with_header("accept", TABLE).open_stream(WATCH).await?;
    let first = watch.next_event().await?;
    assert_eq!(first["object"]["rows"][0]["cells"][0], "b0");
    assert_eq!(first["object"]["columnDefinitions"][0]["name"], "Name", "{first}");
    let second = watch.next_event().await?;
    assert_eq!(second["object"]["rows"][0]["cells"][0], "b1");
    assert_eq!(second["object"]["columnDefinitions"], Value::Null);
    Ok(())
}

#[tokio::test]
async fn watches_of_metadata_alone_are_filtered_like_those_of_objects() -> anyhow::Result<()> {
    let env = start_env(json!({ "labels": "shard=b" })).await?;
    let mut watch = env.client().with_header("accept", METADATA).open_stream(WATCH).await?;
    for name in ["b0", "b1"] {
        let added = watch.next_event().await?;
        let object = &added["object"];
        assert_eq!(
            (&object["kind"], &object["metadata"]["name"]),
            (&"PartialObjectMetadata".into(), &name.into())
        );
    }
    Ok(())
}

#[tokio::test]
async fn watch_ends_as_the_api_server_ends_it() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    let mut watch = open_watch(&env).await?;
    env.api.end_watches();
    assert_eq!(watch.next().await?, None, "a clean end");
    let mut watch = open_watch(&env).await?;
    env.api.expire_watches();
    let last = watch.next_event().await?;
    assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert_eq!(last["object"]["message"], "the watch was expired on request");
    assert_eq!(watch.next().await?, None, "a clean end");
    Ok(())
}

#[tokio::test]
async fn upstream_watch_ends_with_its_client() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    for client in [env.client(), Client::http2(env.sidecar.api_address())] {
        let mut watch = client.open_stream(WATCH).await?;
        assert_eq!(next_event(&mut watch).await?, event("ADDED", "a0"));
        env.api.wait_until(|activity| activity.watches == 1).await?;
        drop(watch);
        env.api.wait_until(|activity| activity.watches == 0).await?;
    }
    Ok(())
}

/// The events of a watch, one in each line.
fn lines_of(events: &[(&str, Value)]) -> String {
    let lines = events.iter().map(|(event_type, object)| {
        let event = json!({ "type": event_type, "object": object });
        format!("{event}\n")
    });
    lines.collect()
}

#[tokio::test]
async fn event_of_unknown_type_ends_the_watch() -> anyhow::Result<()> {
    let mine = || config_map("a", "mine", "x");
    let events = [
        ("ADDED", mine()),
        ("RENAMED", config_map("b", "foreign", "x")),
        ("ADDED", mine()),
    ];
    let server = FixedServer::start(&JSON, lines_of(&events)).await?;
    let answer = server.env.client().get(WATCH).await?;
    let text = String::from_utf8(answer.body.to_vec())?;
    let received: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(received.len(), 2, "{text}");
    assert_eq!(received[0]["object"], mine());
    let last = &received[1];
    assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &502.into()));
    assert!(!text.contains("foreign"), "{text}");
    Ok(())
}

/// The UID of an object of the lower half of all hashes, and of one of the upper half.
const UIDS: [&str; 2] = [
    "2f2c7a90-3b1d-4e55-8a6e-2d4c1b7e9a52",
    "0f2c7a90-3b1d-4e55-8a6e-0d4c1b7e9a52",
];

#[tokio::test]
async fn each_shard_sees_its_own_object_of_two_with_one_name() -> anyhow::Result<()> {
    let middle = 1 << 63;
    assert!(fnv1a_64(UIDS[0]) < middle && fnv1a_64(UIDS[1]) >= middle);
    let [first, second] = UIDS.map(|uid| {
        let mut object = config_map("a", "x", "x");
        object["metadata"]["uid"] = uid.into();
        object
    });
    let events = [("ADDED", first.clone()), ("DELETED", first), ("ADDED", second)];
    let middle = format!("{middle:#018x}");
    for (bounds, expected) in [
        (["0x0000000000000000", middle.as_str()], lines_of(&events[..2])),
        ([middle.as_str(), "0x10000000000000000"], lines_of(&events[2..])),
    ] {
        let entry = keeping_entry(json!({ "uidRanges": [bounds] }));
        let server = FixedServer::start_with_entry(entry, 200, &JSON, lines_of(&events)).await?;
        let answer = server.env.client().get(WATCH).await?;
        assert_eq!(String::from_utf8(answer.body.to_vec())?, expected);
    }
    Ok(())
}

#[tokio::test]
async fn refusal_of_a_watch_passes_whole() -> anyhow::Result<()> {
    for code in [400, 403, 410, 422, 429, 500] {
        let status =
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code });
        let server = FixedServer::start_with_status(code, &JSON, status.to_string()).await?;
        for target in [WATCH, STREAMED_LIST] {
            let answer = server.env.client().get(target).await?;
            assert_eq!((answer.status, answer.json()), (code, status.clone()));
        }
    }
    Ok(())
}

/// A tunnel could not be filtered, and not be ended when the shard changes.
#[tokio::test]
async fn watch_over_websocket_is_refused_and_not_sent() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["b"] })).await?;
    let client = env
        .client()
        .with_header("connection", "Upgrade")
        .with_header("upgrade", "websocket")
        .with_header("sec-websocket-version", "13")
        .with_header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let refused = client.get(WATCH).await?;
    let status = refused.json();
    assert_eq!((refused.status, &status["reason"]), (400, &"BadRequest".into()));
    assert!(status["message"].to_string().contains("WebSocket"), "{status}");
    assert_eq!(env.api.requests().count("watch"), 0);
    Ok(())
}
