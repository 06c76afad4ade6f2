//! The plugin on a fake host whose clock is moved by hand. A test named after a row (`cb_01_…`) shows how the peer's feature of that
//! number works here.

mod in_flight;
mod properties;
mod rules;
mod settings;

use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest, test_instance_info};
use ctrlmesh_sdk::{Plugin, Refusal, Request, RequestAction, RequestVerdict, Verb};
use serde_json::{Value, json};

use crate::plugin::RateLimit;

/// Matches every request about resources.
fn all_resources() -> Value {
    json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}])
}

/// `limit` tokens every second, for all requests.
fn rule_with_rate(name: &str, limit: u32, burst: u32) -> Value {
    json!({"name": name, "resourceRules": all_resources(), "bucket": {"limit": limit, "interval": "1s", "burst": burst}})
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

fn new_bench(rules: &[Value]) -> Bench<RateLimit> {
    Bench::new(&settings_json(rules)).unwrap()
}

/// Another instance of the same entry: a second worker thread, or the next chain.
fn new_instance(host: &FakeHost, rules: &[Value]) -> RateLimit {
    let settings = ctrlmesh_sdk::settings::parse(&settings_json(rules)).unwrap();
    RateLimit::configure(settings, &test_instance_info(), host).unwrap().0
}

fn update_request(namespace: &str) -> TestRequest {
    TestRequest::api(Verb::Update, "", "pods")
        .namespace(namespace)
        .name("p")
}

/// Milliseconds of delay, or the refusal.
fn delay_or_refusal(verdict: RequestVerdict) -> Result<u32, Box<Refusal>> {
    match verdict.action {
        RequestAction::Proceed(edits) if edits.is_empty() => Ok(verdict.delay_ms),
        RequestAction::Refuse(refusal) => Err(Box::new(refusal)),
        other => panic!("{other:?}"),
    }
}

/// The outcome, after checking that the request is subscribed.
fn request_outcome(bench: &mut Bench<RateLimit>, req: &TestRequest) -> Result<u32, Box<Refusal>> {
    assert!(bench.wakes(req), "not subscribed: {:?}", req.facts());
    delay_or_refusal(bench.on_request(req))
}

/// Number of requests out of `tries` simultaneous ones that are granted without a wait.
fn count_granted(bench: &mut Bench<RateLimit>, req: &TestRequest, tries: usize) -> usize {
    (0..tries).filter(|_| request_outcome(bench, req) == Ok(0)).count()
}
