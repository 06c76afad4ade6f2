//! S2 to S5.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{RequestVerdict, Verb};

use super::kit::{answer, api, ask, bench, discovery, fault, header, is_hit, refused};

#[test]
fn s2_throttled_in_the_plain_text_of_priority_and_fairness() {
    let (answer, body) = answer(&mut fault(r#"{"throttle": {"retryAfter": 4}}"#), &api(Verb::List));
    assert_eq!(
        (answer.code, body.as_str()),
        (429, "Too many requests, please try again later.\n")
    );
    assert_eq!(header(&answer, "content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(header(&answer, "x-content-type-options"), Some("nosniff"));
    assert_eq!(header(&answer, "retry-after"), Some("4"));
    for uid in ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"] {
        assert_eq!(header(&answer, uid).map(str::len), Some(36), "{uid}");
    }
}

#[test]
fn s3_the_whole_server_is_slow_by_a_seeded_distribution() {
    let delays = |seed: u64| -> Vec<u32> {
        let settings = format!(
            r#"{{"seed": {seed}, "faults": [{{"match": {{"resources": [{{}}]}}, "do": {{"delay": {{"mean": "200ms", "max": "5s"}}}}}}]}}"#
        );
        let mut bench = bench(&settings);
        (0..20).map(|_| ask(&mut bench, &api(Verb::Get)).delay_ms).collect()
    };
    assert_eq!(delays(7), delays(7));
    assert_ne!(delays(7), delays(8));
}

#[test]
fn s4_an_aggregated_group_is_down_with_its_discovery() {
    let mut bench = bench(r#"{"faults": [{"do": {"groupDown": {"group": "metrics.k8s.io"}}}]}"#);
    let pods = TestRequest::list("metrics.k8s.io", "pods");
    for req in [pods, discovery("/apis/metrics.k8s.io/v1beta1")] {
        let (answer, body) = answer(&mut bench, &req);
        assert_eq!((answer.code, body.as_str()), (503, "service unavailable\n"), "{req:?}");
        assert_eq!(header(&answer, "content-type"), Some("text/plain; charset=utf-8"));
    }
    // The aggregator itself tells which versions a group has.
    let group = discovery("/apis/metrics.k8s.io");
    for req in [
        group,
        discovery("/apis"),
        discovery("/apis/metrics.k8s.iox"),
        api(Verb::List),
    ] {
        assert!(!is_hit(&mut bench, &req), "{req:?}");
    }
}

#[test]
fn s4_one_version_of_a_group_can_be_down() {
    let mut bench = bench(r#"{"faults": [{"do": {"groupDown": {"group": "metrics.k8s.io", "version": "v1"}}}]}"#);
    assert!(is_hit(&mut bench, &TestRequest::list("metrics.k8s.io", "pods")));
    assert!(is_hit(&mut bench, &discovery("/apis/metrics.k8s.io/v1")));
    assert!(!is_hit(&mut bench, &discovery("/apis/metrics.k8s.io/v2")));
    assert!(!is_hit(&mut bench, &discovery("/apis/metrics.k8s.io")));
    let mut other = bench_of_version("v2");
    assert_eq!(
        ask(&mut other, &TestRequest::list("metrics.k8s.io", "pods")),
        RequestVerdict::proceed()
    );
}

fn bench_of_version(version: &str) -> ctrlmesh_sdk::testing::Bench<crate::plugin::FaultInject> {
    bench(&format!(
        r#"{{"faults": [{{"do": {{"groupDown": {{"group": "metrics.k8s.io", "version": "{version}"}}}}}}]}}"#
    ))
}

#[test]
fn s4_matches_by_itself() {
    let error = refused(r#"{"faults": [{"match": {"resources": [{}]}, "do": {"groupDown": {"group": "a"}}}]}"#);
    assert!(
        error.starts_with("faults[0].match: this fault knows by itself"),
        "{error}"
    );
    let error = refused(r#"{"faults": [{"do": "groupDown"}]}"#);
    assert!(error.starts_with("faults[0].do.groupDown.group: missing"), "{error}");
}

#[test]
fn s5_discovery_openapi_and_version_fail() {
    let down = |code: u16| {
        bench(&format!(
            r#"{{"class": "server", "faults": [{{"do": {{"discoveryDown": {{"code": {code}}}}}}}]}}"#
        ))
    };
    for path in ["/api", "/apis", "/apis/apps/v1", "/openapi/v3/apis/apps/v1", "/version"] {
        let told = |code| {
            let (answer, body) = answer(&mut down(code), &discovery(path));
            assert_eq!(answer.code, code);
            body
        };
        assert_eq!(told(503), "service unavailable\n");
        assert_eq!(told(404), "404 page not found\n");
        assert_eq!(
            told(500),
            format!("Internal Server Error: {path:?}: the server could not complete the request\n")
        );
    }
    assert!(!is_hit(&mut down(503), &discovery("/healthz")));
    assert!(!is_hit(&mut down(503), &api(Verb::List)));
}

#[test]
fn s5_a_server_without_discovery_is_of_the_class_server() {
    let error = refused(r#"{"faults": [{"do": {"discoveryDown": {"code": 404}}}]}"#);
    assert!(error.contains("is of the class server"), "{error}");
    let error = refused(r#"{"class": "server", "faults": [{"do": {"discoveryDown": {"code": 418}}}]}"#);
    assert!(
        error.starts_with("faults[0].do.discoveryDown.code: 418 is not known"),
        "{error}"
    );
}
