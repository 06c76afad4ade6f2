//! Results that count as failures.

use ctrlmesh_sdk::testing::{TestRequest, TestResponse};
use ctrlmesh_sdk::{Failure, Outcome, Verb};
use serde_json::json;

use super::{
    admit_request, answered_with, failed_with, get_request, new_bench, rule_named, run_request, shown_state,
    trip_breaker, with_fields,
};

/// Whether two of these results in a row open the breaker.
fn opens_after_two(fields: &serde_json::Value, outcome: &Outcome) -> bool {
    let mut bench = new_bench(&[with_fields(rule_named("a"), fields)]);
    assert!(run_request(&mut bench, &get_request("x"), outcome) && run_request(&mut bench, &get_request("x"), outcome));
    admit_request(&mut bench, &get_request("x")).is_err()
}

#[test]
fn server_error_statuses_are_failures() {
    for (status, expected) in [
        (500, true),
        (503, true),
        (599, true),
        (429, true),
        (200, false),
        (400, false),
        (403, false),
        (404, false),
        (409, false),
        (410, false),
    ] {
        assert_eq!(
            opens_after_two(&json!({}), &answered_with(status)),
            expected,
            "{status}"
        );
    }
}

/// Clients of a hung server give up first: only the time they waited shows it.
#[test]
fn abandoned_call_counts_as_slow_when_it_took_too_long() {
    let trip = json!({"slowPercent": 50, "slowerThan": "1s", "minimumRequests": 2, "consecutiveFailures": 2});
    let after = |duration_us| Outcome {
        duration_us,
        ..failed_with(Failure::ClientGone)
    };
    assert!(opens_after_two(&json!({ "trip": trip }), &after(1_500_000)));
    assert!(!opens_after_two(&json!({ "trip": trip }), &after(500_000)));
    // The abandoned call does not interrupt a row of failures.
    let few = json!({"slowPercent": 50, "slowerThan": "1s", "minimumRequests": 9, "consecutiveFailures": 2});
    let mut bench = new_bench(&[with_fields(rule_named("a"), &json!({ "trip": few }))]);
    for outcome in [
        failed_with(Failure::Unreachable),
        after(1_500_000),
        failed_with(Failure::Unreachable),
    ] {
        assert!(run_request(&mut bench, &get_request("x"), &outcome));
    }
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
}

#[test]
fn ends_caused_by_the_server_are_failures() {
    for (outcome, expected) in [
        (failed_with(Failure::Unreachable), true),
        (failed_with(Failure::Timeout), true),
        (failed_with(Failure::UpstreamReset), true),
        (failed_with(Failure::ClientGone), false),
        (failed_with(Failure::PluginFailed), false),
        (failed_with(Failure::PluginReset), false),
        (
            Outcome {
                status: 500,
                ..failed_with(Failure::Refused)
            },
            false,
        ),
        // Another plugin answered in the server's place, or hid its response.
        (
            Outcome {
                upstream_status: 0,
                ..answered_with(500)
            },
            false,
        ),
        (
            Outcome {
                status: 200,
                ..answered_with(500)
            },
            true,
        ),
        (
            Outcome {
                status: 500,
                ..answered_with(200)
            },
            false,
        ),
        (
            Outcome {
                failure: Some(Failure::ClientGone),
                ..answered_with(500)
            },
            false,
        ),
    ] {
        assert_eq!(opens_after_two(&json!({}), &outcome), expected, "{outcome:?}");
    }
}

#[test]
fn failures_are_configurable() {
    let failures = json!({"failures": {"statusCodes": ["409", "4xx"], "connection": ["timeout"]}});
    for (outcome, expected) in [
        (answered_with(409), true),
        (answered_with(418), true),
        (answered_with(500), false),
        (failed_with(Failure::Timeout), true),
        (failed_with(Failure::Unreachable), false),
        (failed_with(Failure::UpstreamReset), false),
    ] {
        assert_eq!(opens_after_two(&failures, &outcome), expected, "{outcome:?}");
    }
}

/// A watch always ends, and often by a reset.
#[test]
fn watches_are_judged_by_their_status_alone() {
    let mut bench = new_bench(&[rule_named("a")]);
    let watch = || TestRequest::watch("", "pods");
    for _ in 0..3 {
        let cut = Outcome {
            upstream_status: 200,
            ..failed_with(Failure::UpstreamReset)
        };
        assert!(run_request(&mut bench, &watch(), &cut));
    }
    assert!(run_request(&mut bench, &watch(), &answered_with(500)));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    let exec = TestRequest::api(Verb::Create, "", "pods").name("p").subresource("exec");
    assert!(run_request(&mut bench, &exec, &answered_with(500)));
    assert!(admit_request(&mut bench, &watch()).is_err());
}

/// A reload asks again for each open watch, and would end those that are refused.
#[test]
fn open_breaker_leaves_open_watches_alone() {
    let mut bench = new_bench(&[rule_named("a")]);
    let watch = TestRequest::watch("", "pods");
    admit_request(&mut bench, &watch).unwrap();
    trip_breaker(&mut bench, &get_request("x"));
    let watch = watch.recheck();
    assert!(admit_request(&mut bench, &watch).is_ok());
    assert!(admit_request(&mut bench, &TestRequest::watch("", "pods")).is_err());
    bench.host.advance_ms(10_000);
    assert!(admit_request(&mut bench, &watch).is_ok());
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Opened");
    let mut forced = super::reload_rules(
        bench,
        &[with_fields(rule_named("a"), &json!({"triggerPolicy": "ForceOpened"}))],
    );
    assert!(admit_request(&mut forced, &watch).is_err());
}

#[test]
fn watch_counts_at_its_end_when_unanswered() {
    let mut bench = new_bench(&[rule_named("a")]);
    for _ in 0..2 {
        assert!(run_request(
            &mut bench,
            &TestRequest::watch("", "pods"),
            &failed_with(Failure::Unreachable)
        ));
    }
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
}

/// The host takes a limited number of ranges; there are more statuses.
#[test]
fn any_number_of_statuses_can_be_failures() {
    let codes: Vec<String> = (100..600).step_by(2).map(|code| code.to_string()).collect();
    let all: Vec<String> = (100..600).map(|code| code.to_string()).collect();
    let failures = |codes: &[String]| json!({"failures": {"statusCodes": codes}});
    assert!(opens_after_two(&failures(&codes), &answered_with(200)));
    assert!(!opens_after_two(&failures(&codes), &answered_with(201)));
    assert!(opens_after_two(&failures(&all), &answered_with(201)));
    let overlapping = ["4xx", "404", "400", "500"].map(str::to_owned);
    assert!(opens_after_two(&failures(&overlapping), &answered_with(499)));
    assert!(opens_after_two(&failures(&overlapping), &answered_with(500)));
    assert!(!opens_after_two(&failures(&overlapping), &answered_with(501)));
}

/// Other responses are judged when they are complete: a body that breaks off is a failure despite a 200.
#[test]
fn other_responses_count_when_complete() {
    let mut bench = new_bench(&[rule_named("a")]);
    let list = || TestRequest::list("", "pods");
    let first = list();
    admit_request(&mut bench, &first).unwrap();
    bench.respond(&first, &TestResponse::new(500));
    bench.respond(&first, &TestResponse::new(500));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    let cut = Outcome {
        upstream_status: 200,
        ..failed_with(Failure::UpstreamReset)
    };
    assert!(run_request(&mut bench, &list(), &cut) && run_request(&mut bench, &list(), &cut));
    assert!(admit_request(&mut bench, &list()).is_err());
}

#[test]
fn own_refusals_do_not_keep_the_breaker_open() {
    let mut bench = new_bench(&[rule_named("a")]);
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(5000);
    assert!((0..20).all(|_| !run_request(&mut bench, &get_request("x"), &answered_with(200))));
    bench.host.advance_ms(5000);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
}
