//! Requests, and what came of them.

use ctrlmesh_sdk::testing::{Bench, TestRequest, TestResponse};
use ctrlmesh_sdk::{Answer, BodyShape, Refusal, RequestAction, RequestVerdict, ResponseAction, ResponseVerdict, Verb};

use crate::plugin::FaultInject;

pub(super) fn bench(settings: &str) -> Bench<FaultInject> {
    Bench::new(settings).unwrap_or_else(|error| panic!("{settings}\n{error}"))
}

/// One rule for everything.
pub(super) fn rule(fields: &str) -> Bench<FaultInject> {
    bench(&format!(
        r#"{{"faults": [{{"name": "x", "match": {{"resources": [{{}}], "nonResources": [{{}}], "httpMatch": [{{}}]}}, {fields}}}]}}"#
    ))
}

/// This fault for everything.
pub(super) fn fault(fault: &str) -> Bench<FaultInject> {
    rule(&format!(r#""do": {fault}"#))
}

pub(super) fn refused(settings: &str) -> String {
    Bench::<FaultInject>::new(settings)
        .err()
        .unwrap_or_else(|| panic!("{settings} was accepted"))
}

/// Why a rule with these fields is refused.
pub(super) fn refused_rule(fields: &str) -> String {
    refused(&format!(
        r#"{{"faults": [{{"match": {{"resources": [{{}}]}}, {fields}}}]}}"#
    ))
}

pub(super) fn api(verb: Verb) -> TestRequest {
    let req = TestRequest::api(verb, "apps", "deployments").namespace("team");
    match verb {
        Verb::Create | Verb::List | Verb::Watch | Verb::Deletecollection => req,
        _ => req.name("web"),
    }
}

pub(super) fn create() -> TestRequest {
    TestRequest::api(Verb::Create, "", "pods").namespace("team")
}

pub(super) fn discovery(path: &str) -> TestRequest {
    TestRequest::api(Verb::NonResource, "", "").with_path(path)
}

/// The verdict, after a check that the host would have asked at all.
pub(super) fn ask(bench: &mut Bench<FaultInject>, req: &TestRequest) -> RequestVerdict {
    if bench.wakes(req) {
        bench.on_request(req)
    } else {
        RequestVerdict::proceed()
    }
}

pub(super) fn is_hit(bench: &mut Bench<FaultInject>, req: &TestRequest) -> bool {
    ask(bench, req) != RequestVerdict::proceed()
}

pub(super) fn refusal(bench: &mut Bench<FaultInject>, req: &TestRequest) -> Refusal {
    match ask(bench, req).action {
        RequestAction::Refuse(refusal) => refusal,
        other => panic!("no refusal but {other:?}"),
    }
}

pub(super) fn answer(bench: &mut Bench<FaultInject>, req: &TestRequest) -> (Answer, String) {
    match ask(bench, req).action {
        RequestAction::Answer(answer) => {
            let body = String::from_utf8(answer.body.clone()).unwrap();
            (answer, body)
        }
        other => panic!("no answer but {other:?}"),
    }
}

/// The verdict on the upstream's answer of this status, to a request that was let through.
pub(super) fn answered(bench: &mut Bench<FaultInject>, req: &TestRequest, status: u16) -> ResponseVerdict {
    assert_eq!(ask(bench, req), RequestVerdict::proceed());
    bench.on_response(req, &TestResponse::new(status))
}

/// How the body is shaped after a 200.
pub(super) fn shape(bench: &mut Bench<FaultInject>, req: &TestRequest) -> BodyShape {
    match answered(bench, req, 200).action {
        ResponseAction::Proceed(plan) => plan.body.expect("the body is not shaped"),
        other => panic!("not handed on but {other:?}"),
    }
}

pub(super) fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    let mut fields = answer.headers.iter();
    fields
        .find(|field| field.name == name)
        .map(|field| field.value.as_str())
}
