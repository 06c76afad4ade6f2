//! Plugins whose binaries were built against an earlier version of the interface and are kept: today's engine runs them as they are.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use ctrlmesh_proxy::harness::{Harness, get, request, response};
use ctrlmesh_proxy::plugin::verdict::{Outcome, Phases, RequestAction, RequestEdit, RequestVerdict, ResponseAction};
use ctrlmesh_proxy::wasm::SeriesValue;
use http::{HeaderName, HeaderValue, Method, StatusCode};

const HELLO: &[u8] = include_bytes!("../../tests/guests/kept/0.1/hello.wasm");
const CIRCUIT_BREAKER: &[u8] = include_bytes!("../../tests/guests/kept/0.1/circuit-breaker.wasm");

fn start(wasm: &[u8], settings: &str) -> Harness {
    Harness::with_limits(wasm, settings, Duration::from_secs(5), 16 << 20).expect("it starts")
}

fn refused_code(verdict: &RequestVerdict) -> Option<u16> {
    match &verdict.action {
        RequestAction::Refuse(refusal) => Some(refusal.code),
        _ => None,
    }
}

fn counter_value(plugin: &Harness, name: &str) -> u64 {
    let series = plugin.metrics().into_iter().find(|series| series.name == name);
    match series.map(|series| series.value) {
        Some(SeriesValue::Counter(count)) => count,
        _ => 0,
    }
}

#[test]
fn hello_of_0_1_refuses_and_edits() {
    let mut plugin = start(
        HELLO,
        r#"{"protectedNamespaces": ["payments"], "markUserAgent": "kubectl*"}"#,
    );
    let delete = |name: &str| request(Method::DELETE, &format!("/api/v1/namespaces/{name}"));
    let refused = plugin.request(&delete("payments")).expect("a verdict");
    assert_eq!(refused_code(&refused), Some(403));
    assert_eq!(counter_value(&plugin, "refused"), 1);
    let marked = plugin.request(&delete("scratch")).expect("a verdict");
    let edit = RequestEdit::SetHeader(HeaderName::from_static("x-hello"), HeaderValue::from_static("hello"));
    assert_eq!(marked.action, RequestAction::Proceed(vec![edit]));
    let error = Harness::new(HELLO, "{}").err().expect("settings without effect");
    assert!(error.to_string().contains("protectedNamespaces"), "{error}");
}

#[test]
fn circuit_breaker_of_0_1_opens_and_lets_probes_through() {
    let mut plugin = start(
        CIRCUIT_BREAKER,
        r#"{"rateLimitings": [{
            "name": "pods", "triggerPolicy": "Normal",
            "bucket": {"limit": 1, "interval": "100s", "burst": 1},
            "recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "10s"},
            "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"], "namespaces": ["*"]}]
        }]}"#,
    );
    let all = Phases {
        request: true,
        response: true,
        complete: true,
    };
    assert_eq!(plugin.subscription().phases, all);
    let list = get("/api/v1/pods");
    let passed = plugin.request(&list).expect("a verdict");
    assert_eq!(passed.action, RequestAction::Proceed(Vec::new()));
    assert_eq!(refused_code(&plugin.request(&list).expect("a verdict")), Some(429));
    plugin.restart().expect("a fresh instance");
    assert_eq!(refused_code(&plugin.request(&list).expect("a verdict")), Some(429));
    plugin.advance(Duration::from_secs(10));
    let probe = plugin.request(&list).expect("a verdict");
    assert_eq!(refused_code(&probe), None);
    let counts = ["passed", "opened", "refused", "probed"].map(|name| counter_value(&plugin, name));
    assert_eq!(counts, [1, 1, 2, 1]);
    let handed_on = plugin.response(&list, &response(StatusCode::OK)).expect("a verdict");
    assert!(matches!(handed_on.action, ResponseAction::Proceed { edits, body: None } if edits.is_empty()));
    let outcome = Outcome {
        status: 200,
        upstream_status: 200,
        failure: None,
        duration: Duration::from_millis(2),
        upstream: Duration::from_millis(1),
        request_bytes: 0,
        response_bytes: 2,
    };
    plugin.complete(&list, &outcome).expect("no fault");
}
