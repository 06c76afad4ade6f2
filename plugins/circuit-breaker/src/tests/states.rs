use ctrlmesh_sdk::testing::{Bench, TestRequest, TestResponse};
use ctrlmesh_sdk::{Failure, Outcome, Phases, Verb};
use serde_json::json;

use super::{
    CircuitBreaker, active_probes, admit_request, answered_with, failed_with, get_request, new_bench, reload_rules,
    rule_named, run_request, shown_state, trip_breaker, vnc_request, with_fields,
};

fn bucket_rule() -> serde_json::Value {
    let fields = json!({"trip": null, "bucket": {"limit": 1, "interval": "1s", "burst": 2}});
    with_fields(rule_named("a"), &fields)
}

/// A bench whose breaker has opened, and whose sleeping window is over: the next request is a probe.
fn bench_before_probe() -> Bench<CircuitBreaker> {
    let mut bench = new_bench(&[rule_named("a")]);
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(10_000);
    bench
}

/// The trigger of the CRD: the bucket is empty.
#[test]
fn cb_05_normal_opens_when_bucket_is_empty() {
    let mut bench = new_bench(&[bucket_rule()]);
    assert!(
        run_request(&mut bench, &get_request("x"), &answered_with(200))
            && run_request(&mut bench, &get_request("x"), &answered_with(200))
    );
    let refusal = admit_request(&mut bench, &get_request("x")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("a")));
    assert!(
        refusal.message.contains("\"a\" is open: its bucket was empty"),
        "{}",
        refusal.message
    );
    // The bucket is full again, but the breaker stays open.
    bench.host.advance_ms(9000);
    assert!(!run_request(&mut bench, &get_request("x"), &answered_with(200)));
    bench.host.advance_ms(1000);
    assert!(
        run_request(&mut bench, &get_request("x"), &answered_with(200))
            && run_request(&mut bench, &get_request("x"), &answered_with(200))
    );
}

/// The peer panics on the first request over the limit.
#[test]
fn cb_05_normal_stays_open_without_recover_policy() {
    let mut bench = new_bench(&[with_fields(bucket_rule(), &json!({"recoverPolicy": null}))]);
    assert!(
        run_request(&mut bench, &get_request("x"), &answered_with(200))
            && run_request(&mut bench, &get_request("x"), &answered_with(200))
    );
    bench.host.advance_ms(86_400_000);
    assert!(
        run_request(&mut bench, &get_request("x"), &answered_with(200))
            && run_request(&mut bench, &get_request("x"), &answered_with(200))
    );
    let refusal = admit_request(&mut bench, &get_request("x")).unwrap_err();
    assert!(
        refusal.message.contains("open until somebody closes it"),
        "{}",
        refusal.message
    );
    bench.host.advance_ms(86_400_000);
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
}

#[test]
fn cb_05_forced_policies_open_and_close() {
    let forced = |policy: &str| with_fields(bucket_rule(), &json!({"triggerPolicy": policy}));
    let mut open = new_bench(&[forced("ForceOpened")]);
    let refusal = admit_request(&mut open, &get_request("x")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("a")));
    assert!(refusal.message.contains("ForceOpened"), "{}", refusal.message);
    assert_eq!(
        shown_state(&open, "a").unwrap(),
        ("Opened".to_owned(), "forced".to_owned())
    );
    assert_eq!(open.subscription.phases, Phases::ON_REQUEST);
    let mut closed = reload_rules(open, &[forced("ForceClosed")]);
    assert!((0..10).all(|_| run_request(&mut closed, &get_request("x"), &answered_with(500))));
    assert_eq!(
        shown_state(&closed, "a").unwrap(),
        ("Closed".to_owned(), "forced".to_owned())
    );
    // LimiterOnly is for rate-limit.
    let limiter = reload_rules(closed, &[forced("LimiterOnly")]);
    assert!(limiter.subscription.rules.is_empty());
    assert_eq!(shown_state(&limiter, "a"), None);
}

/// A breaker that was open before it was forced closed starts anew.
#[test]
fn cb_05_forced_policy_leaves_no_open_breaker_behind() {
    let mut bench = new_bench(&[rule_named("a")]);
    trip_breaker(&mut bench, &get_request("x"));
    let bench = reload_rules(
        bench,
        &[with_fields(rule_named("a"), &json!({"triggerPolicy": "ForceClosed"}))],
    );
    let mut bench = reload_rules(bench, &[rule_named("a")]);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
}

#[test]
fn cb_06_sleeping_window_ends_in_a_closing_probe() {
    let mut bench = new_bench(&[rule_named("a")]);
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(9999);
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
    bench.host.advance_ms(1);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    assert!(
        run_request(&mut bench, &get_request("x"), &answered_with(500)),
        "one failure opened it: old ones still count"
    );
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
}

/// In the peer, an edit while the breaker is open can leave it open for ever.
#[test]
fn cb_06_edit_does_not_move_the_end_of_the_sleeping_window() {
    let mut bench = new_bench(&[rule_named("a")]);
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(5000);
    let mut bench = reload_rules(
        bench,
        &[rule_named("b"), with_fields(rule_named("a"), &json!({"probes": 2}))],
    );
    assert!(
        admit_request(&mut bench, &get_request("x")).is_err(),
        "the edit closed it"
    );
    bench.host.advance_ms(5000);
    assert!(
        run_request(&mut bench, &get_request("x"), &answered_with(200))
            && run_request(&mut bench, &get_request("x"), &answered_with(200))
    );
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(10_000);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
}

#[test]
fn cb_08_half_open_admits_a_bounded_number_of_probes() {
    let mut bench = new_bench(&[with_fields(rule_named("a"), &json!({"probes": 2}))]);
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(10_000);
    let [first, second] = [get_request("x"), get_request("y")];
    assert!(admit_request(&mut bench, &first).is_ok() && admit_request(&mut bench, &second).is_ok());
    let refusal = admit_request(&mut bench, &get_request("z")).unwrap_err();
    assert!(refusal.message.contains("waits for its probes") && refusal.retry_after_seconds.unwrap() <= 2);
    assert_eq!(shown_state(&bench, "a").unwrap().0, "HalfOpen");
    bench.on_complete(&first, &answered_with(200));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "HalfOpen");
    bench.on_complete(&second, &answered_with(200));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    let counts = ["probed", "opened", "closed", "passed"].map(|name| bench.host.counter(name, "a"));
    assert_eq!(counts, [2, 1, 1, 2]);
}

#[test]
fn cb_08_failed_probe_opens_for_a_whole_sleeping_window() {
    let mut bench = bench_before_probe();
    assert!(run_request(
        &mut bench,
        &get_request("x"),
        &failed_with(Failure::Timeout)
    ));
    assert_eq!(
        shown_state(&bench, "a").unwrap(),
        ("Opened".to_owned(), "a probe failed".to_owned())
    );
    bench.host.advance_ms(9999);
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
    bench.host.advance_ms(1);
    assert!(admit_request(&mut bench, &get_request("x")).is_ok());
}

/// The peer's exponential back-off panics at the first request.
#[test]
fn ok_66_failed_probes_double_the_sleeping_window_up_to_a_bound() {
    let policy = json!({"type": "SleepingWindow", "sleepingWindowSize": "10s", "maxSleepingWindowSize": "35s"});
    let mut bench = new_bench(&[with_fields(rule_named("a"), &json!({"recoverPolicy": policy}))]);
    let waits_and_probes = |bench: &mut Bench<CircuitBreaker>, window_ms: u64, status: u16| {
        bench.host.advance_ms(window_ms - 1);
        assert!(admit_request(bench, &get_request("x")).is_err(), "{window_ms}");
        bench.host.advance_ms(1);
        assert!(
            run_request(bench, &get_request("x"), &answered_with(status)),
            "{window_ms}"
        );
    };
    trip_breaker(&mut bench, &get_request("x"));
    for window_ms in [10_000, 20_000, 35_000, 35_000] {
        waits_and_probes(&mut bench, window_ms, 500);
    }
    waits_and_probes(&mut bench, 35_000, 200);
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    trip_breaker(&mut bench, &get_request("x"));
    waits_and_probes(&mut bench, 10_000, 200);
}

/// An inconclusive probe frees its place, and the next request is a probe.
#[test]
fn cb_08_inconclusive_probe_is_followed_by_another() {
    let mut bench = bench_before_probe();
    assert!(run_request(
        &mut bench,
        &get_request("x"),
        &failed_with(Failure::ClientGone)
    ));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "HalfOpen");
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
}

/// A watch as a probe is judged when its response begins; the place that it keeps for hours belongs to no later round.
#[test]
fn cb_08_watch_can_be_a_probe() {
    let mut bench = bench_before_probe();
    let watch = TestRequest::watch("", "pods");
    admit_request(&mut bench, &watch).unwrap();
    bench.on_response(&watch, &TestResponse::new(200));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(10_000);
    assert!(active_probes(&bench.host).iter().any(|(_, held)| *held == 1));
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
}

/// Any subresource may become a tunnel, whose end says nothing about the server.
#[test]
fn cb_08_tunnel_of_any_subresource_is_judged_at_its_101() {
    let mut bench = bench_before_probe();
    let vnc = vnc_request();
    admit_request(&mut bench, &vnc).unwrap();
    assert!(
        admit_request(&mut bench, &get_request("x")).is_err(),
        "the probe has the only place"
    );
    bench.respond(&vnc, &TestResponse::new(101));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    assert!(admit_request(&mut bench, &get_request("x")).is_ok());
    let cut = Outcome {
        failure: Some(Failure::UpstreamReset),
        ..answered_with(101)
    };
    bench.finish(&vnc, &cut);
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
}

/// A response without a tunnel is judged when it is complete, as for other requests.
#[test]
fn cb_08_subresource_without_tunnel_is_judged_at_its_end() {
    let mut bench = bench_before_probe();
    let vnc = vnc_request();
    admit_request(&mut bench, &vnc).unwrap();
    bench.respond(&vnc, &TestResponse::new(200));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "HalfOpen");
    bench.finish(&vnc, &answered_with(200));
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
}

#[test]
fn cb_09_refusals_make_client_go_wait_and_retry() {
    let mut bench = new_bench(&[with_fields(
        rule_named("a"),
        &json!({"restRules": [{"url": "*", "method": "*"}]}),
    )]);
    trip_breaker(&mut bench, &get_request("x"));
    for _ in 0..20 {
        let refusal = admit_request(&mut bench, &get_request("x")).unwrap_err();
        assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("a")));
        assert!((10..=13).contains(&refusal.retry_after_seconds.unwrap()));
    }
    let refusal = admit_request(&mut bench, &TestRequest::external("GET", "b.com", "/")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (503, Some("a")));
    assert!(refusal.retry_after_seconds.is_some());
}

#[test]
fn cb_12_breaker_survives_edits_of_other_rules() {
    let mut bench = new_bench(&[rule_named("a")]);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(500)));
    let mut bench = reload_rules(bench, &[rule_named("b"), rule_named("a")]);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(500)));
    let refusal = admit_request(&mut bench, &get_request("x")).unwrap_err();
    assert_eq!(refusal.cause.as_deref(), Some("a"), "{}", refusal.message);
    let mut bench = reload_rules(bench, &[rule_named("a")]);
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
}

#[test]
fn leader_lock_is_refused_only_when_named() {
    let renew = TestRequest::api(Verb::Update, "coordination.k8s.io", "leases")
        .namespace("x")
        .name("operator");
    let mut wide = new_bench(&[
        rule_named("a"),
        with_fields(rule_named("b"), &json!({"triggerPolicy": "ForceOpened"})),
    ]);
    assert!((0..5).all(|_| run_request(&mut wide, &renew, &answered_with(500))));
    let leases = json!([{"apiGroups": ["*"], "resources": ["leases"], "verbs": ["*"], "namespaces": ["*"]}]);
    let mut named = new_bench(&[with_fields(rule_named("a"), &json!({"resourceRules": leases}))]);
    trip_breaker(&mut named, &renew);
}

/// One rule refuses, the other admits: the request is refused, and the other's probe is not spent.
#[test]
fn request_passes_only_when_every_matching_breaker_admits_it() {
    let of_x = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["x"]}]);
    let mut bench = new_bench(&[
        rule_named("a"),
        with_fields(rule_named("b"), &json!({"resourceRules": of_x})),
    ]);
    trip_breaker(&mut bench, &get_request("y"));
    bench.host.advance_ms(10_000);
    // `a` is half open now; `b` opens.
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(5000);
    assert!(admit_request(&mut bench, &get_request("x")).is_err());
    assert!(admit_request(&mut bench, &get_request("y")).is_err());
    bench.host.advance_ms(5000);
    assert!(run_request(&mut bench, &get_request("y"), &answered_with(200)));
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
}
