//! The leader in `/status`, observed from the controller's reads and writes of its lock.

use ctrlmesh_contract::status::LeaderElection;
use ctrlmesh_tests::{NAMESPACE, TestEnv, shard_entry};
use http::Method;
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";
const MAPS: &str = "/api/v1/namespaces/operator/configmaps";

/// A controller that elects its leader by a lock in one collection.
struct Elector {
    env: TestEnv,
    collection: &'static str,
}

impl Elector {
    async fn start(collection: &'static str) -> anyhow::Result<Self> {
        let api = ctrlmesh_testkit::ApiServer::builder()
            .namespace(NAMESPACE)
            .start()
            .await?;
        let env = TestEnv::start_around(api, vec![shard_entry("a")], &[]).await?;
        Ok(Self { env, collection })
    }

    /// Sends a request about the lock; returns the object in its response.
    async fn send_lock_request(&self, method: Method, object: &Value, code: u16) -> anyhow::Result<Value> {
        let name = if method == Method::POST { "" } else { "/lock" };
        let (content_type, body) = match method {
            Method::GET | Method::DELETE => ("application/json", String::new()),
            Method::PATCH => ("application/merge-patch+json", object.to_string()),
            _ => ("application/json", object.to_string()),
        };
        let client = self.env.client().with_header("content-type", content_type);
        let answer = client
            .send(method.clone(), &format!("{}{name}", self.collection), body)
            .await?;
        assert_eq!(answer.status, code, "{method}: {:?}", answer.body);
        Ok(answer.json())
    }

    /// The only lock in the sidecar's status.
    async fn reported_election(&self) -> anyhow::Result<LeaderElection> {
        let mut elections = self.env.sidecar.status().await?.leader_elections;
        assert_eq!(elections.len(), 1, "{elections:?}");
        Ok(elections.remove(0))
    }

    async fn assert_led_by(&self, holder: &str, leads: bool) -> anyhow::Result<()> {
        let election = self.reported_election().await?;
        assert_eq!((&*election.holder, election.leads), (holder, leads), "{election:?}");
        assert_eq!(election.since.is_some(), leads, "{election:?}");
        Ok(())
    }

    /// Another replica writes the shard's lock, bypassing this sidecar.
    fn take_lock_elsewhere(&self, mut lock: Value, holder: &str, transitions: u64) -> anyhow::Result<()> {
        lock["metadata"]["name"] = "lock---a".into();
        lock["spec"]["holderIdentity"] = holder.into();
        lock["spec"]["leaseTransitions"] = transitions.into();
        self.env.api.store().put(lock)?;
        Ok(())
    }
}

fn lease_of(holder: &str, seconds: u64) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": "lock", "namespace": NAMESPACE },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        },
    })
}

#[tokio::test]
async fn pod_leads_from_lock_creation_while_it_renews() -> anyhow::Result<()> {
    let elector = Elector::start(LEASES).await?;
    elector.send_lock_request(Method::GET, &Value::Null, 404).await?;
    assert_eq!(elector.env.sidecar.status().await?.leader_elections, []);
    let mut lock = elector
        .send_lock_request(Method::POST, &lease_of("me", 60), 201)
        .await?;
    let election = elector.reported_election().await?;
    let expected = LeaderElection {
        resource: "leases.coordination.k8s.io".to_owned(),
        namespace: NAMESPACE.to_owned(),
        name: "lock".to_owned(),
        lock: "lock---a".to_owned(),
        holder: "me".to_owned(),
        leads: true,
        since: election.since.clone(),
    };
    assert_eq!(election, expected);
    assert!(election.since.is_some());
    lock["spec"]["renewTime"] = "2026-01-01T00:00:02.000000Z".into();
    let mut lock = elector.send_lock_request(Method::PUT, &lock, 200).await?;
    elector.send_lock_request(Method::GET, &Value::Null, 200).await?;
    assert_eq!(elector.reported_election().await?, election, "it goes on");
    // Another replica renewed it first.
    let mut old = lock.clone();
    old["metadata"]["resourceVersion"] = "1".into();
    old["spec"]["holderIdentity"] = "nobody".into();
    elector.send_lock_request(Method::PUT, &old, 409).await?;
    assert_eq!(elector.reported_election().await?, election);
    // From here on, nothing is renewed.
    lock["spec"]["leaseDurationSeconds"] = 1.into();
    lock["spec"]["renewTime"] = "2026-01-01T00:00:04.000000Z".into();
    elector.send_lock_request(Method::PUT, &lock, 200).await?;
    let has_run_out = |election: &LeaderElection| !election.leads && election.since.is_none();
    elector
        .env
        .sidecar
        .wait_status("the lock runs out", |status| {
            status.leader_elections.iter().all(has_run_out)
        })
        .await?;
    elector.assert_led_by("me", false).await
}

#[tokio::test]
async fn pod_stops_leading_when_it_releases_or_loses_the_lock() -> anyhow::Result<()> {
    let elector = Elector::start(LEASES).await?;
    let mut lock = elector
        .send_lock_request(Method::POST, &lease_of("me", 60), 201)
        .await?;
    elector.assert_led_by("me", true).await?;
    // Released like client-go does: without a holder.
    let spec = lock["spec"].as_object_mut().unwrap();
    spec.remove("holderIdentity");
    elector.send_lock_request(Method::PUT, &lock, 200).await?;
    elector.assert_led_by("", false).await?;
    let takes = json!({ "spec": { "holderIdentity": "me", "renewTime": "2026-01-01T00:00:02.000000Z" } });
    let lock = elector.send_lock_request(Method::PATCH, &takes, 200).await?;
    elector.assert_led_by("me", true).await?;

    elector.take_lock_elsewhere(lock, "other", 1)?;
    let lock = elector.send_lock_request(Method::GET, &Value::Null, 200).await?;
    elector.assert_led_by("other", false).await?;
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    elector.send_lock_request(Method::PATCH, &label, 200).await?;
    elector.assert_led_by("other", false).await?;
    let takes = json!({ "spec": { "holderIdentity": "me", "leaseTransitions": 2 } });
    elector.send_lock_request(Method::PATCH, &takes, 200).await?;
    elector.assert_led_by("me", true).await?;

    let watch = format!("{LEASES}?watch=1&fieldSelector=metadata.name%3Dlock");
    let mut watch = elector.env.client().open_stream(&watch).await?;
    watch.next_event().await?;
    elector.assert_led_by("me", true).await?;
    elector.take_lock_elsewhere(lock, "other", 3)?;
    watch.next_event().await?;
    elector.assert_led_by("other", false).await?;
    elector.send_lock_request(Method::DELETE, &Value::Null, 200).await?;
    elector.assert_led_by("", false).await
}

#[tokio::test]
async fn leader_is_read_from_annotation_locks_but_not_from_other_objects() -> anyhow::Result<()> {
    let elector = Elector::start(MAPS).await?;
    let map = |name: &str, holder: &str| {
        let record =
            json!({ "holderIdentity": holder, "leaseDurationSeconds": 60, "renewTime": "2026-01-01T00:00:00Z" });
        let annotations = json!({ "control-plane.alpha.kubernetes.io/leader": record.to_string() });
        let metadata = json!({ "name": name, "namespace": NAMESPACE, "annotations": annotations });
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata })
    };
    elector
        .send_lock_request(Method::POST, &map("lock2", "me"), 201)
        .await?;
    assert_eq!(elector.env.sidecar.status().await?.leader_elections, []);
    elector.send_lock_request(Method::POST, &map("lock", "me"), 201).await?;
    elector.assert_led_by("me", true).await?;
    assert_eq!(elector.reported_election().await?.resource, "configmaps");
    elector.send_lock_request(Method::PUT, &map("lock", ""), 200).await?;
    elector.assert_led_by("", false).await?;
    elector.send_lock_request(Method::PUT, &map("lock", "me"), 200).await?;
    // An invalid record says nothing: the last one counts until it expires.
    let mut broken = map("lock", "me");
    broken["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"] = "{".into();
    elector.send_lock_request(Method::PUT, &broken, 200).await?;
    elector.assert_led_by("me", true).await
}
