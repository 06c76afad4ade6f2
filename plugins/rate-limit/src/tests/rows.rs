use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest};
use ctrlmesh_sdk::{Bucket, Claim, Host, Plugin, RequestVerdict, Verb};
use serde_json::json;

use super::{RateLimit, ask, bench, granted, instance, outcome, rule, settings, update, with};

#[test]
fn cb_01_a_rule_has_a_token_bucket() {
    let mut bench = bench(&[rule("a", 2, 5)]);
    assert_eq!(granted(&mut bench, &update("x"), 10), 5);
    bench.host.advance_ms(500);
    assert_eq!(granted(&mut bench, &update("x"), 10), 1);
    bench.host.advance_ms(60_000);
    assert_eq!(granted(&mut bench, &update("x"), 10), 5);
}

/// The peer knows one bucket for each rule; here it may be one for each value of a key.
#[test]
fn cb_01_a_bucket_may_be_for_each_namespace_resource_or_user_agent() {
    let namespaces = |key: &str| with(rule("a", 1, 2), &json!({"key": key}));
    for (key, of_namespace, of_resource, of_agent) in [
        ("sidecar", 0, 0, 0),
        ("namespace", 2, 0, 0),
        ("resource", 0, 2, 0),
        ("userAgent", 0, 0, 2),
    ] {
        let mut bench = bench(&[namespaces(key)]);
        let first = update("x").agent("one");
        assert_eq!(granted(&mut bench, &first, 3), 2, "{key}");
        assert_eq!(granted(&mut bench, &update("y").agent("one"), 3), of_namespace, "{key}");
        let other = TestRequest::api(Verb::Update, "apps", "pods")
            .namespace("x")
            .agent("one");
        assert_eq!(granted(&mut bench, &other, 3), of_resource, "{key}");
        assert_eq!(granted(&mut bench, &update("x").agent("two"), 3), of_agent, "{key}");
        assert_eq!(granted(&mut bench, &first, 1), 0, "{key}");
    }
}

/// The peer applies only the most specific rule; here all count, and a refusal costs none of them a token.
#[test]
fn cb_02_every_rule_that_matches_must_grant() {
    let tight = with(
        rule("tight", 1, 1),
        &json!({"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["update"], "namespaces": ["x"]}]}),
    );
    let mut bench = bench(&[rule("wide", 1, 3), tight]);
    assert_eq!(granted(&mut bench, &update("x"), 5), 1);
    let refusal = ask(&mut bench, &update("x")).unwrap_err();
    assert_eq!(refusal.cause.as_deref(), Some("tight"));
    // Four refusals later the wide bucket still has all but the one token that was used.
    assert_eq!(granted(&mut bench, &update("y"), 5), 2);
    let refusal = ask(&mut bench, &update("y")).unwrap_err();
    assert_eq!(refusal.cause.as_deref(), Some("wide"));
    let counts = |name: &str| ["wide", "tight"].map(|rule| bench.host.counter(name, rule));
    assert_eq!((counts("granted"), counts("refused")), ([3, 1], [4, 5]));
}

#[test]
fn cb_03_a_plain_resource_leaves_its_subresources_alone() {
    let pods = with(
        rule("a", 1, 1),
        &json!({"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"]}]}),
    );
    let mut bench = bench(&[pods]);
    assert_eq!(granted(&mut bench, &update("x"), 3), 1);
    let status = update("x").subresource("status");
    assert!(!bench.wakes(&status));
    assert_eq!(bench.on_request(&status), RequestVerdict::proceed());
}

#[test]
fn cb_04_calls_to_other_services_are_limited_by_url_and_method() {
    let calls = with(
        rule("cloud", 1, 1),
        &json!({"resourceRules": [], "restRules": [{"url": "http://b.com/*", "method": "*"}]}),
    );
    let mut bench = bench(&[calls]);
    let call = |method: &str, path: &str| TestRequest::external(method, "b.com", path).with_port(80);
    assert_eq!(ask(&mut bench, &call("GET", "/")), Ok(0));
    let refusal = ask(&mut bench, &call("POST", "/x")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("cloud")));
    assert!(!bench.wakes(&TestRequest::external("GET", "c.com", "/").with_port(80)));
}

#[test]
fn cb_05_limiter_only_is_this_plugins_policy() {
    let policy = |policy: &str| {
        with(
            rule(policy, 1, 1),
            &json!({"triggerPolicy": policy, "recoverPolicy": {"type": "Manual"}}),
        )
    };
    let mut bench = bench(&[policy("LimiterOnly")]);
    assert_eq!(granted(&mut bench, &update("x"), 3), 1);
    bench.host.advance_ms(1000);
    assert_eq!(granted(&mut bench, &update("x"), 3), 1);
    for other in ["Normal", "ForceOpened", "ForceClosed"] {
        let bench = Bench::<RateLimit>::new(&settings(&[policy(other)])).unwrap();
        assert!(bench.subscription.rules.is_empty(), "{other}");
    }
    let error = Bench::<RateLimit>::new(&settings(&[policy("Normla")])).err().unwrap();
    assert!(
        error.starts_with("rateLimitings[0].triggerPolicy: unknown variant `Normla`"),
        "{error}"
    );
}

/// A Status that client-go waits for and repeats, instead of 417 text.
#[test]
fn cb_09_a_refusal_says_when_to_come_back() {
    for (limit, interval, wait_ms) in [(1, "1s", 1000), (1, "100ms", 100), (3, "10s", 3334), (1, "1m", 60_000)] {
        let slow = with(
            rule("slow", 1, 1),
            &json!({"bucket": {"limit": limit, "interval": interval, "burst": 1}}),
        );
        for seed in 0..20 {
            let host = FakeHost::seeded(seed);
            let mut plugin = instance(&host, std::slice::from_ref(&slow));
            let mut call = || outcome(plugin.on_request(&update("x"), &host));
            assert_eq!(call(), Ok(0));
            let refusal = call().unwrap_err();
            assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("slow")));
            let seconds = u64::from(refusal.retry_after_seconds.unwrap());
            let true_wait = f64::from(wait_ms) / 1000.0;
            assert!(
                seconds as f64 >= true_wait && (seconds as f64) < true_wait * 1.2 + 2.0,
                "{seconds} for {wait_ms} ms"
            );
            assert!(
                refusal.message.contains("\"slow\" is used up; try again in"),
                "{}",
                refusal.message
            );
            host.advance_ms(seconds * 1000);
            assert_eq!(call(), Ok(0));
        }
    }
}

#[test]
fn cb_09_clients_that_are_refused_together_do_not_return_together() {
    let mut bench = bench(&[with(
        rule("a", 1, 1),
        &json!({"bucket": {"limit": 1, "interval": "20s", "burst": 1}}),
    )]);
    assert_eq!(ask(&mut bench, &update("x")), Ok(0));
    let waits: std::collections::BTreeSet<u32> = (0..50)
        .map(|_| ask(&mut bench, &update("x")).unwrap_err().retry_after_seconds.unwrap())
        .collect();
    assert!(
        waits.len() > 3 && waits.iter().all(|wait| (20..=25).contains(wait)),
        "{waits:?}"
    );
}

#[test]
fn cb_12_buckets_outlive_edits_of_other_rules() {
    let host = FakeHost::default();
    let count = |plugin: &mut RateLimit, req: &TestRequest| {
        (0..10)
            .filter(|_| outcome(plugin.on_request(req, &host)).is_ok())
            .count()
    };
    let mut first = instance(&host, &[rule("a", 1, 4)]);
    assert_eq!(count(&mut first, &update("x")), 4);
    // Another rule comes in front, and the rule's own match changes.
    let narrow =
        json!({"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"]}]});
    let mut next = instance(&host, &[rule("b", 100, 100), with(rule("a", 1, 4), &narrow)]);
    assert_eq!(count(&mut next, &update("x")), 0);
    // Half full, then twice the size: half full still.
    host.advance_ms(2000);
    let mut larger = instance(&host, &[rule("a", 2, 8)]);
    assert_eq!(count(&mut larger, &update("x")), 4);
}

#[test]
fn a_burst_waits_in_the_queue_instead_of_being_refused() {
    let mut bench = bench(&[with(rule("a", 10, 1), &json!({"queue": "250ms"}))]);
    let waits: Vec<_> = (0..4).map(|_| ask(&mut bench, &update("x")).ok()).collect();
    assert_eq!(waits, [Some(0), Some(100), Some(200), None]);
    let counts = ["granted", "queued", "refused"].map(|name| bench.host.counter(name, "a"));
    assert_eq!(counts, [1, 2, 1]);
}

#[test]
fn a_leader_lock_is_limited_only_by_name() {
    let renew = TestRequest::api(Verb::Update, "coordination.k8s.io", "leases")
        .namespace("x")
        .name("operator");
    let mut wide = bench(&[rule("a", 1, 1)]);
    assert_eq!(granted(&mut wide, &renew, 5), 5);
    let leases = json!([{"apiGroups": ["*"], "resources": ["leases"], "verbs": ["*"], "namespaces": ["*"]}]);
    let mut named = bench(&[with(rule("a", 1, 1), &json!({"resourceRules": leases}))]);
    assert_eq!(granted(&mut named, &renew, 5), 1);
}

/// One token of the bucket that the late ones share.
fn shared_claim() -> Claim {
    let bucket = Bucket {
        limit: 1,
        interval_ms: 1000,
        burst: 2,
    };
    Claim {
        key: "tokens\na".to_owned(),
        bucket,
        tokens: 1,
    }
}

/// 1 024 keys are the most that an entry has. Whoever comes after them shares one bucket, of the same size.
#[test]
fn without_room_for_more_keys_the_rest_share_one_bucket() {
    let mut bench = bench(&[with(rule("a", 1, 2), &json!({"key": "namespace"}))]);
    for index in 0..1024 {
        assert_eq!(ask(&mut bench, &update(&format!("n{index}"))), Ok(0));
    }
    // No room even for the shared one: refused, not let through.
    let refusal = ask(&mut bench, &update("late")).unwrap_err();
    assert!(refusal.message.contains("more keys than"), "{}", refusal.message);
    assert_eq!(granted(&mut bench, &update("n7"), 5), 1);
    assert!(bench.host.counter("keys_exhausted", "") > 0);
    // One key is free: the shared bucket takes it, if a request of its own did not.
    bench.host.remove("tokens\na\nNamespace\nn9");
    bench.host.take(&[shared_claim()]).unwrap();
    let late: usize = (0..10)
        .map(|index| granted(&mut bench, &update(&format!("late{index}")), 1))
        .sum();
    assert_eq!(late, 1);
}
