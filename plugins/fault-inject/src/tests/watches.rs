//! E1, E2, E5 to E7.

use ctrlmesh_sdk::{BodyShape, ResponseVerdict, Verb};

use super::kit::{answered, api, ask, bench, fault, is_hit, refusal, shape};

#[test]
fn e1_events_of_a_watch_are_held() {
    let mut bench = fault(r#"{"hold": {"for": "12s"}}"#);
    assert_eq!(
        shape(&mut bench, &api(Verb::Watch)),
        BodyShape::default().hold_ms(12_000)
    );
    // A refused watch has no events: its answer is held.
    assert_eq!(
        answered(&mut bench, &api(Verb::Watch), 403),
        ResponseVerdict::proceed().after_ms(12_000)
    );
}

#[test]
fn e2_one_stream_is_held_while_others_are_live() {
    let mut bench = bench(
        r#"{"faults": [{
            "match": {"resources": [{"resources": ["pods"], "verbs": ["watch"]}]},
            "do": {"hold": {"for": "6s"}}
        }]}"#,
    );
    let pods = ctrlmesh_sdk::testing::TestRequest::watch("", "pods");
    assert_eq!(shape(&mut bench, &pods), BodyShape::default().hold_ms(6_000));
    assert_eq!(answered(&mut bench, &api(Verb::Watch), 200), ResponseVerdict::proceed());
}

#[test]
fn e5_a_watch_expires_so_that_its_reader_lists_again() {
    let mut bench = fault(r#"{"expire": {"after": "30s"}}"#);
    assert_eq!(
        shape(&mut bench, &api(Verb::Watch)),
        BodyShape::default().expire_after_ms(30_000)
    );
    assert!(!is_hit(&mut bench, &api(Verb::List)));
    assert_eq!(bench.host.counter("fault_matched", "x"), 1);
}

#[test]
fn e6_a_watch_ends_in_peace_at_once_or_later() {
    let mut later = fault(r#"{"close": {"after": "30s"}}"#);
    assert_eq!(
        shape(&mut later, &api(Verb::Watch)),
        BodyShape::default().end_after_ms(30_000)
    );
    assert_eq!(
        shape(&mut fault(r#""close""#), &api(Verb::Watch)),
        BodyShape::default().end_after_ms(0)
    );
}

#[test]
fn e7_opening_a_watch_is_refused() {
    let mut bench = bench(
        r#"{"faults": [{
            "match": {"resources": [{"verbs": ["watch"]}]},
            "do": {"refuse": {"code": 429, "retryAfter": 1}}
        }]}"#,
    );
    let told = refusal(&mut bench, &api(Verb::Watch));
    assert_eq!((told.code, told.retry_after_seconds), (429, Some(1)));
    assert_eq!(
        ask(&mut bench, &api(Verb::List)),
        ctrlmesh_sdk::RequestVerdict::proceed()
    );
}

#[test]
fn an_open_watch_is_no_new_request() {
    for fault in [r#""refuse""#, r#"{"reset": {"how": "cancel"}}"#] {
        let mut bench = super::kit::fault(fault);
        let watch = api(Verb::Watch).recheck();
        assert_eq!(
            ask(&mut bench, &watch),
            ctrlmesh_sdk::RequestVerdict::proceed(),
            "{fault}"
        );
        assert_eq!(
            bench.host.report("x"),
            Some(serde_json::json!({"matched": 0, "fired": 0}))
        );
    }
}
