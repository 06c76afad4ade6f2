//! A1, B1 to B3, L1, L2, W1, W3.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Details, Refusal, RequestVerdict, Reset, ResponseVerdict, Verb};

use super::kit::{answered, api, ask, create, fault, is_hit, refusal, refused_rule, rule};

#[test]
fn a1_answer_is_held_and_the_request_is_not() {
    let mut bench = fault(r#"{"hold": {"for": "12s"}}"#);
    for status in [200, 404] {
        assert_eq!(
            answered(&mut bench, &api(Verb::Update), status),
            ResponseVerdict::proceed().after_ms(12_000)
        );
    }
    let mut before = fault(r#"{"delay": {"for": "3s"}}"#);
    assert_eq!(
        ask(&mut before, &api(Verb::Update)),
        RequestVerdict::proceed().after_ms(3_000)
    );
}

#[test]
fn a1_held_time_is_drawn_once_with_the_request() {
    let mut bench = fault(r#"{"hold": {"min": "1s", "max": "9s"}}"#);
    let held: Vec<u32> = (0..50)
        .map(|_| answered(&mut bench, &api(Verb::Get), 200).delay_ms)
        .collect();
    assert!(held.iter().all(|ms| (1_000..=9_000).contains(ms)));
    assert!(held.iter().collect::<std::collections::BTreeSet<_>>().len() > 40);
}

#[test]
fn b1_refused_without_a_hint_to_repeat() {
    let told = refusal(&mut fault(r#""refuse""#), &api(Verb::Create));
    assert_eq!(
        (told.code, told.reason.as_str(), told.retry_after_seconds),
        (503, "ServiceUnavailable", None)
    );
    let told = refusal(&mut fault(r#"{"refuse": {"code": 500}}"#), &api(Verb::Create));
    assert_eq!(
        (told.code, told.reason.as_str(), told.retry_after_seconds),
        (500, "InternalError", None)
    );
}

#[test]
fn b2_refused_with_a_hint_to_repeat() {
    for code in [429, 500, 503] {
        let mut bench = fault(&format!(r#"{{"refuse": {{"code": {code}, "retryAfter": 2}}}}"#));
        let told = refusal(&mut bench, &api(Verb::Get));
        assert_eq!((told.code, told.retry_after_seconds), (code, Some(2)));
    }
    let error = refused_rule(r#""do": {"refuse": {"code": 302}}"#);
    assert_eq!(error, "faults[0].do.refuse.code: 302 is no refusal; write 400 to 599");
}

fn timed_out() -> Refusal {
    Refusal::new(504, "Timeout: request did not complete within the allotted timeout")
        .reason("Timeout")
        .details(Details::new("", "", ""))
}

#[test]
fn b3_timeout_comes_after_the_wait() {
    let mut bench = fault(r#"{"timeout": {"after": "34s"}}"#);
    assert_eq!(
        ask(&mut bench, &api(Verb::Get)),
        RequestVerdict::refuse(timed_out()).after_ms(34_000)
    );
}

#[test]
fn l1_lost_answer_has_no_hint_to_repeat() {
    let req = create;
    for (lose, expected) in [
        (
            r#"{"lose": {"how": "reset"}}"#,
            ResponseVerdict::reset(Reset::InternalError),
        ),
        (r#"{"lose": {"how": "hang"}}"#, ResponseVerdict::reset(Reset::Hang)),
        (r#"{"lose": {"how": "error"}}"#, ResponseVerdict::replace(timed_out())),
        (
            r#"{"lose": {"how": "error", "code": 500}}"#,
            ResponseVerdict::replace(Refusal::new(500, "etcdserver: request timed out").reason("Unknown")),
        ),
    ] {
        assert_eq!(answered(&mut fault(lose), &req(), 201), expected, "{lose}");
    }
}

#[test]
fn l2_lost_answer_asks_to_repeat() {
    let told = |refusal: Refusal| ResponseVerdict::replace(refusal);
    let message = "The create operation against pods could not be completed at this time, please try again.";
    let expected = Refusal::new(500, message)
        .reason("ServerTimeout")
        .retry_after(2)
        .details(Details::new("", "pods", "create"));
    assert_eq!(
        answered(&mut fault(r#"{"lose": {"how": "retry"}}"#), &create(), 201),
        told(expected)
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
        let verdict = answered(&mut fault(r#"{"lose": {"how": "retry"}}"#), &req, 200);
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
fn l1_l2_only_what_was_done_is_lost_and_counted() {
    let mut bench = rule(r#""do": {"lose": {"how": "retry"}}, "maxCount": 1"#);
    for status in [409, 500, 301] {
        assert_eq!(
            answered(&mut bench, &create(), status),
            ResponseVerdict::proceed(),
            "{status}"
        );
    }
    assert_eq!(
        bench.host.report("x"),
        Some(serde_json::json!({"matched": 3, "fired": 0}))
    );
    // Both were decided before either answer came: the limit is exact all the same.
    let (first, second) = (create(), create());
    assert!(!is_hit(&mut bench, &first) && !is_hit(&mut bench, &second));
    let done = ctrlmesh_sdk::testing::TestResponse::new(201);
    assert_ne!(bench.on_response(&first, &done), ResponseVerdict::proceed());
    assert_eq!(bench.on_response(&second, &done), ResponseVerdict::proceed());
    assert_eq!(bench.host.counter("fault_fired", "x"), 1);
}

#[test]
fn l_parameters_belong_to_one_way_each() {
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
        let error = refused_rule(&format!(r#""do": {{"lose": {lose}}}"#));
        assert!(error.starts_with(&format!("faults[0].do.lose.{path}")), "{error}");
    }
}

#[test]
fn w1_conflict_is_the_one_of_the_optimistic_lock() {
    let mut bench = fault(r#""conflict""#);
    let message = "Operation cannot be fulfilled on deployments.apps \"web\": the object has been modified; please apply \
                   your changes to the latest version and try again";
    let expected = Refusal::new(409, message)
        .reason("Conflict")
        .details(Details::new("apps", "deployments", "web"));
    assert_eq!(refusal(&mut bench, &api(Verb::Update)), expected);
    assert_eq!(refusal(&mut bench, &api(Verb::Patch)), expected);
    for verb in [Verb::Get, Verb::List, Verb::Watch, Verb::Create] {
        assert!(!is_hit(&mut bench, &api(verb)), "{verb:?}");
    }
    assert_eq!(bench.host.counter("fault_matched", "x"), 2);
}

#[test]
fn w3_name_is_taken_on_create_alone() {
    let mut bench = fault(r#""exists""#);
    let expected = Refusal::new(409, "pods \"{name}\" already exists")
        .reason("AlreadyExists")
        .details(Details::new("", "pods", ""));
    assert_eq!(refusal(&mut bench, &create()), expected);
    assert!(!is_hit(&mut bench, &api(Verb::Update)));
    assert!(!is_hit(&mut bench, &TestRequest::external("POST", "example.com", "/")));
}
