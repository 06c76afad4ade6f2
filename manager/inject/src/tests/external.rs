//! Sidecars that serve calls to external services.

use serde_json::{Value, json};

use super::golden::cases;
use super::refused::accepted_pod;
use crate::Rule;

/// The variable with the sidecar's address for external calls.
fn external_address(annotation: Option<&str>, rules: &[Value], flags: &str) -> Option<String> {
    let mut pod_under_test = accepted_pod(flags);
    if let Some(annotation) = annotation {
        pod_under_test = pod_under_test.with_metadata("annotations", "external-traffic", annotation);
    }
    pod_under_test
        .known
        .rules
        .extend(rules.iter().filter_map(Rule::from_document));
    let patch = pod_under_test.inject().unwrap();
    let containers = patch.iter().find(|it| it["path"] == "/spec/initContainers").unwrap();
    let variables = containers["value"][0]["env"].as_array().unwrap();
    let address = variables.iter().find(|it| it["name"] == "CTRLMESH_EXTERNAL_ADDRESS");
    address.map(|it| it["value"].as_str().unwrap().to_owned())
}

fn rule(kind: &str, app: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["selector"] = json!({"matchLabels": {"app": app}});
    json!({"kind": kind, "metadata": {"name": "one"}, "spec": spec})
}

#[test]
fn external_port_is_off_by_default() {
    assert_eq!(external_address(None, &[], ""), None);
    for (path, case) in cases() {
        let after = std::fs::read_to_string(path.with_extension("after.yaml")).unwrap();
        let asks = serde_json::to_string(&case.pod).unwrap().contains("external-traffic");
        assert_eq!(after.contains("CTRLMESH_EXTERNAL_ADDRESS"), asks, "{}", path.display());
    }
}

#[test]
fn annotation_switches_external_port_on_and_off() {
    let on = Some("127.0.0.1:15002".to_owned());
    assert_eq!(external_address(Some("true"), &[], ""), on);
    assert_eq!(
        external_address(Some("true"), &[], "--proxy-external-port=7002").as_deref(),
        Some("127.0.0.1:7002")
    );
    let lists = rule("CircuitBreaker", "operator", &json!({"trafficInterceptRules": [{}]}));
    assert_eq!(external_address(Some("false"), &[lists], ""), None);
    let problem = accepted_pod("--proxy-external-port=0")
        .with_metadata("annotations", "external-traffic", "true")
        .inject()
        .unwrap_err()
        .to_string();
    assert!(problem.contains("--proxy-external-port=0"), "{problem}");
}

#[test]
fn rule_for_external_traffic_switches_port_on_for_its_pods() {
    let limit = |rules: Value| json!({"rateLimitings": [{"resourceRules": [{}]}, rules]});
    for (kind, spec, is_external) in [
        (
            "CircuitBreaker",
            json!({"trafficInterceptRules": [{"name": "x"}]}),
            true,
        ),
        (
            "CircuitBreaker",
            limit(json!({"restRules": [{"url": "*", "method": "*"}]})),
            true,
        ),
        ("CircuitBreaker", limit(json!({"restRules": []})), false),
        ("CircuitBreaker", json!({"trafficInterceptRules": []}), false),
        (
            "FaultInjection",
            json!({"httpFault": [{"match": {"httpMatch": [{"host": {}}]}}]}),
            true,
        ),
        (
            "FaultInjection",
            json!({"httpFault": [{"match": {"resources": [{}]}}]}),
            false,
        ),
        (
            "FaultInjection",
            json!({"disabled": true, "httpFault": [{"match": {"httpMatch": [{}]}}]}),
            true,
        ),
    ] {
        let has_port = |app: &str| external_address(None, &[rule(kind, app, &spec)], "").is_some();
        assert_eq!(has_port("operator"), is_external, "{kind} {spec}");
        assert!(!has_port("other"), "{kind} {spec}: it selects other pods");
        assert_eq!(
            external_address(None, &[rule(kind, "operator", &spec)], "--proxy-external-port=0"),
            None
        );
    }
}
