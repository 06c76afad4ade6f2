//! The plugin on a fake host whose clock is moved by hand. A test named after a row (`cb_05_…`, `rest_05_…`) shows how the peer's feature
//! of that number works here.

mod calls;
mod judgement;
mod phases;
mod properties;
mod recovery;
mod settings;
mod states;
mod status;
mod trips;

use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest, TestResponse, test_instance_info};
use ctrlmesh_sdk::{Failure, InstanceInfo, Outcome, Plugin, Refusal, Request, RequestAction};
use serde_json::{Value, json};

use crate::plugin::CircuitBreaker;

/// A rule for all resources that opens after two failures in a row and sends a probe after ten seconds.
fn rule_named(name: &str) -> Value {
    json!({
        "name": name,
        "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
        "triggerPolicy": "Normal",
        "recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "10s"},
        "trip": {"consecutiveFailures": 2},
    })
}

/// The rule with fields added or replaced.
fn with_fields(mut rule: Value, fields: &Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    rule.as_object_mut().unwrap().extend(fields);
    rule
}

fn settings_json(rules: &[Value]) -> String {
    json!({"rateLimitings": rules}).to_string()
}

fn new_bench(rules: &[Value]) -> Bench<CircuitBreaker> {
    Bench::new(&settings_json(rules)).unwrap()
}

/// Configures the next chain on the same host, like a reload.
fn reload_rules(bench: Bench<CircuitBreaker>, rules: &[Value]) -> Bench<CircuitBreaker> {
    Bench::on(bench.host, &settings_json(rules), &test_instance_info()).unwrap()
}

/// Another instance of the same entry: a second worker thread.
fn new_instance(host: &FakeHost, rules: &[Value]) -> CircuitBreaker {
    let info: InstanceInfo = test_instance_info();
    let settings = ctrlmesh_sdk::settings::parse(&settings_json(rules)).unwrap();
    CircuitBreaker::configure(settings, &info, host).unwrap().0
}

fn get_request(namespace: &str) -> TestRequest {
    TestRequest::get("", "pods", "p").namespace(namespace)
}

/// A subresource of another API server, which may answer with a 101.
fn vnc_request() -> TestRequest {
    TestRequest::get("subresources.kubevirt.io", "virtualmachineinstances", "v").subresource("vnc")
}

/// A response with this status.
fn answered_with(status: u16) -> Outcome {
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

/// An end without a response.
fn failed_with(failure: Failure) -> Outcome {
    Outcome {
        failure: Some(failure),
        ..answered_with(0)
    }
}

/// Admits a request; the error is its refusal.
fn admit_request(bench: &mut Bench<CircuitBreaker>, req: &TestRequest) -> Result<(), Box<Refusal>> {
    assert!(bench.wakes(req), "not subscribed: {:?}", req.facts());
    match bench.on_request(req).action {
        RequestAction::Proceed(edits) if edits.is_empty() => Ok(()),
        RequestAction::Refuse(refusal) => Err(Box::new(refusal)),
        other => panic!("{other:?}"),
    }
}

/// Asks an instance about a request. Returns whether the request is admitted.
fn is_admitted_by(plugin: &mut CircuitBreaker, req: &TestRequest, host: &FakeHost) -> bool {
    let verdict = plugin.on_request(req, host);
    host.keep_verdict(req, &verdict);
    matches!(verdict.action, RequestAction::Proceed(_))
}

/// Ends a request that an instance admitted.
fn end_request(plugin: &mut CircuitBreaker, req: &TestRequest, outcome: &Outcome, host: &FakeHost) {
    plugin.on_complete(req, outcome, host);
    let crossings = host.count_end(req, outcome);
    if !crossings.is_empty() {
        plugin.on_crossed(&crossings, host);
    }
}

/// Active probes of the rules `a` and `b`, by the key of their places.
fn active_probes(host: &FakeHost) -> Vec<(String, u32)> {
    let mut held = Vec::new();
    for epoch in 0..64 {
        for (name, value) in [("a", ""), ("a", "x"), ("a", "y"), ("b", "")] {
            let key = format!("probes {epoch}\n{name}\n{value}");
            held.push((key.clone(), host.held_places(&key)));
        }
    }
    held
}

/// Runs a request to its end. Returns whether it was admitted.
fn run_request(bench: &mut Bench<CircuitBreaker>, req: &TestRequest, outcome: &Outcome) -> bool {
    let req = req.clone();
    let before = active_probes(&bench.host);
    assert!(bench.wakes(&req), "not subscribed: {:?}", req.facts());
    let verdict = bench.on_request(&req);
    let is_in = matches!(verdict.action, RequestAction::Proceed(_));
    let held: Vec<String> = active_probes(&bench.host)
        .into_iter()
        .zip(before)
        .filter(|((_, now), (_, before))| now > before)
        .map(|((key, _), _)| key)
        .collect();
    if is_in {
        if outcome.upstream_status != 0 {
            bench.respond(&req, &TestResponse::new(outcome.upstream_status));
        }
        bench.finish(&req, outcome);
        held.iter().for_each(|key| bench.host.free_place(key));
    } else {
        let refused = Outcome {
            status: 429,
            ..failed_with(Failure::Refused)
        };
        bench.finish(&req, &refused);
    }
    is_in
}

/// Opens the breaker of [`rule_named`].
fn trip_breaker(bench: &mut Bench<CircuitBreaker>, req: &TestRequest) {
    assert!(run_request(bench, req, &answered_with(500)) && run_request(bench, req, &answered_with(500)));
    assert!(admit_request(bench, req).is_err(), "still closed");
}

/// State and reason in `/status`.
fn shown_state(bench: &Bench<CircuitBreaker>, key: &str) -> Option<(String, String)> {
    let report = bench.host.report(key)?;
    let text = |field: &str| report[field].as_str().unwrap_or_default().to_owned();
    Some((text("state"), text("reason")))
}
