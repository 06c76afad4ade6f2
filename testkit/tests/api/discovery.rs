//! Discovery, plain and aggregated, health and version.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Connection, kube_client, start_server};

fn find_entry<'a>(list: &'a Value, field: &str, name: &str) -> &'a Value {
    let list = list.as_array().expect("a list");
    list.iter()
        .find(|item| item[field] == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

#[tokio::test]
async fn discovery_names_groups_versions_and_resources() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let versions = client.get("/api").await.body;
    assert_eq!(versions["versions"], json!(["v1"]));
    let address = &versions["serverAddressByClientCIDRs"][0]["serverAddress"];
    assert_eq!(address, &json!(server.tls_address()));
    let groups = client.get("/apis").await.body;
    assert_eq!(
        find_entry(&groups["groups"], "name", "example.com")["preferredVersion"]["version"],
        "v1"
    );
    assert_eq!(client.get("/apis/apps").await.body["kind"], "APIGroup");
    let core = client.get("/api/v1").await.body;
    let configmaps = find_entry(&core["resources"], "name", "configmaps");
    assert_eq!(
        (&configmaps["kind"], &configmaps["namespaced"]),
        (&json!("ConfigMap"), &json!(true))
    );
    let custom = client.get("/apis/example.com/v1").await.body;
    assert_eq!(
        find_entry(&custom["resources"], "name", "widgets/status")["verbs"],
        json!(["get", "patch", "update"])
    );
    for missing in [
        "/apis/none",
        "/api/v2",
        "/openapi/v2",
        "/openapi/v3",
        "//api/v1",
        "/API/v1",
    ] {
        let answer = client.get(missing).await;
        assert_eq!(
            (answer.status, &answer.body["reason"]),
            (StatusCode::NOT_FOUND, &json!("NotFound")),
            "{missing}"
        );
    }
    for missing in ["/apis/apps/v9", "/apis/none/v1"] {
        let answer = client.get(missing).await;
        assert_eq!(
            (answer.status, &answer.headers["content-type"], answer.body),
            (
                StatusCode::NOT_FOUND,
                &"text/plain; charset=utf-8".parse().unwrap(),
                json!("404 page not found\n")
            ),
            "{missing}: no Status"
        );
    }
}

#[tokio::test]
async fn aggregated_discovery_is_served_when_accepted() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let answer = client
        .call_with(Method::GET, "/apis", &[("accept", accept)], None)
        .await;
    let content_type = answer.headers["content-type"].to_str().expect("text");
    assert!(content_type.contains("as=APIGroupDiscoveryList"), "{content_type}");
    let items = answer.body["items"].as_array().expect("items");
    let custom = items
        .iter()
        .find(|item| item["metadata"]["name"] == "example.com")
        .expect("the group");
    let widgets = &custom["versions"][0]["resources"][0];
    assert_eq!(
        (&widgets["resource"], &widgets["scope"]),
        (&json!("widgets"), &json!("Namespaced"))
    );
    assert_eq!(widgets["subresources"][0]["subresource"], "status");
    let plain = client
        .call_with(Method::GET, "/apis", &[("accept", "application/json")], None)
        .await;
    assert_eq!(plain.body["kind"], "APIGroupList");
}

#[tokio::test]
async fn kube_rs_discovers_custom_kind() {
    let server = start_server().await;
    let client = kube_client(&server.kubeconfig()).await;
    let version = client.apiserver_version().await.expect("a version");
    assert!(version.git_version.contains("testkit"), "{version:?}");
    let discovery = kube::discovery::Discovery::new(client).run().await.expect("discovery");
    let group = discovery.get("example.com").expect("the group");
    let (resource, capabilities) = group.recommended_kind("Widget").expect("the kind");
    assert_eq!(resource.plural, "widgets");
    assert!(
        capabilities
            .subresources
            .iter()
            .any(|(subresource, _)| subresource.plural == "status")
    );
}

#[tokio::test]
async fn health_is_plain_text() {
    let server = start_server().await;
    let client = Connection::connect_http1(&server).await;
    for path in ["/healthz", "/readyz", "/livez", "/readyz/ping"] {
        let answer = client.get(path).await;
        assert_eq!((answer.status, &answer.body), (StatusCode::OK, &json!("ok")), "{path}");
    }
}
