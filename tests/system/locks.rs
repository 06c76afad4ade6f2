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

/// A kind that locks are made of, as the controller asks for it.
struct Kind<'s> {
    stand: &'s Stand,
    client: Client,
    collection: &'static str,
    resource: &'static str,
}

impl Kind<'_> {
    /// A request for the lock, or the collection; the answer names the lock as the controller knows it.
    async fn asks(
        &self,
        method: Method,
        path: &str,
        body: impl Into<bytes::Bytes>,
        code: u16,
    ) -> anyhow::Result<Value> {
        let answer = self
            .client
            .send(method.clone(), &format!("{}{path}", self.collection), body)
            .await?;
        assert_eq!(answer.status, code, "{method} {}: {:?}", self.collection, answer.body);
        assert!(
            !String::from_utf8_lossy(&answer.body).contains("---"),
            "{:?}",
            answer.body
        );
        Ok(answer.json())
    }

    fn exists(&self, name: &str) -> bool {
        let store = self.stand.api.store();
        store.read(|state| state.get(self.resource, NAMESPACE, name).is_some())
    }
}

#[tokio::test]
async fn every_verb_and_kind_of_lock_is_renamed_both_ways() -> anyhow::Result<()> {
    let (stand, client) = stand().await?;
    for (collection, resource, api_version, kind) in [
        (LEASES, "leases.coordination.k8s.io", "coordination.k8s.io/v1", "Lease"),
        (MAPS, "configmaps", "v1", "ConfigMap"),
        (ENDPOINTS, "endpoints", "v1", "Endpoints"),
    ] {
        let (stand, client) = (&stand, client.clone());
        let mut locks = Kind {
            stand,
            client,
            collection,
            resource,
        };
        let missing = locks.asks(Method::GET, "/lock", "", 404).await?;
        assert_eq!(missing["details"]["name"], "lock", "{kind}");
        let body = lock(api_version, kind).to_string();
        let created = locks.asks(Method::POST, "", body, 201).await?;
        assert!(locks.exists("lock---a") && !locks.exists("lock"), "{kind}");
        let read = locks.asks(Method::GET, "/lock", "", 200).await?;
        let updated = locks.asks(Method::PUT, "/lock", read.to_string(), 200).await?;
        let listed = locks
            .asks(Method::GET, "?fieldSelector=metadata.name%3Dlock", "", 200)
            .await?;
        let items = listed["items"].as_array().map_or(0, Vec::len);
        assert_eq!(items, 1, "{kind}: {listed}");
        let merge = r#"{"metadata":{"name":"lock","labels":{"x":"y"}}}"#;
        // JSON is no patch type, and the body passed.
        locks.asks(Method::PATCH, "/lock", merge, 415).await?;
        locks.client = stand.client().with("content-type", "application/merge-patch+json");
        let patched = locks.asks(Method::PATCH, "/lock", merge, 200).await?;
        for object in [&created, &read, &updated, &patched, &listed["items"][0]] {
            assert_eq!(object["metadata"]["name"], "lock", "{kind}");
        }
        locks.client = stand.client();
        locks.asks(Method::DELETE, "/lock", "", 200).await?;
        assert!(!locks.exists("lock---a"), "{kind}");
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
