//! Server-side apply through kube-rs and plain HTTP.

use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{CONFIGMAPS, Connection, ReceivedResponse, WIDGETS, configmap, kube_client, start_server, widget};

fn apply_body(data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": data })
}

async fn send_apply(client: &Connection, query: &str, config: &Value) -> ReceivedResponse {
    let target = format!("{CONFIGMAPS}/a?{query}");
    client
        .call_with(
            Method::PATCH,
            &target,
            &[("content-type", "application/apply-patch+yaml")],
            Some(config),
        )
        .await
}

#[tokio::test]
async fn apply_creates_and_prunes_with_kube_rs() {
    let server = start_server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(kube_client(&server.kubeconfig()).await);
    let params = PatchParams::apply("tests");
    let apply = async |data: Value| {
        api.patch("a", &params, &Patch::Apply(apply_body(&data)))
            .await
            .expect("applied")
    };
    let created = apply(json!({ "one": "1", "two": "2" })).await;
    assert_eq!(created.metadata.managed_fields.as_ref().map(Vec::len), Some(1));
    let pruned = apply(json!({ "two": "2" })).await;
    assert_eq!(pruned.data.expect("data").into_keys().collect::<Vec<_>>(), ["two"]);
}

#[tokio::test]
async fn field_of_another_manager_conflicts_until_forced() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    assert_eq!(
        send_apply(&client, "fieldManager=one", &apply_body(&json!({ "k": "1" })))
            .await
            .status,
        StatusCode::CREATED
    );
    let conflict = send_apply(&client, "fieldManager=two", &apply_body(&json!({ "k": "2" }))).await;
    assert_eq!(
        (conflict.status, &conflict.body["reason"]),
        (StatusCode::CONFLICT, &json!("Conflict"))
    );
    let cause = &conflict.body["details"]["causes"][0];
    assert_eq!(
        (&cause["reason"], &cause["field"]),
        (&json!("FieldManagerConflict"), &json!(".data.k"))
    );
    let forced = send_apply(
        &client,
        "fieldManager=two&force=true",
        &apply_body(&json!({ "k": "2" })),
    )
    .await;
    assert_eq!(
        (forced.status, &forced.body["data"]["k"]),
        (StatusCode::OK, &json!("2"))
    );
    let owners: Vec<_> = forced.body["metadata"]["managedFields"]
        .as_array()
        .expect("owners")
        .iter()
        .collect();
    assert_eq!(
        owners.iter().map(|owner| &owner["manager"]).collect::<Vec<_>>(),
        [&json!("two")]
    );
}

#[tokio::test]
async fn plain_update_owns_the_fields_it_changes() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    send_apply(&client, "fieldManager=one", &apply_body(&json!({ "k": "1" }))).await;
    let path = format!("{CONFIGMAPS}/a?fieldManager=editor");
    let patch = json!({ "data": { "k": "2" } });
    let edited = client.call(Method::PATCH, &path, Some(&patch)).await.body;
    let owners = edited["metadata"]["managedFields"].as_array().expect("owners");
    let owners: Vec<_> = owners
        .iter()
        .map(|owner| (&owner["manager"], &owner["operation"]))
        .collect();
    assert_eq!(owners, [(&json!("editor"), &json!("Update"))]);
    let conflict = send_apply(&client, "fieldManager=one", &apply_body(&json!({ "k": "1" }))).await;
    assert_eq!(conflict.status, StatusCode::CONFLICT);
    assert!(
        conflict.body["message"]
            .as_str()
            .is_some_and(|m| m.contains("\"editor\"")),
        "{:?}",
        conflict.body
    );
}

#[tokio::test]
async fn repeated_apply_writes_nothing() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    send_apply(&client, "fieldManager=one", &apply_body(&json!({ "k": "1" }))).await;
    let before = server.store().resource_version();
    assert_eq!(
        send_apply(&client, "fieldManager=one", &apply_body(&json!({ "k": "1" })))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(server.store().resource_version(), before);
    assert_eq!(
        send_apply(&client, "fieldManager=two", &apply_body(&json!({ "k": "1" })))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        server.store().resource_version(),
        before + 1,
        "a second owner is a change"
    );
}

#[tokio::test]
async fn status_is_applied_only_at_its_subresource() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    client.create(WIDGETS, &widget("w1")).await;
    let mut config = widget("w1");
    config["status"] = json!({ "phase": "Ready" });
    config["spec"]["size"] = 7.into();
    let headers = [("content-type", "application/apply-patch+yaml")];
    let target = format!("{WIDGETS}/w1/status?fieldManager=one");
    let answer = client.call_with(Method::PATCH, &target, &headers, Some(&config)).await;
    assert_eq!(
        (&answer.body["status"]["phase"], &answer.body["spec"]["size"]),
        (&json!("Ready"), &json!(1))
    );
    let owner = answer.body["metadata"]["managedFields"]
        .as_array()
        .and_then(|owners| owners.last())
        .cloned();
    let owner = owner.expect("an owner");
    assert_eq!(
        (&owner["subresource"], &owner["fieldsV1"]),
        (&json!("status"), &json!({ "f:status": { "f:phase": {} } }))
    );
}

#[tokio::test]
async fn incomplete_apply_is_rejected() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    assert_eq!(
        send_apply(&client, "", &apply_body(&json!({}))).await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let no_kind = json!({ "apiVersion": "v1", "metadata": { "name": "a" } });
    assert_eq!(
        send_apply(&client, "fieldManager=x", &no_kind).await.status,
        StatusCode::BAD_REQUEST
    );
    let mut owned = configmap("default", "a", "x");
    owned["metadata"]["managedFields"] = json!([{}]);
    assert_eq!(
        send_apply(&client, "fieldManager=x", &owned).await.status,
        StatusCode::BAD_REQUEST
    );
    let forced = client
        .call(Method::PATCH, &format!("{CONFIGMAPS}/a?force=true"), Some(&json!({})))
        .await;
    assert_eq!(forced.status, StatusCode::UNPROCESSABLE_ENTITY);
}
