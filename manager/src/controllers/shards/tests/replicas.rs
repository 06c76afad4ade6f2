//! Roots whose number of shards follows the replicas of their StatefulSet.

use ctrlmesh_manager_api::status::{ConditionDraft, ConditionStatus};

use super::*;

const STATEFUL_SETS: &str = "statefulsets.apps";

/// A root that follows the replicas of StatefulSet `operator`.
fn following_spec() -> Value {
    let mut spec = root_spec(1);
    spec["root"]["key"] = json!("owner");
    spec["root"]["auto"] = json!({});
    spec
}

fn stateful_set(namespace: &str, name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "namespace": namespace, "name": name },
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": { "containers": [] } },
        },
    })
}

/// Waits until a root has a reason for not following the replicas, and `count` shards.
async fn until_kept(server: &ApiServer, reason: &str, count: usize) {
    until(server, reason, |state| {
        let root = state.get(KIND, "a", "root").unwrap();
        sharded_reason(root).0 == reason && shards(state, "a").len() == count
    })
    .await;
}

#[tokio::test]
async fn shards_follow_the_replicas_of_their_stateful_set() {
    let (server, _, running) = start(&[]).await;
    put(&server, config("a", "root", &following_spec()));
    put(&server, stateful_set("a", "another", 5));
    put(&server, stateful_set("b", "operator", 5));
    until_kept(&server, "StatefulSetMissing", 0).await;
    put(&server, stateful_set("a", "operator", 2));
    until(&server, "two shards", |state| is_sharded(state, "a", "root", 2)).await;
    let first = get(&server, "a", "demo-1-normal").unwrap();
    assert_eq!(first["spec"]["limits"][0]["hashRanges"]["ranges"], json!(["512-1023"]));
    for count in [3, 1, 4, 2] {
        put(&server, stateful_set("a", "operator", count));
        let count = usize::try_from(count).unwrap();
        until(&server, "other shards", |state| is_sharded(state, "a", "root", count)).await;
    }
    let now = get(&server, "a", "demo-1-normal").unwrap();
    assert_eq!(now["metadata"]["uid"], first["metadata"]["uid"]);
    assert_eq!(now["spec"], first["spec"], "it is as before");
    put(&server, stateful_set("a", "operator", 0));
    until_kept(&server, "ScaledToZero", 2).await;
    let mut shifted = stateful_set("a", "operator", 4);
    shifted["spec"]["ordinals"] = json!({ "start": 1 });
    put(&server, shifted);
    until_kept(&server, "OrdinalsStart", 2).await;
    server.store().delete(STATEFUL_SETS, "a", "operator").unwrap();
    until_kept(&server, "StatefulSetMissing", 2).await;
    put(&server, stateful_set("a", "operator", 3));
    until(&server, "three shards", |state| is_sharded(state, "a", "root", 3)).await;
    edit_object(&server, "a", "root", |root| {
        root["spec"]["root"]["auto"]["shardingSize"] = json!(1)
    });
    until(&server, "the given number", |state| is_sharded(state, "a", "root", 1)).await;
    running.stop().await;
}

#[tokio::test]
async fn shards_of_a_missing_stateful_set_take_edits_of_their_root() {
    let (server, _, running) = start(&[]).await;
    put(&server, stateful_set("a", "operator", 3));
    put(&server, config("a", "root", &following_spec()));
    until(&server, "three shards", |state| is_sharded(state, "a", "root", 3)).await;
    server.store().delete(STATEFUL_SETS, "a", "operator").unwrap();
    until_kept(&server, "StatefulSetMissing", 3).await;
    edit_object(&server, "a", "root", |root| root["spec"]["settleSeconds"] = json!(7));
    until(&server, "all shards have the edit", |state| {
        let is_edited = |shard: &Value| shard["spec"]["settleSeconds"] == 7;
        let names = ["demo-1-normal", "demo-2-normal", "demo-3-normal"];
        names
            .iter()
            .all(|name| state.get(KIND, "a", name).is_some_and(is_edited))
    })
    .await;
    until_kept(&server, "StatefulSetMissing", 3).await;
    running.stop().await;
}

#[tokio::test]
async fn stateful_sets_are_read_only_if_a_root_follows_their_replicas() {
    let (server, _, running) = start(&[]).await;
    let count_reads = || {
        let requests = ["list", "watch"].map(|verb| server.requests().count_of(verb, "statefulsets"));
        requests.iter().sum::<u64>()
    };
    put(&server, stateful_set("a", "operator", 3));
    put(&server, config("a", "root", &root_spec(2)));
    until(&server, "two shards", |state| is_sharded(state, "a", "root", 2)).await;
    assert_eq!(count_reads(), 0);
    edit_object(&server, "a", "root", |root| root["spec"] = following_spec());
    until(&server, "three shards", |state| is_sharded(state, "a", "root", 3)).await;
    assert!(count_reads() > 0);
    running.stop().await;
}

/// A manager that starts may know a root before its StatefulSet.
#[tokio::test]
async fn root_waits_for_the_list_of_stateful_sets_and_others_do_not() {
    let server = test_env::builder().namespace("a").namespace("b").start().await.unwrap();
    let gate = Gate::new();
    let held = Rule::new(Fault::Hold(gate.clone())).resource("statefulsets");
    server.faults().add(held);
    put(&server, stateful_set("a", "operator", 2));
    put(&server, config("a", "root", &following_spec()));
    let mut deleted = config("a", "deleted", &following_spec());
    deleted["metadata"]["finalizers"] = json!([PROTECTED]);
    put(&server, deleted);
    let context = test_env::context(&server, &FAST).await;
    let running = Running::start(&context, run(context.clone()));
    gate.wait_for_arrivals(1).await.unwrap();
    put(&server, config("b", "root", &root_spec(1)));
    until(&server, "the other root", |state| is_sharded(state, "b", "root", 1)).await;
    server.store().delete(KIND, "a", "deleted").unwrap();
    until(&server, "a root is deleted", |state| {
        state.get(KIND, "a", "deleted").is_none()
    })
    .await;
    server.store().read(|state| {
        let root = state.get(KIND, "a", "root").unwrap();
        assert!(shards(state, "a").is_empty() && root["status"].is_null(), "{root}");
    });
    gate.open();
    until(&server, "two shards", |state| is_sharded(state, "a", "root", 2)).await;
    running.stop().await;
}

fn of_replicas(replicas: i32) -> Workload {
    Workload::Found {
        replicas,
        first_ordinal: 0,
    }
}

/// A root that follows replicas, as an API server stores it.
fn stored_root() -> Value {
    let mut root = config("a", "root", &following_spec());
    root["metadata"]["uid"] = json!("1");
    root
}

/// The shards that a plan writes, as they are stored then.
fn written(plan: &plan::Plan) -> Vec<Value> {
    let shards = plan
        .writes
        .iter()
        .map(|write| serde_json::to_value(&write.child).unwrap());
    shards.collect()
}

fn status_of(condition: Option<ConditionDraft>) -> (ConditionStatus, &'static str) {
    let condition = condition.unwrap();
    (condition.status, condition.reason.code)
}

#[test]
fn without_replicas_the_last_shard_says_how_many_there_are() {
    let root = stored_root();
    let shards = written(&plan_with(&root, &[], of_replicas(4)));
    assert_eq!(shards.len(), 4);
    for (workload, reason) in [
        (Workload::Missing, "StatefulSetMissing"),
        (of_replicas(0), "ScaledToZero"),
    ] {
        let plan = plan_with(&root, &shards, workload);
        assert_eq!((plan.writes, plan.deletes), (Vec::new(), Vec::new()), "{reason}");
        assert_eq!(status_of(plan.condition), (ConditionStatus::False, reason));
        // Somebody has deleted a shard between others.
        let mut gap = shards.clone();
        gap.remove(1);
        let plan = plan_with(&root, &gap, workload);
        assert_eq!(written(&plan), [shards[1].clone()]);
        // The last one is being deleted, because the StatefulSet was scaled down before.
        let mut ending = shards.clone();
        ending[3]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let plan = plan_with(&root, &ending, workload);
        assert_eq!(plan.made.map(|made| made.len()), Some(3));
        // No shard says anything: there is none, or they have another prefix.
        let mut renamed = root.clone();
        renamed["spec"]["root"]["prefix"] = json!("other");
        let none: &[Value] = &[];
        for (root, shards) in [(&root, none), (&renamed, &shards[..])] {
            let plan = plan_with(root, shards, workload);
            let changes = (plan.protect, plan.writes.len(), plan.deletes.len(), plan.made);
            assert_eq!(changes, (false, 0, 0, None));
            assert_eq!(status_of(plan.condition), (ConditionStatus::False, reason));
        }
    }
}

#[test]
fn replicas_beyond_the_most_shards_are_reported_although_all_shards_are_made() {
    let plan = plan_with(&stored_root(), &[], of_replicas(40));
    assert_eq!(plan.writes.len(), 32);
    assert_eq!(status_of(plan.condition), (ConditionStatus::False, "TooManyReplicas"));
    // A reason that blocks all shards comes first.
    let plan = plan_with(&stored_root(), &[foreign_shard("a", "demo-1-normal")], of_replicas(40));
    assert_eq!(status_of(plan.condition), (ConditionStatus::False, "NameTaken"));
}
