//! The part of a request that the plugin follows after admission: later phases for probes, and rules by which the host
//! counts for closed breakers.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{
    ConnectionFailures, Failure, Host, OutcomeRule, OutcomeWindow, Phases, RequestVerdict, Reuse, StatusRange, Verb,
};
use serde_json::{Value, json};

use super::{
    answered_with, failed_with, get_request, new_bench, rule_named, run_request, shown_state, trip_breaker,
    vnc_request, with_fields,
};

/// The verdict of a plugin with one rule on its first request.
fn first_verdict(rule: Value, req: &TestRequest) -> RequestVerdict {
    new_bench(&[rule]).on_request(req)
}

#[test]
fn closed_breaker_wants_no_phase_and_may_be_reused() {
    let log = TestRequest::get("", "pods", "p").subresource("log");
    for (request, at_head) in [
        (get_request("x"), false),
        (TestRequest::list("", "pods"), false),
        (TestRequest::watch("", "pods"), true),
        (log, true),
    ] {
        let verdict = first_verdict(rule_named("a"), &request);
        assert_eq!((verdict.later, verdict.reuse), (Phases::empty(), Reuse::WhileUnchanged));
        let heads: Vec<bool> = verdict.outcomes.iter().map(|rule| rule.at_head).collect();
        assert_eq!(heads, [at_head], "{request:?}");
    }
}

#[test]
fn host_counts_as_the_settings_say() {
    let fields = json!({
        "key": "namespace",
        "trip": {"errorPercent": 40, "slowPercent": 60, "slowerThan": "2s", "minimumRequests": 7, "window": "10s"},
        "failures": {"statusCodes": ["409", "5xx"], "connection": ["timeout"]},
    });
    let verdict = first_verdict(with_fields(rule_named("a"), &fields), &get_request("x"));
    let range = |first, last| StatusRange { first, last };
    let expected = OutcomeRule {
        tally: "tally\na\nx".to_owned(),
        cells: vec!["rule\na".to_owned(), "state\na\nx".to_owned()],
        at_head: false,
        failing_statuses: vec![range(409, 409), range(500, 599)],
        failing_connections: ConnectionFailures::TIMEOUT,
        slower_than_us: Some(2_000_000),
        window: Some(OutcomeWindow {
            length_ms: 10_000,
            slots: 10,
            minimum_requests: 7,
            failure_percent: Some(40),
            slow_percent: Some(60),
        }),
        consecutive_failures: None,
    };
    assert_eq!(verdict.outcomes, [expected]);
    let row = first_verdict(rule_named("a"), &get_request("x"));
    let thresholds = row.outcomes.iter().map(|rule| (rule.window, rule.consecutive_failures));
    assert_eq!(thresholds.collect::<Vec<_>>(), [(None, Some(2))]);
    let bucket = json!({"trip": null, "bucket": {"limit": 1, "interval": "1s", "burst": 2}});
    let verdict = first_verdict(with_fields(rule_named("a"), &bucket), &get_request("x"));
    assert_eq!((verdict.outcomes, verdict.reuse), (vec![], Reuse::WhileUnchanged));
}

/// A probe is judged by the plugin, and is no probe of another rule that is closed.
#[test]
fn probe_wants_later_phases_and_is_not_reused() {
    let nodes =
        json!({"resourceRules": [{"apiGroups": ["*"], "resources": ["nodes"], "verbs": ["*"], "namespaces": ["*"]}]});
    let other = with_fields(rule_named("b"), &json!({"trip": {"consecutiveFailures": 9}}));
    let mut bench = new_bench(&[with_fields(rule_named("a"), &json!({"probes": 3})), other]);
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(10_000);
    for (request, later) in [
        (get_request("x"), Phases::ON_COMPLETE),
        (
            TestRequest::watch("", "pods"),
            Phases::ON_RESPONSE | Phases::ON_COMPLETE,
        ),
        (vnc_request(), Phases::ON_RESPONSE | Phases::ON_COMPLETE),
    ] {
        let verdict = bench.on_request(&request);
        assert_eq!((verdict.later, verdict.reuse), (later, Reuse::Never), "{request:?}");
        let tallies: Vec<&str> = verdict.outcomes.iter().map(|rule| rule.tally.as_str()).collect();
        assert_eq!(tallies, ["tally\nb\n"]);
    }
    let verdict = first_verdict(with_fields(rule_named("a"), &nodes), &get_request("x"));
    assert_eq!((verdict.later, verdict.outcomes), (Phases::empty(), vec![]));
}

#[test]
fn requests_that_no_breaker_counts_want_no_later_phase() {
    let pods =
        json!({"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"]}]});
    let mut bench = new_bench(&[with_fields(rule_named("a"), &pods)]);
    let other = TestRequest::api(Verb::Get, "", "nodes");
    let expected = RequestVerdict::proceed().later(Phases::empty()).reusable();
    assert_eq!(bench.on_request(&other), expected);
    for _ in 0..2 {
        run_request(&mut bench, &get_request("x"), &failed_with(Failure::Unreachable));
    }
    let refused = bench.on_request(&get_request("x"));
    assert_eq!(
        (refused.later, refused.reuse),
        (Phases::empty(), Reuse::Never),
        "{refused:?}"
    );
}

/// A breaker that closed holds a cell until it is forgotten, and its verdict as long.
#[test]
fn verdict_of_a_keyed_breaker_holds_until_the_breaker_is_forgotten() {
    let mut bench = new_bench(&[with_fields(rule_named("a"), &json!({"key": "namespace"}))]);
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(10_000);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    bench.host.advance_ms(1000);
    let until = bench.host.unix_ms() - 1000 + 3_600_001;
    let verdict = bench.on_request(&get_request("x"));
    assert_eq!(verdict.reuse, Reuse::UntilUnixMs(until));
    assert_eq!(bench.on_request(&get_request("y")).reuse, Reuse::WhileUnchanged);
}

/// The state may change between an outcome that reaches a threshold and the call that follows.
#[test]
fn crossing_of_an_earlier_state_opens_nothing() {
    let mut bench = new_bench(&[rule_named("a")]);
    let requests = [get_request("x"), get_request("x")];
    for req in &requests {
        bench.on_request(req);
    }
    let failed = failed_with(Failure::Unreachable);
    let crossings: Vec<_> = requests
        .iter()
        .flat_map(|req| bench.host.count_end(req, &failed))
        .collect();
    assert_eq!(crossings.len(), 1);
    let mut other = super::new_instance(&bench.host, &[rule_named("a")]);
    // The other instance opens the breaker, and closes it after a probe.
    ctrlmesh_sdk::Plugin::on_crossed(&mut other, &crossings, &bench.host);
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Opened");
    bench.host.advance_ms(10_000);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    ctrlmesh_sdk::Plugin::on_crossed(&mut bench.plugin, &crossings, &bench.host);
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
}

/// The number of a probe is that of the newest state that it met, so that a breaker that opened meanwhile does not hear of it.
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
    bench.finish(&early, &failed_with(Failure::Unreachable));
    assert_eq!(bench.host.report("a").unwrap()["state"], "HalfOpen");
    bench.finish(&probe, &failed_with(Failure::Unreachable));
    assert_eq!(bench.host.report("a").unwrap()["state"], "Opened");
}
