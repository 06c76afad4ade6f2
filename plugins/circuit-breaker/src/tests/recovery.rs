//! Resets by a person.

use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest};
use ctrlmesh_sdk::{Plugin, RequestAction};
use serde_json::{Value, json};

use super::{
    CircuitBreaker, admit_request, answered_with, end_request, get_request, is_admitted_by, new_bench, new_instance,
    reload_rules, rule_named, run_request, shown_state, trip_breaker, with_fields,
};

fn manual_rule(recover: &str) -> Value {
    let recover = if recover.is_empty() {
        Value::Null
    } else {
        json!(recover)
    };
    with_fields(
        rule_named("a"),
        &json!({"recoverPolicy": {"type": "Manual"}, "recover": recover}),
    )
}

fn is_open(bench: &mut Bench<CircuitBreaker>) -> bool {
    admit_request(bench, &get_request("x")).is_err()
}

#[test]
fn cb_07_new_recover_value_closes_once() {
    let mut bench = new_bench(&[manual_rule("")]);
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(86_400_000);
    assert!(is_open(&mut bench));
    let mut bench = reload_rules(bench, &[manual_rule("monday")]);
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    assert!(!is_open(&mut bench));
    trip_breaker(&mut bench, &get_request("x"));
    // The same value in another chain does nothing.
    let mut bench = reload_rules(
        bench,
        &[
            with_fields(manual_rule("monday"), &json!({"probes": 2})),
            rule_named("b"),
        ],
    );
    assert!(is_open(&mut bench));
    let mut bench = reload_rules(bench, &[manual_rule("")]);
    assert!(is_open(&mut bench));
    let mut bench = reload_rules(bench, &[manual_rule("tuesday")]);
    assert!(!is_open(&mut bench));
}

/// While a chain replaces another, instances of both are configured in any order.
#[test]
fn cb_07_two_chains_recover_at_most_once() {
    let host = FakeHost::default();
    let old = [manual_rule("monday")];
    let new = [manual_rule("tuesday")];
    let mut running = new_instance(&host, &old);
    new_instance(&host, &new);
    for _ in 0..2 {
        let req = get_request("x");
        assert!(is_admitted_by(&mut running, &req, &host));
        end_request(&mut running, &req, &answered_with(500), &host);
    }
    for rules in [&new, &old, &new, &old] {
        let mut plugin = new_instance(&host, rules);
        let verdict = plugin.on_request(&get_request("x"), &host);
        assert!(
            matches!(verdict.action, RequestAction::Refuse(_)),
            "{rules:?} recovered again"
        );
    }
}

#[test]
fn cb_07_recovery_closes_circuits_of_all_keys() {
    let keyed = |recover: &str| with_fields(manual_rule(recover), &json!({"key": "namespace"}));
    let mut bench = new_bench(&[keyed("")]);
    trip_breaker(&mut bench, &get_request("x"));
    trip_breaker(&mut bench, &get_request("y"));
    let mut bench = reload_rules(bench, &[keyed("now")]);
    assert!(
        run_request(&mut bench, &get_request("x"), &answered_with(200))
            && run_request(&mut bench, &get_request("y"), &answered_with(200))
    );
    assert_eq!((shown_state(&bench, "a/x"), shown_state(&bench, "a/y")), (None, None));
}

/// Requests admitted before the reset do not open the breaker again.
#[test]
fn cb_07_responses_from_before_recovery_do_not_count() {
    let mut bench = new_bench(&[manual_rule("")]);
    let late: Vec<TestRequest> = (0..4).map(|_| get_request("x")).collect();
    for req in &late {
        admit_request(&mut bench, req).unwrap();
    }
    trip_breaker(&mut bench, &get_request("x"));
    let mut bench = reload_rules(bench, &[manual_rule("now")]);
    for req in &late {
        bench.finish(req, &answered_with(500));
    }
    assert!(!is_open(&mut bench));
    trip_breaker(&mut bench, &get_request("x"));
}

/// A breaker that never opened has no cell of its own; the rule's marks change.
#[test]
fn cb_07_responses_from_before_recovery_do_not_open_a_closed_breaker() {
    let mut bench = new_bench(&[manual_rule("")]);
    let late: Vec<TestRequest> = (0..4).map(|_| get_request("x")).collect();
    for req in &late {
        admit_request(&mut bench, req).unwrap();
    }
    let mut bench = reload_rules(bench, &[manual_rule("now")]);
    for req in &late {
        bench.finish(req, &answered_with(500));
    }
    assert!(!is_open(&mut bench));
    trip_breaker(&mut bench, &get_request("x"));
}

#[test]
fn cb_11_removed_rule_leaves_nothing_behind() {
    let keyed = with_fields(manual_rule("now"), &json!({"key": "namespace"}));
    let mut bench = new_bench(&[keyed.clone(), rule_named("b")]);
    trip_breaker(&mut bench, &get_request("x"));
    assert!(bench.host.report("a/x").is_some() && bench.host.report("a").is_some());
    let mut bench = reload_rules(bench, &[rule_named("b")]);
    assert_eq!((bench.host.report("a/x"), bench.host.report("a")), (None, None));
    assert!(bench.host.report("b").is_some());
    bench.host.advance_ms(10_000);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    // A rule of the same name is another rule.
    let mut bench = reload_rules(bench, &[keyed, rule_named("b")]);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
}
