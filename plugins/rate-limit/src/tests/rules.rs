use ctrlmesh_sdk::testing::{Bench, FakeHost, TestRequest};
use ctrlmesh_sdk::{Bucket, Claim, Host, Plugin, RequestVerdict, Reuse, Verb};
use serde_json::json;

use super::{
    RateLimit, count_granted, delay_or_refusal, new_bench, new_instance, request_outcome, rule_with_rate,
    settings_json, update_request, with_fields,
};

#[test]
fn cb_01_rule_has_a_token_bucket() {
    let mut bench = new_bench(&[rule_with_rate("a", 2, 5)]);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 10), 5);
    bench.host.advance_ms(500);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 10), 1);
    bench.host.advance_ms(60_000);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 10), 5);
}

/// The peer has one bucket for each rule; here there may be one for each value of a key.
#[test]
fn cb_01_bucket_is_kept_per_namespace_resource_or_user_agent() {
    let namespaces = |key: &str| with_fields(rule_with_rate("a", 1, 2), &json!({"key": key}));
    for (key, of_namespace, of_resource, of_agent) in [
        ("sidecar", 0, 0, 0),
        ("namespace", 2, 0, 0),
        ("resource", 0, 2, 0),
        ("userAgent", 0, 0, 2),
    ] {
        let mut bench = new_bench(&[namespaces(key)]);
        let first = update_request("x").agent("one");
        assert_eq!(count_granted(&mut bench, &first, 3), 2, "{key}");
        assert_eq!(
            count_granted(&mut bench, &update_request("y").agent("one"), 3),
            of_namespace,
            "{key}"
        );
        let other = TestRequest::api(Verb::Update, "apps", "pods")
            .namespace("x")
            .agent("one");
        assert_eq!(count_granted(&mut bench, &other, 3), of_resource, "{key}");
        assert_eq!(
            count_granted(&mut bench, &update_request("x").agent("two"), 3),
            of_agent,
            "{key}"
        );
        assert_eq!(count_granted(&mut bench, &first, 1), 0, "{key}");
    }
}

/// The peer applies only the most specific rule; here all rules count, and a refusal costs none of them a token.
#[test]
fn cb_02_every_matching_rule_must_grant() {
    let tight = with_fields(
        rule_with_rate("tight", 1, 1),
        &json!({"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["update"], "namespaces": ["x"]}]}),
    );
    let mut bench = new_bench(&[rule_with_rate("wide", 1, 3), tight]);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 5), 1);
    let refusal = request_outcome(&mut bench, &update_request("x")).unwrap_err();
    assert_eq!(refusal.cause.as_deref(), Some("tight"));
    // Four refusals later, the wide bucket has all but the one used token.
    assert_eq!(count_granted(&mut bench, &update_request("y"), 5), 2);
    let refusal = request_outcome(&mut bench, &update_request("y")).unwrap_err();
    assert_eq!(refusal.cause.as_deref(), Some("wide"));
    let counts = |name: &str| ["wide", "tight"].map(|rule| bench.host.counter(name, rule));
    assert_eq!((counts("granted"), counts("refused")), ([3, 1], [4, 5]));
}

#[test]
fn cb_03_plain_resource_leaves_its_subresources_alone() {
    let pods = with_fields(
        rule_with_rate("a", 1, 1),
        &json!({"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"]}]}),
    );
    let mut bench = new_bench(&[pods]);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 3), 1);
    let status = update_request("x").subresource("status");
    assert!(!bench.wakes(&status));
    assert_eq!(bench.on_request(&status), RequestVerdict::proceed().reusable());
}

#[test]
fn cb_04_external_calls_are_limited_by_url_and_method() {
    let calls = with_fields(
        rule_with_rate("cloud", 1, 1),
        &json!({"resourceRules": [], "restRules": [{"url": "http://b.com/*", "method": "*"}]}),
    );
    let mut bench = new_bench(&[calls]);
    let call = |method: &str, path: &str| TestRequest::external(method, "b.com", path).with_port(80);
    assert_eq!(request_outcome(&mut bench, &call("GET", "/")), Ok(0));
    let refusal = request_outcome(&mut bench, &call("POST", "/x")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("cloud")));
    assert!(!bench.wakes(&TestRequest::external("GET", "c.com", "/").with_port(80)));
}

#[test]
fn cb_05_limiter_only_is_this_plugins_policy() {
    let policy = |policy: &str| {
        with_fields(
            rule_with_rate(policy, 1, 1),
            &json!({"triggerPolicy": policy, "recoverPolicy": {"type": "Manual"}}),
        )
    };
    let mut bench = new_bench(&[policy("LimiterOnly")]);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 3), 1);
    bench.host.advance_ms(1000);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 3), 1);
    for other in ["Normal", "ForceOpened", "ForceClosed"] {
        let bench = Bench::<RateLimit>::new(&settings_json(&[policy(other)])).unwrap();
        assert!(bench.subscription.rules.is_empty(), "{other}");
    }
    let error = Bench::<RateLimit>::new(&settings_json(&[policy("Normla")]))
        .err()
        .unwrap();
    assert!(
        error.starts_with("rateLimitings[0].triggerPolicy: unknown variant `Normla`"),
        "{error}"
    );
}

/// A Status after which client-go waits and retries, instead of the peer's 417 text.
#[test]
fn cb_09_refusal_says_when_to_retry() {
    for (limit, interval, wait_ms) in [(1, "1s", 1000), (1, "100ms", 100), (3, "10s", 3334), (1, "1m", 60_000)] {
        let slow = with_fields(
            rule_with_rate("slow", 1, 1),
            &json!({"bucket": {"limit": limit, "interval": interval, "burst": 1}}),
        );
        for seed in 0..20 {
            let host = FakeHost::seeded(seed);
            let mut plugin = new_instance(&host, std::slice::from_ref(&slow));
            let mut call = || delay_or_refusal(plugin.on_request(&update_request("x"), &host));
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
fn cb_09_refused_clients_do_not_return_together() {
    let mut bench = new_bench(&[with_fields(
        rule_with_rate("a", 1, 1),
        &json!({"bucket": {"limit": 1, "interval": "20s", "burst": 1}}),
    )]);
    assert_eq!(request_outcome(&mut bench, &update_request("x")), Ok(0));
    let waits: std::collections::BTreeSet<u32> = (0..50)
        .map(|_| {
            request_outcome(&mut bench, &update_request("x"))
                .unwrap_err()
                .retry_after_seconds
                .unwrap()
        })
        .collect();
    assert!(
        waits.len() > 3 && waits.iter().all(|wait| (20..=25).contains(wait)),
        "{waits:?}"
    );
}

#[test]
fn cb_12_buckets_survive_edits_of_other_rules() {
    let host = FakeHost::default();
    let count = |plugin: &mut RateLimit, req: &TestRequest| {
        (0..10)
            .filter(|_| delay_or_refusal(plugin.on_request(req, &host)).is_ok())
            .count()
    };
    let mut first = new_instance(&host, &[rule_with_rate("a", 1, 4)]);
    assert_eq!(count(&mut first, &update_request("x")), 4);
    // Another rule is inserted before it, and the rule's own match changes.
    let narrow =
        json!({"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"]}]});
    let mut next = new_instance(
        &host,
        &[
            rule_with_rate("b", 100, 100),
            with_fields(rule_with_rate("a", 1, 4), &narrow),
        ],
    );
    assert_eq!(count(&mut next, &update_request("x")), 0);
    // Half full, then twice the size: still half full.
    host.advance_ms(2000);
    let mut larger = new_instance(&host, &[rule_with_rate("a", 2, 8)]);
    assert_eq!(count(&mut larger, &update_request("x")), 4);
}

#[test]
fn burst_waits_in_the_queue_instead_of_being_refused() {
    let mut bench = new_bench(&[with_fields(rule_with_rate("a", 10, 1), &json!({"queue": "250ms"}))]);
    let waits: Vec<_> = (0..4)
        .map(|_| request_outcome(&mut bench, &update_request("x")).ok())
        .collect();
    assert_eq!(waits, [Some(0), Some(100), Some(200), None]);
    let counts = ["granted", "queued", "refused"].map(|name| bench.host.counter(name, "a"));
    assert_eq!(counts, [1, 2, 1]);
}

#[test]
fn leader_lock_is_limited_only_when_named() {
    let renew = TestRequest::api(Verb::Update, "coordination.k8s.io", "leases")
        .namespace("x")
        .name("operator");
    let mut wide = new_bench(&[rule_with_rate("a", 1, 1)]);
    assert_eq!(count_granted(&mut wide, &renew, 5), 5);
    let leases = json!([{"apiGroups": ["*"], "resources": ["leases"], "verbs": ["*"], "namespaces": ["*"]}]);
    let mut named = new_bench(&[with_fields(
        rule_with_rate("a", 1, 1),
        &json!({"resourceRules": leases}),
    )]);
    assert_eq!(count_granted(&mut named, &renew, 5), 1);
}

/// One token of the bucket that the remaining keys share.
fn overflow_claim() -> Claim {
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

/// 1 024 keys are the most that an entry has. Further keys share one bucket of the same size.
#[test]
fn keys_share_one_bucket_when_the_state_is_full() {
    let mut bench = new_bench(&[with_fields(rule_with_rate("a", 1, 2), &json!({"key": "namespace"}))]);
    for index in 0..1024 {
        assert_eq!(
            request_outcome(&mut bench, &update_request(&format!("n{index}"))),
            Ok(0)
        );
    }
    // No room even for the shared bucket: refused, not let through.
    let refusal = request_outcome(&mut bench, &update_request("late")).unwrap_err();
    assert!(refusal.message.contains("more keys than"), "{}", refusal.message);
    assert_eq!(count_granted(&mut bench, &update_request("n7"), 5), 1);
    assert!(bench.host.counter("keys_exhausted", "") > 0);
    // One key is free: the shared bucket takes it, unless a request of its own did.
    bench.host.remove("tokens\na\nNamespace\nn9");
    bench.host.take(&[overflow_claim()]).unwrap();
    let late: usize = (0..10)
        .map(|index| count_granted(&mut bench, &update_request(&format!("late{index}")), 1))
        .sum();
    assert_eq!(late, 1);
}

#[test]
fn only_grants_without_a_wait_are_reusable() {
    let queued = with_fields(rule_with_rate("a", 1, 1), &json!({"queue": "5s"}));
    let mut bench = new_bench(&[queued, rule_with_rate("b", 10, 10)]);
    let mut reuse = || {
        let req = update_request("x");
        let verdict = bench.on_request(&req);
        let reads = req.take_reads();
        assert_eq!(reads, ["is_leader_lock", "verb"], "names and namespaces do not matter");
        (verdict.delay_ms, verdict.reuse)
    };
    assert_eq!(reuse(), (0, Reuse::WhileUnchanged));
    assert_eq!(reuse(), (1_000, Reuse::Never));
    assert_eq!(
        (bench.host.counter("granted", "b"), bench.host.counter("queued", "a")),
        (2, 1)
    );
}
