//! Faults S2 to S5: overload and missing parts of a server.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{RequestVerdict, Verb};

use super::support::{
    api_request, bench_with_fault, discovery_request, expect_answer, header_value, is_hit, new_bench, request_verdict,
    settings_error,
};

#[test]
fn s2_throttling_is_plain_text_of_priority_and_fairness() {
    let (answer, body) = expect_answer(
        &mut bench_with_fault(r#"{"throttle": {"retryAfter": 4}}"#),
        &api_request(Verb::List),
    );
    assert_eq!(
        (answer.code, body.as_str()),
        (429, "Too many requests, please try again later.\n")
    );
    assert_eq!(header_value(&answer, "content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(header_value(&answer, "x-content-type-options"), Some("nosniff"));
    assert_eq!(header_value(&answer, "retry-after"), Some("4"));
    for uid in ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"] {
        assert_eq!(header_value(&answer, uid).map(str::len), Some(36), "{uid}");
    }
}

#[test]
fn s3_server_is_slow_by_a_seeded_distribution() {
    let delays = |seed: u64| -> Vec<u32> {
        let settings = format!(
            r#"{{"seed": {seed}, "faults": [{{"match": {{"resources": [{{}}]}}, "do": {{"delay": {{"mean": "200ms", "max": "5s"}}}}}}]}}"#
        );
        let mut bench = new_bench(&settings);
        (0..20)
            .map(|_| request_verdict(&mut bench, &api_request(Verb::Get)).delay_ms)
            .collect()
    };
    assert_eq!(delays(7), delays(7));
    assert_ne!(delays(7), delays(8));
}

#[test]
fn s4_aggregated_group_is_down_with_its_discovery() {
    let mut bench = new_bench(r#"{"faults": [{"do": {"groupDown": {"group": "metrics.k8s.io"}}}]}"#);
    let pods = TestRequest::list("metrics.k8s.io", "pods");
    for req in [pods, discovery_request("/apis/metrics.k8s.io/v1beta1")] {
        let (answer, body) = expect_answer(&mut bench, &req);
        assert_eq!((answer.code, body.as_str()), (503, "service unavailable\n"), "{req:?}");
        assert_eq!(header_value(&answer, "content-type"), Some("text/plain; charset=utf-8"));
    }
    // The aggregator itself lists the versions of a group.
    let group = discovery_request("/apis/metrics.k8s.io");
    for req in [
        group,
        discovery_request("/apis"),
        discovery_request("/apis/metrics.k8s.iox"),
        api_request(Verb::List),
    ] {
        assert!(!is_hit(&mut bench, &req), "{req:?}");
    }
}

#[test]
fn s4_one_version_of_a_group_can_be_down() {
    let mut bench = new_bench(r#"{"faults": [{"do": {"groupDown": {"group": "metrics.k8s.io", "version": "v1"}}}]}"#);
    assert!(is_hit(&mut bench, &TestRequest::list("metrics.k8s.io", "pods")));
    assert!(is_hit(&mut bench, &discovery_request("/apis/metrics.k8s.io/v1")));
    assert!(!is_hit(&mut bench, &discovery_request("/apis/metrics.k8s.io/v2")));
    assert!(!is_hit(&mut bench, &discovery_request("/apis/metrics.k8s.io")));
    let mut other = bench_of_version("v2");
    assert_eq!(
        request_verdict(&mut other, &TestRequest::list("metrics.k8s.io", "pods")),
        RequestVerdict::proceed()
    );
}

fn bench_of_version(version: &str) -> ctrlmesh_sdk::testing::Bench<crate::plugin::FaultInject> {
    new_bench(&format!(
        r#"{{"faults": [{{"do": {{"groupDown": {{"group": "metrics.k8s.io", "version": "{version}"}}}}}}]}}"#
    ))
}

#[test]
fn s4_refuses_a_match_of_its_own() {
    let error = settings_error(r#"{"faults": [{"match": {"resources": [{}]}, "do": {"groupDown": {"group": "a"}}}]}"#);
    assert!(
        error.starts_with("faults[0].match: this fault knows by itself"),
        "{error}"
    );
    let error = settings_error(r#"{"faults": [{"do": "groupDown"}]}"#);
    assert!(error.starts_with("faults[0].do.groupDown.group: missing"), "{error}");
}

#[test]
fn s5_discovery_openapi_and_version_fail() {
    let down = |code: u16| {
        new_bench(&format!(
            r#"{{"class": "server", "faults": [{{"do": {{"discoveryDown": {{"code": {code}}}}}}}]}}"#
        ))
    };
    for path in ["/api", "/apis", "/apis/apps/v1", "/openapi/v3/apis/apps/v1", "/version"] {
        let abort_body = |code| {
            let (answer, body) = expect_answer(&mut down(code), &discovery_request(path));
            assert_eq!(answer.code, code);
            body
        };
        assert_eq!(abort_body(503), "service unavailable\n");
        assert_eq!(abort_body(404), "404 page not found\n");
        assert_eq!(
            abort_body(500),
            format!("Internal Server Error: {path:?}: the server could not complete the request\n")
        );
    }
    assert!(!is_hit(&mut down(503), &discovery_request("/healthz")));
    assert!(!is_hit(&mut down(503), &api_request(Verb::List)));
}

#[test]
fn s5_missing_discovery_requires_class_server() {
    let error = settings_error(r#"{"faults": [{"do": {"discoveryDown": {"code": 404}}}]}"#);
    assert!(error.contains("is of the class server"), "{error}");
    let error = settings_error(r#"{"class": "server", "faults": [{"do": {"discoveryDown": {"code": 418}}}]}"#);
    assert!(
        error.starts_with("faults[0].do.discoveryDown.code: 418 is not known"),
        "{error}"
    );
}
