//! Faults E1, E2, E5 to E7: watches.

use ctrlmesh_sdk::{BodyShape, ResponseVerdict, Verb};

use super::support::{
    api_request, bench_with_fault, body_shape, expect_refusal, is_hit, new_bench, request_verdict, response_verdict,
};

#[test]
fn e1_watch_events_are_held() {
    let mut bench = bench_with_fault(r#"{"hold": {"for": "12s"}}"#);
    assert_eq!(
        body_shape(&mut bench, &api_request(Verb::Watch)),
        BodyShape::default().hold_ms(12_000)
    );
    // A refused watch has no events, so its response is held.
    assert_eq!(
        response_verdict(&mut bench, &api_request(Verb::Watch), 403),
        ResponseVerdict::proceed().after_ms(12_000)
    );
}

#[test]
fn e2_one_stream_is_held_while_others_are_live() {
    let mut bench = new_bench(
        r#"{"faults": [{
            "match": {"resources": [{"resources": ["pods"], "verbs": ["watch"]}]},
            "do": {"hold": {"for": "6s"}}
        }]}"#,
    );
    let pods = ctrlmesh_sdk::testing::TestRequest::watch("", "pods");
    assert_eq!(body_shape(&mut bench, &pods), BodyShape::default().hold_ms(6_000));
    assert_eq!(
        response_verdict(&mut bench, &api_request(Verb::Watch), 200),
        ResponseVerdict::proceed()
    );
}

#[test]
fn e5_watch_expires_so_that_its_reader_lists_again() {
    let mut bench = bench_with_fault(r#"{"expire": {"after": "30s"}}"#);
    assert_eq!(
        body_shape(&mut bench, &api_request(Verb::Watch)),
        BodyShape::default().expire_after_ms(30_000)
    );
    assert!(!is_hit(&mut bench, &api_request(Verb::List)));
    assert_eq!(bench.host.counter("fault_matched", "x"), 1);
}

#[test]
fn e6_watch_ends_cleanly_at_once_or_later() {
    let mut later = bench_with_fault(r#"{"close": {"after": "30s"}}"#);
    assert_eq!(
        body_shape(&mut later, &api_request(Verb::Watch)),
        BodyShape::default().end_after_ms(30_000)
    );
    assert_eq!(
        body_shape(&mut bench_with_fault(r#""close""#), &api_request(Verb::Watch)),
        BodyShape::default().end_after_ms(0)
    );
}

#[test]
fn e7_opening_a_watch_is_refused() {
    let mut bench = new_bench(
        r#"{"faults": [{
            "match": {"resources": [{"verbs": ["watch"]}]},
            "do": {"refuse": {"code": 429, "retryAfter": 1}}
        }]}"#,
    );
    let refusal = expect_refusal(&mut bench, &api_request(Verb::Watch));
    assert_eq!((refusal.code, refusal.retry_after_seconds), (429, Some(1)));
    assert_eq!(
        request_verdict(&mut bench, &api_request(Verb::List)),
        ctrlmesh_sdk::RequestVerdict::proceed()
    );
}

#[test]
fn open_watch_is_not_a_new_request() {
    for fault in [r#""refuse""#, r#"{"reset": {"how": "cancel"}}"#] {
        let mut bench = super::support::bench_with_fault(fault);
        let watch = api_request(Verb::Watch).recheck();
        assert_eq!(
            request_verdict(&mut bench, &watch),
            ctrlmesh_sdk::RequestVerdict::proceed(),
            "{fault}"
        );
        assert_eq!(
            bench.host.report("x"),
            Some(serde_json::json!({"matched": 0, "fired": 0}))
        );
    }
}
