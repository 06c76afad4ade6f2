//! N1 to N8.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{BodyShape, RequestVerdict, Reset, ResponsePlan, ResponseVerdict, Verb};

use super::kit::{answer, answered, api, ask, fault, header, refused_rule, shape};

#[test]
fn n1_connections_are_refused_for_a_time() {
    let mut bench = fault(r#"{"refuseConnections": {"for": "5s", "allRequests": true}}"#);
    assert_eq!(
        ask(&mut bench, &api(Verb::Get)),
        RequestVerdict::refuse_connections(5_000)
    );
}

#[test]
fn n1_demands_to_say_that_every_request_is_meant() {
    let error = refused_rule(r#""do": {"refuseConnections": {"for": "5s"}}"#);
    assert!(
        error.starts_with("faults[0].do.refuseConnections.allRequests: "),
        "{error}"
    );
    assert!(error.contains("write allRequests: true"), "{error}");
    let error = refused_rule(r#""do": {"refuseConnections": {"for": "61s", "allRequests": true}}"#);
    assert_eq!(error, "faults[0].do.refuseConnections.for: at most 60s");
}

#[test]
fn n2_reset_before_forwards_nothing() {
    assert_eq!(
        ask(&mut fault(r#""reset""#), &api(Verb::Create)),
        RequestVerdict::reset(Reset::InternalError)
    );
    // After REFUSED_STREAM Go sends again without a word.
    let error = refused_rule(r#""do": {"reset": {"how": "refusedStream"}}"#);
    assert!(error.starts_with("faults[0].do.reset.how: "), "{error}");
}

#[test]
fn n3_reset_after_the_write_was_done() {
    let mut bench = fault(r#""lose""#);
    assert_eq!(
        answered(&mut bench, &api(Verb::Update), 200),
        ResponseVerdict::reset(Reset::InternalError)
    );
    // What was not done is not lost.
    assert_eq!(
        answered(&mut bench, &api(Verb::Update), 409),
        ResponseVerdict::proceed()
    );
}

#[test]
fn n4_black_hole_silences_the_connection() {
    assert_eq!(
        ask(&mut fault(r#""blackHole""#), &api(Verb::List)),
        RequestVerdict::reset(Reset::BlackHole)
    );
}

#[test]
fn n5_slow_body_comes_at_a_pace() {
    let mut bench = fault(r#"{"slowBody": {"bytesPerSecond": 1024}}"#);
    assert_eq!(shape(&mut bench, &api(Verb::List)), BodyShape::default().pace(1_024));
    let error = refused_rule(r#""do": {"slowBody": {"bytesPerSecond": 0}}"#);
    assert!(
        error.starts_with("faults[0].do.slowBody.bytesPerSecond: at least 1"),
        "{error}"
    );
}

#[test]
fn n6_cut_body_breaks_off_in_the_middle() {
    let mut bench = fault(r#"{"cutBody": {"afterBytes": 100}}"#);
    let expected = BodyShape::default().cut_after(100, Reset::InternalError);
    assert_eq!(shape(&mut bench, &api(Verb::List)), expected);
    assert_eq!(answered(&mut bench, &api(Verb::List), 500), ResponseVerdict::proceed());
}

#[test]
fn n7_goaway_lets_the_answer_through() {
    let expected = ResponseVerdict::edit(ResponsePlan::default().close_connection());
    assert_eq!(answered(&mut fault(r#""goaway""#), &api(Verb::Get), 404), expected);
}

#[test]
fn n8_foreign_answer_comes_as_it_is_written() {
    let page = r#"{"answer": {"code": 502, "body": "<html>Bad Gateway</html>", "retryAfter": 1}}"#;
    let (answer, body) = answer(&mut fault(page), &TestRequest::external("GET", "example.com", "/"));
    assert_eq!((answer.code, body.as_str()), (502, "<html>Bad Gateway</html>"));
    assert_eq!(header(&answer, "content-type"), Some("text/html"));
    assert_eq!(header(&answer, "retry-after"), Some("1"));
}

#[test]
fn n8_a_success_that_nobody_gave_is_illegal() {
    let cut_json = r#""do": {"answer": {"code": 200, "contentType": "application/json", "body": "{\"kind\":\"PodLi"}}"#;
    let error = refused_rule(cut_json);
    assert!(
        error.starts_with("faults[0].do: answer so written is of the class illegal"),
        "{error}"
    );
    assert!(error.contains("write class: illegal"), "{error}");
}
