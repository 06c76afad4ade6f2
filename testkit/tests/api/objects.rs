//! Create, read, update, delete: metadata, concurrency, finalizers, status.

use http::{Method, StatusCode};
use serde_json::json;

use crate::support::{CONFIGMAPS, Connection, WIDGETS, configmap, names, server, widget};

#[tokio::test]
async fn a_created_object_gets_identity_and_is_read_back() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn a_second_create_is_refused_and_a_generated_name_is_new() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn an_update_from_an_old_state_is_a_conflict() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn a_custom_resource_is_not_updated_without_its_resource_version() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn a_lease_is_created_by_an_update_as_the_real_server_does() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn an_update_that_changes_nothing_keeps_the_resource_version() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
    let object = client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let before = server.store().resource_version();
    let answer = client
        .call(Method::PUT, &format!("{CONFIGMAPS}/a"), Some(&object))
        .await;
    assert_eq!(answer.body, object);
    assert_eq!(server.store().resource_version(), before);
}

#[tokio::test]
async fn spec_and_status_are_written_apart_and_only_spec_moves_the_generation() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn a_finalizer_holds_the_object_back_until_it_is_removed() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn a_delete_with_preconditions_spares_another_object() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn a_dry_run_answers_and_writes_nothing() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn a_collection_is_deleted_as_far_as_the_selector_goes() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
    for (name, app) in [("a", "x"), ("b", "y"), ("c", "x")] {
        client.create(CONFIGMAPS, &configmap("default", name, app)).await;
    }
    server.store().put(configmap("kube-system", "d", "x")).expect("stored");
    let answer = client
        .call(Method::DELETE, &format!("{CONFIGMAPS}?labelSelector=app%3Dx"), None)
        .await;
    assert_eq!((answer.status, names(&answer.body)), (StatusCode::OK, vec!["a", "c"]));
    assert_eq!(names(&client.get("/api/v1/configmaps").await.body), ["b", "d"]);
}

#[tokio::test]
async fn objects_live_in_namespaces_that_exist() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
async fn the_program_seeds_and_waits_without_a_client() {
    let server = server().await;
    let client = Connection::h2c(&server).await;
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
