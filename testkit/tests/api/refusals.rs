//! Unsupported requests are rejected with the status code of a real server where it has one.

use http::{Method, StatusCode};
use serde_json::json;

use crate::support::{CONFIGMAPS, Connection, configmap, start_server};

#[tokio::test]
async fn other_encodings_are_rejected() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    for media_type in ["application/cbor", "application/yaml"] {
        let headers = [("content-type", media_type)];
        let body = json!({});
        let answer = client.call_with(Method::POST, CONFIGMAPS, &headers, Some(&body)).await;
        assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{media_type}");
        assert_eq!(
            (&answer.body["kind"], &answer.body["code"]),
            (&json!("Status"), &json!(415))
        );
        let answer = client
            .call_with(Method::GET, CONFIGMAPS, &[("accept", media_type)], None)
            .await;
        assert_eq!(answer.status, StatusCode::NOT_ACCEPTABLE, "{media_type}");
    }
    let both = [("accept", "application/cbor,application/json")];
    let answer = client.call_with(Method::GET, CONFIGMAPS, &both, None).await;
    assert_eq!(
        (answer.status, answer.headers["content-type"].as_bytes()),
        (StatusCode::OK, &b"application/json"[..])
    );
}

#[tokio::test]
async fn unsupported_methods_are_rejected() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    server.store().put(configmap("default", "a", "x")).expect("stored");
    for (method, target) in [
        (Method::DELETE, "/api/v1/configmaps"),
        (Method::POST, "/api/v1/configmaps"),
        (Method::POST, "/api/v1/namespaces/default/configmaps/a"),
        (Method::PUT, CONFIGMAPS),
        (Method::PATCH, CONFIGMAPS),
        (Method::HEAD, CONFIGMAPS),
        (Method::POST, "/api/v1/watch/configmaps"),
        (Method::OPTIONS, CONFIGMAPS),
    ] {
        let answer = client.call(method.clone(), target, None).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {target}");
    }
}

#[tokio::test]
async fn unknown_paths_are_not_found() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    server.store().put(configmap("default", "a", "x")).expect("stored");
    for target in [
        "/api/v1/gadgets",
        "/api/v1/configmaps/a",
        "/api/v1//configmaps",
        "/api/v1/namespaces/default//configmaps",
        "/api/v1/namespaces/default/configmaps/a/status",
        "/api/v1/namespaces/default/configmaps/a/scale",
        "/api/v1/namespaces/default/pods/a/log",
        "/apis/apps/v1/namespaces/default/deployments/a/status/more",
        "/metrics",
    ] {
        assert_eq!(client.get(target).await.status, StatusCode::NOT_FOUND, "{target}");
    }
    assert_eq!(
        client.get("/api/v1/configmaps%zz").await.status,
        StatusCode::BAD_REQUEST
    );
    let long = format!("{CONFIGMAPS}?{}", "x&".repeat(10_001));
    assert_eq!(client.get(&long).await.status, StatusCode::URI_TOO_LONG);
}

#[tokio::test]
async fn invalid_objects_are_rejected() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    for (body, expected) in [
        (json!([]), 400),
        (json!({ "metadata": [] }), 400),
        (json!({ "kind": "Secret", "metadata": { "name": "a" } }), 400),
        (json!({ "apiVersion": "v2", "metadata": { "name": "a" } }), 400),
        (json!({ "metadata": { "name": "a", "namespace": "kube-system" } }), 400),
        (json!({ "metadata": { "name": "a", "labels": { "n": 1 } } }), 400),
        (json!({ "metadata": { "name": "a", "resourceVersion": "7" } }), 400),
        (json!({ "metadata": {} }), 422),
        (json!({ "metadata": { "name": "UPPER" } }), 422),
        (json!({ "metadata": { "name": "a/b" } }), 422),
    ] {
        let answer = client.call(Method::POST, CONFIGMAPS, Some(&body)).await;
        assert_eq!(answer.status.as_u16(), expected, "{body}: {:?}", answer.body);
    }
    let large = json!({ "metadata": { "name": "a" }, "data": { "k": "x".repeat(4 << 20) } });
    let answer = client.call(Method::POST, CONFIGMAPS, Some(&large)).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn deletions_that_need_a_garbage_collector_are_rejected() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    server.store().put(configmap("default", "a", "x")).expect("stored");
    let path = format!("{CONFIGMAPS}/a");
    for body in [
        json!({ "propagationPolicy": "Foreground" }),
        json!({ "orphanDependents": true }),
    ] {
        let answer = client.call(Method::DELETE, &path, Some(&body)).await;
        assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED, "{body}");
    }
    let query = format!("{path}?propagationPolicy=Orphan");
    assert_eq!(
        client.call(Method::DELETE, &query, None).await.status,
        StatusCode::NOT_IMPLEMENTED
    );
    let body = json!({ "propagationPolicy": "Background" });
    assert_eq!(
        client.call(Method::DELETE, &path, Some(&body)).await.status,
        StatusCode::OK
    );
}
