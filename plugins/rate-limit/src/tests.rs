//! The plugin on a fake host whose clock is moved by hand. Tests named after a row (`cb_01_…`) show what the peer's feature
//! of that number is here.

mod in_flight;
mod properties;
mod rows;
mod settings;

use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest, about};
use ctrlmesh_sdk::{Plugin, Refusal, Request, RequestAction, RequestVerdict, Verb};
use serde_json::{Value, json};

use crate::plugin::RateLimit;

/// Every request about resources.
fn all() -> Value {
    json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}])
}

/// `limit` tokens every second, for all requests.
fn rule(name: &str, limit: u32, burst: u32) -> Value {
    json!({"name": name, "resourceRules": all(), "bucket": {"limit": limit, "interval": "1s", "burst": burst}})
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

fn bench(rules: &[Value]) -> Bench<RateLimit> {
    Bench::new(&settings(rules)).unwrap()
}

/// Another instance of the same entry: a second worker thread, or the next chain.
fn instance(host: &FakeHost, rules: &[Value]) -> RateLimit {
    let settings = ctrlmesh_sdk::settings::parse(&settings(rules)).unwrap();
    RateLimit::configure(settings, &about(), host).unwrap().0
}

fn update(namespace: &str) -> TestRequest {
    TestRequest::api(Verb::Update, "", "pods")
        .namespace(namespace)
        .name("p")
}

/// Milliseconds of delay, or the refusal.
fn outcome(verdict: RequestVerdict) -> Result<u32, Box<Refusal>> {
    match verdict.action {
        RequestAction::Proceed(edits) if edits.is_empty() => Ok(verdict.delay_ms),
        RequestAction::Refuse(refusal) => Err(Box::new(refusal)),
        other => panic!("{other:?}"),
    }
}

/// What the plugin says, after a check that the host would have asked.
fn ask(bench: &mut Bench<RateLimit>, req: &TestRequest) -> Result<u32, Box<Refusal>> {
    assert!(bench.wakes(req), "not subscribed: {:?}", req.facts());
    outcome(bench.on_request(req))
}

/// How many of so many requests at once are granted without a wait.
fn granted(bench: &mut Bench<RateLimit>, req: &TestRequest, tries: usize) -> usize {
    (0..tries).filter(|_| ask(bench, req) == Ok(0)).count()
}
