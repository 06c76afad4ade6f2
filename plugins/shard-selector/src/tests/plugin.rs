//! The plugin as the host meets it: what wakes it, and what it answers.

use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest, about};
use ctrlmesh_sdk::{InstanceInfo, Level, Request, RequestAction, RequestEdit, RequestVerdict, Verb};

use crate::plugin::ShardSelector;

/// A shard of pods and leases with a lock.
const SETTINGS: &str = r#"{
    "limits": [{
        "relateResources": [
            {"apiGroups": [""], "resources": ["pods", "configmaps"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
        ],
        "selector": {"matchLabels": {"shard": "a"}}
    }],
    "leaderElectionName": "operator",
    "shard": "a"
}"#;

fn bench() -> Bench<ShardSelector> {
    Bench::new(SETTINGS).unwrap()
}

/// The edits, after a check that the host would have asked at all: a request that is not subscribed gets none.
fn edits(bench: &mut Bench<ShardSelector>, req: &TestRequest) -> Vec<RequestEdit> {
    let verdict = bench.on_request(req);
    assert_eq!(verdict.delay_ms, 0);
    let RequestAction::Proceed(edits) = verdict.action else {
        panic!("{req:?} was not let through")
    };
    assert!(
        bench.wakes(req) || edits.is_empty(),
        "{req:?} would get {edits:?}, but is not subscribed"
    );
    edits
}

fn selector() -> Vec<RequestEdit> {
    vec![RequestEdit::and_label_selector("shard=a")]
}

fn rename() -> Vec<RequestEdit> {
    vec![RequestEdit::rename_object("operator", "operator---a")]
}

#[test]
fn collections_of_the_shard_get_its_selector() {
    let mut bench = bench();
    for verb in [Verb::List, Verb::Watch, Verb::Deletecollection] {
        assert_eq!(
            edits(&mut bench, &TestRequest::api(verb, "", "pods").namespace("team")),
            selector(),
            "{verb:?}"
        );
        assert_eq!(
            edits(&mut bench, &TestRequest::api(verb, "", "pods")),
            selector(),
            "{verb:?}"
        );
        // By field selector it is still a list.
        assert_eq!(
            edits(&mut bench, &TestRequest::api(verb, "", "pods").name("p")),
            selector(),
            "{verb:?}"
        );
    }
}

#[test]
fn everything_else_sleeps() {
    let mut bench = bench();
    for req in [
        TestRequest::get("", "pods", "p").namespace("team"),
        TestRequest::api(Verb::Create, "", "pods").namespace("team"),
        TestRequest::api(Verb::Update, "", "pods").name("p"),
        TestRequest::api(Verb::Patch, "", "pods").name("p"),
        TestRequest::api(Verb::Delete, "", "pods").name("p"),
        TestRequest::list("", "pods").subresource("status"),
        TestRequest::list("", "nodes"),
        TestRequest::list("metrics.k8s.io", "pods"),
        TestRequest::get("coordination.k8s.io", "leases", "another").namespace("operators"),
        TestRequest::get("coordination.k8s.io", "leases", "operator").namespace("team"),
        TestRequest::api(Verb::Create, "", "configmaps").namespace("team"),
        TestRequest::api(Verb::NonResource, "", "").with_path("/healthz"),
        TestRequest::external("GET", "example.com", "/"),
    ] {
        assert!(!bench.wakes(&req), "{req:?}");
        assert!(edits(&mut bench, &req).is_empty(), "{req:?}");
    }
}

#[test]
fn lock_is_renamed_and_never_filtered() {
    let mut bench = bench();
    let lease = |verb| TestRequest::api(verb, "coordination.k8s.io", "leases").namespace("operators");
    for verb in [
        Verb::Get,
        Verb::Update,
        Verb::Patch,
        Verb::Delete,
        Verb::List,
        Verb::Watch,
    ] {
        // The lock has no shard label: with the selector, a watch for it would see nothing.
        assert_eq!(edits(&mut bench, &lease(verb).name("operator")), rename(), "{verb:?}");
    }
    assert_eq!(edits(&mut bench, &lease(Verb::Create)), rename());
    assert_eq!(
        edits(
            &mut bench,
            &TestRequest::api(Verb::Create, "", "events").namespace("operators")
        ),
        rename()
    );
}

#[test]
fn other_leases_in_the_locks_namespace_are_filtered() {
    let mut bench = bench();
    let lease = |verb| TestRequest::api(verb, "coordination.k8s.io", "leases").namespace("operators");
    assert_eq!(edits(&mut bench, &lease(Verb::List)), selector());
    assert_eq!(edits(&mut bench, &lease(Verb::Watch).name("another")), selector());
    assert_eq!(edits(&mut bench, &lease(Verb::Deletecollection)), selector());
}

#[test]
fn lock_lies_in_the_pods_own_namespace() {
    let elsewhere = InstanceInfo {
        pod_namespace: "elsewhere".to_owned(),
        ..about()
    };
    let mut bench = Bench::<ShardSelector>::on(FakeHost::default(), SETTINGS, &elsewhere).unwrap();
    let lease = TestRequest::get("coordination.k8s.io", "leases", "operator");
    assert_eq!(edits(&mut bench, &lease.clone().namespace("elsewhere")), rename());
    assert!(!bench.wakes(&lease.namespace("operators")));
}

#[test]
fn limits_alone_leave_leader_election_alone() {
    let settings = SETTINGS.replace(r#""leaderElectionName": "operator","#, "");
    let mut bench = Bench::<ShardSelector>::new(&settings).unwrap();
    let lease = TestRequest::get("coordination.k8s.io", "leases", "operator").namespace("operators");
    assert!(!bench.wakes(&lease));
    assert_eq!(bench.on_request(&lease), RequestVerdict::proceed());
}

#[test]
fn selector_on_every_resource_takes_all_collections_but_the_locks() {
    let settings = r#"{"limits": [{"selector": {"matchLabels": {"shard": "a"}}}], "leaderElectionName": "operator", "shard": "a"}"#;
    let mut bench = Bench::<ShardSelector>::new(settings).unwrap();
    assert_eq!(
        edits(&mut bench, &TestRequest::list("x.example.com", "things")),
        selector()
    );
    let lease = TestRequest::watch("coordination.k8s.io", "leases")
        .namespace("operators")
        .name("operator");
    assert_eq!(edits(&mut bench, &lease), rename());
    assert!(!bench.wakes(&TestRequest::external("GET", "example.com", "/")));
}

#[test]
fn settings_without_effect_are_warned_about() {
    let bench = Bench::<ShardSelector>::new("{}").unwrap();
    assert!(bench.subscription.rules.is_empty());
    let logs = bench.host.logs();
    assert!(
        matches!(&logs[..], [(Level::Warn, text)] if text.contains("sees everything")),
        "{logs:?}"
    );
}

#[test]
fn settings_that_are_wrong_are_refused_by_field() {
    for (settings, path) in [
        (
            r#"{"leaderElectionName": "operator"}"#,
            "shard: required with leaderElectionName",
        ),
        (
            r#"{"limits": [{"selector": {"matchExpressions": [{"key": "a", "operator": "Inn"}]}}]}"#,
            "limits[0].selector.matchExpressions[0].operator: ",
        ),
        (r#"{"limitz": []}"#, "limitz: unknown field"),
        (r#"{"limits": {}}"#, "limits: invalid type"),
    ] {
        let error = Bench::<ShardSelector>::new(settings)
            .err()
            .unwrap_or_else(|| panic!("{settings} was accepted"));
        assert!(error.starts_with(path), "{settings} gave {error}");
    }
}

#[test]
fn answer_needs_nothing_but_the_facts() {
    let mut bench = bench();
    let req = TestRequest::list("", "pods")
        .agent("x")
        .query_field("labelSelector", "shard=b");
    assert_eq!(req.label_selector(), "shard=b");
    assert_eq!(edits(&mut bench, &req), selector());
    assert!(bench.host.logs().is_empty());
}
