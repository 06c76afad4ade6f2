//! What counts as a failure.

use ctrlmesh_sdk::testing::{TestRequest, TestResponse};
use ctrlmesh_sdk::{Failure, Outcome, Verb};
use serde_json::json;

use super::{answer, bench, call, end, enter, get, rule, shown, trip, with};

/// Whether two of these in a row open the breaker.
fn opens(fields: &serde_json::Value, outcome: &Outcome) -> bool {
    let mut bench = bench(&[with(rule("a"), fields)]);
    assert!(call(&mut bench, &get("x"), outcome) && call(&mut bench, &get("x"), outcome));
    enter(&mut bench, &get("x")).is_err()
}

#[test]
fn failures_are_statuses_that_say_that_the_server_is_ill() {
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
        assert_eq!(opens(&json!({}), &answer(status)), expected, "{status}");
    }
}

/// A server that hangs meets clients that give up first: only how long they waited tells.
#[test]
fn a_call_that_its_client_gave_up_counts_as_slow_if_it_was() {
    let trip = json!({"slowPercent": 50, "slowerThan": "1s", "minimumRequests": 2, "consecutiveFailures": 2});
    let after = |duration_us| Outcome {
        duration_us,
        ..end(Failure::ClientGone)
    };
    assert!(opens(&json!({ "trip": trip }), &after(1_500_000)));
    assert!(!opens(&json!({ "trip": trip }), &after(500_000)));
    // It does not interrupt a row of failures.
    let few = json!({"slowPercent": 50, "slowerThan": "1s", "minimumRequests": 9, "consecutiveFailures": 2});
    let mut bench = bench(&[with(rule("a"), &json!({ "trip": few }))]);
    for outcome in [end(Failure::Unreachable), after(1_500_000), end(Failure::Unreachable)] {
        assert!(call(&mut bench, &get("x"), &outcome));
    }
    assert!(enter(&mut bench, &get("x")).is_err());
}

#[test]
fn failures_are_ends_that_are_the_servers() {
    for (outcome, expected) in [
        (end(Failure::Unreachable), true),
        (end(Failure::Timeout), true),
        (end(Failure::UpstreamReset), true),
        (end(Failure::ClientGone), false),
        (end(Failure::PluginFailed), false),
        (end(Failure::PluginReset), false),
        (
            Outcome {
                status: 500,
                ..end(Failure::Refused)
            },
            false,
        ),
        // Another plugin answered in the server's place, or hid what it said.
        (
            Outcome {
                upstream_status: 0,
                ..answer(500)
            },
            false,
        ),
        (
            Outcome {
                status: 200,
                ..answer(500)
            },
            true,
        ),
        (
            Outcome {
                status: 500,
                ..answer(200)
            },
            false,
        ),
        (
            Outcome {
                failure: Some(Failure::ClientGone),
                ..answer(500)
            },
            false,
        ),
    ] {
        assert_eq!(opens(&json!({}), &outcome), expected, "{outcome:?}");
    }
}

#[test]
fn what_a_failure_is_can_be_said() {
    let failures = json!({"failures": {"statusCodes": ["409", "4xx"], "connection": ["timeout"]}});
    for (outcome, expected) in [
        (answer(409), true),
        (answer(418), true),
        (answer(500), false),
        (end(Failure::Timeout), true),
        (end(Failure::Unreachable), false),
        (end(Failure::UpstreamReset), false),
    ] {
        assert_eq!(opens(&failures, &outcome), expected, "{outcome:?}");
    }
}

/// A watch always ends, and often by a reset.
#[test]
fn watches_count_by_the_status_of_their_answer_alone() {
    let mut bench = bench(&[rule("a")]);
    let watch = || TestRequest::watch("", "pods");
    for _ in 0..3 {
        let cut = Outcome {
            upstream_status: 200,
            ..end(Failure::UpstreamReset)
        };
        assert!(call(&mut bench, &watch(), &cut));
    }
    assert!(call(&mut bench, &watch(), &answer(500)));
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    let exec = TestRequest::api(Verb::Create, "", "pods").name("p").subresource("exec");
    assert!(call(&mut bench, &exec, &answer(500)));
    assert!(enter(&mut bench, &watch()).is_err());
}

/// A reload asks again for each open watch, and would end those that are refused.
#[test]
fn an_open_breaker_leaves_open_watches_alone() {
    let mut bench = bench(&[rule("a")]);
    let watch = TestRequest::watch("", "pods");
    enter(&mut bench, &watch).unwrap();
    trip(&mut bench, &get("x"));
    let watch = watch.recheck();
    assert!(enter(&mut bench, &watch).is_ok());
    assert!(enter(&mut bench, &TestRequest::watch("", "pods")).is_err());
    bench.host.advance_ms(10_000);
    assert!(enter(&mut bench, &watch).is_ok());
    assert_eq!(shown(&bench, "a").unwrap().0, "Opened");
    let mut forced = super::reload(bench, &[with(rule("a"), &json!({"triggerPolicy": "ForceOpened"}))]);
    assert!(enter(&mut forced, &watch).is_err());
}

#[test]
fn a_watch_without_an_answer_counts_at_its_end() {
    let mut bench = bench(&[rule("a")]);
    for _ in 0..2 {
        assert!(call(
            &mut bench,
            &TestRequest::watch("", "pods"),
            &end(Failure::Unreachable)
        ));
    }
    assert!(enter(&mut bench, &get("x")).is_err());
}

/// Other answers are judged when they are complete: a body that breaks off is a failure behind a 200.
#[test]
fn other_answers_count_when_they_are_complete() {
    let mut bench = bench(&[rule("a")]);
    let list = || TestRequest::list("", "pods");
    let first = list();
    enter(&mut bench, &first).unwrap();
    bench.on_response(&first, &TestResponse::new(500));
    bench.on_response(&first, &TestResponse::new(500));
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    let cut = Outcome {
        upstream_status: 200,
        ..end(Failure::UpstreamReset)
    };
    assert!(call(&mut bench, &list(), &cut) && call(&mut bench, &list(), &cut));
    assert!(enter(&mut bench, &list()).is_err());
}

#[test]
fn refusals_of_the_breaker_itself_do_not_keep_it_open() {
    let mut bench = bench(&[rule("a")]);
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(5000);
    assert!((0..20).all(|_| !call(&mut bench, &get("x"), &answer(200))));
    bench.host.advance_ms(5000);
    assert!(call(&mut bench, &get("x"), &answer(200)));
    assert!(call(&mut bench, &get("x"), &answer(200)));
}
