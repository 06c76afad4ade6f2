//! JSON patch, merge patch, and the strategic merge patches that are accepted.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{CONFIGMAPS, Connection, ReceivedResponse, configmap, start_server};

async fn send_patch(client: &Connection, media_type: &str, body: &Value) -> ReceivedResponse {
    let path = format!("{CONFIGMAPS}/a");
    client
        .call_with(Method::PATCH, &path, &[("content-type", media_type)], Some(body))
        .await
}

#[tokio::test]
async fn merge_patch_sets_and_removes_fields() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let body = json!({ "data": { "key": null, "new": "1" } });
    let answer = send_patch(&client, "application/merge-patch+json", &body).await;
    assert_eq!(
        (answer.status, &answer.body["data"]),
        (StatusCode::OK, &json!({ "new": "1" }))
    );
}

#[tokio::test]
async fn json_patch_tests_before_it_writes() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let media_type = "application/json-patch+json";
    let operations = |expected: &str| {
        json!([
            { "op": "test", "path": "/data/key", "value": expected },
            { "op": "replace", "path": "/data/key", "value": "changed" },
        ])
    };
    let failed = send_patch(&client, media_type, &operations("other")).await;
    assert_eq!(
        (failed.status, &failed.body["reason"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("Invalid"))
    );
    let done = send_patch(&client, media_type, &operations("value")).await;
    assert_eq!(
        (done.status, &done.body["data"]["key"]),
        (StatusCode::OK, &json!("changed"))
    );
}

#[tokio::test]
async fn patch_with_an_old_resource_version_conflicts() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let object = client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let version = object["metadata"]["resourceVersion"].clone();
    let body = |value: &str| json!({ "metadata": { "resourceVersion": version }, "data": { "key": value } });
    assert_eq!(
        send_patch(&client, "application/merge-patch+json", &body("1"))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        send_patch(&client, "application/merge-patch+json", &body("2"))
            .await
            .status,
        StatusCode::CONFLICT
    );
}

#[tokio::test]
async fn strategic_merge_patch_is_rejected_when_it_needs_a_schema() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let media_type = "application/strategic-merge-patch+json";
    assert_eq!(
        send_patch(&client, media_type, &json!({ "data": { "b": "1" } }))
            .await
            .status,
        StatusCode::OK
    );
    let lists = json!({ "metadata": { "finalizers": ["a/b"] } });
    let refused = send_patch(&client, media_type, &lists).await;
    assert_eq!(refused.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(refused.body["reason"], "UnsupportedMediaType");
}

#[tokio::test]
async fn patch_never_renames_or_creates() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let media_type = "application/merge-patch+json";
    assert_eq!(
        send_patch(&client, media_type, &json!({})).await.status,
        StatusCode::NOT_FOUND
    );
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    for body in [
        json!({ "metadata": { "name": "b" } }),
        json!({ "metadata": { "namespace": "kube-system" } }),
        json!({ "kind": "Secret" }),
        json!({ "metadata": { "labels": { "n": 1 } } }),
    ] {
        assert_eq!(
            send_patch(&client, media_type, &body).await.status,
            StatusCode::BAD_REQUEST,
            "{body}"
        );
    }
}
