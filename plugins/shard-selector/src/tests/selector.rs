//! Label selectors as people write them.

use crate::selector::requirements_of;
use crate::settings::LabelSelector;

fn selector_text(json: &str) -> Result<String, String> {
    let selector: LabelSelector = ctrlmesh_sdk::settings::parse(json).map_err(String::from)?;
    let requirements = requirements_of(&selector).map_err(String::from)?;
    Ok(requirements.into_iter().collect::<Vec<_>>().join(","))
}

#[test]
fn every_operator_has_its_text() {
    for (json, expected) in [
        ("{}", ""),
        (r#"{"matchLabels": null, "matchExpressions": null}"#, ""),
        (r#"{"matchLabels": {"shard": "a"}}"#, "shard=a"),
        (r#"{"matchLabels": {"empty": ""}}"#, "empty="),
        (
            r#"{"matchExpressions": [{"key": "h", "operator": "In", "values": ["1"]}]}"#,
            "h in (1)",
        ),
        (
            r#"{"matchExpressions": [{"key": "h", "operator": "NotIn", "values": ["1", "0"]}]}"#,
            "h notin (0,1)",
        ),
        (
            r#"{"matchExpressions": [{"key": "h", "operator": "NotIn", "values": [""]}]}"#,
            "h notin ()",
        ),
        (r#"{"matchExpressions": [{"key": "h", "operator": "Exists"}]}"#, "h"),
        (
            r#"{"matchExpressions": [{"key": "h", "operator": "DoesNotExist", "values": []}]}"#,
            "!h",
        ),
        (
            r#"{"matchLabels": {"ctrlmesh.kusionstack.io/shard-hash": "7"}}"#,
            "ctrlmesh.kusionstack.io/shard-hash=7",
        ),
    ] {
        assert_eq!(selector_text(json).as_deref(), Ok(expected), "{json}");
    }
}

#[test]
fn order_and_repetition_make_no_difference() {
    let one = r#"{"matchLabels": {"b": "1", "a": "1"}, "matchExpressions": [
        {"key": "h", "operator": "In", "values": ["2", "1", "2"]}, {"key": "c", "operator": "Exists"}]}"#;
    let other = r#"{"matchExpressions": [{"key": "c", "operator": "Exists"},
        {"key": "h", "operator": "In", "values": ["1", "2"]}, {"key": "c", "operator": "Exists"}],
        "matchLabels": {"a": "1", "b": "1"}}"#;
    assert_eq!(selector_text(one).as_deref(), Ok("a=1,b=1,c,h in (1,2)"));
    assert_eq!(selector_text(one), selector_text(other));
}

#[test]
fn same_key_in_both_forms_stays_two_requirements() {
    let json = r#"{"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["2"]}]}"#;
    assert_eq!(selector_text(json).as_deref(), Ok("a in (2),a=1"));
}

/// Checks that `json` is refused with this path and hint.
fn assert_refused(json: &str, path: &str, hint: &str) {
    let error = selector_text(json)
        .err()
        .unwrap_or_else(|| panic!("{json} was accepted"));
    assert!(
        error.starts_with(path) && error.contains(hint),
        "{json}\ngave {error}\nexpected {path} … {hint}"
    );
}

#[test]
fn expression_mistake_is_named_with_its_path() {
    for (expression, path, hint) in [
        (
            r#"{"key": "a", "operator": "Inn", "values": ["1"]}"#,
            "matchExpressions[0].operator: ",
            "unknown operator \"Inn\", use In, NotIn, Exists or DoesNotExist",
        ),
        (
            r#"{"key": "a", "operator": "in"}"#,
            "matchExpressions[0].operator: ",
            "use In",
        ),
        (
            r#"{"key": "a", "operator": "In"}"#,
            "matchExpressions[0].values: ",
            "at least one",
        ),
        (
            r#"{"key": "a", "operator": "NotIn", "values": []}"#,
            "matchExpressions[0].values: ",
            "at least one",
        ),
        (
            r#"{"key": "a", "operator": "Exists", "values": ["1"]}"#,
            "matchExpressions[0].values: ",
            "takes no values, not 1",
        ),
        (
            r#"{"key": "a", "operator": "In", "values": ["1", "a b"]}"#,
            "matchExpressions[0].values[1]: ",
            "a b",
        ),
        (
            r#"{"key": "", "operator": "Exists"}"#,
            "matchExpressions[0].key: ",
            "label key",
        ),
        (r#"{"key": "a"}"#, "matchExpressions[0]: ", "missing field `operator`"),
        (
            r#"{"key": "a", "operatr": "In"}"#,
            "matchExpressions[0].operatr: ",
            "unknown field",
        ),
    ] {
        assert_refused(&format!(r#"{{"matchExpressions": [{expression}]}}"#), path, hint);
    }
}

#[test]
fn label_mistake_is_named() {
    let long = "a".repeat(64);
    for (key, value, hint) in [
        ("a", "1,b=2", "invalid label value \"1,b=2\""),
        ("a", "b-", "both ends"),
        ("a", "ü", "invalid label value"),
        ("a", &long, "at most 63"),
        ("a=1,b", "2", "invalid label key \"a=1,b\""),
        ("UPPER.io/a", "2", "DNS name"),
        ("/a", "2", "DNS name"),
        ("a/b/c", "2", "invalid label key"),
        ("-a", "2", "both ends"),
        ("", "2", "invalid label key"),
        (&long, "2", "1 to 63"),
    ] {
        assert_refused(
            &format!(r#"{{"matchLabels": {{"{key}": "{value}"}}}}"#),
            "matchLabels: ",
            hint,
        );
    }
    assert_refused(r#"{"matchLabels": {"a": 1}}"#, "matchLabels.a: ", "expected a string");
}
