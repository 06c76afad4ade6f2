//! Faults A1, B1 to B3, L1, L2, W1, W3: late, refused and lost responses.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Details, Refusal, RequestVerdict, Reset, ResponseVerdict, Verb};

use super::support::{
    api_request, bench_with_fault, bench_with_rule, create_request, expect_refusal, is_hit, request_verdict,
    response_verdict, rule_error,
};

#[test]
fn a1_response_is_held_and_the_request_is_not() {
    let mut bench = bench_with_fault(r#"{"hold": {"for": "12s"}}"#);
    for status in [200, 404] {
        assert_eq!(
            response_verdict(&mut bench, &api_request(Verb::Update), status),
            ResponseVerdict::proceed().after_ms(12_000)
        );
    }
    let mut before = bench_with_fault(r#"{"delay": {"for": "3s"}}"#);
    assert_eq!(
        request_verdict(&mut before, &api_request(Verb::Update)),
        RequestVerdict::proceed().after_ms(3_000)
    );
}

#[test]
fn a1_held_time_is_drawn_once_with_the_request() {
    let mut bench = bench_with_fault(r#"{"hold": {"min": "1s", "max": "9s"}}"#);
    let held: Vec<u32> = (0..50)
        .map(|_| response_verdict(&mut bench, &api_request(Verb::Get), 200).delay_ms)
        .collect();
    assert!(held.iter().all(|ms| (1_000..=9_000).contains(ms)));
    assert!(held.iter().collect::<std::collections::BTreeSet<_>>().len() > 40);
}

#[test]
fn b1_refusal_has_no_retry_hint() {
    let refusal = expect_refusal(&mut bench_with_fault(r#""refuse""#), &api_request(Verb::Create));
    assert_eq!(
        (refusal.code, refusal.reason.as_str(), refusal.retry_after_seconds),
        (503, "ServiceUnavailable", None)
    );
    let refusal = expect_refusal(
        &mut bench_with_fault(r#"{"refuse": {"code": 500}}"#),
        &api_request(Verb::Create),
    );
    assert_eq!(
        (refusal.code, refusal.reason.as_str(), refusal.retry_after_seconds),
        (500, "InternalError", None)
    );
}

#[test]
fn b2_refusal_has_a_retry_hint() {
    for code in [429, 500, 503] {
        let mut bench = bench_with_fault(&format!(r#"{{"refuse": {{"code": {code}, "retryAfter": 2}}}}"#));
        let refusal = expect_refusal(&mut bench, &api_request(Verb::Get));
        assert_eq!((refusal.code, refusal.retry_after_seconds), (code, Some(2)));
    }
    let error = rule_error(r#""do": {"refuse": {"code": 302}}"#);
    assert_eq!(error, "faults[0].do.refuse.code: 302 is no refusal; write 400 to 599");
}

fn timeout_refusal() -> Refusal {
    Refusal::new(504, "Timeout: request did not complete within the allotted timeout")
        .reason("Timeout")
        .details(Details::new("", "", ""))
}

#[test]
fn b3_timeout_comes_after_the_wait() {
    let mut bench = bench_with_fault(r#"{"timeout": {"after": "34s"}}"#);
    assert_eq!(
        request_verdict(&mut bench, &api_request(Verb::Get)),
        RequestVerdict::refuse(timeout_refusal()).after_ms(34_000)
    );
}

#[test]
fn l1_lost_response_has_no_retry_hint() {
    let req = create_request;
    for (lose, expected) in [
        (
            r#"{"lose": {"how": "reset"}}"#,
            ResponseVerdict::reset(Reset::InternalError),
        ),
        (r#"{"lose": {"how": "hang"}}"#, ResponseVerdict::reset(Reset::Hang)),
        (
            r#"{"lose": {"how": "error"}}"#,
            ResponseVerdict::replace(timeout_refusal()),
        ),
        (
            r#"{"lose": {"how": "error", "code": 500}}"#,
            ResponseVerdict::replace(Refusal::new(500, "etcdserver: request timed out").reason("Unknown")),
        ),
    ] {
        assert_eq!(
            response_verdict(&mut bench_with_fault(lose), &req(), 201),
            expected,
            "{lose}"
        );
    }
}

#[test]
fn l2_lost_response_has_a_retry_hint() {
    let replaced_by = |refusal: Refusal| ResponseVerdict::replace(refusal);
    let message = "The create operation against pods could not be completed at this time, please try again.";
    let expected = Refusal::new(500, message)
        .reason("ServerTimeout")
        .retry_after(2)
        .details(Details::new("", "pods", "create"));
    assert_eq!(
        response_verdict(
            &mut bench_with_fault(r#"{"lose": {"how": "retry"}}"#),
            &create_request(),
            201
        ),
        replaced_by(expected)
    );
}

/// `Interpret…Error` of `pkg/storage/errors/storage.go` names what the store does.
#[test]
fn l2_names_the_operation_of_the_store() {
    for (verb, operation) in [
        (Verb::Update, "update"),
        (Verb::Patch, "update"),
        (Verb::Delete, "delete"),
        (Verb::Deletecollection, "delete"),
    ] {
        let req = TestRequest::api(verb, "", "pods").namespace("x").name("p");
        let verdict = response_verdict(&mut bench_with_fault(r#"{"lose": {"how": "retry"}}"#), &req, 200);
        let message =
            format!("The {operation} operation against pods could not be completed at this time, please try again.");
        let expected = Refusal::new(500, message)
            .reason("ServerTimeout")
            .retry_after(2)
            .details(Details::new("", "pods", operation));
        assert_eq!(verdict, ResponseVerdict::replace(expected), "{verb:?}");
    }
}

#[test]
fn l1_l2_only_executed_requests_are_lost_and_counted() {
    let mut bench = bench_with_rule(r#""do": {"lose": {"how": "retry"}}, "maxCount": 1"#);
    for status in [409, 500, 301] {
        assert_eq!(
            response_verdict(&mut bench, &create_request(), status),
            ResponseVerdict::proceed(),
            "{status}"
        );
    }
    assert_eq!(
        bench.host.report("x"),
        Some(serde_json::json!({"matched": 3, "fired": 0}))
    );
    // Both were decided before either response came, and the limit is still exact.
    let (first, second) = (create_request(), create_request());
    assert!(!is_hit(&mut bench, &first) && !is_hit(&mut bench, &second));
    let done = ctrlmesh_sdk::testing::TestResponse::new(201);
    assert_ne!(bench.on_response(&first, &done), ResponseVerdict::proceed());
    assert_eq!(bench.on_response(&second, &done), ResponseVerdict::proceed());
    assert_eq!(bench.host.counter("fault_fired", "x"), 1);
}

#[test]
fn l_parameters_are_refused_for_other_ways_to_lose() {
    for (lose, path) in [
        (r#"{"how": "reset", "code": 500}"#, "code: only with how: error"),
        (
            r#"{"how": "error", "retryAfter": 1}"#,
            "retryAfter: only with how: retry",
        ),
        (
            r#"{"how": "error", "code": 503}"#,
            "code: 503 is not what a server says",
        ),
        (
            r#"{"how": "away"}"#,
            "how: \"away\" is not known; write one of reset, hang, error, retry",
        ),
    ] {
        let error = rule_error(&format!(r#""do": {{"lose": {lose}}}"#));
        assert!(error.starts_with(&format!("faults[0].do.lose.{path}")), "{error}");
    }
}

#[test]
fn w1_conflict_is_that_of_the_optimistic_lock() {
    let mut bench = bench_with_fault(r#""conflict""#);
    let message = "Operation cannot be fulfilled on deployments.apps \"web\": the object has been modified; please apply \
                   your changes to the latest version and try again";
    let expected = Refusal::new(409, message)
        .reason("Conflict")
        .details(Details::new("apps", "deployments", "web"));
    assert_eq!(expect_refusal(&mut bench, &api_request(Verb::Update)), expected);
    assert_eq!(expect_refusal(&mut bench, &api_request(Verb::Patch)), expected);
    for verb in [Verb::Get, Verb::List, Verb::Watch, Verb::Create] {
        assert!(!is_hit(&mut bench, &api_request(verb)), "{verb:?}");
    }
    assert_eq!(bench.host.counter("fault_matched", "x"), 2);
}

#[test]
fn w3_name_is_taken_on_create_only() {
    let mut bench = bench_with_fault(r#""exists""#);
    let expected = Refusal::new(409, "pods \"{name}\" already exists")
        .reason("AlreadyExists")
        .details(Details::new("", "pods", ""));
    assert_eq!(expect_refusal(&mut bench, &create_request()), expected);
    assert!(!is_hit(&mut bench, &api_request(Verb::Update)));
    assert!(!is_hit(&mut bench, &TestRequest::external("POST", "example.com", "/")));
}
