use ctrlmesh_sdk::Level;
use ctrlmesh_sdk::testing::Bench;
use serde_json::{Value, json};

use super::{RateLimit, all_resources, new_bench, rule_with_rate, settings_json, with_fields};

fn bucket_rule(limit: u32, interval: &str, burst: u32) -> Value {
    with_fields(
        rule_with_rate("a", 1, 1),
        &json!({"bucket": {"limit": limit, "interval": interval, "burst": burst}}),
    )
}

#[test]
fn invalid_settings_are_refused_by_field() {
    let no_limit = json!({"name": "a", "resourceRules": all_resources()});
    let in_flight = json!({"name": "a", "resourceRules": all_resources(), "maxInFlight": 1});
    let with = |fields| with_fields(in_flight.clone(), &fields);
    for (rule, expected) in [
        (bucket_rule(0, "1s", 1), "bucket.limit: 0 brings no token back"),
        (bucket_rule(1, "1s", 0), "bucket.burst: 0 would refuse everything"),
        (
            bucket_rule(1, "1", 1),
            "bucket.interval: \"1\" is no duration; write a number and a unit",
        ),
        (bucket_rule(1, "1.5ms", 1), "bucket.interval: write whole milliseconds"),
        (bucket_rule(1, "0", 1), "bucket.interval: write whole milliseconds"),
        (bucket_rule(1, "1200h", 1), "bucket.interval: write whole milliseconds"),
        (no_limit, "bucket: missing"),
        (with(json!({"maxInFlight": 0})), "maxInFlight: 0 would refuse"),
        (
            with(json!({"queue": "1s"})),
            "queue: requests wait for tokens of a bucket",
        ),
        (
            with_fields(rule_with_rate("a", 1, 1), &json!({"queue": "61s"})),
            "queue: at most 60s",
        ),
        (with(json!({"name": ""})), "name: \"\" is no name"),
        (with(json!({"name": "a\nb"})), "name: \"a\\nb\" is no name"),
        (with(json!({"key": "pod"})), "key: unknown variant `pod`"),
        (with(json!({"burst": 1})), "burst: unknown field"),
        (
            with(json!({"resourceRules": [{"apiGroups": ["*"]}]})),
            "resourceRules[0].resources: missing; write [\"*\"] for all",
        ),
    ] {
        let text = settings_json(std::slice::from_ref(&rule));
        let error = Bench::<RateLimit>::new(&text).err();
        let error = error.unwrap_or_else(|| panic!("{text} was accepted"));
        assert!(
            error.starts_with(&format!("rateLimitings[0].{expected}")),
            "{text} gave {error}"
        );
    }
}

#[test]
fn names_are_unique_and_rules_are_bounded() {
    let twice = settings_json(&[
        rule_with_rate("a", 1, 1),
        rule_with_rate("b", 1, 1),
        rule_with_rate("a", 2, 2),
    ]);
    let error = Bench::<RateLimit>::new(&twice).err().unwrap();
    assert_eq!(
        error,
        "rateLimitings[2].name: \"a\" is there twice; each rule has its own name"
    );
    let rules = |count: u32| {
        settings_json(
            &(0..count)
                .map(|index| rule_with_rate(&index.to_string(), 1, 1))
                .collect::<Vec<_>>(),
        )
    };
    assert!(Bench::<RateLimit>::new(&rules(64)).is_ok());
    let error = Bench::<RateLimit>::new(&rules(65)).err().unwrap();
    assert_eq!(error, "rateLimitings: 65 rules; at most 64 can be asked together");
}

#[test]
fn rules_without_effect_are_warned_about() {
    let bench = new_bench(&[json!({"name": "idle", "maxInFlight": 1})]);
    assert!(bench.subscription.rules.is_empty());
    let logs = bench.host.logs();
    assert!(
        logs.iter()
            .any(|(level, text)| *level == Level::Warn && text.contains("\"idle\" can't match")),
        "{logs:?}"
    );
    assert!(Bench::<RateLimit>::new("{}").is_ok());
}

#[test]
fn list_of_limits_may_be_called_rules() {
    let text = json!({"rules": [rule_with_rate("a", 1, 1)]}).to_string();
    assert_eq!(Bench::<RateLimit>::new(&text).unwrap().subscription.rules.len(), 1);
}
