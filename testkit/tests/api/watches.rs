//! Watches: where they begin, what they show, how they end.

use http::StatusCode;
use serde_json::json;

use crate::support::{CONFIGMAPS, Connection, accept_form, build_request, configmap, server_builder, start_server};

#[tokio::test]
async fn watch_sends_each_change_after_the_resource_version() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let store = server.store();
    store.put(configmap("default", "before", "x")).expect("stored");
    let version = store.resource_version();
    store.put(configmap("default", "a", "x")).expect("stored");
    let mut watch = client
        .watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion={version}"))
        .await;
    watch.expect_event("ADDED", "a").await;
    store.put(configmap("default", "a", "y")).expect("stored");
    store.put(configmap("kube-system", "elsewhere", "y")).expect("stored");
    store.delete("configmaps", "default", "a").expect("deleted");
    watch.expect_event("MODIFIED", "a").await;
    let deleted = watch.next().await.expect("an event");
    assert_eq!(deleted["type"], "DELETED");
    let version = store.resource_version().to_string();
    assert_eq!(
        deleted["object"]["metadata"]["resourceVersion"], version,
        "a deletion has its own version"
    );
}

#[tokio::test]
async fn watch_begins_with_the_state_without_a_resource_version() {
    let server = start_server().await;
    let client = Connection::connect_http1(&server).await;
    server.store().put(configmap("default", "a", "x")).expect("stored");
    for target in ["?watch=true", "?watch=&resourceVersion=0"] {
        let mut watch = Connection::connect_http1(&server)
            .await
            .watch(&format!("{CONFIGMAPS}{target}"))
            .await;
        watch.expect_event("ADDED", "a").await;
    }
    let version = server.store().resource_version();
    let target = format!("{CONFIGMAPS}?watch=true&resourceVersion={version}");
    let mut watch = client.watch(&target).await;
    server.store().put(configmap("default", "b", "x")).expect("stored");
    watch.expect_event("ADDED", "b").await;
}

#[tokio::test]
async fn watch_list_ends_initial_events_with_a_bookmark() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    server.store().put(configmap("default", "a", "x")).expect("stored");
    server.store().put(configmap("default", "b", "y")).expect("stored");
    let target = format!(
        "{CONFIGMAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
         &labelSelector=app%3Dx"
    );
    let mut watch = client.watch(&target).await;
    watch.expect_event("ADDED", "a").await;
    let bookmark = watch.next().await.expect("an event");
    assert_eq!(
        (&bookmark["type"], &bookmark["object"]["kind"]),
        (&json!("BOOKMARK"), &json!("ConfigMap"))
    );
    let metadata = &bookmark["object"]["metadata"];
    assert_eq!(metadata["annotations"], json!({ "k8s.io/initial-events-end": "true" }));
    assert_eq!(
        metadata["resourceVersion"],
        server.store().resource_version().to_string()
    );
    server.store().put(configmap("default", "c", "x")).expect("stored");
    watch.expect_event("ADDED", "c").await;
}

#[tokio::test]
async fn object_is_added_or_deleted_when_it_crosses_the_selector() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let store = server.store();
    store.put(configmap("default", "a", "other")).expect("stored");
    let version = store.resource_version();
    let target = format!("{CONFIGMAPS}?watch=1&labelSelector=app%3Dmine&resourceVersion={version}");
    let mut watch = client.watch(&target).await;
    store.put(configmap("default", "a", "another")).expect("stored");
    store.put(configmap("default", "a", "mine")).expect("stored");
    store.put(configmap("default", "a", "other")).expect("stored");
    let left = store.resource_version().to_string();
    store.delete("configmaps", "default", "a").expect("deleted");
    store.put(configmap("default", "b", "mine")).expect("stored");
    watch.expect_event("ADDED", "a").await;
    let event = watch.next().await.expect("an event");
    assert_eq!(event["type"], "DELETED");
    assert_eq!(
        event["object"]["metadata"]["labels"]["app"], "mine",
        "the labels it had in view"
    );
    assert_eq!(
        event["object"]["metadata"]["resourceVersion"], left,
        "the version of the change"
    );
    watch.expect_event("ADDED", "b").await;
}

#[tokio::test]
async fn bookmarks_come_on_time_and_on_request() {
    let server = server_builder()
        .bookmark_every(std::time::Duration::from_millis(5))
        .start()
        .await
        .expect("started");
    let client = Connection::connect_h2c(&server).await;
    let mut watch = client
        .watch(&format!("{CONFIGMAPS}?watch=1&allowWatchBookmarks=1&resourceVersion=1"))
        .await;
    watch.expect_event("BOOKMARK", "").await;
    watch.expect_event("BOOKMARK", "").await;

    let server = crate::support::start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let mut with = client
        .watch(&format!("{CONFIGMAPS}?watch=1&allowWatchBookmarks=1"))
        .await;
    let mut without = client.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    server
        .store()
        .put(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s", "namespace": "default" } }))
        .expect("stored");
    server.send_bookmarks();
    let bookmark = with.next().await.expect("an event");
    assert_eq!(bookmark["type"], "BOOKMARK");
    let version = server.store().resource_version().to_string();
    assert_eq!(
        bookmark["object"]["metadata"]["resourceVersion"], version,
        "other kinds move a bookmark on"
    );
    server.store().put(configmap("default", "a", "x")).expect("stored");
    without.expect_event("ADDED", "a").await;
}

#[tokio::test]
async fn watch_sends_error_event_when_version_is_compacted() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    server.store().put(configmap("default", "a", "x")).expect("stored");
    server.store().compact();
    let mut watch = client.watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion=1")).await;
    let event = watch.next().await.expect("an event");
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(watch.next().await, None);
    let future = client.get(&format!("{CONFIGMAPS}?watch=1&resourceVersion=999")).await;
    assert_eq!(future.status, StatusCode::GATEWAY_TIMEOUT);
}

#[tokio::test]
async fn slow_reader_is_cut_off_when_it_falls_behind_the_log() {
    let server = server_builder().event_log(8).start().await.expect("started");
    let client = Connection::connect_h2c(&server).await;
    let mut watch = client.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    server
        .wait_until(|activity| activity.watches == 1)
        .await
        .expect("a watch");
    // More than all buffers between the two can hold, while the reader reads nothing.
    let mut object = configmap("default", "a", "x");
    let mut ended = false;
    for number in 0..4_000 {
        object["data"]["key"] = format!("{number:08}").repeat(2_000).into();
        server.store().put(object.clone()).expect("stored");
        tokio::task::yield_now().await;
    }
    while let Some(event) = watch.next().await {
        ended = event["type"] == "ERROR" && event["object"]["code"] == 410;
    }
    assert!(ended, "the last event says 410");
}

#[tokio::test]
async fn watch_ends_cleanly_on_timeout_and_on_request() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let mut timed = client.watch(&format!("{CONFIGMAPS}?watch=1&timeoutSeconds=1")).await;
    assert_eq!(timed.next().await, None);
    let mut ended = client.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    server.end_watches();
    assert_eq!(ended.next().await, None);
    let mut expired = client.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    server.expire_watches();
    assert_eq!(expired.next().await.expect("an event")["object"]["code"], 410);
    assert_eq!(expired.next().await, None);
}

#[tokio::test]
async fn watch_is_closed_when_client_goes_away() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let watch = client.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    let other = Connection::connect_http1(&server).await;
    let second = other.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    server
        .wait_until(|activity| activity.watches == 2)
        .await
        .expect("two watches");
    drop(watch);
    server
        .wait_until(|activity| activity.watches == 1)
        .await
        .expect("one watch");
    drop((second, other));
    server
        .wait_until(|activity| activity.watches == 0)
        .await
        .expect("no watch");
}

#[tokio::test]
async fn deprecated_watch_paths_are_served() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    for name in ["a", "b"] {
        server.store().put(configmap("default", name, name)).expect("stored");
    }
    let mut all = client.watch("/api/v1/watch/configmaps?labelSelector=app%3Db").await;
    all.expect_event("ADDED", "b").await;
    let mut one = client.watch("/api/v1/watch/namespaces/default/configmaps/b").await;
    one.expect_event("ADDED", "b").await;
    server
        .store()
        .put(configmap("default", "a", "changed"))
        .expect("stored");
    server
        .store()
        .put(configmap("default", "b", "changed"))
        .expect("stored");
    one.expect_event("MODIFIED", "b").await;
}

#[tokio::test]
async fn table_watch_names_its_columns_once() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let [(header, table)] = accept_form("Table");
    let target = format!("{CONFIGMAPS}?watch=1");
    let sent = client
        .send(build_request(
            http::Method::GET,
            &target,
            &[(header, &table)],
            String::new(),
        ))
        .await;
    let mut watch = crate::support::WatchLines::from_response(sent.expect("a response"));
    for name in ["a", "b"] {
        server.store().put(configmap("default", name, "x")).expect("stored");
    }
    let (first, second) = (
        watch.next().await.expect("an event"),
        watch.next().await.expect("an event"),
    );
    assert_eq!(first["object"]["columnDefinitions"].as_array().map(Vec::len), Some(2));
    assert_eq!(second["object"]["columnDefinitions"], json!(null));
    assert_eq!(second["object"]["rows"][0]["cells"][0], "b");
}

#[tokio::test]
async fn invalid_watch_options_are_rejected() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    for query in [
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan&resourceVersion=1",
        "sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1",
        "continue=abc",
        "timeoutSeconds=soon",
        "resourceVersion=x",
    ] {
        let answer = client.get(&format!("{CONFIGMAPS}?watch=1&{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
    }
}
