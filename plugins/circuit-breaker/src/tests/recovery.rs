//! A person closes a breaker.

use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest};
use ctrlmesh_sdk::{Plugin, RequestAction};
use serde_json::{Value, json};

use super::{CircuitBreaker, answer, bench, call, enter, get, instance, reload, rule, shown, trip, with};

fn manual(recover: &str) -> Value {
    let recover = if recover.is_empty() {
        Value::Null
    } else {
        json!(recover)
    };
    with(
        rule("a"),
        &json!({"recoverPolicy": {"type": "Manual"}, "recover": recover}),
    )
}

fn is_open(bench: &mut Bench<CircuitBreaker>) -> bool {
    enter(bench, &get("x")).is_err()
}

#[test]
fn cb_07_another_value_of_recover_closes_once() {
    let mut bench = bench(&[manual("")]);
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(86_400_000);
    assert!(is_open(&mut bench));
    let mut bench = reload(bench, &[manual("monday")]);
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    assert!(!is_open(&mut bench));
    trip(&mut bench, &get("x"));
    // The same value, in another chain, does nothing.
    let mut bench = reload(bench, &[with(manual("monday"), &json!({"probes": 2})), rule("b")]);
    assert!(is_open(&mut bench));
    let mut bench = reload(bench, &[manual("")]);
    assert!(is_open(&mut bench));
    let mut bench = reload(bench, &[manual("tuesday")]);
    assert!(!is_open(&mut bench));
}

/// While a chain replaces another, instances of both are configured in any order.
#[test]
fn cb_07_two_chains_side_by_side_recover_at_most_once() {
    let host = FakeHost::default();
    let old = [manual("monday")];
    let new = [manual("tuesday")];
    let mut running = instance(&host, &old);
    instance(&host, &new);
    for _ in 0..2 {
        let req = get("x");
        assert!(matches!(
            running.on_request(&req, &host).action,
            RequestAction::Proceed(_)
        ));
        running.on_complete(&req, &answer(500), &host);
    }
    for rules in [&new, &old, &new, &old] {
        let mut plugin = instance(&host, rules);
        let verdict = plugin.on_request(&get("x"), &host);
        assert!(
            matches!(verdict.action, RequestAction::Refuse(_)),
            "{rules:?} recovered again"
        );
    }
}

#[test]
fn cb_07_recovery_closes_the_circuits_of_all_keys() {
    let keyed = |recover: &str| with(manual(recover), &json!({"key": "namespace"}));
    let mut bench = bench(&[keyed("")]);
    trip(&mut bench, &get("x"));
    trip(&mut bench, &get("y"));
    let mut bench = reload(bench, &[keyed("now")]);
    assert!(call(&mut bench, &get("x"), &answer(200)) && call(&mut bench, &get("y"), &answer(200)));
    assert_eq!((shown(&bench, "a/x"), shown(&bench, "a/y")), (None, None));
}

/// What was let in before somebody closed the breaker does not open it again.
#[test]
fn cb_07_answers_from_before_the_recovery_do_not_count() {
    let mut bench = bench(&[manual("")]);
    let late: Vec<TestRequest> = (0..4).map(|_| get("x")).collect();
    for req in &late {
        enter(&mut bench, req).unwrap();
    }
    trip(&mut bench, &get("x"));
    let mut bench = reload(bench, &[manual("now")]);
    for req in &late {
        bench.on_complete(req, &answer(500));
    }
    assert!(!is_open(&mut bench));
    trip(&mut bench, &get("x"));
}

#[test]
fn cb_11_a_rule_that_is_gone_leaves_nothing_behind() {
    let keyed = with(manual("now"), &json!({"key": "namespace"}));
    let mut bench = bench(&[keyed.clone(), rule("b")]);
    trip(&mut bench, &get("x"));
    assert!(bench.host.report("a/x").is_some() && bench.host.report("a").is_some());
    let mut bench = reload(bench, &[rule("b")]);
    assert_eq!((bench.host.report("a/x"), bench.host.report("a")), (None, None));
    assert!(bench.host.report("b").is_some());
    bench.host.advance_ms(10_000);
    assert!(call(&mut bench, &get("x"), &answer(200)));
    // A rule of the same name is another rule.
    let mut bench = reload(bench, &[keyed, rule("b")]);
    assert!(call(&mut bench, &get("x"), &answer(200)));
}
