//! The leader-election lock: `<lock>` towards the controller, `<lock>---<shard>` towards the API server, everywhere.

use ctrlmesh_tests::{Client, NAMESPACE, Stand, shard};
use http::Method;
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";
const MAPS: &str = "/api/v1/namespaces/operator/configmaps";
const ENDPOINTS: &str = "/api/v1/namespaces/operator/endpoints";

fn lock(api_version: &str, kind: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "lock", "namespace": NAMESPACE } })
}

async fn stand() -> anyhow::Result<(Stand, Client)> {
    let api = ctrlmesh_testkit::ApiServer::builder()
        .namespace(NAMESPACE)
        .start()
        .await?;
    let stand = Stand::around(api, vec![shard("a")], &[]).await?;
    let client = stand.client().with("content-type", "application/json");
    Ok((stand, client))
}

#[tokio::test]
async fn every_verb_and_kind_of_lock_is_renamed_both_ways() -> anyhow::Result<()> {
    let (stand, client) = stand().await?;
    for (collection, resource, api_version, kind) in [
        (LEASES, "leases.coordination.k8s.io", "coordination.k8s.io/v1", "Lease"),
        (MAPS, "configmaps", "v1", "ConfigMap"),
        (ENDPOINTS, "endpoints", "v1", "Endpoints"),
    ] {
        let name = |answer: &ctrlmesh_tests::Answer| {
            answer.json()["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let exists = |name: &str| {
            stand
                .api
                .store()
                .read(|state| state.get(resource, NAMESPACE, name).is_some())
        };
        let missing = client.get(&format!("{collection}/lock")).await?;
        assert_eq!(
            (missing.status, missing.json()["details"]["name"].as_str()),
            (404, Some("lock")),
            "{kind}"
        );
        assert!(
            !String::from_utf8_lossy(&missing.body).contains("---"),
            "{:?}",
            missing.body
        );
        let created = client
            .send(Method::POST, collection, lock(api_version, kind).to_string())
            .await?;
        assert_eq!(
            (created.status, name(&created)),
            (201, "lock".to_owned()),
            "{kind}: {:?}",
            created.body
        );
        assert!(exists("lock---a") && !exists("lock"), "{kind}");
        let read = client.get(&format!("{collection}/lock")).await?;
        assert_eq!((read.status, name(&read)), (200, "lock".to_owned()));
        let updated = client
            .send(Method::PUT, &format!("{collection}/lock"), read.body.clone())
            .await?;
        assert_eq!(
            (updated.status, name(&updated)),
            (200, "lock".to_owned()),
            "{:?}",
            updated.body
        );
        let listed = client
            .get(&format!("{collection}?fieldSelector=metadata.name%3Dlock"))
            .await?;
        assert_eq!(
            (listed.status, listed.names()),
            (200, vec!["lock".to_owned()]),
            "{kind}"
        );
        let target = format!("{collection}/lock");
        let patch = client
            .send(Method::PATCH, &target, r#"{"metadata":{"labels":{"x":"y"}}}"#)
            .await?;
        assert_eq!(patch.status, 415, "JSON is no patch type, and the body passed");
        let merge = stand.client().with("content-type", "application/merge-patch+json");
        let patched = merge
            .send(
                Method::PATCH,
                &format!("{collection}/lock"),
                r#"{"metadata":{"name":"lock","labels":{"x":"y"}}}"#,
            )
            .await?;
        assert_eq!(
            (patched.status, name(&patched)),
            (200, "lock".to_owned()),
            "{:?}",
            patched.body
        );
        let deleted = client.send(Method::DELETE, &format!("{collection}/lock"), "").await?;
        assert_eq!(deleted.status, 200);
        assert!(!exists("lock---a"), "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn a_watch_of_the_lock_shows_its_own_name() -> anyhow::Result<()> {
    let (stand, client) = stand().await?;
    client
        .send(
            Method::POST,
            LEASES,
            lock("coordination.k8s.io/v1", "Lease").to_string(),
        )
        .await?;
    let mut watch = client
        .stream(&format!("{LEASES}?watch=1&fieldSelector=metadata.name%3Dlock"))
        .await?;
    let event = watch.event().await?;
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&"ADDED".into(), &"lock".into())
    );
    stand
        .api
        .store()
        .delete("leases.coordination.k8s.io", NAMESPACE, "lock---a")?;
    assert_eq!(watch.event().await?["object"]["metadata"]["name"], "lock");
    Ok(())
}

#[tokio::test]
async fn other_locks_and_namespaces_are_left_alone() -> anyhow::Result<()> {
    let (stand, client) = stand().await?;
    let mut other = lock("coordination.k8s.io/v1", "Lease");
    other["metadata"]["name"] = "other".into();
    other["spec"] = json!({ "holderIdentity": "me", "unknownField": { "kept": [1, 2.50] } });
    let text = other.to_string();
    assert_eq!(client.send(Method::POST, LEASES, text).await?.status, 201);
    let stored = stand
        .api
        .store()
        .read(|state| state.get("leases.coordination.k8s.io", NAMESPACE, "other").cloned());
    assert_eq!(stored.unwrap()["spec"]["unknownField"], json!({ "kept": [1, 2.50] }));
    let elsewhere = LEASES.replace(NAMESPACE, "default");
    let mut lease = lock("coordination.k8s.io/v1", "Lease");
    lease["metadata"]["namespace"] = "default".into();
    assert_eq!(
        client.send(Method::POST, &elsewhere, lease.to_string()).await?.status,
        201
    );
    assert!(
        stand
            .api
            .store()
            .read(|state| state.get("leases.coordination.k8s.io", "default", "lock").is_some())
    );
    Ok(())
}
