//! The plugin as the host sees it: its subscription and its verdicts.

use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest, test_instance_info};
use ctrlmesh_sdk::{InstanceInfo, Level, Request, RequestAction, RequestEdit, RequestVerdict, Reuse, Verb};

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

fn new_bench() -> Bench<ShardSelector> {
    Bench::new(SETTINGS).unwrap()
}

/// The edits, after checking that the request is subscribed if it gets any.
fn edits_for(bench: &mut Bench<ShardSelector>, req: &TestRequest) -> Vec<RequestEdit> {
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

fn selector_edits() -> Vec<RequestEdit> {
    vec![RequestEdit::and_label_selector("shard=a")]
}

fn rename_edits() -> Vec<RequestEdit> {
    vec![RequestEdit::rename_object("operator", "operator---a")]
}

#[test]
fn collections_get_the_selector_of_the_shard() {
    let mut bench = new_bench();
    for verb in [Verb::List, Verb::Watch, Verb::Deletecollection] {
        assert_eq!(
            edits_for(&mut bench, &TestRequest::api(verb, "", "pods").namespace("team")),
            selector_edits(),
            "{verb:?}"
        );
        assert_eq!(
            edits_for(&mut bench, &TestRequest::api(verb, "", "pods")),
            selector_edits(),
            "{verb:?}"
        );
        // A collection with a field selector is still a list.
        assert_eq!(
            edits_for(&mut bench, &TestRequest::api(verb, "", "pods").name("p")),
            selector_edits(),
            "{verb:?}"
        );
    }
}

#[test]
fn other_requests_do_not_wake_the_plugin() {
    let mut bench = new_bench();
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
        assert!(edits_for(&mut bench, &req).is_empty(), "{req:?}");
    }
}

#[test]
fn lock_is_renamed_and_never_filtered() {
    let mut bench = new_bench();
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
        assert_eq!(
            edits_for(&mut bench, &lease(verb).name("operator")),
            rename_edits(),
            "{verb:?}"
        );
    }
    assert_eq!(edits_for(&mut bench, &lease(Verb::Create)), rename_edits());
    assert_eq!(
        edits_for(
            &mut bench,
            &TestRequest::api(Verb::Create, "", "events").namespace("operators")
        ),
        rename_edits()
    );
}

#[test]
fn other_leases_in_the_namespace_of_the_lock_are_filtered() {
    let mut bench = new_bench();
    let lease = |verb| TestRequest::api(verb, "coordination.k8s.io", "leases").namespace("operators");
    assert_eq!(edits_for(&mut bench, &lease(Verb::List)), selector_edits());
    assert_eq!(
        edits_for(&mut bench, &lease(Verb::Watch).name("another")),
        selector_edits()
    );
    assert_eq!(edits_for(&mut bench, &lease(Verb::Deletecollection)), selector_edits());
}

#[test]
fn lock_lies_in_the_namespace_of_the_pod() {
    let elsewhere = InstanceInfo {
        pod_namespace: "elsewhere".to_owned(),
        ..test_instance_info()
    };
    let mut bench = Bench::<ShardSelector>::on(FakeHost::default(), SETTINGS, &elsewhere).unwrap();
    let lease = TestRequest::get("coordination.k8s.io", "leases", "operator");
    assert_eq!(
        edits_for(&mut bench, &lease.clone().namespace("elsewhere")),
        rename_edits()
    );
    assert!(!bench.wakes(&lease.namespace("operators")));
}

#[test]
fn limits_alone_leave_leader_election_alone() {
    let settings = SETTINGS.replace(r#""leaderElectionName": "operator","#, "");
    let mut bench = Bench::<ShardSelector>::new(&settings).unwrap();
    let lease = TestRequest::get("coordination.k8s.io", "leases", "operator").namespace("operators");
    assert!(!bench.wakes(&lease));
    assert_eq!(bench.on_request(&lease), RequestVerdict::proceed().reusable());
}

#[test]
fn selector_on_every_resource_covers_all_collections_but_the_lock() {
    let settings = r#"{"limits": [{"selector": {"matchLabels": {"shard": "a"}}}], "leaderElectionName": "operator", "shard": "a"}"#;
    let mut bench = Bench::<ShardSelector>::new(settings).unwrap();
    assert_eq!(
        edits_for(&mut bench, &TestRequest::list("x.example.com", "things")),
        selector_edits()
    );
    let lease = TestRequest::watch("coordination.k8s.io", "leases")
        .namespace("operators")
        .name("operator");
    assert_eq!(edits_for(&mut bench, &lease), rename_edits());
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
fn invalid_settings_are_refused_by_field() {
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
fn verdict_needs_only_facts() {
    let mut bench = new_bench();
    let req = TestRequest::list("", "pods")
        .agent("x")
        .query_field("labelSelector", "shard=b");
    assert_eq!(req.label_selector(), "shard=b");
    assert_eq!(edits_for(&mut bench, &req), selector_edits());
    assert!(bench.host.logs().is_empty());
}

#[test]
fn only_deciding_facts_are_read_and_verdicts_are_reusable() {
    let resource = ["group", "resource", "subresource", "verb"];
    let without_lock = SETTINGS.replace(r#""leaderElectionName": "operator","#, "");
    for (settings, request, reads) in [
        (
            &*without_lock,
            TestRequest::list("", "pods").namespace("a"),
            &resource[..],
        ),
        (&without_lock, TestRequest::list("", "nodes"), &resource),
        (
            &without_lock,
            TestRequest::get("", "pods", "p"),
            &["subresource", "verb"],
        ),
        (SETTINGS, TestRequest::get("", "pods", "p"), &resource),
        (
            SETTINGS,
            TestRequest::get("coordination.k8s.io", "leases", "other").namespace("operators"),
            &["group", "name", "namespace", "resource", "subresource", "verb"],
        ),
    ] {
        let mut bench = Bench::<ShardSelector>::new(settings).unwrap();
        let verdict = bench.on_request(&request);
        assert_eq!(verdict.reuse, Reuse::WhileUnchanged, "{request:?}");
        assert_eq!(request.take_reads(), reads, "{settings}");
    }
}
