//! The later phases that the plugin wants for a request.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Failure, Phases, Reuse, Verb};
use serde_json::json;

use super::{failed_with, get_request, new_bench, rule_named, run_request, with_fields};

#[test]
fn response_is_wanted_for_requests_that_last() {
    let mut bench = new_bench(&[rule_named("a")]);
    let both = Phases::ON_RESPONSE | Phases::ON_COMPLETE;
    let log = TestRequest::get("", "pods", "p").subresource("log");
    for (request, later) in [
        (get_request("x"), Phases::ON_COMPLETE),
        (TestRequest::list("", "pods"), Phases::ON_COMPLETE),
        (TestRequest::watch("", "pods"), both),
        (log, both),
    ] {
        let verdict = bench.on_request(&request);
        assert_eq!((verdict.later, verdict.reuse), (later, Reuse::Never), "{request:?}");
    }
}

#[test]
fn requests_that_no_breaker_counts_want_no_later_phase() {
    let pods =
        json!({"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"]}]});
    let mut bench = new_bench(&[with_fields(rule_named("a"), &pods)]);
    let other = TestRequest::api(Verb::Get, "", "nodes");
    assert_eq!(bench.on_request(&other).later, Phases::empty());
    for _ in 0..2 {
        run_request(&mut bench, &get_request("x"), &failed_with(Failure::Unreachable));
    }
    let refused = bench.on_request(&get_request("x"));
    assert_eq!(refused.later, Phases::empty(), "{refused:?}");
}

/// The number of a request is that of the newest state that it met, so that a breaker that opened meanwhile does not hear of it.
#[test]
fn result_of_request_from_before_a_change_of_state_is_not_counted() {
    let rules = [
        rule_named("a"),
        with_fields(rule_named("b"), &json!({"key": "namespace"})),
    ];
    let mut bench = new_bench(&rules);
    let early = get_request("x");
    bench.on_request(&early);
    for _ in 0..2 {
        run_request(&mut bench, &get_request("x"), &failed_with(Failure::Unreachable));
    }
    bench.host.advance_ms(10_000);
    let probe = get_request("x");
    assert_ne!(
        bench.on_request(&probe).later,
        Phases::empty(),
        "a probe is let through"
    );
    // Another probe would be refused; the early request says nothing about the half-open state.
    bench.on_complete(&early, &failed_with(Failure::Unreachable));
    assert_eq!(bench.host.report("a").unwrap()["state"], "HalfOpen");
    bench.on_complete(&probe, &failed_with(Failure::Unreachable));
    assert_eq!(bench.host.report("a").unwrap()["state"], "Opened");
}
