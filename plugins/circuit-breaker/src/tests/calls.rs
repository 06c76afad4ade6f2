//! Calls to other services: breakers by host, and lists of allowed and denied calls.

use ctrlmesh_sdk::testing::{Bench, TestRequest, TestResponse, test_instance_info};
use ctrlmesh_sdk::{Failure, Phases, RequestVerdict, Verb};
use serde_json::{Value, json};

use super::{CircuitBreaker, admit_request, failed_with, rule_named, with_fields};

fn call_list(kind: &str, content: &str, contents: &[&str], methods: &[&str]) -> Value {
    json!({"name": format!("{kind}-{content}"), "interceptType": kind, "contentType": content, "contents": contents,
        "methods": methods})
}

fn lists_json(rules: &[Value]) -> String {
    json!({"trafficInterceptRules": rules}).to_string()
}

fn bench_with_lists(rules: &[Value]) -> Bench<CircuitBreaker> {
    Bench::new(&lists_json(rules)).unwrap()
}

fn is_allowed(bench: &mut Bench<CircuitBreaker>, method: &str, host: &str, port: u16) -> bool {
    let req = TestRequest::external(method, host, "/").with_port(port);
    match admit_request(bench, &req) {
        Ok(()) => true,
        Err(refusal) => {
            assert_eq!((refusal.code, refusal.retry_after_seconds), (403, None));
            false
        }
    }
}

/// Lists, calls that they allow, and calls that they forbid.
type Case = (
    Vec<Value>,
    Vec<(&'static str, &'static str, u16)>,
    Vec<(&'static str, &'static str, u16)>,
);

fn check_cases(cases: impl IntoIterator<Item = Case>) {
    for (rules, allowed, denied) in cases {
        let mut bench = bench_with_lists(&rules);
        for (method, host, port) in allowed {
            assert!(
                is_allowed(&mut bench, method, host, port),
                "{rules:?} {method} {host}:{port}"
            );
        }
        for (method, host, port) in denied {
            assert!(
                !is_allowed(&mut bench, method, host, port),
                "{rules:?} {method} {host}:{port}"
            );
        }
        assert!(!bench.wakes(&TestRequest::list("", "pods")));
    }
}

#[test]
fn rest_05_allow_and_deny_lists_match_names_and_expressions() {
    check_cases([
        (
            vec![call_list("Whitelist", "Normal", &["b.com"], &["*"])],
            vec![("GET", "b.com", 443), ("POST", "b.com", 8080)],
            vec![("GET", "c.com", 443), ("GET", "a.b.com", 443)],
        ),
        (
            vec![call_list("Blacklist", "Normal", &["b.com:8080"], &["get"])],
            vec![("GET", "b.com", 443), ("POST", "b.com", 8080), ("GET", "c.com", 8080)],
            vec![("GET", "b.com", 8080)],
        ),
        // `*` as a method, which the peer does not support with expressions.
        (
            vec![call_list("Blacklist", "Regexp", &[r"^b\.com$", "evil"], &["*"])],
            vec![("GET", "a.b.com", 443)],
            vec![("GET", "b.com", 443), ("DELETE", "very-evil.org", 80)],
        ),
    ]);
}

#[test]
fn rest_05_deny_list_wins_and_allow_lists_add_up() {
    check_cases([
        // A deny list wins, even if the allow list is more specific.
        (
            vec![
                call_list("Whitelist", "Normal", &["b.com", "c.com"], &["GET", "PUT"]),
                call_list("Blacklist", "Regexp", &["b"], &["PUT"]),
            ],
            vec![("GET", "b.com", 443), ("PUT", "c.com", 443)],
            vec![("PUT", "b.com", 443), ("POST", "b.com", 443), ("GET", "d.com", 443)],
        ),
        // Two allow lists add up.
        (
            vec![
                call_list("Whitelist", "Normal", &["b.com"], &["*"]),
                call_list("Whitelist", "Regexp", &["^c"], &["*"]),
            ],
            vec![("GET", "b.com", 443), ("GET", "c.com", 443)],
            vec![("GET", "d.com", 443)],
        ),
        (
            vec![call_list("Whitelist", "Normal", &["*"], &["GET"])],
            vec![("GET", "x", 1)],
            vec![("CONNECT", "x", 1)],
        ),
        (
            vec![call_list("Whitelist", "Normal", &[], &["*"])],
            vec![],
            vec![("GET", "b.com", 443)],
        ),
    ]);
}

/// In the peer, removing the last allow list refuses every call until the sidecar restarts.
#[test]
fn rest_05_removed_list_leaves_nothing_behind() {
    let mut bench = bench_with_lists(&[call_list("Whitelist", "Normal", &["b.com"], &["*"])]);
    assert!(!is_allowed(&mut bench, "GET", "c.com", 443));
    let mut bench = Bench::<CircuitBreaker>::on(bench.host, &lists_json(&[]), &test_instance_info()).unwrap();
    let req = TestRequest::external("GET", "c.com", "/");
    assert!(!bench.wakes(&req));
    assert_eq!(
        bench.on_request(&req),
        RequestVerdict::proceed().later(Phases::empty()).reusable()
    );
}

#[test]
fn rest_05_refusal_names_its_list() {
    let mut bench = bench_with_lists(&[
        call_list("Blacklist", "Normal", &["b.com"], &["*"]),
        call_list("Whitelist", "Normal", &["c.com"], &["*"]),
    ]);
    let refusal = admit_request(&mut bench, &TestRequest::external("GET", "b.com", "/")).unwrap_err();
    assert_eq!(refusal.cause.as_deref(), Some("Blacklist-Normal"));
    let refusal = admit_request(&mut bench, &TestRequest::external("GET", "d.com", "/")).unwrap_err();
    assert_eq!(
        (refusal.cause, refusal.message.contains("Whitelist allows")),
        (None, true)
    );
    let counts = ["Blacklist-Normal", ""].map(|name| bench.host.counter("denied", name));
    assert_eq!(counts, [1, 1]);
}

/// The peer's rules apply to header-mode calls only; here a rule applies to everything that the sidecar sees.
#[test]
fn cb_04_url_breakers_have_wildcards() {
    let fields =
        json!({"resourceRules": null, "restRules": [{"url": "https://b.com/*", "method": "*"}], "key": "host"});
    let mut bench = super::new_bench(&[with_fields(rule_named("a"), &fields)]);
    let tunnel = TestRequest::external("CONNECT", "b.com", "");
    for _ in 0..2 {
        assert!(super::run_request(
            &mut bench,
            &tunnel,
            &failed_with(Failure::Unreachable)
        ));
    }
    assert!(admit_request(&mut bench, &TestRequest::external("POST", "b.com", "/x")).is_err());
    let other_port = TestRequest::external("POST", "b.com", "/x").with_port(80);
    assert_eq!(
        bench.on_request(&other_port),
        RequestVerdict::proceed().later(Phases::empty()).reusable()
    );
    assert!(!bench.wakes(&TestRequest::api(Verb::Get, "", "pods")));
    bench.host.advance_ms(10_000);
    admit_request(&mut bench, &tunnel).unwrap();
    bench.on_response(&tunnel, &TestResponse::new(200));
    let after = TestRequest::external("POST", "b.com", "/x");
    assert_eq!(
        admit_request(&mut bench, &after),
        Ok(()),
        "a tunnel that opens is a success, long before it ends"
    );
}
