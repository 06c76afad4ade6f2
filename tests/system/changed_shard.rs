//! A running pod that changes shards: its controller is shown nothing, and writes nothing of divided kinds, while it may lead by the lock
//! of the earlier shard.

use ctrlmesh_tests::client::Stream;
use ctrlmesh_tests::{EntrySpec, NAMESPACE, TestEnv, shard_entry};
use http::Method;
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";
const CONFIG_MAPS: &str = "/api/v1/configmaps";

/// The lock of a controller that leads for this number of seconds.
fn lease_object(seconds: u64) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": "lock", "namespace": NAMESPACE },
        "spec": { "holderIdentity": "me", "leaseDurationSeconds": seconds, "renewTime": "2026-01-01T00:00:00.000000Z" },
    })
}

/// A leader in shard `a` with an open watch, which then changes to shard `b`.
struct MovedLeader {
    env: TestEnv,
    lease: Value,
}

impl MovedLeader {
    /// `seconds`: how long the controller's lease is valid.
    async fn start(seconds: u64) -> anyhow::Result<(Self, Stream)> {
        let api = ctrlmesh_testkit::ApiServer::builder()
            .namespace(NAMESPACE)
            .start()
            .await?;
        let env = TestEnv::start_around(api, vec![shard_entry("a")], &[]).await?;
        env.seed_config_maps("default", "a", 1)?;
        env.seed_config_maps("default", "b", 2)?;
        let lease = lease_object(seconds);
        // Another pod leads in shard `b`.
        let mut others = lease.clone();
        others["metadata"]["name"] = "lock---b".into();
        others["spec"]["holderIdentity"] = "another".into();
        env.api.store().put(others)?;
        let client = env.client().with_header("content-type", "application/json");
        let created = client.send(Method::POST, LEASES, lease.to_string()).await?;
        assert_eq!(created.status, 201, "{:?}", created.body);
        let mut moved = Self { env, lease };
        assert_eq!(moved.listed_names().await?, ["a0"]);
        let mut watch = moved.watch().await?;
        moved.env.publish(vec![shard_entry("b")]).await?;
        assert_eq!(watch.next_event().await?["object"]["code"], 410);
        assert_eq!(moved.listed_names().await?, [""; 0], "another pod acts on these");
        let watch = moved.watch().await?;
        Ok((moved, watch))
    }

    async fn listed_names(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.env.client().get(CONFIG_MAPS).await?.names())
    }

    /// Lists and watches like a reflector.
    async fn watch(&self) -> anyhow::Result<Stream> {
        let list = self.env.client().get(CONFIG_MAPS).await?.json();
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let target = format!("{CONFIG_MAPS}?watch=1&resourceVersion={version}");
        let stream = self.env.client().open_stream(&target).await?;
        assert_eq!(stream.head.status, 200, "{}", self.env.sidecar.log());
        Ok(stream)
    }

    /// The watch ends, and the controller is shown its new shard, of which nothing was deleted.
    async fn assert_shown(&self, mut watch: Stream) -> anyhow::Result<()> {
        assert_eq!(watch.next_event().await?["object"]["code"], 410);
        assert_eq!(self.listed_names().await?, ["b0", "b1"]);
        Ok(())
    }
}

#[tokio::test]
async fn leader_that_changes_shards_is_shown_nothing_until_its_lease_expires() -> anyhow::Result<()> {
    let (moved, watch) = MovedLeader::start(5).await?;
    let leads = moved.env.sidecar.status().await?.leader_elections;
    assert!(
        leads
            .iter()
            .any(|election| election.lock == "lock---a" && election.leads),
        "{leads:?}"
    );
    let client = moved.env.client();
    let deleted = client
        .send(Method::DELETE, "/api/v1/namespaces/default/configmaps", "")
        .await?;
    assert_eq!(deleted.status, 200, "{:?}", deleted.body);
    moved.assert_shown(watch).await?;
    let leads = moved.env.sidecar.status().await?.leader_elections;
    assert!(leads.iter().all(|election| !election.leads), "{leads:?}");
    Ok(())
}

#[tokio::test]
async fn leader_that_changes_shards_is_shown_objects_once_it_has_the_new_lock() -> anyhow::Result<()> {
    let (moved, watch) = MovedLeader::start(3_600).await?;
    // The other pod has gone, and the controller takes over its lock.
    let client = moved.env.client().with_header("content-type", "application/json");
    let target = format!("{LEASES}/lock");
    let others = client.get(&target).await?.json();
    assert_eq!(others["spec"]["holderIdentity"], "another");
    let mut own = moved.lease.clone();
    own["metadata"]["resourceVersion"] = others["metadata"]["resourceVersion"].clone();
    own["spec"]["renewTime"] = "2026-01-01T00:00:20.000000Z".into();
    let written = client.send(Method::PUT, &target, own.to_string()).await?;
    assert_eq!(written.status, 200, "{:?}", written.body);
    moved.assert_shown(watch).await
}

#[tokio::test]
async fn pod_that_does_not_lead_is_shown_its_new_shard_at_once() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.seed_config_maps("default", "b", 1)?;
    env.publish(vec![shard_entry("b")]).await?;
    assert_eq!(env.client().get(CONFIG_MAPS).await?.names(), ["b0"]);
    Ok(())
}

/// The pod is also in a shard of another controller, which has not changed.
#[tokio::test]
async fn leader_that_changes_shards_hides_nothing_from_another_controller() -> anyhow::Result<()> {
    let api = ctrlmesh_testkit::ApiServer::builder()
        .namespace(NAMESPACE)
        .start()
        .await?;
    let another = || {
        let settings = json!({
            "shard": "x",
            "limits": [{
                "relateResources": [{ "apiGroups": [""], "resources": ["secrets"] }],
                "selector": { "matchLabels": { "shard": "x" } },
            }],
        });
        EntrySpec::new("shard-selector/another", ctrlmesh_plugins_builtin::SHARD_SELECTOR).with_settings(settings)
    };
    let mut env = TestEnv::start_around(api, vec![shard_entry("a"), another()], &[]).await?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "mine", "namespace": "default", "labels": { "shard": "x" } },
    });
    env.api.store().put(secret)?;
    let client = env.client().with_header("content-type", "application/json");
    let created = client
        .send(Method::POST, LEASES, lease_object(3_600).to_string())
        .await?;
    assert_eq!(created.status, 201, "{:?}", created.body);
    env.publish(vec![shard_entry("b"), another()]).await?;
    assert_eq!(client.get("/api/v1/secrets").await?.names(), ["mine"]);
    Ok(())
}

/// A shard of pods that has those of the namespace `default`.
fn hash_shard(name: &str) -> EntrySpec {
    let settings = json!({
        "shard": name,
        "leaderElectionName": "lock",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
            "hashRanges": { "key": "namespace", "ranges": ["0-1022"] },
        }],
    });
    EntrySpec::new("shard-selector/test", ctrlmesh_plugins_builtin::SHARD_SELECTOR).with_settings(settings)
}

#[tokio::test]
async fn leader_that_changes_shards_writes_no_object_by_name_until_it_has_the_new_lock() -> anyhow::Result<()> {
    let api = ctrlmesh_testkit::ApiServer::builder()
        .namespace(NAMESPACE)
        .start()
        .await?;
    let mut env = TestEnv::start_around(api, vec![hash_shard("a")], &[]).await?;
    env.api.store().put(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p", "namespace": "default" },
        "spec": { "nodeName": "n" },
    }))?;
    let lead = async |env: &TestEnv| -> anyhow::Result<()> {
        let client = env.client().with_header("content-type", "application/json");
        let created = client
            .send(Method::POST, LEASES, lease_object(3_600).to_string())
            .await?;
        assert_eq!(created.status, 201, "{:?}", created.body);
        Ok(())
    };
    let pods = "/api/v1/namespaces/default/pods";
    let patch = async |env: &TestEnv, name: &str| {
        let client = env.client().with_header("content-type", "application/merge-patch+json");
        let target = format!("{pods}/{name}");
        let body = r#"{"metadata":{"labels":{"written":"x"}}}"#;
        client.send(Method::PATCH, &target, body).await
    };
    lead(&env).await?;
    assert_eq!(patch(&env, "p").await?.status, 200, "it leads by the lock of its shard");

    env.publish(vec![hash_shard("b")]).await?;
    env.api.requests().clear();
    for name in ["p", "missing"] {
        let answer = patch(&env, name).await?;
        assert_eq!(answer.status, 409, "{:?}", answer.body);
        let status = answer.json();
        assert_eq!(
            (&status["reason"], &status["details"]["name"]),
            (&json!("Conflict"), &json!(name))
        );
        assert_eq!(status["details"]["causes"][0]["reason"], "EarlierLock");
        assert!(!answer.headers.contains_key("retry-after"));
    }
    let deleted = env.client().send(Method::DELETE, &format!("{pods}/p"), "").await?;
    assert_eq!(deleted.status, 409, "{:?}", deleted.body);
    let tunnel = env.client().get(&format!("{pods}/p/exec")).await?;
    assert_eq!(tunnel.status, 409, "{:?}", tunnel.body);
    assert!(env.api.requests().recent().is_empty(), "nothing was sent");
    let refused = r#"ctrlmesh_objects_refused_total{entry="shard-selector/test"}"#;
    assert_eq!(env.sidecar.metric_value(refused).await?, 4.0);
    let deleted = env.client().send(Method::DELETE, pods, "").await?;
    assert_eq!(deleted.status, 200, "{:?}", deleted.body);
    assert_eq!(env.api.requests().count("delete"), 0);
    assert_eq!(env.client().get(&format!("{pods}/p")).await?.status, 200);

    lead(&env).await?;
    assert_eq!(patch(&env, "p").await?.status, 200);
    assert_eq!(env.client().send(Method::DELETE, pods, "").await?.status, 200);
    assert_eq!(env.client().get(&format!("{pods}/p")).await?.status, 404);
    Ok(())
}
