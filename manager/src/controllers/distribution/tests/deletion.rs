//! ShardingConfigs that are deleted while their pods run.

use ctrlmesh_contract::names::finalizers::{HAND_OVER, PROTECTED};
use ctrlmesh_manager_planner::hand_over::lock_of;

use super::overlaps::limits;
use super::two_shards::{TwoShards, finalizers};
use super::*;

const KIND: &str = "shardingconfigs.ctrlmesh.kusionstack.io";

fn is_there(state: &Snapshot<'_>, name: &str) -> bool {
    state.get(KIND, DEMO, name).is_some()
}

fn distributed_condition(state: &Snapshot<'_>, name: &str) -> [String; 3] {
    condition_of(state, "shardingconfigs", name, "Distributed")
}

fn shows_nothing(chain: &Chain, shard: &str) -> bool {
    limits(chain, shard).contains("ctrlmesh.kusionstack.io/nothing")
}

impl TwoShards {
    fn delete(&self, name: &str) {
        self.server.store().delete(KIND, DEMO, name).unwrap();
    }

    /// Deletes both between two passes, and waits until the second one shows nothing.
    async fn delete_both(&mut self) {
        self.stop().await;
        self.delete("left");
        self.delete("right");
        self.run().await;
        until(&self.server, "right shows nothing", |state| {
            shows_nothing(&chain(state).unwrap(), "right")
        })
        .await;
    }

    /// Deletes the namespace, which a finalizer then holds. The test kit has no namespace controller and deletes only empty ones, so
    /// the objects are away meanwhile.
    fn delete_namespace(&self) {
        let store = self.server.store();
        let resources = [KIND, "pods", "configmaps", "secrets", "events", "events.events.k8s.io"];
        let objects = resources.map(|resource| {
            let is_here = |object: &&Value| object["metadata"]["namespace"] == DEMO;
            store.read(|state| state.list(resource).filter(is_here).cloned().collect::<Vec<_>>())
        });
        for (resource, object) in resources
            .iter()
            .zip(&objects)
            .flat_map(|(resource, all)| all.iter().map(move |one| (resource, one)))
        {
            let mut object = object.clone();
            object["metadata"]["finalizers"] = json!([]);
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            put(&self.server, object);
            store.delete(resource, DEMO, &name).unwrap();
        }
        let mut namespace = store.read(|state| state.get("namespaces", "", DEMO).cloned()).unwrap();
        namespace["metadata"]["finalizers"] = json!(["example.com/test"]);
        put(&self.server, namespace);
        store.delete("namespaces", "", DEMO).unwrap();
        objects
            .into_iter()
            .flatten()
            .for_each(|object| put(&self.server, object));
    }

    async fn until_condition(&self, name: &str, reason: &str, words: &[&str]) {
        until(&self.server, reason, |state| {
            let [_, found, message] = distributed_condition(state, name);
            found == reason && words.iter().all(|word| message.contains(word))
        })
        .await;
    }
}

#[tokio::test]
async fn deleted_shard_is_held_until_its_pods_show_nothing() {
    let mut two = TwoShards::start(110).await;
    let before = two.chain();
    two.delete("left");
    let command = "kubectl -n demo patch shardingconfig left --type=json --patch='[{\"op\":\"test\",";
    two.until_condition("left", "Deleting", &["left-0", command]).await;
    let chain_before = two.chain();
    assert!(shows_nothing(&chain_before, "left"));
    assert_eq!(limits(&chain_before, "right"), limits(&before, "right"));
    two.acknowledge_chain("left");
    until(&two.server, "it is released", |state| !is_there(state, "left")).await;
    // Its pods have an entry as long as their controller has shards.
    assert_eq!(two.chain(), chain_before);
    two.stop().await;
}

#[tokio::test]
async fn deleted_shard_says_how_to_release_it_while_chain_cannot_be_written() {
    let mut two = TwoShards::start(118).await;
    let before = two.chain();
    for verb in ["create", "update", "patch"] {
        let refused = Fault::Status {
            code: 403,
            retry_after: None,
        };
        two.server
            .faults()
            .add(Rule::new(refused).verb(verb).resource("configmaps"));
    }
    two.delete("left");
    let command = "kubectl -n demo patch shardingconfig left --type=json --patch='[{\"op\":\"test\",";
    two.until_condition("left", "WriteFailed", &["The object is being deleted", command])
        .await;
    assert_eq!(two.chain(), before);
    two.server.faults().clear();
    two.until_condition("left", "Deleting", &["left-0", command]).await;
    two.stop().await;
}

#[tokio::test]
async fn last_shard_gets_everything_and_waits_for_pods_of_others() {
    let mut two = TwoShards::start(112).await;
    two.delete_both().await;
    let narrowed = two.chain();
    assert_ne!(limits(&narrowed, "left"), "[]", "right may show its objects still");
    two.acknowledge_chain("right");
    let words = ["kubectl -n demo delete pods right-0", "several owners"];
    two.until_condition("left", "Gathering", &words).await;
    until(&two.server, "left has everything", |state| {
        limits(&chain(state).unwrap(), "left") == "[]"
    })
    .await;
    two.until_condition(
        "right",
        "Deleting",
        &["new pods get a sidecar", "ShardingConfig left says"],
    )
    .await;
    let events = test_env::notes(&two.server, "Gathering");
    assert!(events.iter().any(|note| note.contains("right-0")), "{events:?}");
    two.acknowledge_chain("left");
    // The same pod, made again.
    two.server.store().delete("pods", DEMO, "right-0").unwrap();
    until(&two.server, "pods ask for the controller's own lock", |state| {
        let entries = chain(state).unwrap().entries;
        entries.len() == 2 && entries.iter().all(|entry| lock_of(entry).is_none())
    })
    .await;
    assert!(["left", "right"].iter().all(|shard| shows_nothing(&two.chain(), shard)));
    two.until_condition("left", "LocksExpiring", &[]).await;
    two.server.store().delete("pods", DEMO, "left-0").unwrap();
    until(&two.server, "there is no pod: the rules go", |state| {
        chain(state).unwrap().entries.is_empty() && !is_there(state, "left") && !is_there(state, "right")
    })
    .await;
    two.stop().await;
}

#[tokio::test]
async fn deleted_shard_is_held_until_its_pods_are_evicted_with_reshard_restart() {
    let mut two = TwoShards::start(118).await;
    two.stop().await;
    let stored = two.server.store().read(|state| state.get(KIND, DEMO, "right").cloned());
    let mut right = stored.unwrap();
    right["spec"]["reshard"] = "Restart".into();
    put(&two.server, right);
    let budget = Fault::Status {
        code: 429,
        retry_after: None,
    };
    let refused = Rule::new(budget).verb("create").resource("pods");
    let refused = two.server.faults().add(refused);
    two.run().await;
    two.delete_both().await;
    two.acknowledge_chain("right");
    let words = ["evicted one by one", "right-0", "kubectl -n demo patch"];
    two.until_condition("right", "Deleting", &words).await;
    until(&two.server, "an eviction is refused", |state| {
        condition_of(state, "shardingconfigs", "right", "Enforced")[1] == "EvictionRefused"
    })
    .await;
    assert!(two.server.faults().times_applied(refused) > 0);
    assert!(two.server.store().read(|state| is_there(state, "right")));
    two.server.store().delete("pods", DEMO, "right-0").unwrap();
    two.acknowledge_chain("left");
    two.until_condition("right", "Deleting", &["new pods get a sidecar"])
        .await;
    two.server.store().delete("pods", DEMO, "left-0").unwrap();
    until(&two.server, "both are released", |state| {
        !is_there(state, "right") && !is_there(state, "left")
    })
    .await;
    two.stop().await;
}

#[tokio::test]
async fn next_manager_continues_teardown_and_force_ends_it() {
    let mut two = TwoShards::start(114).await;
    two.delete_both().await;
    two.stop().await;
    two.acknowledge_chain("right");
    two.run().await;
    two.until_condition("left", "Gathering", &["right-0"]).await;
    let stored = two.server.store().read(|state| state.get(KIND, DEMO, "left").cloned());
    let mut left = stored.unwrap();
    left["metadata"]["finalizers"] = json!([]);
    left.as_object_mut().unwrap().remove("status");
    put(&two.server, left);
    until(&two.server, "the rules go", |state| {
        chain(state).unwrap().entries.is_empty()
    })
    .await;
    two.stop().await;
}

#[tokio::test]
async fn namespace_that_is_deleted_waits_for_no_shard() {
    let mut two = TwoShards::start(116).await;
    two.stop().await;
    two.delete_namespace();
    let stored = two.server.store().read(|state| state.get(KIND, DEMO, "left").cloned());
    let mut held = stored.unwrap();
    held["metadata"]["finalizers"] = json!([PROTECTED, HAND_OVER, "example.com/other"]);
    put(&two.server, held);
    two.delete("left");
    two.run().await;
    until(&two.server, "it is released", |state| {
        finalizers(state, "left") == json!(["example.com/other"])
    })
    .await;
    assert!(!shows_nothing(&two.chain(), "left"), "its pod shows objects still");
    two.stop().await;
}
