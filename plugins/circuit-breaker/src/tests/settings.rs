use ctrlmesh_sdk::testing::Bench;
use serde_json::{Value, json};

use super::{CircuitBreaker, rule, settings, with};

fn refusal(text: &str) -> String {
    let error = Bench::<CircuitBreaker>::new(text).err();
    error.unwrap_or_else(|| panic!("{text} was accepted"))
}

fn trip(fields: &Value) -> Value {
    with(rule("a"), &json!({"trip": fields}))
}

fn check(cases: impl IntoIterator<Item = (Value, &'static str)>) {
    for (rule, expected) in cases {
        let error = refusal(&settings(std::slice::from_ref(&rule)));
        assert!(
            error.starts_with(&format!("rateLimitings[0].{expected}")),
            "{rule} gave {error}"
        );
    }
}

#[test]
fn wrong_rules_are_refused_by_field() {
    let a = || rule("a");
    check([
        (
            with(a(), &json!({"trip": null})),
            "bucket: missing; nothing opens this breaker",
        ),
        (
            with(a(), &json!({"triggerPolicy": "normal"})),
            "triggerPolicy: unknown variant `normal`",
        ),
        (
            with(a(), &json!({"recoverPolicy": {"type": "Auto"}})),
            "recoverPolicy.type: unknown variant `Auto`",
        ),
        (
            with(a(), &json!({"recoverPolicy": {"type": "SleepingWindow"}})),
            "recoverPolicy.sleepingWindowSize: write how long",
        ),
        (
            with(
                a(),
                &json!({"recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "x"}}),
            ),
            "recoverPolicy.sleepingWindowSize: \"x\" is no duration",
        ),
        (
            with(
                a(),
                &json!({"recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "2s",
                    "maxSleepingWindowSize": "1s"}}),
            ),
            "recoverPolicy.maxSleepingWindowSize: shorter than",
        ),
    ]);
}

#[test]
fn wrong_buckets_names_and_failures_are_refused_by_field() {
    let a = || rule("a");
    check([
        (
            with(a(), &json!({"bucket": {"limit": 0, "interval": "1s", "burst": 1}})),
            "bucket.limit: 0 brings no token",
        ),
        (with(a(), &json!({"probes": 0})), "probes: write 1 to 1000"),
        (with(a(), &json!({"name": "x".repeat(129)})), "name: "),
        (
            with(a(), &json!({"failures": {"statusCodes": ["5xx", "6xx"]}})),
            "failures.statusCodes[1]: \"6xx\" is no",
        ),
        (
            with(a(), &json!({"failures": {"connection": ["eof"]}})),
            "failures.connection[0]: unknown variant `eof`",
        ),
        (
            with(a(), &json!({"resourceRules": [{}]})),
            "resourceRules[0].apiGroups: missing",
        ),
    ]);
}

#[test]
fn wrong_triggers_are_refused_by_field() {
    check([
        (trip(&json!({})), "trip: nothing opens the breaker"),
        (trip(&json!({"errorPercent": 0})), "trip.errorPercent: write 1 to 100"),
        (trip(&json!({"errorPercent": 101})), "trip.errorPercent: write 1 to 100"),
        (trip(&json!({"slowPercent": 10})), "trip.slowerThan: missing"),
        (trip(&json!({"slowerThan": "1s"})), "trip.slowPercent: missing"),
        (
            trip(&json!({"consecutiveFailures": 0})),
            "trip.consecutiveFailures: write at least 1",
        ),
        (
            trip(&json!({"errorPercent": 1, "window": "1ms"})),
            "trip.window: write 10ms to",
        ),
    ]);
}

#[test]
fn rules_are_few_enough_and_have_their_own_names() {
    let twice = refusal(&settings(&[rule("a"), rule("a")]));
    assert_eq!(
        twice,
        "rateLimitings[1].name: \"a\" is there twice; each rule has its own name"
    );
    let many: Vec<Value> = (0..25).map(|index| rule(&index.to_string())).collect();
    assert_eq!(
        refusal(&settings(&many)),
        "rateLimitings: 25 rules; at most 24 in one entry"
    );
    assert!(Bench::<CircuitBreaker>::new(&settings(&many[..24])).is_ok());
}

#[test]
fn wrong_lists_are_refused_by_field() {
    let list = |fields: &Value| {
        let list = json!({"name": "l", "interceptType": "Whitelist", "contentType": "Regexp", "contents": ["a"], "methods": ["*"]});
        json!({"trafficInterceptRules": [with(list, fields)]}).to_string()
    };
    assert!(Bench::<CircuitBreaker>::new(&list(&json!({}))).is_ok());
    for (fields, expected) in [
        (
            json!({"contents": ["a", "("]}),
            "contents[1]: \"(\" is no regular expression",
        ),
        (
            json!({"contents": ["a:b"], "contentType": "Normal"}),
            "contents[0]: the port of \"a:b\"",
        ),
        (json!({"name": ""}), "name: missing"),
        (
            json!({"interceptType": "Allow"}),
            "interceptType: unknown variant `Allow`",
        ),
        (json!({"contents": null}), "contents: invalid type"),
    ] {
        let error = refusal(&list(&fields));
        assert!(
            error.starts_with(&format!("trafficInterceptRules[0].{expected}")),
            "{fields} gave {error}"
        );
    }
}

/// An object of the CRD, word for word, with all its fields.
#[test]
fn settings_are_those_of_the_crd() {
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

/// The peer has such a field and never reads it.
#[test]
fn ok_63_rules_for_webhooks_are_refused_not_ignored() {
    let error = refusal(&settings(&[with(rule("a"), &json!({"admissionRules": []}))]));
    assert!(
        error.starts_with("rateLimitings[0].admissionRules: unknown field"),
        "{error}"
    );
}
