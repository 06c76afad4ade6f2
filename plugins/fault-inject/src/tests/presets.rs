//! S1 and S2 as sequences in time.

use ctrlmesh_sdk::testing::{Bench, TestResponse};
use ctrlmesh_sdk::{RequestAction, RequestVerdict, ResponsePlan, ResponseVerdict, Verb};

use super::kit::{answer, api, ask, discovery, fault, header, is_hit, refusal, refused_rule};
use crate::plugin::FaultInject;

const RESTART: &str =
    r#"{"restartServer": {"goaway": "1s", "drain": "5s", "down": "3s", "warm": "4s", "allRequests": true}}"#;

fn list_at(version: &str) -> ctrlmesh_sdk::testing::TestRequest {
    api(Verb::List).query_field("resourceVersion", version)
}

/// The first request begins the sequence.
fn at(bench: &mut Bench<FaultInject>, ms: u64) -> &mut Bench<FaultInject> {
    let _ = ask(bench, &api(Verb::Get));
    bench.host.advance_ms(ms);
    bench
}

#[test]
fn s1_first_a_server_asks_for_another_connection() {
    let mut bench = fault(RESTART);
    let req = api(Verb::Get);
    assert_eq!(ask(&mut bench, &req), RequestVerdict::proceed());
    let expected = ResponseVerdict::edit(ResponsePlan::default().close_connection());
    assert_eq!(bench.on_response(&req, &TestResponse::new(200)), expected);
}

#[test]
fn s1_then_it_drains_in_plain_text() {
    let mut bench = fault(RESTART);
    let (answer, body) = answer(at(&mut bench, 1_000), &api(Verb::Update));
    assert_eq!(
        (answer.code, body.as_str()),
        (429, "The apiserver is shutting down, please try again later.\n")
    );
    assert_eq!(header(&answer, "retry-after"), Some("5"));
    assert!(answer.close_connection, "`with_retry_after.go` closes it");
    // Probes are let through to the end.
    for path in ["/readyz", "/livez/ping", "/healthz", "/metrics"] {
        assert!(!is_hit(&mut bench, &discovery(path)), "{path}");
    }
}

#[test]
fn s1_then_it_is_gone_for_what_is_left_of_the_time() {
    let mut bench = fault(RESTART);
    assert_eq!(
        ask(at(&mut bench, 6_000), &api(Verb::Get)),
        RequestVerdict::refuse_connections(3_000)
    );
    bench.host.advance_ms(2_900);
    assert_eq!(
        ask(&mut bench, &api(Verb::Get)),
        RequestVerdict::refuse_connections(100)
    );
}

#[test]
fn s1_then_its_watch_cache_is_filled_and_lags() {
    let mut bench = fault(RESTART);
    let told = refusal(at(&mut bench, 9_000), &api(Verb::Watch));
    assert_eq!((told.code, told.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(
        (told.message.as_str(), told.retry_after_seconds),
        ("storage is (re)initializing", Some(1))
    );
    assert!(!is_hit(&mut bench, &api(Verb::Update)));
    bench.host.advance_ms(2_000);
    let told = refusal(&mut bench, &list_at("5000"));
    assert_eq!((told.code, told.reason.as_str()), (504, "Timeout"));
    assert!(!is_hit(&mut bench, &api(Verb::Watch)));
}

#[test]
fn s1_in_the_end_all_is_well_until_it_begins_again() {
    let mut bench = fault(RESTART);
    assert!(!is_hit(at(&mut bench, 13_000), &list_at("5000")));
    bench.host.advance_ms(1_000_000);
    assert!(!is_hit(&mut bench, &api(Verb::Update)));
    let mut bench = fault(&RESTART.replace("\"warm\"", "\"again\": \"1m\", \"warm\""));
    assert!(!is_hit(at(&mut bench, 13_000), &api(Verb::Update)));
    bench.host.advance_ms(48_000);
    assert!(is_hit(&mut bench, &api(Verb::Update)));
}

#[test]
fn s1_demands_to_say_that_every_request_is_meant() {
    let error = refused_rule(r#""do": "restartServer""#);
    assert!(error.starts_with("faults[0].do.restartServer.allRequests: "), "{error}");
    // Without the time in which it is gone, it hits only what its rule matches.
    let mut bench = fault(r#"{"restartServer": {"down": "0s"}}"#);
    assert!(is_hit(at(&mut bench, 1_000), &api(Verb::Get)));
    let error = refused_rule(r#""do": {"restartServer": {"down": "0s", "again": "2s"}}"#);
    assert!(
        error.starts_with("faults[0].do.restartServer.again: its stages take 10000ms"),
        "{error}"
    );
    let error = refused_rule(r#""percent": 50, "do": {"restartServer": {"down": "0s"}}"#);
    assert!(error.starts_with("faults[0].percent: "), "{error}");
}

#[test]
fn s2_overload_rises_and_falls() {
    let mut bench = fault(r#"{"overload": {"rise": "10s", "peak": "20s", "fall": "10s", "retryAfter": 2}}"#);
    let share = |bench: &mut Bench<FaultInject>| {
        let throttled = (0..500).filter(|_| matches!(ask(bench, &api(Verb::Get)).action, RequestAction::Answer(_)));
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
fn s2_who_is_served_waits() {
    let mut bench = fault(r#""overload""#);
    let req = api(Verb::Get);
    let is_served = (0..100).any(|_| !matches!(ask(&mut bench, &req).action, RequestAction::Answer(_)));
    assert!(is_served);
    let held = bench.on_response(&req, &TestResponse::new(200)).delay_ms;
    assert!((200..=1_000).contains(&held), "{held}");
}
