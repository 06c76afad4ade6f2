use ctrlmesh_sdk::testing::Bench;
use serde_json::{Value, json};

use super::{CircuitBreaker, rule_named, settings_json, with_fields};

fn settings_error(text: &str) -> String {
    let error = Bench::<CircuitBreaker>::new(text).err();
    error.unwrap_or_else(|| panic!("{text} was accepted"))
}

fn rule_with_trip(fields: &Value) -> Value {
    with_fields(rule_named("a"), &json!({"trip": fields}))
}

fn check_cases(cases: impl IntoIterator<Item = (Value, &'static str)>) {
    for (rule, expected) in cases {
        let error = settings_error(&settings_json(std::slice::from_ref(&rule)));
        assert!(
            error.starts_with(&format!("rateLimitings[0].{expected}")),
            "{rule} gave {error}"
        );
    }
}

#[test]
fn invalid_rules_are_refused_by_field() {
    let a = || rule_named("a");
    check_cases([
        (
            with_fields(a(), &json!({"trip": null})),
            "bucket: missing; nothing opens this breaker",
        ),
        (
            with_fields(a(), &json!({"triggerPolicy": "normal"})),
            "triggerPolicy: unknown variant `normal`",
        ),
        (
            with_fields(a(), &json!({"recoverPolicy": {"type": "Auto"}})),
            "recoverPolicy.type: unknown variant `Auto`",
        ),
        (
            with_fields(a(), &json!({"recoverPolicy": {"type": "SleepingWindow"}})),
            "recoverPolicy.sleepingWindowSize: write how long",
        ),
        (
            with_fields(
                a(),
                &json!({"recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "x"}}),
            ),
            "recoverPolicy.sleepingWindowSize: \"x\" is no duration",
        ),
        (
            with_fields(
                a(),
                &json!({"recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "2s",
                    "maxSleepingWindowSize": "1s"}}),
            ),
            "recoverPolicy.maxSleepingWindowSize: shorter than",
        ),
    ]);
}

#[test]
fn invalid_buckets_names_and_failures_are_refused_by_field() {
    let a = || rule_named("a");
    check_cases([
        (
            with_fields(a(), &json!({"bucket": {"limit": 0, "interval": "1s", "burst": 1}})),
            "bucket.limit: 0 brings no token",
        ),
        (with_fields(a(), &json!({"probes": 0})), "probes: write 1 to 1000"),
        (with_fields(a(), &json!({"name": "x".repeat(129)})), "name: "),
        (
            with_fields(a(), &json!({"failures": {"statusCodes": ["5xx", "6xx"]}})),
            "failures.statusCodes[1]: \"6xx\" is no",
        ),
        (
            with_fields(a(), &json!({"failures": {"connection": ["eof"]}})),
            "failures.connection[0]: unknown variant `eof`",
        ),
        (
            with_fields(a(), &json!({"resourceRules": [{}]})),
            "resourceRules[0].apiGroups: missing",
        ),
    ]);
}

#[test]
fn invalid_triggers_are_refused_by_field() {
    check_cases([
        (rule_with_trip(&json!({})), "trip: nothing opens the breaker"),
        (
            rule_with_trip(&json!({"errorPercent": 0})),
            "trip.errorPercent: write 1 to 100",
        ),
        (
            rule_with_trip(&json!({"errorPercent": 101})),
            "trip.errorPercent: write 1 to 100",
        ),
        (rule_with_trip(&json!({"slowPercent": 10})), "trip.slowerThan: missing"),
        (
            rule_with_trip(&json!({"slowerThan": "1s"})),
            "trip.slowPercent: missing",
        ),
        (
            rule_with_trip(&json!({"consecutiveFailures": 0})),
            "trip.consecutiveFailures: write at least 1",
        ),
        (
            rule_with_trip(&json!({"errorPercent": 1, "window": "1ms"})),
            "trip.window: write 10ms to",
        ),
    ]);
}

#[test]
fn rules_are_bounded_and_uniquely_named() {
    let twice = settings_error(&settings_json(&[rule_named("a"), rule_named("a")]));
    assert_eq!(
        twice,
        "rateLimitings[1].name: \"a\" is there twice; each rule has its own name"
    );
    let many: Vec<Value> = (0..25).map(|index| rule_named(&index.to_string())).collect();
    assert_eq!(
        settings_error(&settings_json(&many)),
        "rateLimitings: 25 rules; at most 24 in one entry"
    );
    assert!(Bench::<CircuitBreaker>::new(&settings_json(&many[..24])).is_ok());
}

#[test]
fn invalid_lists_are_refused_by_field() {
    let list = |fields: &Value| {
        let list = json!({"name": "l", "interceptType": "Whitelist", "contentType": "Regexp", "contents": ["a"], "methods": ["*"]});
        json!({"trafficInterceptRules": [with_fields(list, fields)]}).to_string()
    };
    assert!(Bench::<CircuitBreaker>::new(&list(&json!({}))).is_ok());
    let hosts =
        json!({"contents": ["a.b", "a.b:443", "a.b:*", "::1", "[::1]", "[::1]:443", "*"], "contentType": "Normal"});
    assert!(Bench::<CircuitBreaker>::new(&list(&hosts)).is_ok());
    for (fields, expected) in [
        (
            json!({"contents": ["a", "("]}),
            "contents[1]: \"(\" is no regular expression",
        ),
        (
            json!({"contents": ["a:b"], "contentType": "Normal"}),
            "contents[0]: the port of \"a:b\"",
        ),
        (
            json!({"contents": ["https://a.b/c"], "contentType": "Normal"}),
            "contents[0]: \"https://a.b/c\" is a URL or a path; write host or host:port",
        ),
        (
            json!({"contents": ["a.b", "https://a.b:443"], "contentType": "Normal"}),
            "contents[1]: \"https://a.b:443\" is a URL or a path; write host or host:port",
        ),
        (
            json!({"contents": ["a.b:443:80"], "contentType": "Normal"}),
            "contents[0]: \"a.b:443:80\" is no IPv6 address; write host, host:port or [address]:port",
        ),
        (json!({"name": ""}), "name: missing"),
        (
            json!({"interceptType": "Allow"}),
            "interceptType: unknown variant `Allow`",
        ),
        (json!({"contents": null}), "contents: invalid type"),
    ] {
        let error = settings_error(&list(&fields));
        assert!(
            error.starts_with(&format!("trafficInterceptRules[0].{expected}")),
            "{fields} gave {error}"
        );
    }
}

/// An object of the CRD with all its fields.
#[test]
fn settings_match_the_crd() {
    let text = json!({
        "rateLimitings": [{
            "name": "test",
            "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["*"]}],
            "restRules": [{"url": "https://www.b.com/*", "method": "GET"}],
            "bucket": {"burst": 10, "interval": "1m", "limit": 10},
            "triggerPolicy": "Normal",
            "recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "10m"},
            "properties": {"key": "value"},
        }],
        "trafficInterceptRules": [{
            "name": "deny", "interceptType": "Blacklist", "contentType": "Normal", "contents": ["b.com"], "methods": ["GET"],
        }],
    });
    let bench = Bench::<CircuitBreaker>::new(&text.to_string()).unwrap();
    assert!(bench.host.logs().is_empty(), "{:?}", bench.host.logs());
    assert!(Bench::<CircuitBreaker>::new("{}").is_ok());
}

/// The peer has such a field but never reads it.
#[test]
fn ok_63_webhook_rules_are_refused_not_ignored() {
    let error = settings_error(&settings_json(&[with_fields(
        rule_named("a"),
        &json!({"admissionRules": []}),
    )]));
    assert!(
        error.starts_with("rateLimitings[0].admissionRules: unknown field"),
        "{error}"
    );
}
