//! The controller's own lock is not affected unless a rule names its resource.

use ctrlmesh_sdk::Verb;
use ctrlmesh_sdk::testing::TestRequest;

use super::support::{is_hit, new_bench};

fn lease_request() -> TestRequest {
    TestRequest::api(Verb::Update, "coordination.k8s.io", "leases")
        .namespace("operators")
        .name("lock")
}

fn config_map_request() -> TestRequest {
    TestRequest::api(Verb::Update, "", "configmaps")
        .namespace("operators")
        .name("lock")
}

fn bench_for_resources(resources: &str) -> ctrlmesh_sdk::testing::Bench<crate::plugin::FaultInject> {
    new_bench(&format!(
        r#"{{"faults": [{{"match": {{"resources": [{resources}]}}, "do": "conflict"}}]}}"#
    ))
}

#[test]
fn wildcard_does_not_match_the_lock() {
    for resources in [
        "{}",
        r#"{"resources": ["*"]}"#,
        r#"{"apiGroups": ["coordination.k8s.io"]}"#,
    ] {
        let mut bench = bench_for_resources(resources);
        assert!(!is_hit(&mut bench, &lease_request()), "{resources}");
        assert!(!is_hit(&mut bench, &config_map_request().leader_lock()), "{resources}");
        assert_eq!(
            bench.host.report("faults[0]"),
            Some(serde_json::json!({"matched": 0, "fired": 0}))
        );
    }
    assert!(is_hit(&mut bench_for_resources("{}"), &config_map_request()));
}

#[test]
fn i3_rule_that_names_the_resource_loses_the_lease() {
    assert!(is_hit(
        &mut bench_for_resources(r#"{"resources": ["leases"]}"#),
        &lease_request()
    ));
    assert!(is_hit(
        &mut bench_for_resources(r#"{"resources": ["configmaps"]}"#),
        &config_map_request().leader_lock()
    ));
}

#[test]
fn presets_leave_the_lock_alone() {
    let settings = r#"{"faults": [{"match": {"resources": [{}]}, "do": {"overload": {"peak": "10s"}}}]}"#;
    let mut bench = new_bench(settings);
    for _ in 0..100 {
        assert!(!is_hit(&mut bench, &lease_request()));
    }
}
