//! Conditions that open a closed breaker.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Outcome, Verb};
use serde_json::json;

use super::{admit_request, answered_with, get_request, new_bench, rule_named, run_request, shown_state, with_fields};

fn open_reason(bench: &ctrlmesh_sdk::testing::Bench<super::CircuitBreaker>) -> String {
    shown_state(bench, "a").unwrap().1
}

#[test]
fn cb_08_error_ratio_opens_after_enough_requests() {
    let trip = json!({"trip": {"window": "10s", "minimumRequests": 10, "errorPercent": 50}});
    let mut bench = new_bench(&[with_fields(rule_named("a"), &trip)]);
    // Nine failures of nine are fewer than the minimum.
    assert!((0..9).all(|_| run_request(&mut bench, &get_request("x"), &answered_with(503))));
    bench.host.advance_ms(20_000);
    // The window has passed: four of ten are less than half.
    let answers = [200, 503, 200, 503, 200, 503, 200, 503, 200, 200];
    assert!(
        answers
            .iter()
            .all(|status| run_request(&mut bench, &get_request("x"), &answered_with(*status)))
    );
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(503)));
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(503)));
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
    assert_eq!(open_reason(&bench), "6 of 12 requests failed");
}

#[test]
fn cb_08_slow_calls_open() {
    let trip = json!({"trip": {"minimumRequests": 4, "slowPercent": 75, "slowerThan": "2s"}});
    let mut bench = new_bench(&[with_fields(rule_named("a"), &trip)]);
    let took = |upstream_us: u64| Outcome {
        upstream_us,
        duration_us: 60_000_000,
        ..answered_with(200)
    };
    for upstream_us in [2_000_000, 2_000_001, 2_000_001] {
        assert!(run_request(&mut bench, &get_request("x"), &took(upstream_us)));
    }
    assert!(run_request(&mut bench, &get_request("x"), &took(2_000_001)));
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
    assert_eq!(open_reason(&bench), "3 of 4 requests were slow");
    // A slow probe is no success.
    bench.host.advance_ms(10_000);
    assert!(run_request(&mut bench, &get_request("x"), &took(3_000_000)));
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
}

#[test]
fn cb_08_consecutive_failures_open_and_success_resets() {
    let mut bench = new_bench(&[with_fields(
        rule_named("a"),
        &json!({"trip": {"consecutiveFailures": 3}}),
    )]);
    for status in [500, 500, 200, 500, 500, 404, 500, 500, 500] {
        assert!(
            run_request(&mut bench, &get_request("x"), &answered_with(status)),
            "{status}"
        );
    }
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
    assert_eq!(open_reason(&bench), "3 requests failed one after another");
}

#[test]
fn cb_08_each_resource_or_host_has_its_own_circuit() {
    let keyed = |key: &str| {
        with_fields(
            rule_named("a"),
            &json!({"key": key, "restRules": [{"url": "*", "method": "*"}]}),
        )
    };
    let pods = get_request("x");
    let deployments = || TestRequest::get("apps", "deployments", "d").namespace("x");
    let call_to = |host: &str| TestRequest::external("GET", host, "/");
    for (key, opens_deployments, opens_other_host) in [
        ("sidecar", true, true),
        ("resource", false, false),
        ("host", true, false),
        ("namespace", true, false),
    ] {
        let mut bench = new_bench(&[keyed(key)]);
        super::trip_breaker(&mut bench, &pods);
        assert_eq!(
            admit_request(&mut bench, &deployments()).is_err(),
            opens_deployments,
            "{key}"
        );
        let mut bench = super::new_bench(&[keyed(key)]);
        super::trip_breaker(&mut bench, &call_to("a.com"));
        let is_open = admit_request(&mut bench, &call_to("b.com")).is_err();
        assert_eq!(is_open, opens_other_host || key == "namespace", "{key}");
    }
}

/// A response to a request from before the breaker opened is no evidence about the time after.
#[test]
fn late_responses_do_not_count() {
    let mut bench = new_bench(&[rule_named("a")]);
    let late: Vec<TestRequest> = (0..6).map(|_| get_request("x")).collect();
    for req in &late {
        admit_request(&mut bench, req).unwrap();
    }
    super::trip_breaker(&mut bench, &get_request("x"));
    bench.finish(&late[0], &answered_with(200));
    bench.host.advance_ms(10_000);
    let probe = get_request("x");
    admit_request(&mut bench, &probe).unwrap();
    bench.finish(&late[1], &answered_with(500));
    bench.finish(&late[2], &answered_with(200));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "HalfOpen");
    bench.finish(&probe, &answered_with(200));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    for req in &late[3..] {
        bench.finish(req, &answered_with(500));
    }
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    // The probe, reported twice, is no failure of the closed breaker.
    bench.finish(&probe, &answered_with(500));
    bench.finish(&probe, &answered_with(500));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
}

#[test]
fn writes_and_reads_of_all_kinds_count() {
    for verb in [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete, Verb::List] {
        let mut bench = new_bench(&[rule_named("a")]);
        super::trip_breaker(&mut bench, &TestRequest::api(verb, "apps", "deployments"));
    }
}

/// A probe's bit is its rule's index, and a reload may number the rules anew, or let them match more.
#[test]
fn probe_counts_for_the_rule_that_admitted_it() {
    let of = |name: &str, namespace: &str| {
        let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": [namespace]}]);
        with_fields(rule_named(name), &json!({"resourceRules": rules}))
    };
    for (order, expected) in [
        (["a", "b"], ["Opened", "HalfOpen"]),
        (["b", "a"], ["HalfOpen", "HalfOpen"]),
    ] {
        let mut bench = new_bench(&[of("a", "x"), of("b", "y")]);
        super::trip_breaker(&mut bench, &get_request("x"));
        super::trip_breaker(&mut bench, &get_request("y"));
        bench.host.advance_ms(10_000);
        let [of_a, of_b] = [get_request("x"), get_request("y")];
        admit_request(&mut bench, &of_b).unwrap();
        admit_request(&mut bench, &of_a).unwrap();
        let mut bench = super::reload_rules(bench, &order.map(rule_named));
        bench.on_complete(&of_a, &answered_with(500));
        let states = ["a", "b"].map(|name| shown_state(&bench, name).unwrap().0);
        assert_eq!(states, expected, "{order:?}");
    }
}
