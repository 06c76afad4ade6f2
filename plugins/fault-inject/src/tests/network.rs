//! Faults N1 to N8: network and load balancers.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{BodyShape, RequestVerdict, Reset, ResponsePlan, ResponseVerdict, Verb};

use super::support::{
    api_request, bench_with_fault, bench_with_rule, body_shape, expect_answer, header_value, request_verdict,
    response_verdict, rule_error,
};

#[test]
fn n1_connections_are_refused_for_a_time() {
    let mut bench = bench_with_fault(r#"{"refuseConnections": {"for": "5s", "allRequests": true}}"#);
    assert_eq!(
        request_verdict(&mut bench, &api_request(Verb::Get)),
        RequestVerdict::refuse_connections(5_000)
    );
}

#[test]
fn n1_requires_confirmation_that_all_requests_are_meant() {
    let error = rule_error(r#""do": {"refuseConnections": {"for": "5s"}}"#);
    assert!(
        error.starts_with("faults[0].do.refuseConnections.allRequests: "),
        "{error}"
    );
    assert!(error.contains("write allRequests: true"), "{error}");
    let error = rule_error(r#""do": {"refuseConnections": {"for": "61s", "allRequests": true}}"#);
    assert_eq!(error, "faults[0].do.refuseConnections.for: at most 60s");
}

#[test]
fn n2_reset_before_forwards_nothing() {
    assert_eq!(
        request_verdict(&mut bench_with_fault(r#""reset""#), &api_request(Verb::Create)),
        RequestVerdict::reset(Reset::InternalError)
    );
    // After REFUSED_STREAM, Go silently retries.
    let error = rule_error(r#""do": {"reset": {"how": "refusedStream"}}"#);
    assert!(error.starts_with("faults[0].do.reset.how: "), "{error}");
}

#[test]
fn n3_reset_after_the_write_was_done() {
    let mut bench = bench_with_fault(r#""lose""#);
    assert_eq!(
        response_verdict(&mut bench, &api_request(Verb::Update), 200),
        ResponseVerdict::reset(Reset::InternalError)
    );
    // A request that was not executed is not lost.
    assert_eq!(
        response_verdict(&mut bench, &api_request(Verb::Update), 409),
        ResponseVerdict::proceed()
    );
}

#[test]
fn n4_black_hole_silences_the_connection() {
    assert_eq!(
        request_verdict(&mut bench_with_fault(r#""blackHole""#), &api_request(Verb::List)),
        RequestVerdict::reset(Reset::BlackHole)
    );
}

#[test]
fn n5_slow_body_is_paced() {
    let mut bench = bench_with_fault(r#"{"slowBody": {"bytesPerSecond": 1024}}"#);
    assert_eq!(
        body_shape(&mut bench, &api_request(Verb::List)),
        BodyShape::default().pace(1_024)
    );
    let error = rule_error(r#""do": {"slowBody": {"bytesPerSecond": 0}}"#);
    assert!(
        error.starts_with("faults[0].do.slowBody.bytesPerSecond: at least 1"),
        "{error}"
    );
}

#[test]
fn n6_cut_body_breaks_off_in_the_middle() {
    let mut bench = bench_with_fault(r#"{"cutBody": {"afterBytes": 100}}"#);
    let expected = BodyShape::default().cut_after(100, Reset::InternalError);
    assert_eq!(body_shape(&mut bench, &api_request(Verb::List)), expected);
    assert_eq!(
        response_verdict(&mut bench, &api_request(Verb::List), 500),
        ResponseVerdict::proceed()
    );
}

#[test]
fn n7_goaway_lets_the_response_through() {
    let expected = ResponseVerdict::edit(ResponsePlan::default().close_connection());
    assert_eq!(
        response_verdict(&mut bench_with_fault(r#""goaway""#), &api_request(Verb::Get), 404),
        expected
    );
}

#[test]
fn n7_goaway_is_not_used_up_by_tunnel() {
    let mut bench = bench_with_rule(r#""do": "goaway", "maxCount": 1"#);
    let on_status = |bench: &mut _, status| response_verdict(bench, &api_request(Verb::Get), status);
    assert_eq!(on_status(&mut bench, 101), ResponseVerdict::proceed());
    let expected = ResponseVerdict::edit(ResponsePlan::default().close_connection());
    assert_eq!(on_status(&mut bench, 200), expected);
}

#[test]
fn n8_custom_answer_is_sent_verbatim() {
    let page = r#"{"answer": {"code": 502, "body": "<html>Bad Gateway</html>", "retryAfter": 1}}"#;
    let (answer, body) = expect_answer(
        &mut bench_with_fault(page),
        &TestRequest::external("GET", "example.com", "/"),
    );
    assert_eq!((answer.code, body.as_str()), (502, "<html>Bad Gateway</html>"));
    assert_eq!(header_value(&answer, "content-type"), Some("text/html"));
    assert_eq!(header_value(&answer, "retry-after"), Some("1"));
}

#[test]
fn n8_invented_success_is_illegal() {
    let cut_json = r#""do": {"answer": {"code": 200, "contentType": "application/json", "body": "{\"kind\":\"PodLi"}}"#;
    let error = rule_error(cut_json);
    assert!(
        error.starts_with("faults[0].do: answer so written is of the class illegal"),
        "{error}"
    );
    assert!(error.contains("write class: illegal"), "{error}");
}
