//! What opens a closed breaker.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Outcome, Verb};
use serde_json::json;

use super::{answer, bench, call, enter, get, rule, shown, with};

fn reason(bench: &ctrlmesh_sdk::testing::Bench<super::CircuitBreaker>) -> String {
    shown(bench, "a").unwrap().1
}

#[test]
fn cb_08_an_error_ratio_opens_once_there_are_enough_requests() {
    let trip = json!({"trip": {"window": "10s", "minimumRequests": 10, "errorPercent": 50}});
    let mut bench = bench(&[with(rule("a"), &trip)]);
    // Nine failures of nine are too few to tell.
    assert!((0..9).all(|_| call(&mut bench, &get("x"), &answer(503))));
    bench.host.advance_ms(20_000);
    // The window has forgotten them: four of ten are not half.
    let answers = [200, 503, 200, 503, 200, 503, 200, 503, 200, 200];
    assert!(
        answers
            .iter()
            .all(|status| call(&mut bench, &get("x"), &answer(*status)))
    );
    assert!(call(&mut bench, &get("x"), &answer(503)));
    assert!(call(&mut bench, &get("x"), &answer(503)));
    assert!(enter(&mut bench, &get("x")).is_err());
    assert_eq!(reason(&bench), "6 of 12 requests failed");
}

#[test]
fn cb_08_slow_calls_open() {
    let trip = json!({"trip": {"minimumRequests": 4, "slowPercent": 75, "slowerThan": "2s"}});
    let mut bench = bench(&[with(rule("a"), &trip)]);
    let took = |upstream_us: u64| Outcome {
        upstream_us,
        duration_us: 60_000_000,
        ..answer(200)
    };
    for upstream_us in [2_000_000, 2_000_001, 2_000_001] {
        assert!(call(&mut bench, &get("x"), &took(upstream_us)));
    }
    assert!(call(&mut bench, &get("x"), &took(2_000_001)));
    assert!(enter(&mut bench, &get("x")).is_err());
    assert_eq!(reason(&bench), "3 of 4 requests were slow");
    // A slow probe is no success.
    bench.host.advance_ms(10_000);
    assert!(call(&mut bench, &get("x"), &took(3_000_000)));
    assert!(enter(&mut bench, &get("x")).is_err());
}

#[test]
fn cb_08_failures_in_a_row_open_and_a_success_starts_over() {
    let mut bench = bench(&[with(rule("a"), &json!({"trip": {"consecutiveFailures": 3}}))]);
    for status in [500, 500, 200, 500, 500, 404, 500, 500, 500] {
        assert!(call(&mut bench, &get("x"), &answer(status)), "{status}");
    }
    assert!(enter(&mut bench, &get("x")).is_err());
    assert_eq!(reason(&bench), "3 requests failed one after another");
}

#[test]
fn cb_08_each_resource_or_host_has_its_own_circuit() {
    let keyed = |key: &str| {
        with(
            rule("a"),
            &json!({"key": key, "restRules": [{"url": "*", "method": "*"}]}),
        )
    };
    let pods = get("x");
    let deployments = || TestRequest::get("apps", "deployments", "d").namespace("x");
    let call_to = |host: &str| TestRequest::external("GET", host, "/");
    for (key, opens_deployments, opens_other_host) in [
        ("sidecar", true, true),
        ("resource", false, false),
        ("host", true, false),
        ("namespace", true, false),
    ] {
        let mut bench = bench(&[keyed(key)]);
        super::trip(&mut bench, &pods);
        assert_eq!(enter(&mut bench, &deployments()).is_err(), opens_deployments, "{key}");
        let mut bench = super::bench(&[keyed(key)]);
        super::trip(&mut bench, &call_to("a.com"));
        let is_open = enter(&mut bench, &call_to("b.com")).is_err();
        assert_eq!(is_open, opens_other_host || key == "namespace", "{key}");
    }
}

/// An answer to a request from before the breaker opened tells nothing about what came after.
#[test]
fn late_answers_do_not_count() {
    let mut bench = bench(&[rule("a")]);
    let late: Vec<TestRequest> = (0..6).map(|_| get("x")).collect();
    for req in &late {
        enter(&mut bench, req).unwrap();
    }
    super::trip(&mut bench, &get("x"));
    bench.on_complete(&late[0], &answer(200));
    bench.host.advance_ms(10_000);
    let probe = get("x");
    enter(&mut bench, &probe).unwrap();
    bench.on_complete(&late[1], &answer(500));
    bench.on_complete(&late[2], &answer(200));
    assert_eq!(shown(&bench, "a").unwrap().0, "HalfOpen");
    bench.on_complete(&probe, &answer(200));
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    for req in &late[3..] {
        bench.on_complete(req, &answer(500));
    }
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    // And the probe, told twice, is no failure of the closed breaker.
    bench.on_complete(&probe, &answer(500));
    bench.on_complete(&probe, &answer(500));
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
}

#[test]
fn writes_and_reads_of_all_kinds_count() {
    for verb in [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete, Verb::List] {
        let mut bench = bench(&[rule("a")]);
        super::trip(&mut bench, &TestRequest::api(verb, "apps", "deployments"));
    }
}

/// The bit of a probe is its rule's number, and a reload may number the rules anew, or let them match more.
#[test]
fn a_probe_speaks_for_the_rule_that_let_it_in() {
    let of = |name: &str, namespace: &str| {
        let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": [namespace]}]);
        with(rule(name), &json!({"resourceRules": rules}))
    };
    for (order, expected) in [
        (["a", "b"], ["Opened", "HalfOpen"]),
        (["b", "a"], ["HalfOpen", "HalfOpen"]),
    ] {
        let mut bench = bench(&[of("a", "x"), of("b", "y")]);
        super::trip(&mut bench, &get("x"));
        super::trip(&mut bench, &get("y"));
        bench.host.advance_ms(10_000);
        let [of_a, of_b] = [get("x"), get("y")];
        enter(&mut bench, &of_b).unwrap();
        enter(&mut bench, &of_a).unwrap();
        let mut bench = super::reload(bench, &order.map(rule));
        bench.on_complete(&of_a, &answer(500));
        let states = ["a", "b"].map(|name| shown(&bench, name).unwrap().0);
        assert_eq!(states, expected, "{order:?}");
    }
}
