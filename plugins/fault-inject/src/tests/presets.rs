//! Faults S1 and S2 as sequences in time.

use ctrlmesh_sdk::testing::{Bench, TestResponse};
use ctrlmesh_sdk::{RequestAction, RequestVerdict, ResponsePlan, ResponseVerdict, Verb};

use super::support::{
    api_request, bench_with_fault, discovery_request, expect_answer, expect_refusal, header_value, is_hit,
    request_verdict, rule_error,
};
use crate::plugin::FaultInject;

const RESTART: &str =
    r#"{"restartServer": {"goaway": "1s", "drain": "5s", "down": "3s", "warm": "4s", "allRequests": true}}"#;

fn list_at_version(version: &str) -> ctrlmesh_sdk::testing::TestRequest {
    api_request(Verb::List).query_field("resourceVersion", version)
}

/// Moves the clock; the first request begins the sequence.
fn advance_to(bench: &mut Bench<FaultInject>, ms: u64) -> &mut Bench<FaultInject> {
    let _ = request_verdict(bench, &api_request(Verb::Get));
    bench.host.advance_ms(ms);
    bench
}

#[test]
fn s1_restart_begins_with_goaway() {
    let mut bench = bench_with_fault(RESTART);
    let req = api_request(Verb::Get);
    assert_eq!(request_verdict(&mut bench, &req), RequestVerdict::proceed());
    let expected = ResponseVerdict::edit(ResponsePlan::default().close_connection());
    assert_eq!(bench.on_response(&req, &TestResponse::new(200)), expected);
}

#[test]
fn s1_restart_drains_in_plain_text() {
    let mut bench = bench_with_fault(RESTART);
    let (answer, body) = expect_answer(advance_to(&mut bench, 1_000), &api_request(Verb::Update));
    assert_eq!(
        (answer.code, body.as_str()),
        (429, "The apiserver is shutting down, please try again later.\n")
    );
    assert_eq!(header_value(&answer, "retry-after"), Some("5"));
    assert!(answer.close_connection, "`with_retry_after.go` closes it");
    // Probes are served to the end.
    for path in ["/readyz", "/livez/ping", "/healthz", "/metrics"] {
        assert!(!is_hit(&mut bench, &discovery_request(path)), "{path}");
    }
}

#[test]
fn s1_restart_closes_the_port_for_the_remaining_time() {
    let mut bench = bench_with_fault(RESTART);
    assert_eq!(
        request_verdict(advance_to(&mut bench, 6_000), &api_request(Verb::Get)),
        RequestVerdict::refuse_connections(3_000)
    );
    bench.host.advance_ms(2_900);
    assert_eq!(
        request_verdict(&mut bench, &api_request(Verb::Get)),
        RequestVerdict::refuse_connections(100)
    );
}

#[test]
fn s1_restart_fills_a_lagging_watch_cache() {
    let mut bench = bench_with_fault(RESTART);
    let refusal = expect_refusal(advance_to(&mut bench, 9_000), &api_request(Verb::Watch));
    assert_eq!((refusal.code, refusal.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(
        (refusal.message.as_str(), refusal.retry_after_seconds),
        ("storage is (re)initializing", Some(1))
    );
    assert!(!is_hit(&mut bench, &api_request(Verb::Update)));
    bench.host.advance_ms(2_000);
    let refusal = expect_refusal(&mut bench, &list_at_version("5000"));
    assert_eq!((refusal.code, refusal.reason.as_str()), (504, "Timeout"));
    assert!(!is_hit(&mut bench, &api_request(Verb::Watch)));
}

#[test]
fn s1_restart_ends_until_it_repeats() {
    let mut bench = bench_with_fault(RESTART);
    assert!(!is_hit(advance_to(&mut bench, 13_000), &list_at_version("5000")));
    bench.host.advance_ms(1_000_000);
    assert!(!is_hit(&mut bench, &api_request(Verb::Update)));
    let mut bench = bench_with_fault(&RESTART.replace("\"warm\"", "\"again\": \"1m\", \"warm\""));
    assert!(!is_hit(advance_to(&mut bench, 13_000), &api_request(Verb::Update)));
    bench.host.advance_ms(48_000);
    assert!(is_hit(&mut bench, &api_request(Verb::Update)));
}

#[test]
fn s1_requires_confirmation_that_all_requests_are_meant() {
    let error = rule_error(r#""do": "restartServer""#);
    assert!(error.starts_with("faults[0].do.restartServer.allRequests: "), "{error}");
    // Without the time in which the port is closed, it hits only what its rule matches.
    let mut bench = bench_with_fault(r#"{"restartServer": {"down": "0s"}}"#);
    assert!(is_hit(advance_to(&mut bench, 1_000), &api_request(Verb::Get)));
    let error = rule_error(r#""do": {"restartServer": {"down": "0s", "again": "2s"}}"#);
    assert!(
        error.starts_with("faults[0].do.restartServer.again: its stages take 10000ms"),
        "{error}"
    );
    let error = rule_error(r#""percent": 50, "do": {"restartServer": {"down": "0s"}}"#);
    assert!(error.starts_with("faults[0].percent: "), "{error}");
}

#[test]
fn s2_overload_rises_and_falls() {
    let mut bench = bench_with_fault(r#"{"overload": {"rise": "10s", "peak": "20s", "fall": "10s", "retryAfter": 2}}"#);
    let share = |bench: &mut Bench<FaultInject>| {
        let throttled = (0..500).filter(|_| {
            matches!(
                request_verdict(bench, &api_request(Verb::Get)).action,
                RequestAction::Answer(_)
            )
        });
        throttled.count() / 5
    };
    assert!((25..36).contains(&share(&mut bench)));
    bench.host.advance_ms(10_000);
    assert!((85..96).contains(&share(&mut bench)));
    bench.host.advance_ms(20_000);
    assert!((25..36).contains(&share(&mut bench)));
    bench.host.advance_ms(10_000);
    assert_eq!(share(&mut bench), 0);
}

#[test]
fn s2_served_requests_wait() {
    let mut bench = bench_with_fault(r#""overload""#);
    let req = api_request(Verb::Get);
    let is_served = (0..100).any(|_| !matches!(request_verdict(&mut bench, &req).action, RequestAction::Answer(_)));
    assert!(is_served);
    let held = bench.on_response(&req, &TestResponse::new(200)).delay_ms;
    assert!((200..=1_000).contains(&held), "{held}");
}
