//! The leader-election lock: `<lock>` for the controller, `<lock>---<shard>` for the API server, everywhere.

use ctrlmesh_tests::{Client, EntrySpec, NAMESPACE, TestEnv, shard_entry};
use http::Method;
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";
const MAPS: &str = "/api/v1/namespaces/operator/configmaps";
const ENDPOINTS: &str = "/api/v1/namespaces/operator/endpoints";

fn lock_object(api_version: &str, kind: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "lock", "namespace": NAMESPACE } })
}

async fn start_env() -> anyhow::Result<(TestEnv, Client)> {
    let api = ctrlmesh_testkit::ApiServer::builder()
        .namespace(NAMESPACE)
        .start()
        .await?;
    let env = TestEnv::start_around(api, vec![shard_entry("a")], &[]).await?;
    let client = env.client().with_header("content-type", "application/json");
    Ok((env, client))
}

/// A kind of locks, as the controller requests it.
struct Kind<'s> {
    env: &'s TestEnv,
    client: Client,
    collection: &'static str,
    resource: &'static str,
}

impl Kind<'_> {
    /// Sends a request for the lock or its collection; checks that the response has the lock's name as the controller knows it.
    async fn send_lock_request(
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

    fn lock_exists(&self, name: &str) -> bool {
        let store = self.env.api.store();
        store.read(|state| state.get(self.resource, NAMESPACE, name).is_some())
    }
}

#[tokio::test]
async fn locks_of_every_kind_are_renamed_both_ways_for_every_verb() -> anyhow::Result<()> {
    let (env, client) = start_env().await?;
    for (collection, resource, api_version, kind) in [
        (LEASES, "leases.coordination.k8s.io", "coordination.k8s.io/v1", "Lease"),
        (MAPS, "configmaps", "v1", "ConfigMap"),
        (ENDPOINTS, "endpoints", "v1", "Endpoints"),
    ] {
        let (env, client) = (&env, client.clone());
        let mut locks = Kind {
            env,
            client,
            collection,
            resource,
        };
        let missing = locks.send_lock_request(Method::GET, "/lock", "", 404).await?;
        assert_eq!(missing["details"]["name"], "lock", "{kind}");
        let body = lock_object(api_version, kind).to_string();
        let created = locks.send_lock_request(Method::POST, "", body, 201).await?;
        assert!(locks.lock_exists("lock---a") && !locks.lock_exists("lock"), "{kind}");
        let read = locks.send_lock_request(Method::GET, "/lock", "", 200).await?;
        let updated = locks
            .send_lock_request(Method::PUT, "/lock", read.to_string(), 200)
            .await?;
        let listed = locks
            .send_lock_request(Method::GET, "?fieldSelector=metadata.name%3Dlock", "", 200)
            .await?;
        let items = listed["items"].as_array().map_or(0, Vec::len);
        assert_eq!(items, 1, "{kind}: {listed}");
        let merge = r#"{"metadata":{"name":"lock","labels":{"x":"y"}}}"#;
        // JSON is no patch type, so the body was not parsed.
        locks.send_lock_request(Method::PATCH, "/lock", merge, 415).await?;
        locks.client = env.client().with_header("content-type", "application/merge-patch+json");
        let patched = locks.send_lock_request(Method::PATCH, "/lock", merge, 200).await?;
        for object in [&created, &read, &updated, &patched, &listed["items"][0]] {
            assert_eq!(object["metadata"]["name"], "lock", "{kind}");
        }
        locks.client = env.client();
        locks.send_lock_request(Method::DELETE, "/lock", "", 200).await?;
        assert!(!locks.lock_exists("lock---a"), "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn watch_of_the_lock_shows_its_own_name() -> anyhow::Result<()> {
    let (env, client) = start_env().await?;
    client
        .send(
            Method::POST,
            LEASES,
            lock_object("coordination.k8s.io/v1", "Lease").to_string(),
        )
        .await?;
    let mut watch = client
        .open_stream(&format!("{LEASES}?watch=1&fieldSelector=metadata.name%3Dlock"))
        .await?;
    let event = watch.next_event().await?;
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&"ADDED".into(), &"lock".into())
    );
    env.api
        .store()
        .delete("leases.coordination.k8s.io", NAMESPACE, "lock---a")?;
    assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "lock");
    Ok(())
}

#[tokio::test]
async fn other_locks_and_namespaces_are_left_alone() -> anyhow::Result<()> {
    let (env, client) = start_env().await?;
    let mut other = lock_object("coordination.k8s.io/v1", "Lease");
    other["metadata"]["name"] = "other".into();
    other["spec"] = json!({ "holderIdentity": "me", "unknownField": { "kept": [1, 2.50] } });
    let text = other.to_string();
    assert_eq!(client.send(Method::POST, LEASES, text).await?.status, 201);
    let stored = env
        .api
        .store()
        .read(|state| state.get("leases.coordination.k8s.io", NAMESPACE, "other").cloned());
    assert_eq!(stored.unwrap()["spec"]["unknownField"], json!({ "kept": [1, 2.50] }));
    let elsewhere = LEASES.replace(NAMESPACE, "default");
    let mut lease = lock_object("coordination.k8s.io/v1", "Lease");
    lease["metadata"]["namespace"] = "default".into();
    assert_eq!(
        client.send(Method::POST, &elsewhere, lease.to_string()).await?.status,
        201
    );
    assert!(
        env.api
            .store()
            .read(|state| state.get("leases.coordination.k8s.io", "default", "lock").is_some())
    );
    Ok(())
}

/// The name of a created object is in its body, so both entries are asked about each create.
#[tokio::test]
async fn controllers_of_one_pod_create_a_lock_each() -> anyhow::Result<()> {
    let api = ctrlmesh_testkit::ApiServer::builder()
        .namespace(NAMESPACE)
        .start()
        .await?;
    let another = EntrySpec::new("shard-selector/b", ctrlmesh_plugins_builtin::SHARD_SELECTOR)
        .with_settings(json!({ "shard": "b", "leaderElectionName": "another" }));
    let env = TestEnv::start_around(api, vec![shard_entry("a"), another], &[]).await?;
    let locks = Kind {
        env: &env,
        client: env.client().with_header("content-type", "application/json"),
        collection: LEASES,
        resource: "leases.coordination.k8s.io",
    };
    for (name, sharded) in [("lock", "lock---a"), ("another", "another---b"), ("third", "third")] {
        let mut lock = lock_object("coordination.k8s.io/v1", "Lease");
        lock["metadata"]["name"] = name.into();
        for code in [201, 409] {
            locks
                .send_lock_request(Method::POST, "", lock.to_string(), code)
                .await?;
        }
        assert!(locks.lock_exists(sharded), "{name}");
        let read = locks
            .send_lock_request(Method::GET, &format!("/{name}"), "", 200)
            .await?;
        assert_eq!(read["metadata"]["name"], name);
    }
    Ok(())
}
