//! Lists: selectors, pages, resource versions, tables and metadata only.

use http::{Method, StatusCode};
use serde_json::json;

use crate::support::{CONFIGMAPS, Connection, accept_form, configmap, item_names, server_builder, start_server};

async fn seeded_server() -> (ctrlmesh_testkit::ApiServer, Connection) {
    let server = start_server().await;
    for (namespace, name, app) in [
        ("default", "a", "x"),
        ("default", "b", "y"),
        ("default", "c", "x"),
        ("kube-system", "d", "x"),
    ] {
        server.store().put(configmap(namespace, name, app)).expect("stored");
    }
    let client = Connection::connect_h2c(&server).await;
    (server, client)
}

#[tokio::test]
async fn list_is_narrowed_by_selectors_and_namespace() {
    let (_server, client) = seeded_server().await;
    for (target, expected) in [
        (CONFIGMAPS, &["a", "b", "c"][..]),
        ("/api/v1/configmaps", &["a", "b", "c", "d"]),
        ("/api/v1/namespaces//configmaps", &["a", "b", "c", "d"]),
        ("/api/v1/configmaps?labelSelector=app%3Dx", &["a", "c", "d"]),
        ("/api/v1/configmaps?labelSelector=app+notin+(x)", &["b"]),
        (
            "/api/v1/configmaps?labelSelector=app%3Dx&labelSelector=app%3Dy",
            &["a", "c", "d"],
        ),
        (
            "/api/v1/configmaps?fieldSelector=metadata.namespace%3Dkube-system",
            &["d"],
        ),
        (
            "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Dc",
            &["c"],
        ),
        (
            "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name!%3Dc&labelSelector=app=x",
            &["a"],
        ),
        ("/api/v1/namespaces/kube-public/configmaps", &[]),
    ] {
        let answer = client.get(target).await;
        assert_eq!(
            (answer.status, item_names(&answer.body)),
            (StatusCode::OK, expected.to_vec()),
            "{target}"
        );
    }
}

#[tokio::test]
async fn unsupported_selectors_are_rejected() {
    let (_server, client) = seeded_server().await;
    for target in [
        "/api/v1/configmaps?labelSelector=a%3D%3D%3D",
        "/api/v1/configmaps?fieldSelector=metadata.uid%3D1",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
        "/api/v1/configmaps?limit=x",
        "/api/v1/configmaps?continue=nonsense",
        "/api/v1/configmaps?resourceVersionMatch=Exact",
        "/api/v1/configmaps?resourceVersion=0&resourceVersionMatch=Exact",
        "/api/v1/configmaps?sendInitialEvents=true",
    ] {
        let answer = client.get(target).await;
        assert_eq!(
            (answer.status, &answer.body["reason"]),
            (StatusCode::BAD_REQUEST, &json!("BadRequest")),
            "{target}"
        );
    }
}

#[tokio::test]
async fn pages_show_one_state_despite_writes_between_them() {
    let (server, client) = seeded_server().await;
    let first = client.get(&format!("{CONFIGMAPS}?limit=1")).await.body;
    assert_eq!(
        (item_names(&first), &first["metadata"]["remainingItemCount"]),
        (vec!["a"], &json!(2))
    );
    server.store().put(configmap("default", "aa", "x")).expect("stored");
    server
        .store()
        .put(configmap("default", "c", "changed"))
        .expect("stored");
    server.store().delete("configmaps", "default", "b").expect("deleted");
    let token = first["metadata"]["continue"].as_str().expect("a token");
    let rest = client.get(&format!("{CONFIGMAPS}?limit=5&continue={token}")).await.body;
    assert_eq!(item_names(&rest), ["b", "c"]);
    assert_eq!(rest["items"][1]["metadata"]["labels"]["app"], "x");
    assert_eq!(
        rest["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    assert_eq!(rest["metadata"].get("continue"), None);
    assert_eq!(item_names(&client.get(CONFIGMAPS).await.body), ["a", "aa", "c"]);
}

#[tokio::test]
async fn pages_are_filled_after_selection_without_a_count() {
    let (_server, client) = seeded_server().await;
    let first = client
        .get("/api/v1/configmaps?labelSelector=app%3Dx&limit=2")
        .await
        .body;
    assert_eq!(item_names(&first), ["a", "c"]);
    assert_eq!(first["metadata"].get("remainingItemCount"), None);
    let token = first["metadata"]["continue"].as_str().expect("a token");
    let rest = client
        .get(&format!(
            "/api/v1/configmaps?labelSelector=app%3Dx&limit=2&continue={token}"
        ))
        .await
        .body;
    assert_eq!(item_names(&rest), ["d"]);
}

#[tokio::test]
async fn page_expires_when_its_state_is_compacted() {
    let (server, client) = seeded_server().await;
    let first = client.get(&format!("{CONFIGMAPS}?limit=1")).await.body;
    server.store().put(configmap("default", "new", "x")).expect("stored");
    server.store().compact();
    let token = first["metadata"]["continue"].as_str().expect("a token");
    let answer = client.get(&format!("{CONFIGMAPS}?limit=1&continue={token}")).await;
    assert_eq!(
        (answer.status, &answer.body["reason"]),
        (StatusCode::GONE, &json!("Expired"))
    );
}

#[tokio::test]
async fn event_log_drops_the_oldest_changes() {
    let server = server_builder().event_log(3).start().await.expect("started");
    let client = Connection::connect_h2c(&server).await;
    let mut versions = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        server.store().put(configmap("default", name, "x")).expect("stored");
        versions.push(server.store().resource_version());
    }
    let at = |version: u64| format!("{CONFIGMAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    assert_eq!(client.get(&at(versions[0])).await.status, StatusCode::GONE);
    assert_eq!(item_names(&client.get(&at(versions[1])).await.body), ["a", "b"]);
    assert_eq!(item_names(&client.get(&at(versions[4])).await.body).len(), 5);
}

#[tokio::test]
async fn list_honours_resource_version() {
    let (server, client) = seeded_server().await;
    let then = server.store().resource_version();
    server.store().put(configmap("default", "new", "x")).expect("stored");
    let list = async |query: String| client.get(&format!("{CONFIGMAPS}?{query}")).await;
    let exact = list(format!("resourceVersion={then}&resourceVersionMatch=Exact"))
        .await
        .body;
    assert_eq!(
        (item_names(&exact).len(), &exact["metadata"]["resourceVersion"]),
        (3, &json!(then.to_string()))
    );
    let legacy = list(format!("resourceVersion={then}&limit=10")).await.body;
    assert_eq!(item_names(&legacy).len(), 3, "a limit makes a version exact");
    for newer in [
        "resourceVersion=0".to_owned(),
        format!("resourceVersion={then}&resourceVersionMatch=NotOlderThan"),
    ] {
        assert_eq!(item_names(&list(newer.clone()).await.body).len(), 4, "{newer}");
    }
    let future = list(format!("resourceVersion={}", then + 100)).await;
    assert_eq!(
        (future.status, &future.body["reason"]),
        (StatusCode::GATEWAY_TIMEOUT, &json!("Timeout"))
    );
    assert_eq!(future.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

#[tokio::test]
async fn stale_cache_is_shown_when_the_client_allows_it() {
    let (server, client) = seeded_server().await;
    server.store().fall_behind();
    server.store().delete("configmaps", "default", "a").expect("deleted");
    let fresh = server.store().resource_version();
    let list = async |query: &str| {
        let answer = client.get(&format!("{CONFIGMAPS}?{query}")).await;
        assert_eq!(answer.status, StatusCode::OK, "{query}");
        item_names(&answer.body).len()
    };
    let not_older = format!("resourceVersion={fresh}&resourceVersionMatch=NotOlderThan");
    assert_eq!(list("").await, 2);
    assert_eq!(list("resourceVersion=0").await, 3);
    assert_eq!(list("resourceVersion=1").await, 3);
    assert_eq!(list(&not_older).await, 2);
    let mut watch = client.watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion=0")).await;
    for name in ["a", "b", "c"] {
        watch.expect_event("ADDED", name).await;
    }
    watch.expect_event("DELETED", "a").await;
    server.store().catch_up();
    assert_eq!(list("resourceVersion=0").await, 2);
    server.store().fall_behind();
    server.store().delete("configmaps", "default", "b").expect("deleted");
    server.store().compact();
    assert_eq!(list("resourceVersion=0").await, 1, "it has no past left");
}

#[tokio::test]
async fn table_shows_name_and_age() {
    let (_server, client) = seeded_server().await;
    let [(header, table)] = accept_form("Table");
    let list = client
        .call_with(Method::GET, &format!("{CONFIGMAPS}?limit=2"), &[(header, &table)], None)
        .await
        .body;
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("Table"), &json!("meta.k8s.io/v1"))
    );
    let columns: Vec<_> = list["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|c| &c["name"])
        .collect();
    assert_eq!(columns, ["Name", "Age"]);
    assert_eq!(list["rows"][1]["cells"][0], "b");
    assert_eq!(list["rows"][1]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(list["metadata"]["remainingItemCount"], 1);
    let bare = format!("{CONFIGMAPS}?includeObject=None");
    let bare = client
        .call_with(Method::GET, &bare, &[(header, &table)], None)
        .await
        .body;
    assert_eq!(bare["rows"][0]["object"], json!(null));
    let one = client
        .call_with(Method::GET, &format!("{CONFIGMAPS}/a"), &[(header, &table)], None)
        .await
        .body;
    assert_eq!(
        (&one["kind"], &one["rows"][0]["cells"][0]),
        (&json!("Table"), &json!("a"))
    );
}

#[tokio::test]
async fn list_shows_metadata_only_when_asked() {
    let (_server, client) = seeded_server().await;
    let [(header, form)] = accept_form("PartialObjectMetadataList");
    let list = client
        .call_with(Method::GET, CONFIGMAPS, &[(header, &form)], None)
        .await
        .body;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(item_names(&list), ["a", "b", "c"]);
    assert_eq!(
        (&list["items"][0]["kind"], list["items"][0].get("data")),
        (&json!("PartialObjectMetadata"), None)
    );
}

#[tokio::test]
async fn large_list_is_streamed_completely() {
    let server = start_server().await;
    let client = Connection::connect_http1(&server).await;
    for number in 0..500 {
        let mut object = configmap("default", &format!("c{number:03}"), "x");
        object["data"]["key"] = "x".repeat(1_000).into();
        server.store().put(object).expect("stored");
    }
    let answer = client.get(CONFIGMAPS).await;
    assert_eq!(answer.headers.get("content-length"), None);
    let names = item_names(&answer.body);
    assert_eq!(
        (names.len(), names.first(), names.last()),
        (500, Some(&"c000"), Some(&"c499"))
    );
}
