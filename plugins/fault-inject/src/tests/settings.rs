//! Invalid settings and their errors.

use super::support::{new_bench, rule_error, settings_error};

/// Fields of a rule, and the beginning of the error.
const WRONG: [(&str, &str); 25] = [
    (
        r#""do": "explode""#,
        "faults[0].do: unknown fault \"explode\"; use one of refuseConnections, reset, ",
    ),
    (
        r#""do": {"conflict": {"code": 409}}"#,
        "faults[0].do.conflict.code: not for conflict, which takes nothing",
    ),
    (
        r#""do": {"lose": {"hwo": "reset"}}"#,
        "faults[0].do.lose.hwo: unknown field `hwo`",
    ),
    (
        r#""do": {"lose": {}, "hold": {}}"#,
        "faults[0].do: one fault for each rule; write another rule for \"",
    ),
    (r#""do": {}"#, "faults[0].do: no fault is named"),
    (
        r#""do": 7"#,
        "faults[0].do: invalid type: integer `7`, expected the name of a fault",
    ),
    (
        r#""do": "hold""#,
        "faults[0].do.hold: write for, or min and max, or mean and max",
    ),
    (
        r#""do": {"hold": {"min": "2s", "max": "1s"}}"#,
        "faults[0].do.hold.max: it is less than min",
    ),
    (r#""do": {"hold": {"for": "2h"}}"#, "faults[0].do.hold.for: at most 1h"),
    (
        r#""do": {"hold": {"for": "2 seconds"}}"#,
        "faults[0].do.hold.for: \"2 seconds\" is no duration",
    ),
    (
        r#""do": {"expire": {"after": 10}}"#,
        "faults[0].do.expire.after: is 10 without a unit; write 10s if seconds are meant",
    ),
    (
        r#""do": {"slowBody": null}"#,
        "faults[0].do.slowBody.bytesPerSecond: missing; write for instance 1024",
    ),
    (
        r#""do": "refuse", "percent": 101"#,
        "faults[0].percent: 101 is no percentage",
    ),
    (
        r#""do": "refuse", "percent": -1"#,
        "faults[0].percent: -1 is no percentage",
    ),
    (
        r#""do": "refuse", "percent": """#,
        "faults[0].percent: \"\" is no percentage",
    ),
    (
        r#""do": "refuse", "percent": "NaN""#,
        "faults[0].percent: \"NaN\" is no percentage",
    ),
    (
        r#""do": "refuse", "delay": {"fixedDelay": "1s"}"#,
        "faults[0].delay: not beside do",
    ),
    (
        r#""delay": {"fixedDelay": "1s"}, "percent": 1"#,
        "faults[0].percent: only beside do",
    ),
    (r#""abort": {"percent": "1"}"#, "faults[0].abort.httpStatus: missing"),
    (
        r#""abort": {"httpStatus": 200}"#,
        "faults[0].abort.httpStatus: 200 is no refusal; write 400 to 599",
    ),
    (
        r#""abort": {"httpStatus": 0}"#,
        "faults[0].abort.httpStatus: 0 is no refusal",
    ),
    (
        r#""abort": {"httpStatus": 70000}"#,
        "faults[0].abort.httpStatus: 70000 is no refusal",
    ),
    (
        r#""abort": {"httpStatus": 500, "reason": "two words"}"#,
        "faults[0].abort.reason: ",
    ),
    (
        r#""first": 1"#,
        "faults[0]: nothing happens in this rule; write delay, abort or do",
    ),
    (
        r#""do": "refuse", "effectiveTime": 1"#,
        "faults[0].effectiveTime: invalid type",
    ),
];

#[test]
fn invalid_settings_are_refused_by_field() {
    for (fields, error) in WRONG {
        let text = rule_error(fields);
        assert!(text.starts_with(error), "{fields} gave {text}");
    }
    assert!(settings_error(r#"{"class": "evil"}"#).starts_with("class: unknown variant `evil`"));
    assert!(settings_error(r#"{"fault": []}"#).starts_with("fault: unknown field"));
}

#[test]
fn names_are_unique_across_lists_and_generated_when_missing() {
    let abort = r#""match": {"resources": [{}]}, "abort": {"httpStatus": 500}"#;
    let nameless = format!(r#"{{"httpFault": [{{{abort}}}, {{"name": "", {abort}}}]}}"#);
    let bench = new_bench(&nameless);
    assert!(bench.host.report("httpFault[0]").is_some() && bench.host.report("httpFault[1]").is_some());
    let twice = format!(r#"{{"faults": [{{"name": "a", {abort}}}], "httpFault": [{{"name": "a", {abort}}}]}}"#);
    assert!(settings_error(&twice).starts_with("httpFault[0].name: \"a\" is the name of another rule too"));
    let long = format!(r#"{{"faults": [{{"name": "{}", {abort}}}]}}"#, "a".repeat(65));
    assert_eq!(settings_error(&long), "faults[0].name: at most 64 bytes of text");
}

#[test]
fn rules_are_bounded_so_that_their_metrics_fit() {
    let rule = r#"{"match": {"resources": [{}]}, "do": {"delay": {"for": "1ms"}}, "percent": 50}"#;
    let settings = |count: usize| format!(r#"{{"faults": [{}]}}"#, vec![rule; count].join(","));
    assert!(settings_error(&settings(31)).starts_with("faults: 31 rules, at most 30"));
    let mut bench = new_bench(&settings(30));
    for number in 0..300 {
        let pod = ctrlmesh_sdk::testing::TestRequest::get("", "pods", &format!("p{number}"));
        let _ = bench.on_request(&pod);
    }
    assert_eq!(bench.host.dropped_updates(), 0);
    assert_eq!(bench.host.counter("fault_matched", "faults[29]"), 300);
}

#[test]
fn disabled_rule_is_still_checked() {
    let error = rule_error(r#""disabled": true, "do": "explode""#);
    assert!(error.starts_with("faults[0].do: unknown fault"), "{error}");
}

#[test]
fn widespread_samples_are_accepted() {
    for resources in ["resources", "relateResources", "relatedResources"] {
        let settings = format!(
            r#"{{"httpFault": [{{"match": {{"{resources}": [{{}}]}}, "abort": {{"httpStatus": 500, "percent": 10}}}}]}}"#
        );
        assert_eq!(new_bench(&settings).subscription.rules.len(), 1, "{resources}");
    }
}
