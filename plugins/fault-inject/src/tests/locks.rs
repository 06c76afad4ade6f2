//! The controller's own lock is left alone unless a rule names its resource.

use ctrlmesh_sdk::Verb;
use ctrlmesh_sdk::testing::TestRequest;

use super::kit::{bench, is_hit};

fn lease() -> TestRequest {
    TestRequest::api(Verb::Update, "coordination.k8s.io", "leases")
        .namespace("operators")
        .name("lock")
}

fn config_map() -> TestRequest {
    TestRequest::api(Verb::Update, "", "configmaps")
        .namespace("operators")
        .name("lock")
}

fn with(resources: &str) -> ctrlmesh_sdk::testing::Bench<crate::plugin::FaultInject> {
    bench(&format!(
        r#"{{"faults": [{{"match": {{"resources": [{resources}]}}, "do": "conflict"}}]}}"#
    ))
}

#[test]
fn a_wildcard_does_not_reach_the_lock() {
    for resources in [
        "{}",
        r#"{"resources": ["*"]}"#,
        r#"{"apiGroups": ["coordination.k8s.io"]}"#,
    ] {
        let mut bench = with(resources);
        assert!(!is_hit(&mut bench, &lease()), "{resources}");
        assert!(!is_hit(&mut bench, &config_map().leader_lock()), "{resources}");
        assert_eq!(
            bench.host.report("faults[0]"),
            Some(serde_json::json!({"matched": 0, "fired": 0}))
        );
    }
    assert!(is_hit(&mut with("{}"), &config_map()));
}

#[test]
fn i3_a_rule_that_names_the_resource_loses_the_lease() {
    assert!(is_hit(&mut with(r#"{"resources": ["leases"]}"#), &lease()));
    assert!(is_hit(
        &mut with(r#"{"resources": ["configmaps"]}"#),
        &config_map().leader_lock()
    ));
}

#[test]
fn presets_leave_the_lock_alone() {
    let settings = r#"{"faults": [{"match": {"resources": [{}]}, "do": {"overload": {"peak": "10s"}}}]}"#;
    let mut bench = bench(settings);
    for _ in 0..100 {
        assert!(!is_hit(&mut bench, &lease()));
    }
}
