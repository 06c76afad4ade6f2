//! Create, read, update, delete: metadata, concurrency, finalizers, status.

use http::{Method, StatusCode};
use serde_json::json;

use crate::support::{CONFIGMAPS, Connection, WIDGETS, configmap, item_names, start_server, widget};

#[tokio::test]
async fn created_object_gets_identity_and_is_read_back() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let created = client.create(WIDGETS, &widget("w1")).await;
    let metadata = &created["metadata"];
    assert_eq!(metadata["uid"].as_str().map(str::len), Some(36));
    assert_eq!(metadata["generation"], 1);
    assert!(
        metadata["creationTimestamp"]
            .as_str()
            .is_some_and(|time| time.ends_with('Z'))
    );
    assert_eq!(
        metadata["resourceVersion"],
        server.store().resource_version().to_string()
    );
    let read = client.get(&format!("{WIDGETS}/w1")).await;
    assert_eq!((read.status, read.body), (StatusCode::OK, created));
}

#[tokio::test]
async fn second_create_is_rejected_and_generated_name_is_new() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let again = client
        .call(Method::POST, CONFIGMAPS, Some(&configmap("default", "a", "x")))
        .await;
    assert_eq!(
        (again.status, again.body["reason"].as_str()),
        (StatusCode::CONFLICT, Some("AlreadyExists"))
    );
    assert_eq!(again.body["message"], "configmaps \"a\" already exists");
    let generated = json!({ "metadata": { "generateName": "job-", "annotations": {}, "finalizers": null } });
    let (one, two) = (
        client.create(CONFIGMAPS, &generated).await,
        client.create(CONFIGMAPS, &generated).await,
    );
    let name = one["metadata"]["name"].as_str().expect("a name");
    assert!(name.starts_with("job-") && name.len() == 9, "{name}");
    assert_ne!(one["metadata"]["name"], two["metadata"]["name"]);
    let metadata = one["metadata"].as_object().expect("metadata");
    assert!(!metadata.contains_key("annotations") && !metadata.contains_key("finalizers"));
}

#[tokio::test]
async fn update_from_an_old_state_conflicts() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let mut object = client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let path = format!("{CONFIGMAPS}/a");
    object["data"]["key"] = "two".into();
    let updated = client.call(Method::PUT, &path, Some(&object)).await;
    assert_eq!(
        (updated.status, &updated.body["data"]["key"]),
        (StatusCode::OK, &json!("two"))
    );
    let stale = client.call(Method::PUT, &path, Some(&object)).await;
    assert_eq!(
        (stale.status, stale.body["reason"].as_str()),
        (StatusCode::CONFLICT, Some("Conflict"))
    );
    object["metadata"]["resourceVersion"] = json!(null);
    object["data"]["key"] = "three".into();
    assert_eq!(
        client.call(Method::PUT, &path, Some(&object)).await.status,
        StatusCode::OK
    );
    object["metadata"]["uid"] = "someone-else".into();
    assert_eq!(
        client.call(Method::PUT, &path, Some(&object)).await.status,
        StatusCode::CONFLICT
    );
}

#[tokio::test]
async fn custom_resource_update_requires_resource_version() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    client.create(WIDGETS, &widget("w1")).await;
    let answer = client
        .call(Method::PUT, &format!("{WIDGETS}/w1"), Some(&widget("w1")))
        .await;
    assert_eq!(
        (answer.status, answer.body["reason"].as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, Some("Invalid"))
    );
}

#[tokio::test]
async fn lease_is_created_by_an_update() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/leader";
    let lease = json!({ "metadata": { "name": "leader" }, "spec": { "holderIdentity": "me" } });
    assert_eq!(
        client.call(Method::PUT, path, Some(&lease)).await.status,
        StatusCode::CREATED
    );
    assert_eq!(client.get(path).await.body["spec"]["holderIdentity"], "me");
    let missing = client
        .call(Method::PUT, &format!("{CONFIGMAPS}/none"), Some(&json!({})))
        .await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn unchanged_update_keeps_the_resource_version() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let object = client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let before = server.store().resource_version();
    let answer = client
        .call(Method::PUT, &format!("{CONFIGMAPS}/a"), Some(&object))
        .await;
    assert_eq!(answer.body, object);
    assert_eq!(server.store().resource_version(), before);
}

#[tokio::test]
async fn only_spec_writes_raise_the_generation() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let (path, status_path) = (format!("{WIDGETS}/w1"), format!("{WIDGETS}/w1/status"));
    let mut object = widget("w1");
    object["status"] = json!({ "phase": "Forged" });
    let mut object = client.create(WIDGETS, &object).await;
    assert_eq!(object.get("status"), None);

    object["status"] = json!({ "phase": "Ready" });
    object["spec"]["size"] = 99.into();
    let object = client.call(Method::PUT, &status_path, Some(&object)).await.body;
    assert_eq!(
        (&object["status"]["phase"], &object["spec"]["size"]),
        (&json!("Ready"), &json!(1))
    );
    assert_eq!(object["metadata"]["generation"], 1);

    let patch = json!({ "spec": { "size": 2 }, "status": { "phase": "Forged" } });
    let object = client.call(Method::PATCH, &path, Some(&patch)).await.body;
    assert_eq!(
        (&object["status"]["phase"], &object["spec"]["size"]),
        (&json!("Ready"), &json!(2))
    );
    assert_eq!(object["metadata"]["generation"], 2);
    assert_eq!(client.get(&status_path).await.body, object);
}

#[tokio::test]
async fn finalizer_delays_deletion_until_removed() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let path = format!("{CONFIGMAPS}/a");
    let mut object = configmap("default", "a", "x");
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    client.create(CONFIGMAPS, &object).await;
    let waiting = client.call(Method::DELETE, &path, None).await;
    assert!(
        waiting.body["metadata"]["deletionTimestamp"].is_string(),
        "{:?}",
        waiting.body
    );
    let more = json!({ "metadata": { "finalizers": ["example.com/hold", "example.com/more"] } });
    assert_eq!(
        client.call(Method::PATCH, &path, Some(&more)).await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let none = json!({ "metadata": { "finalizers": null } });
    assert_eq!(
        client.call(Method::PATCH, &path, Some(&none)).await.status,
        StatusCode::OK
    );
    assert_eq!(client.get(&path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn delete_preconditions_protect_another_object() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let path = format!("{CONFIGMAPS}/a");
    let object = client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    for wrong in [json!({ "uid": "other" }), json!({ "resourceVersion": "1" })] {
        let answer = client
            .call(Method::DELETE, &path, Some(&json!({ "preconditions": wrong })))
            .await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{wrong}");
    }
    let right = json!({ "preconditions": { "uid": object["metadata"]["uid"] } });
    let answer = client.call(Method::DELETE, &path, Some(&right)).await;
    assert_eq!(
        (answer.status, &answer.body["status"]),
        (StatusCode::OK, &json!("Success"))
    );
    assert_eq!(answer.body["details"]["uid"], object["metadata"]["uid"]);
}

#[tokio::test]
async fn dry_run_writes_nothing() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let before = server.store().resource_version();
    let target = format!("{CONFIGMAPS}?dryRun=All");
    let answer = client
        .call(Method::POST, &target, Some(&configmap("default", "a", "x")))
        .await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert!(answer.body["metadata"]["uid"].is_string());
    assert_eq!(
        client.get(&format!("{CONFIGMAPS}/a")).await.status,
        StatusCode::NOT_FOUND
    );
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let path = format!("{CONFIGMAPS}/a");
    assert_eq!(
        client
            .call(Method::DELETE, &format!("{path}?dryRun=All"), None)
            .await
            .status,
        StatusCode::OK
    );
    let body = json!({ "dryRun": ["All"] });
    assert_eq!(
        client.call(Method::DELETE, &path, Some(&body)).await.status,
        StatusCode::OK
    );
    assert_eq!(client.get(&path).await.status, StatusCode::OK);
    assert_eq!(server.store().resource_version(), before + 1);
    let other = client.call(Method::DELETE, &format!("{path}?dryRun=Some"), None).await;
    assert_eq!(other.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn collection_delete_honours_the_selector() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    for (name, app) in [("a", "x"), ("b", "y"), ("c", "x")] {
        client.create(CONFIGMAPS, &configmap("default", name, app)).await;
    }
    server.store().put(configmap("kube-system", "d", "x")).expect("stored");
    let answer = client
        .call(Method::DELETE, &format!("{CONFIGMAPS}?labelSelector=app%3Dx"), None)
        .await;
    assert_eq!(
        (answer.status, item_names(&answer.body)),
        (StatusCode::OK, vec!["a", "c"])
    );
    assert_eq!(item_names(&client.get("/api/v1/configmaps").await.body), ["b", "d"]);
}

#[tokio::test]
async fn create_requires_an_existing_namespace() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let nowhere = "/api/v1/namespaces/nowhere/configmaps";
    let answer = client
        .call(Method::POST, nowhere, Some(&json!({ "metadata": { "name": "a" } })))
        .await;
    assert_eq!(
        (answer.status, &answer.body["message"]),
        (StatusCode::NOT_FOUND, &json!("namespaces \"nowhere\" not found"))
    );
    client
        .create("/api/v1/namespaces", &json!({ "metadata": { "name": "nowhere" } }))
        .await;
    client.create(nowhere, &json!({ "metadata": { "name": "a" } })).await;
    let path = "/api/v1/namespaces/nowhere";
    let refused = client.call(Method::DELETE, path, None).await;
    assert_eq!(refused.status, StatusCode::NOT_IMPLEMENTED);
    client.call(Method::DELETE, &format!("{nowhere}/a"), None).await;
    assert_eq!(client.call(Method::DELETE, path, None).await.status, StatusCode::OK);
}

#[tokio::test]
async fn store_is_seeded_and_awaited_without_a_client() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let mut object = widget("w1");
    object["status"] = json!({ "phase": "Ready" });
    server.store().put(object).expect("stored");
    assert_eq!(
        client.get(&format!("{WIDGETS}/w1")).await.body["status"]["phase"],
        "Ready"
    );
    let gone = server
        .store()
        .wait_until(|state| state.get("widgets.example.com", "default", "w1").is_none());
    let delete = async {
        assert_eq!(
            client.call(Method::DELETE, &format!("{WIDGETS}/w1"), None).await.status,
            StatusCode::OK
        );
    };
    let (gone, ()) = tokio::join!(gone, delete);
    gone.expect("the delete is seen");
    server
        .store()
        .put(json!({ "apiVersion": "v9", "kind": "Nothing" }))
        .expect_err("an unknown kind");
}
