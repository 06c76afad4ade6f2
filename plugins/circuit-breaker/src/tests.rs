//! The plugin on a fake host whose clock is moved by hand. Tests named after a row (`cb_05_…`, `rest_05_…`) show what the
//! peer's feature of that number is here.

mod calls;
mod judgement;
mod properties;
mod recovery;
mod rows;
mod settings;
mod status;
mod trips;

use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest, TestResponse, about};
use ctrlmesh_sdk::{Failure, InstanceInfo, Outcome, Plugin, Refusal, Request, RequestAction};
use serde_json::{Value, json};

use crate::plugin::CircuitBreaker;

/// A breaker for all resources that opens after two failures in a row and tries again after ten seconds.
fn rule(name: &str) -> Value {
    json!({
        "name": name,
        "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
        "triggerPolicy": "Normal",
        "recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "10s"},
        "trip": {"consecutiveFailures": 2},
    })
}

/// The same with more fields, or others.
fn with(mut rule: Value, fields: &Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    rule.as_object_mut().unwrap().extend(fields);
    rule
}

fn settings(rules: &[Value]) -> String {
    json!({"rateLimitings": rules}).to_string()
}

fn bench(rules: &[Value]) -> Bench<CircuitBreaker> {
    Bench::new(&settings(rules)).unwrap()
}

/// The next chain on the same host: what a reload is.
fn reload(bench: Bench<CircuitBreaker>, rules: &[Value]) -> Bench<CircuitBreaker> {
    Bench::on(bench.host, &settings(rules), &about()).unwrap()
}

/// Another instance of the same entry: a second worker thread.
fn instance(host: &FakeHost, rules: &[Value]) -> CircuitBreaker {
    let info: InstanceInfo = about();
    let settings = ctrlmesh_sdk::settings::parse(&settings(rules)).unwrap();
    CircuitBreaker::configure(settings, &info, host).unwrap().0
}

fn get(namespace: &str) -> TestRequest {
    TestRequest::get("", "pods", "p").namespace(namespace)
}

/// An answer with this status.
fn answer(status: u16) -> Outcome {
    Outcome {
        status,
        upstream_status: status,
        failure: None,
        duration_us: 2000,
        upstream_us: 1000,
        request_bytes: 0,
        response_bytes: 0,
    }
}

/// An end without an answer.
fn end(failure: Failure) -> Outcome {
    Outcome {
        failure: Some(failure),
        ..answer(0)
    }
}

/// Lets a request in; the refusal, if there is one.
fn enter(bench: &mut Bench<CircuitBreaker>, req: &TestRequest) -> Result<(), Box<Refusal>> {
    assert!(bench.wakes(req), "not subscribed: {:?}", req.facts());
    match bench.on_request(req).action {
        RequestAction::Proceed(edits) if edits.is_empty() => Ok(()),
        RequestAction::Refuse(refusal) => Err(Box::new(refusal)),
        other => panic!("{other:?}"),
    }
}

/// How many probes of the rules `a` and `b` are on their way, by the key of their places.
fn probes(host: &FakeHost) -> Vec<(String, u32)> {
    let mut held = Vec::new();
    for epoch in 0..64 {
        for (name, value) in [("a", ""), ("a", "x"), ("a", "y"), ("b", "")] {
            let key = format!("probes {epoch}\n{name}\n{value}");
            held.push((key.clone(), host.held_places(&key)));
        }
    }
    held
}

/// A whole request: in, answered so, over. Whether it was let in.
fn call(bench: &mut Bench<CircuitBreaker>, req: &TestRequest, outcome: &Outcome) -> bool {
    let req = req.clone();
    let before = probes(&bench.host);
    let is_in = enter(bench, &req).is_ok();
    let held: Vec<String> = probes(&bench.host)
        .into_iter()
        .zip(before)
        .filter(|((_, now), (_, before))| now > before)
        .map(|((key, _), _)| key)
        .collect();
    if is_in {
        if outcome.upstream_status != 0 {
            bench.on_response(&req, &TestResponse::new(outcome.upstream_status));
        }
        bench.on_complete(&req, outcome);
        held.iter().for_each(|key| bench.host.free_place(key));
    } else {
        let refused = Outcome {
            status: 429,
            ..end(Failure::Refused)
        };
        bench.on_complete(&req, &refused);
    }
    is_in
}

/// Opens the breaker of [`rule`].
fn trip(bench: &mut Bench<CircuitBreaker>, req: &TestRequest) {
    assert!(call(bench, req, &answer(500)) && call(bench, req, &answer(500)));
    assert!(enter(bench, req).is_err(), "still closed");
}

/// What `/status` says: state, reason, requests, failures.
fn shown(bench: &Bench<CircuitBreaker>, key: &str) -> Option<(String, String)> {
    let report = bench.host.report(key)?;
    let text = |field: &str| report[field].as_str().unwrap_or_default().to_owned();
    Some((text("state"), text("reason")))
}
