//! Shards of roots at an API server in memory, over real connections.

use ctrlmesh_contract::names::finalizers::{HAND_OVER, PROTECTED};
use ctrlmesh_manager_planner::auto_shard::{LabelKeys, Workload};
use ctrlmesh_testkit::{ApiServer, Fault, Gate, Rule, Snapshot};
use serde_json::{Value, json};

use super::*;
use crate::test_env::{self, Running, put, text, until};

mod replicas;

const KIND: &str = "shardingconfigs.ctrlmesh.kusionstack.io";
const FAST: [&str; 2] = ["--rest-config-qps=10000", "--rest-config-burst=10000"];

fn config(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "namespace": namespace, "name": name },
        "spec": spec,
    })
}

fn root_spec(shards: u32) -> Value {
    json!({
        "controller": { "leaderElectionName": "lock" },
        "root": {
            "prefix": "demo",
            "targetStatefulSet": "operator",
            "auto": { "shardingSize": shards, "everyShardReplicas": 1 },
            "resourceSelector": [{ "relateResources": [{ "apiGroups": ["*"], "resources": ["pods"] }] }],
        },
    })
}

/// A change of an object.
type Change = fn(&mut Value);

/// A shard that a person wrote.
fn foreign_shard(namespace: &str, name: &str) -> Value {
    let limits = json!([{ "selector": { "matchLabels": { "a": "b" } } }]);
    config(
        namespace,
        name,
        &json!({ "selector": { "matchLabels": { "a": "b" } }, "limits": limits }),
    )
}

/// Changes a stored object.
fn edit_object(server: &ApiServer, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
    let mut object = get(server, namespace, name).unwrap();
    change(&mut object);
    put(server, object);
}

fn get(server: &ApiServer, namespace: &str, name: &str) -> Option<Value> {
    server.store().read(|state| state.get(KIND, namespace, name).cloned())
}

async fn start(flags: &[&str]) -> (ApiServer, Context, Running) {
    let server = test_env::builder().namespace("a").namespace("b").start().await.unwrap();
    let context = test_env::context(&server, &[&FAST[..], flags].concat()).await;
    let running = Running::start(&context, run(context.clone()));
    (server, context, running)
}

/// Names of the ShardingConfigs of a namespace that are not roots.
fn shards(state: &Snapshot<'_>, namespace: &str) -> Vec<String> {
    let all = state.list(KIND);
    let mut names: Vec<String> = all
        .filter(|object| text(object, "/metadata/namespace") == namespace && object["spec"]["root"].is_null())
        .map(|object| text(object, "/metadata/name").to_owned())
        .collect();
    names.sort();
    names
}

/// Reason and message of a root's condition.
fn sharded_reason(object: &Value) -> (String, String) {
    let list = object["status"]["conditions"].as_array().into_iter().flatten();
    let mut own = list.filter(|condition| condition["type"] == "Sharded");
    own.next().map_or_else(Default::default, |condition| {
        (
            text(condition, "/reason").to_owned(),
            text(condition, "/message").to_owned(),
        )
    })
}

fn has_finalizer(object: &Value) -> bool {
    object["metadata"]["finalizers"] == json!([PROTECTED])
}

/// Whether a root has `count` shards: all of one set, reported in its status, and protected.
fn is_sharded(state: &Snapshot<'_>, namespace: &str, root: &str, count: usize) -> bool {
    let names = shards(state, namespace);
    let all: Vec<Value> = state
        .list(KIND)
        .filter(|object| text(object, "/metadata/namespace") == namespace)
        .cloned()
        .collect();
    let Some(root) = state.get(KIND, namespace, root) else {
        return false;
    };
    names.len() == count
        && ctrlmesh_manager_planner::auto_shard::held_back(&all).is_empty()
        && root["status"]["root"]["childShardingConfigs"] == json!(names)
        && sharded_reason(root).0 == "Sharded"
        && has_finalizer(root)
}

/// Number of buckets of a shard.
fn bucket_count(object: &Value) -> usize {
    let expressions = object["spec"]["limits"][0]["selector"]["matchExpressions"].as_array();
    let of = expressions.into_iter().flatten().last();
    of.and_then(|last| last["values"].as_array()).map_or(0, Vec::len)
}

#[tokio::test]
async fn root_makes_shards_and_edits_them_in_place() {
    let (server, context, running) = start(&[]).await;
    put(&server, config("a", "root", &root_spec(2)));
    until(&server, "two shards", |state| is_sharded(state, "a", "root", 2)).await;
    let first = get(&server, "a", "demo-1-normal").unwrap();
    assert_eq!(bucket_count(&first), 16);
    for count in [3, 1, 4] {
        edit_object(&server, "a", "root", |root| root["spec"] = root_spec(count));
        let count = usize::try_from(count).unwrap();
        until(&server, "other shards", |state| is_sharded(state, "a", "root", count)).await;
        let now = get(&server, "a", "demo-1-normal").unwrap();
        assert_eq!(bucket_count(&now), 32 / count);
        assert_eq!(
            now["metadata"]["uid"], first["metadata"]["uid"],
            "it is the same object"
        );
    }
    // A change without effect leads to no write, which would come before the next change.
    server.requests().clear();
    edit_object(&server, "a", "root", |root| {
        root["metadata"]["labels"] = json!({ "team": "x" })
    });
    put(&server, config("b", "late", &root_spec(1)));
    until(&server, "the other root", |state| is_sharded(state, "b", "late", 1)).await;
    let writes = ["patch", "create", "update", "delete"].map(|verb| server.requests().count(verb));
    assert_eq!(writes, [3, 0, 0, 0], "a finalizer, a shard, a status");
    let counted = context.metrics.render().unwrap();
    for line in ["shards_deleted_total 2", "shards_passes_failed_total 0"] {
        assert!(counted.contains(line), "{line}: {counted}");
    }
    running.stop().await;
}

#[tokio::test]
async fn shards_stay_the_same_objects_when_their_root_gets_a_key() {
    let (server, _, running) = start(&[]).await;
    put(&server, config("a", "root", &root_spec(2)));
    until(&server, "two shards", |state| is_sharded(state, "a", "root", 2)).await;
    let first = get(&server, "a", "demo-1-normal").unwrap();
    edit_object(&server, "a", "root", |root| {
        root["spec"]["root"]["key"] = json!("owner")
    });
    let has_ranges = |state: &Snapshot<'_>, name: &str, ranges: &str| {
        let limit = state
            .get(KIND, "a", name)
            .map(|shard| shard["spec"]["limits"][0].clone());
        limit.is_some_and(|limit| {
            limit["hashRanges"] == json!({ "key": "owner", "ranges": [ranges] }) && limit["selector"].is_null()
        })
    };
    until(&server, "ranges", |state| {
        let is_divided = has_ranges(state, "demo-1-normal", "512-1023") && has_ranges(state, "demo-2-normal", "0-511");
        is_divided && is_sharded(state, "a", "root", 2)
    })
    .await;
    let now = get(&server, "a", "demo-1-normal").unwrap();
    assert_eq!(now["metadata"]["uid"], first["metadata"]["uid"]);
    edit_object(&server, "a", "root", |root| root["spec"] = root_spec(2));
    until(&server, "labels again", |state| {
        let shard = state.get(KIND, "a", "demo-1-normal").unwrap();
        shard["spec"] == first["spec"] && is_sharded(state, "a", "root", 2)
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn changed_bundle_is_restored() {
    let (server, _, running) = start(&[]).await;
    put(&server, config("a", "root", &root_spec(2)));
    let is_right = |state: &Snapshot<'_>| is_sharded(state, "a", "root", 2);
    until(&server, "two shards", is_right).await;
    let expected = get(&server, "a", "demo-2-normal").unwrap();
    let changes: [Change; 4] = [
        |shard| shard["spec"]["limits"][0]["selector"] = json!({}),
        |shard| shard["spec"]["webhook"] = json!({ "certDir": "/certs", "port": 1 }),
        |shard| shard["metadata"]["ownerReferences"] = json!([]),
        |shard| shard["metadata"]["annotations"][SET] = json!("9-x"),
    ];
    for change in changes {
        edit_object(&server, "a", "demo-2-normal", change);
        until(&server, "it is restored", |state| {
            let shard = state.get(KIND, "a", "demo-2-normal").unwrap();
            let same = ["/spec", "/metadata/ownerReferences", "/metadata/annotations"];
            same.iter().all(|field| shard.pointer(field) == expected.pointer(field)) && is_right(state)
        })
        .await;
    }
    server.store().delete(KIND, "a", "demo-2-normal").unwrap();
    until(&server, "it is made again", is_right).await;
    // An unreadable object is written again.
    edit_object(&server, "a", "demo-2-normal", |shard| {
        shard["spec"]["limits"] = json!("none")
    });
    until(&server, "it can be read again", |state| {
        let shard = state.get(KIND, "a", "demo-2-normal").unwrap();
        shard["spec"] == expected["spec"] && is_right(state)
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn shards_end_with_their_root() {
    let (server, _, running) = start(&[]).await;
    put(&server, config("a", "root", &root_spec(2)));
    put(&server, config("b", "root", &root_spec(3)));
    until(&server, "shards", |state| {
        is_sharded(state, "a", "root", 2) && is_sharded(state, "b", "root", 3)
    })
    .await;
    edit_object(&server, "a", "root", |root| {
        root["spec"]["root"]["disable"] = json!(true)
    });
    until(&server, "it is disabled", |state| {
        let root = state.get(KIND, "a", "root").unwrap();
        let is_free = root["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        shards(state, "a").is_empty()
            && is_free
            && root["status"]["root"].is_null()
            && sharded_reason(root).0 == "Disabled"
    })
    .await;
    edit_object(&server, "a", "root", |root| root["spec"] = root_spec(2));
    until(&server, "it is enabled", |state| is_sharded(state, "a", "root", 2)).await;
    // A root that becomes a shard itself has no shards.
    edit_object(&server, "a", "root", |root| {
        root["spec"] = foreign_shard("a", "root")["spec"].clone()
    });
    until(&server, "it is a root no more", |state| {
        let root = state.get(KIND, "a", "root").unwrap();
        let is_free = root["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        shards(state, "a") == ["root"] && is_free && sharded_reason(root).0.is_empty()
    })
    .await;
    edit_object(&server, "a", "root", |root| root["spec"] = root_spec(2));
    until(&server, "it is a root again", |state| is_sharded(state, "a", "root", 2)).await;

    server.store().delete(KIND, "a", "root").unwrap();
    until(&server, "it is gone with its shards", |state| {
        state.get(KIND, "a", "root").is_none() && shards(state, "a").is_empty()
    })
    .await;
    assert!(
        server.store().read(|state| is_sharded(state, "b", "root", 3)),
        "another root of the same name"
    );
    running.stop().await;
}

#[tokio::test]
async fn root_names_the_shards_that_its_deletion_waits_for() {
    let (server, _, running) = start(&[]).await;
    put(&server, config("a", "root", &root_spec(2)));
    until(&server, "shards", |state| is_sharded(state, "a", "root", 2)).await;
    // As distribution holds a shard until its pods show nothing.
    edit_object(&server, "a", "demo-1-normal", |shard| {
        shard["metadata"]["finalizers"] = json!([HAND_OVER]);
    });
    edit_object(&server, "a", "root", |root| {
        root["spec"]["root"]["disable"] = json!(true)
    });
    let waits = "waits for demo-1-normal: the condition Distributed of each shard";
    until(&server, "the disabled root names it", |state| {
        let (reason, message) = sharded_reason(state.get(KIND, "a", "root").unwrap());
        reason == "Disabled" && message.contains(waits) && shards(state, "a") == ["demo-1-normal"]
    })
    .await;
    server.store().delete(KIND, "a", "root").unwrap();
    until(&server, "the deleted root names it", |state| {
        let (reason, message) = sharded_reason(state.get(KIND, "a", "root").unwrap());
        reason == "Deleting" && message.contains(waits)
    })
    .await;
    edit_object(&server, "a", "demo-1-normal", |shard| {
        shard["metadata"]["finalizers"] = json!([]);
    });
    until(&server, "it is gone with its shards", |state| {
        state.get(KIND, "a", "root").is_none() && shards(state, "a").is_empty()
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn foreign_objects_are_left_unchanged() {
    let (server, _, running) = start(&[]).await;
    put(&server, config("a", "root", &root_spec(2)));
    until(&server, "shards", |state| is_sharded(state, "a", "root", 2)).await;
    put(&server, foreign_shard("a", "demo-3-normal"));
    let before = ["demo-1-normal", "demo-2-normal", "demo-3-normal"].map(|name| get(&server, "a", name));
    edit_object(&server, "a", "root", |root| root["spec"] = root_spec(3));
    until(&server, "it says so", |state| {
        let (reason, message) = sharded_reason(state.get(KIND, "a", "root").unwrap());
        reason == "NameTaken"
            && message.contains("were not made from this root")
            && message.contains(": demo-3-normal.")
    })
    .await;
    let after = ["demo-1-normal", "demo-2-normal", "demo-3-normal"].map(|name| get(&server, "a", name));
    assert_eq!(before, after, "neither it nor the shards have changed");
    // Another root wants the same names.
    put(&server, config("a", "second", &root_spec(1)));
    until(&server, "the second says so", |state| {
        sharded_reason(state.get(KIND, "a", "second").unwrap()).0 == "NameTaken"
    })
    .await;
    server.store().delete(KIND, "a", "second").unwrap();
    server.store().delete(KIND, "a", "demo-3-normal").unwrap();
    until(&server, "three shards", |state| is_sharded(state, "a", "root", 3)).await;
    running.stop().await;
}

#[tokio::test]
async fn shards_of_kusionstack_are_taken_over() {
    let server = test_env::builder().namespace("a").start().await.unwrap();
    for name in ["demo-1-normal", "demo-2-normal"] {
        let mut shard = foreign_shard("a", name);
        shard["metadata"]["labels"] = json!({ "ctrlmesh.kusionstack.io/auto-sharding-root": "root" });
        shard["metadata"]["annotations"] = json!({ "ctrlmesh.kusionstack.io/auto-sharding-hash": "0123" });
        put(&server, shard);
    }
    put(&server, config("a", "root", &root_spec(2)));
    let uid = get(&server, "a", "demo-1-normal").unwrap()["metadata"]["uid"].clone();
    let context = test_env::context(&server, &FAST).await;
    let running = Running::start(&context, run(context.clone()));
    until(&server, "shards", |state| is_sharded(state, "a", "root", 2)).await;
    let now = get(&server, "a", "demo-1-normal").unwrap();
    assert_eq!((&now["metadata"]["uid"], bucket_count(&now)), (&uid, 16));
    running.stop().await;
}

#[tokio::test]
async fn invalid_root_keeps_its_shards() {
    let (server, _, running) = start(&[]).await;
    put(&server, config("a", "root", &root_spec(2)));
    until(&server, "shards", |state| is_sharded(state, "a", "root", 2)).await;
    let wrongs: [(Change, &str); 2] = [
        (
            |root| root["spec"]["root"]["auto"]["shardingSize"] = json!(33),
            "spec.root.auto.shardingSize",
        ),
        (|root| root["spec"]["root"]["auto"] = json!("two"), "spec.root.auto"),
    ];
    for (wrong, field) in wrongs {
        edit_object(&server, "a", "root", wrong);
        until(&server, field, |state| {
            let root = state.get(KIND, "a", "root").unwrap();
            let (reason, message) = sharded_reason(root);
            reason == "Invalid"
                && message.contains(field)
                && has_finalizer(root)
                && root["status"]["root"]["childShardingConfigs"] == json!(shards(state, "a"))
                && shards(state, "a").len() == 2
        })
        .await;
    }
    running.stop().await;
}

/// The canary needs the names of namespaces, because a label selector can't express both of its lists.
#[tokio::test]
async fn new_namespace_joins_canary_with_its_bucket() {
    let (server, _, running) = start(&[]).await;
    let mut both = root_spec(1);
    both["root"]["canary"] = json!({
        "replicas": 1, "inNamespaces": ["test"], "inShardHash": [ctrlmesh_manager_planner::shard_hash("new").to_string()],
    });
    put(&server, config("a", "root", &both));
    until(&server, "shards", |state| is_sharded(state, "a", "root", 2)).await;
    let canary = |state: &Snapshot<'_>| {
        let canary = state.get(KIND, "a", "demo-0-canary").unwrap();
        canary["spec"]["limits"][0]["selector"]["matchExpressions"][0]["values"].clone()
    };
    let before = server.store().read(canary);
    assert!(before.as_array().unwrap().iter().all(|name| name != "new"), "{before}");
    put(
        &server,
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "new" } }),
    );
    until(&server, "the canary has it", |state| {
        canary(state).as_array().unwrap().iter().any(|name| name == "new") && is_sharded(state, "a", "root", 2)
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn manager_stops_before_its_namespaces_are_listed() {
    let server = test_env::builder().start().await.unwrap();
    let hold = Rule::new(Fault::Hold(Gate::new())).resource("namespaces");
    let hold = server.faults().add(hold);
    let context = test_env::context(&server, &FAST).await;
    let running = Running::start(&context, run(context.clone()));
    while server.faults().times_applied(hold) == 0 {
        tokio::task::yield_now().await;
    }
    running.stop().await;
}

fn plan_of(root: &Value, documents: &[Value]) -> plan::Plan {
    plan_with(root, documents, Workload::Missing)
}

fn plan_with(root: &Value, documents: &[Value], workload: Workload) -> plan::Plan {
    let (namespaces, keys) = (["a", "b"].map(str::to_owned), LabelKeys::default());
    let around = plan::Surroundings {
        documents,
        workload,
        namespaces: &namespaces,
        keys: &keys,
    };
    plan::plan_root(root, around)
}

#[test]
fn messages_of_sharded_match_snapshot() {
    let root_with = |change: Change| {
        let mut root = config("a", "root", &root_spec(7));
        root["metadata"]["uid"] = json!("1");
        change(&mut root);
        root
    };
    let root = root_with(|_| ());
    let shards: Vec<Value> = plan_of(&root, &[])
        .writes
        .iter()
        .map(|write| serde_json::to_value(&write.child).unwrap())
        .collect();
    let mut ending = shards.clone();
    for shard in &mut ending {
        shard["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let foreign: Vec<Value> = shards
        .iter()
        .map(|shard| foreign_shard("a", text(shard, "/metadata/name")))
        .collect();
    let disabled = root_with(|root| root["spec"]["root"]["disable"] = json!(true));
    let deleted = root_with(|root| root["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    let invalid = root_with(|root| root["spec"]["root"]["resourceSelector"] = json!([]));
    let situations: [(&str, &Value, &[Value]); 8] = [
        ("all shards are written", &root, &shards),
        ("the root is invalid", &invalid, &shards),
        ("disabled, and the shards are gone", &disabled, &[]),
        ("disabled", &disabled, &shards[..1]),
        ("deleted", &deleted, &shards),
        ("a foreign object has the name of a shard", &root, &foreign[..1]),
        ("foreign objects have the names of shards", &root, &foreign),
        ("shards are being deleted", &root, &ending[..2]),
    ];
    let conditions = situations.map(|(name, root, documents)| (name, plan_of(root, documents).condition.unwrap()));
    let refused = (
        "a shard is refused",
        plan::refused_condition("spec.limits: Too many: 70: must have at most 64 items"),
    );
    let lines = conditions.into_iter().chain([refused]).map(|(situation, draft)| {
        let (status, reason) = (draft.status, draft.reason);
        format!(
            "{situation}:\n  Sharded={status:?} {}: {}\n",
            reason.code, reason.message
        )
    });
    insta::assert_snapshot!(lines.collect::<String>());
}
