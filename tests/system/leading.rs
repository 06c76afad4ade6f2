//! Who leads, as `/status` tells it: overheard from what the controller writes and reads of its lock.

use ctrlmesh_contract::status::LeaderElection;
use ctrlmesh_tests::{NAMESPACE, Stand, shard};
use http::Method;
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";
const MAPS: &str = "/api/v1/namespaces/operator/configmaps";

/// A controller that elects its leader by a lock in one collection.
struct Elector {
    stand: Stand,
    collection: &'static str,
}

impl Elector {
    async fn start(collection: &'static str) -> anyhow::Result<Self> {
        let api = ctrlmesh_testkit::ApiServer::builder()
            .namespace(NAMESPACE)
            .start()
            .await?;
        let stand = Stand::around(api, vec![shard("a")], &[]).await?;
        Ok(Self { stand, collection })
    }

    /// Sends a request about the lock; gives the object in its answer.
    async fn asks(&self, method: Method, object: &Value, code: u16) -> anyhow::Result<Value> {
        let name = if method == Method::POST { "" } else { "/lock" };
        let (content_type, body) = match method {
            Method::GET | Method::DELETE => ("application/json", String::new()),
            Method::PATCH => ("application/merge-patch+json", object.to_string()),
            _ => ("application/json", object.to_string()),
        };
        let client = self.stand.client().with("content-type", content_type);
        let answer = client
            .send(method.clone(), &format!("{}{name}", self.collection), body)
            .await?;
        assert_eq!(answer.status, code, "{method}: {:?}", answer.body);
        Ok(answer.json())
    }

    /// The only lock that the sidecar tells of.
    async fn told(&self) -> anyhow::Result<LeaderElection> {
        let mut elections = self.stand.sidecar.status().await?.leader_elections;
        assert_eq!(elections.len(), 1, "{elections:?}");
        Ok(elections.remove(0))
    }

    async fn is_led_by(&self, holder: &str, leads: bool) -> anyhow::Result<()> {
        let told = self.told().await?;
        assert_eq!((&*told.holder, told.leads), (holder, leads), "{told:?}");
        assert_eq!(told.since.is_some(), leads, "{told:?}");
        Ok(())
    }

    /// Another one writes the shard's lock, past this sidecar.
    fn another_takes(&self, mut lock: Value, holder: &str, transitions: u64) -> anyhow::Result<()> {
        lock["metadata"]["name"] = "lock---a".into();
        lock["spec"]["holderIdentity"] = holder.into();
        lock["spec"]["leaseTransitions"] = transitions.into();
        self.stand.api.store().put(lock)?;
        Ok(())
    }
}

fn lease(holder: &str, seconds: u64) -> Value {
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
async fn a_pod_leads_from_the_create_of_its_lock_for_as_long_as_it_renews_it() -> anyhow::Result<()> {
    let elector = Elector::start(LEASES).await?;
    elector.asks(Method::GET, &Value::Null, 404).await?;
    assert_eq!(elector.stand.sidecar.status().await?.leader_elections, []);
    let mut lock = elector.asks(Method::POST, &lease("me", 60), 201).await?;
    let told = elector.told().await?;
    let expected = LeaderElection {
        resource: "leases.coordination.k8s.io".to_owned(),
        namespace: NAMESPACE.to_owned(),
        name: "lock".to_owned(),
        lock: "lock---a".to_owned(),
        holder: "me".to_owned(),
        leads: true,
        since: told.since.clone(),
    };
    assert_eq!(told, expected);
    assert!(told.since.is_some());
    lock["spec"]["renewTime"] = "2026-01-01T00:00:02.000000Z".into();
    let mut lock = elector.asks(Method::PUT, &lock, 200).await?;
    elector.asks(Method::GET, &Value::Null, 200).await?;
    assert_eq!(elector.told().await?, told, "it goes on");
    // Somebody else's renewal came first.
    let mut old = lock.clone();
    old["metadata"]["resourceVersion"] = "1".into();
    old["spec"]["holderIdentity"] = "nobody".into();
    elector.asks(Method::PUT, &old, 409).await?;
    assert_eq!(elector.told().await?, told);
    // Nothing is renewed any more.
    lock["spec"]["leaseDurationSeconds"] = 1.into();
    lock["spec"]["renewTime"] = "2026-01-01T00:00:04.000000Z".into();
    elector.asks(Method::PUT, &lock, 200).await?;
    let has_run_out = |election: &LeaderElection| !election.leads && election.since.is_none();
    elector
        .stand
        .sidecar
        .wait_status("the lock runs out", |status| {
            status.leader_elections.iter().all(has_run_out)
        })
        .await?;
    elector.is_led_by("me", false).await
}

#[tokio::test]
async fn who_gives_its_lock_back_or_sees_another_hold_it_leads_no_more() -> anyhow::Result<()> {
    let elector = Elector::start(LEASES).await?;
    let mut lock = elector.asks(Method::POST, &lease("me", 60), 201).await?;
    elector.is_led_by("me", true).await?;
    // As client-go gives it back: without a holder.
    let spec = lock["spec"].as_object_mut().unwrap();
    spec.remove("holderIdentity");
    elector.asks(Method::PUT, &lock, 200).await?;
    elector.is_led_by("", false).await?;
    let takes = json!({ "spec": { "holderIdentity": "me", "renewTime": "2026-01-01T00:00:02.000000Z" } });
    let lock = elector.asks(Method::PATCH, &takes, 200).await?;
    elector.is_led_by("me", true).await?;

    elector.another_takes(lock, "other", 1)?;
    let lock = elector.asks(Method::GET, &Value::Null, 200).await?;
    elector.is_led_by("other", false).await?;
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    elector.asks(Method::PATCH, &label, 200).await?;
    elector.is_led_by("other", false).await?;
    let takes = json!({ "spec": { "holderIdentity": "me", "leaseTransitions": 2 } });
    elector.asks(Method::PATCH, &takes, 200).await?;
    elector.is_led_by("me", true).await?;

    let watch = format!("{LEASES}?watch=1&fieldSelector=metadata.name%3Dlock");
    let mut watch = elector.stand.client().stream(&watch).await?;
    watch.event().await?;
    elector.is_led_by("me", true).await?;
    elector.another_takes(lock, "other", 3)?;
    watch.event().await?;
    elector.is_led_by("other", false).await?;
    elector.asks(Method::DELETE, &Value::Null, 200).await?;
    elector.is_led_by("", false).await
}

#[tokio::test]
async fn a_lock_in_an_annotation_tells_as_much_and_other_objects_tell_nothing() -> anyhow::Result<()> {
    let elector = Elector::start(MAPS).await?;
    let map = |name: &str, holder: &str| {
        let record =
            json!({ "holderIdentity": holder, "leaseDurationSeconds": 60, "renewTime": "2026-01-01T00:00:00Z" });
        let annotations = json!({ "control-plane.alpha.kubernetes.io/leader": record.to_string() });
        let metadata = json!({ "name": name, "namespace": NAMESPACE, "annotations": annotations });
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata })
    };
    elector.asks(Method::POST, &map("lock2", "me"), 201).await?;
    assert_eq!(elector.stand.sidecar.status().await?.leader_elections, []);
    elector.asks(Method::POST, &map("lock", "me"), 201).await?;
    elector.is_led_by("me", true).await?;
    assert_eq!(elector.told().await?.resource, "configmaps");
    elector.asks(Method::PUT, &map("lock", ""), 200).await?;
    elector.is_led_by("", false).await?;
    elector.asks(Method::PUT, &map("lock", "me"), 200).await?;
    // What is no record is no word: what was said before holds until it runs out.
    let mut broken = map("lock", "me");
    broken["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"] = "{".into();
    elector.asks(Method::PUT, &broken, 200).await?;
    elector.is_led_by("me", true).await
}
