//! State, outcomes, metrics and logs of plugins in the real engine. A recheck leaves no trace in them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use ctrlmesh_plugins_builtin::guests;
use ctrlmesh_proxy::harness::{Harness, get};
use ctrlmesh_proxy::plugin::verdict::{Failure, Outcome, RequestAction};
use ctrlmesh_proxy::wasm::SeriesValue;

fn new_harness(guest: &str, settings: &str) -> Harness {
    let wasm = guests::get(guest).expect("the guest exists");
    Harness::with_limits(wasm, settings, Duration::from_secs(5), 16 << 20).expect("it starts")
}

/// The results of the operations that `stateful` has in its settings.
fn operation_results(plugin: &mut Harness, recheck: bool) -> String {
    let request = get("/api/v1/pods");
    let verdict = if recheck {
        plugin.recheck(&request)
    } else {
        plugin.request(&request)
    }
    .expect("a verdict");
    let RequestAction::Refuse(refusal) = verdict.action else {
        panic!("{verdict:?}")
    };
    refusal.message
}

const OPS: &str = r#"{"ops": [
    {"take": [{"key": "b", "limit": 1, "intervalMs": 1000, "burst": 1, "tokens": 1}]},
    {"add": {"key": "c", "delta": 1, "max": 2}},
    {"windowAdd": {"key": "w", "lengthMs": 1000, "slots": 10, "amount": 1}},
    {"compareAndSwap": {"key": "k", "expected": 0, "value": "text"}},
    {"get": "k"}
]}"#;

#[test]
fn state_survives_restart_and_follows_clock() {
    let mut plugin = new_harness("stateful", OPS);
    assert_eq!(operation_results(&mut plugin, false), "granted; 1; 1; 1; text@1");
    plugin.restart().expect("a fresh instance");
    assert_eq!(operation_results(&mut plugin, false), "wait 1000; 2; 2; none; text@1");
    plugin.advance(Duration::from_millis(1000));
    assert_eq!(operation_results(&mut plugin, false), "granted; none; 1; none; text@1");
}

#[test]
fn several_cells_and_counters_take_one_call() {
    let settings = r#"{"ops": [
        {"compareAndSwap": {"key": "a", "expected": 0, "value": "text"}},
        {"add": {"key": "c", "delta": 1}},
        {"getAll": ["b", "a", "a"]},
        {"getAll": ["a", "c"]},
        {"countAll": [{"name": "seen", "label": "x", "by": 2}, {"name": "seen", "label": "x", "by": 3}]}
    ]}"#;
    let mut plugin = new_harness("stateful", settings);
    let expected = "1; 1; none text@1 text@1; error wrong-kind; counted";
    assert_eq!(
        operation_results(&mut plugin, true),
        "1; 1; none none none; none none; counted"
    );
    assert_eq!(plugin.metrics(), []);
    assert_eq!(operation_results(&mut plugin, false), expected);
    assert_eq!(plugin.metrics()[0].value, SeriesValue::Counter(5));
    let keys: Vec<String> = (0..65).map(|key| format!(r#""{key}""#)).collect();
    let settings = format!(r#"{{"ops": [{{"getAll": [{}]}}]}}"#, keys.join(","));
    assert_eq!(
        operation_results(&mut new_harness("stateful", &settings), false),
        "error invalid"
    );
}

#[test]
fn increment_adds_to_a_counter_except_in_a_recheck() {
    let settings = r#"{"ops": [{"increment": {"key": "c", "by": 2}}, {"add": {"key": "c", "delta": 1}}]}"#;
    let mut plugin = new_harness("stateful", settings);
    assert_eq!(operation_results(&mut plugin, false), "incremented; 3");
    assert_eq!(operation_results(&mut plugin, true), "incremented; 4");
    assert_eq!(operation_results(&mut plugin, false), "incremented; 6");
}

#[test]
fn recheck_answers_and_changes_nothing() {
    let mut plugin = new_harness("stateful", OPS);
    for _ in 0..3 {
        assert_eq!(operation_results(&mut plugin, true), "granted; 1; 1; 1; none");
    }
    assert_eq!(operation_results(&mut plugin, false), "granted; 1; 1; 1; text@1");
    assert_eq!(operation_results(&mut plugin, true), "granted; 2; 2; none; text@1");
    assert_eq!(operation_results(&mut plugin, false), "wait 1000; 2; 2; none; text@1");
}

#[test]
fn recheck_is_distinguished_from_request() {
    let settings = r#"{"onRequest": [{"when": {"recheck": true}, "then": {"refuse": {"code": 403}}}]}"#;
    let mut plugin = new_harness("scripted", settings);
    for _ in 0..2 {
        let verdict = plugin.recheck(&get("/api/v1/pods")).expect("a verdict");
        assert!(matches!(verdict.action, RequestAction::Refuse(_)), "{verdict:?}");
        let verdict = plugin.request(&get("/api/v1/pods")).expect("a verdict");
        assert!(matches!(verdict.action, RequestAction::Proceed(_)), "{verdict:?}");
    }
}

#[test]
fn recheck_leaves_no_trace_in_metrics_and_log() {
    let mut plugin = new_harness("scripted", r#"{"onRequest": [{"then": {"proceed": []}}]}"#);
    plugin.recheck(&get("/api/v1/pods")).expect("a verdict");
    assert_eq!(plugin.metrics(), []);
    plugin.request(&get("/api/v1/pods")).expect("a verdict");
    let values: Vec<_> = plugin
        .metrics()
        .into_iter()
        .map(|series| (series.name, series.value))
        .collect();
    assert_eq!(values, [("requests".to_owned(), SeriesValue::Counter(1))]);

    let wasm = guests::get("log_flood").expect("the guest exists");
    for to in ["log", "stderr"] {
        let settings = format!(r#"{{"in": "on-request", "to": "{to}", "bytes": 100, "line": 10}}"#);
        let mut plugin = Harness::with_limits(wasm, &settings, Duration::from_secs(5), 16 << 20).expect("it starts");
        plugin.recheck(&get("/api/v1/pods")).expect("a verdict");
        assert_eq!(plugin.log(), [], "{to}");
        plugin.request(&get("/api/v1/pods")).expect("a verdict");
        assert!(!plugin.log().is_empty(), "{to}");
    }
}

#[test]
fn outcome_arrives_whole() {
    let mut plugin = new_harness("recorder", "{}");
    let outcome = Outcome {
        status: 503,
        upstream_status: 200,
        failure: Some(Failure::UpstreamReset),
        duration: Duration::from_micros(1500),
        upstream: Duration::from_micros(700),
        request_bytes: 11,
        response_bytes: 22,
    };
    plugin
        .complete(&get("/api/v1/namespaces/a/pods/p"), &outcome)
        .expect("done");
    let verdict = plugin
        .request(&get("/api/v1/pods").user_agent("recorder"))
        .expect("a verdict");
    let RequestAction::Refuse(refusal) = verdict.action else {
        panic!("{verdict:?}")
    };
    let line = refusal.message.trim();
    assert_eq!(
        line,
        "Verb::Get pods/p status=503 upstream=200 failure=Some(Failure::UpstreamReset) request=11 response=22 timed=true agent="
    );
}
