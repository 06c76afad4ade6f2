use ctrlmesh_sdk::testing::{Bench, TestRequest};
use ctrlmesh_sdk::{Failure, Phases, Verb};
use serde_json::json;

use super::{CircuitBreaker, answer, bench, call, end, enter, get, probes, reload, rule, shown, trip, with};

fn bucket() -> serde_json::Value {
    let fields = json!({"trip": null, "bucket": {"limit": 1, "interval": "1s", "burst": 2}});
    with(rule("a"), &fields)
}

/// The trigger of the CRD: the bucket is empty.
#[test]
fn cb_05_normal_opens_when_its_bucket_is_empty() {
    let mut bench = bench(&[bucket()]);
    assert!(call(&mut bench, &get("x"), &answer(200)) && call(&mut bench, &get("x"), &answer(200)));
    let refusal = enter(&mut bench, &get("x")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("a")));
    assert!(
        refusal.message.contains("\"a\" is open: its bucket was empty"),
        "{}",
        refusal.message
    );
    // The bucket is full again, and the breaker is open all the same.
    bench.host.advance_ms(9000);
    assert!(!call(&mut bench, &get("x"), &answer(200)));
    bench.host.advance_ms(1000);
    assert!(call(&mut bench, &get("x"), &answer(200)) && call(&mut bench, &get("x"), &answer(200)));
}

/// The peer dies of a nil pointer on the first request over the limit.
#[test]
fn cb_05_normal_without_a_recover_policy_stays_open() {
    let mut bench = bench(&[with(bucket(), &json!({"recoverPolicy": null}))]);
    assert!(call(&mut bench, &get("x"), &answer(200)) && call(&mut bench, &get("x"), &answer(200)));
    bench.host.advance_ms(86_400_000);
    assert!(call(&mut bench, &get("x"), &answer(200)) && call(&mut bench, &get("x"), &answer(200)));
    let refusal = enter(&mut bench, &get("x")).unwrap_err();
    assert!(
        refusal.message.contains("open until somebody closes it"),
        "{}",
        refusal.message
    );
    bench.host.advance_ms(86_400_000);
    assert!(enter(&mut bench, &get("x")).is_err());
}

#[test]
fn cb_05_forced_policies_are_as_they_say() {
    let forced = |policy: &str| with(bucket(), &json!({"triggerPolicy": policy}));
    let mut open = bench(&[forced("ForceOpened")]);
    let refusal = enter(&mut open, &get("x")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("a")));
    assert!(refusal.message.contains("ForceOpened"), "{}", refusal.message);
    assert_eq!(shown(&open, "a").unwrap(), ("Opened".to_owned(), "forced".to_owned()));
    assert_eq!(open.subscription.phases, Phases::ON_REQUEST);
    let mut closed = reload(open, &[forced("ForceClosed")]);
    assert!((0..10).all(|_| call(&mut closed, &get("x"), &answer(500))));
    assert_eq!(shown(&closed, "a").unwrap(), ("Closed".to_owned(), "forced".to_owned()));
    // For rate-limit.
    let limiter = reload(closed, &[forced("LimiterOnly")]);
    assert!(limiter.subscription.rules.is_empty());
    assert_eq!(shown(&limiter, "a"), None);
}

/// A breaker that was open before it was forced closed starts anew.
#[test]
fn cb_05_a_forced_policy_leaves_no_open_breaker_behind() {
    let mut bench = bench(&[rule("a")]);
    trip(&mut bench, &get("x"));
    let bench = reload(bench, &[with(rule("a"), &json!({"triggerPolicy": "ForceClosed"}))]);
    let mut bench = reload(bench, &[rule("a")]);
    assert!(call(&mut bench, &get("x"), &answer(200)));
}

#[test]
fn cb_06_a_sleeping_window_ends_in_a_probe_that_closes() {
    let mut bench = bench(&[rule("a")]);
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(9999);
    assert!(enter(&mut bench, &get("x")).is_err());
    bench.host.advance_ms(1);
    assert!(call(&mut bench, &get("x"), &answer(200)));
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    assert!(
        call(&mut bench, &get("x"), &answer(500)),
        "one failure opened it: old ones still count"
    );
    assert!(call(&mut bench, &get("x"), &answer(200)));
}

/// In the peer an edit while open can leave the breaker open for ever.
#[test]
fn cb_06_an_edit_does_not_change_when_the_window_ends() {
    let mut bench = bench(&[rule("a")]);
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(5000);
    let mut bench = reload(bench, &[rule("b"), with(rule("a"), &json!({"probes": 2}))]);
    assert!(enter(&mut bench, &get("x")).is_err(), "the edit closed it");
    bench.host.advance_ms(5000);
    assert!(call(&mut bench, &get("x"), &answer(200)) && call(&mut bench, &get("x"), &answer(200)));
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(10_000);
    assert!(call(&mut bench, &get("x"), &answer(200)));
}

#[test]
fn cb_08_half_open_lets_a_bounded_number_of_probes_through() {
    let mut bench = bench(&[with(rule("a"), &json!({"probes": 2}))]);
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(10_000);
    let [first, second] = [get("x"), get("y")];
    assert!(enter(&mut bench, &first).is_ok() && enter(&mut bench, &second).is_ok());
    let refusal = enter(&mut bench, &get("z")).unwrap_err();
    assert!(refusal.message.contains("waits for its probes") && refusal.retry_after_seconds.unwrap() <= 2);
    assert_eq!(shown(&bench, "a").unwrap().0, "HalfOpen");
    bench.on_complete(&first, &answer(200));
    assert_eq!(shown(&bench, "a").unwrap().0, "HalfOpen");
    bench.on_complete(&second, &answer(200));
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    let counts = ["probed", "opened", "closed", "passed"].map(|name| bench.host.counter(name, "a"));
    assert_eq!(counts, [2, 1, 1, 2]);
}

#[test]
fn cb_08_a_failed_probe_opens_again_for_a_whole_window() {
    let mut bench = bench(&[rule("a")]);
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(10_000);
    assert!(call(&mut bench, &get("x"), &end(Failure::Timeout)));
    assert_eq!(
        shown(&bench, "a").unwrap(),
        ("Opened".to_owned(), "a probe failed".to_owned())
    );
    bench.host.advance_ms(9999);
    assert!(enter(&mut bench, &get("x")).is_err());
    bench.host.advance_ms(1);
    assert!(enter(&mut bench, &get("x")).is_ok());
}

/// The peer's exponential back-off: it panics there at the first request.
#[test]
fn ok_66_each_failed_probe_doubles_the_window_up_to_a_bound() {
    let policy = json!({"type": "SleepingWindow", "sleepingWindowSize": "10s", "maxSleepingWindowSize": "35s"});
    let mut bench = bench(&[with(rule("a"), &json!({"recoverPolicy": policy}))]);
    let waits_and_probes = |bench: &mut Bench<CircuitBreaker>, window_ms: u64, status: u16| {
        bench.host.advance_ms(window_ms - 1);
        assert!(enter(bench, &get("x")).is_err(), "{window_ms}");
        bench.host.advance_ms(1);
        assert!(call(bench, &get("x"), &answer(status)), "{window_ms}");
    };
    trip(&mut bench, &get("x"));
    for window_ms in [10_000, 20_000, 35_000, 35_000] {
        waits_and_probes(&mut bench, window_ms, 500);
    }
    waits_and_probes(&mut bench, 35_000, 200);
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    trip(&mut bench, &get("x"));
    waits_and_probes(&mut bench, 10_000, 200);
}

/// A probe that says nothing gives its place back, and the next request is one.
#[test]
fn cb_08_a_probe_that_says_nothing_is_followed_by_another() {
    let mut bench = bench(&[rule("a")]);
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(10_000);
    assert!(call(&mut bench, &get("x"), &end(Failure::ClientGone)));
    assert_eq!(shown(&bench, "a").unwrap().0, "HalfOpen");
    assert!(call(&mut bench, &get("x"), &answer(200)));
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
}

/// A watch as a probe is judged when its answer begins; the place that it holds for hours is of no later round.
#[test]
fn cb_08_a_watch_can_be_a_probe() {
    let mut bench = bench(&[rule("a")]);
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(10_000);
    let watch = TestRequest::watch("", "pods");
    enter(&mut bench, &watch).unwrap();
    bench.on_response(&watch, &ctrlmesh_sdk::testing::TestResponse::new(200));
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(10_000);
    assert!(probes(&bench.host).iter().any(|(_, held)| *held == 1));
    assert!(call(&mut bench, &get("x"), &answer(200)));
}

#[test]
fn cb_09_refusals_are_for_client_go_to_wait_and_repeat() {
    let mut bench = bench(&[with(rule("a"), &json!({"restRules": [{"url": "*", "method": "*"}]}))]);
    trip(&mut bench, &get("x"));
    for _ in 0..20 {
        let refusal = enter(&mut bench, &get("x")).unwrap_err();
        assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("a")));
        assert!((10..=13).contains(&refusal.retry_after_seconds.unwrap()));
    }
    let refusal = enter(&mut bench, &TestRequest::external("GET", "b.com", "/")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (503, Some("a")));
    assert!(refusal.retry_after_seconds.is_some());
}

#[test]
fn cb_12_a_breaker_outlives_edits_of_other_rules() {
    let mut bench = bench(&[rule("a")]);
    assert!(call(&mut bench, &get("x"), &answer(500)));
    let mut bench = reload(bench, &[rule("b"), rule("a")]);
    assert!(call(&mut bench, &get("x"), &answer(500)));
    let refusal = enter(&mut bench, &get("x")).unwrap_err();
    assert_eq!(refusal.cause.as_deref(), Some("a"), "{}", refusal.message);
    let mut bench = reload(bench, &[rule("a")]);
    assert!(enter(&mut bench, &get("x")).is_err());
}

#[test]
fn a_leader_lock_is_broken_only_by_name() {
    let renew = TestRequest::api(Verb::Update, "coordination.k8s.io", "leases")
        .namespace("x")
        .name("operator");
    let mut wide = bench(&[rule("a"), with(rule("b"), &json!({"triggerPolicy": "ForceOpened"}))]);
    assert!((0..5).all(|_| call(&mut wide, &renew, &answer(500))));
    let leases = json!([{"apiGroups": ["*"], "resources": ["leases"], "verbs": ["*"], "namespaces": ["*"]}]);
    let mut named = bench(&[with(rule("a"), &json!({"resourceRules": leases}))]);
    trip(&mut named, &renew);
}

/// One rule refuses, the other lets through: refused, and the other's probe is not spent.
#[test]
fn every_breaker_that_matches_must_let_through() {
    let of_x = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["x"]}]);
    let mut bench = bench(&[rule("a"), with(rule("b"), &json!({"resourceRules": of_x}))]);
    trip(&mut bench, &get("y"));
    bench.host.advance_ms(10_000);
    // `a` is half open now; `b` opens.
    assert!(call(&mut bench, &get("x"), &answer(200)));
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(5000);
    assert!(enter(&mut bench, &get("x")).is_err());
    assert!(enter(&mut bench, &get("y")).is_err());
    bench.host.advance_ms(5000);
    assert!(call(&mut bench, &get("y"), &answer(200)));
    assert!(call(&mut bench, &get("x"), &answer(200)));
}
