//! Helpers: plugin benches, requests, and expectations on verdicts.

use ctrlmesh_sdk::testing::{Bench, TestRequest, TestResponse};
use ctrlmesh_sdk::{Answer, BodyShape, Refusal, RequestAction, RequestVerdict, ResponseAction, ResponseVerdict, Verb};

use crate::plugin::FaultInject;

pub(super) fn new_bench(settings: &str) -> Bench<FaultInject> {
    Bench::new(settings).unwrap_or_else(|error| panic!("{settings}\n{error}"))
}

/// A bench with one rule for all requests.
pub(super) fn bench_with_rule(fields: &str) -> Bench<FaultInject> {
    new_bench(&format!(
        r#"{{"faults": [{{"name": "x", "match": {{"resources": [{{}}], "nonResources": [{{}}], "httpMatch": [{{}}]}}, {fields}}}]}}"#
    ))
}

/// A bench with this fault for all requests.
pub(super) fn bench_with_fault(fault: &str) -> Bench<FaultInject> {
    bench_with_rule(&format!(r#""do": {fault}"#))
}

pub(super) fn settings_error(settings: &str) -> String {
    Bench::<FaultInject>::new(settings)
        .err()
        .unwrap_or_else(|| panic!("{settings} was accepted"))
}

/// The error for a rule with these fields.
pub(super) fn rule_error(fields: &str) -> String {
    settings_error(&format!(
        r#"{{"faults": [{{"match": {{"resources": [{{}}]}}, {fields}}}]}}"#
    ))
}

pub(super) fn api_request(verb: Verb) -> TestRequest {
    let req = TestRequest::api(verb, "apps", "deployments").namespace("team");
    match verb {
        Verb::Create | Verb::List | Verb::Watch | Verb::Deletecollection => req,
        _ => req.name("web"),
    }
}

pub(super) fn create_request() -> TestRequest {
    TestRequest::api(Verb::Create, "", "pods").namespace("team")
}

pub(super) fn discovery_request(path: &str) -> TestRequest {
    TestRequest::api(Verb::NonResource, "", "").with_path(path)
}

/// Action and delay of the verdict, after checking that the request is subscribed.
pub(super) fn request_verdict(bench: &mut Bench<FaultInject>, req: &TestRequest) -> RequestVerdict {
    if !bench.wakes(req) {
        return RequestVerdict::proceed();
    }
    let verdict = bench.on_request(req);
    RequestVerdict::from(verdict.action).after_ms(verdict.delay_ms)
}

pub(super) fn is_hit(bench: &mut Bench<FaultInject>, req: &TestRequest) -> bool {
    request_verdict(bench, req) != RequestVerdict::proceed()
}

pub(super) fn expect_refusal(bench: &mut Bench<FaultInject>, req: &TestRequest) -> Refusal {
    match request_verdict(bench, req).action {
        RequestAction::Refuse(refusal) => refusal,
        other => panic!("no refusal but {other:?}"),
    }
}

pub(super) fn expect_answer(bench: &mut Bench<FaultInject>, req: &TestRequest) -> (Answer, String) {
    match request_verdict(bench, req).action {
        RequestAction::Answer(answer) => {
            let body = String::from_utf8(answer.body.clone()).unwrap();
            (answer, body)
        }
        other => panic!("not answered but {other:?}"),
    }
}

/// The verdict on an upstream response with this status, to a request that was let through.
pub(super) fn response_verdict(bench: &mut Bench<FaultInject>, req: &TestRequest, status: u16) -> ResponseVerdict {
    assert_eq!(request_verdict(bench, req), RequestVerdict::proceed());
    bench.on_response(req, &TestResponse::new(status))
}

/// The body shape after a 200.
pub(super) fn body_shape(bench: &mut Bench<FaultInject>, req: &TestRequest) -> BodyShape {
    match response_verdict(bench, req, 200).action {
        ResponseAction::Proceed(plan) => plan.body.expect("the body is not shaped"),
        other => panic!("not handed on but {other:?}"),
    }
}

pub(super) fn header_value<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    let mut fields = answer.headers.iter();
    fields
        .find(|field| field.name == name)
        .map(|field| field.value.as_str())
}
