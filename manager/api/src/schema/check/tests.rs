//! Each keyword, by a value that it refuses.

use super::*;
use serde_json::json;

fn mistake_texts(value: &Value, schema: &Value) -> Vec<String> {
    let schema: JSONSchemaProps = serde_json::from_value(schema.clone()).unwrap();
    let mut mistakes = Mistakes::default();
    check(value, &schema, "spec", &mut mistakes);
    let messages = mistakes.list().iter();
    messages
        .map(|mistake| format!("{}: {}", mistake.path, mistake.problem))
        .collect()
}

fn assert_each_mistake(cases: &[(Value, &Value, &str)]) {
    for (value, schema, expected) in cases {
        assert_eq!(mistake_texts(value, schema), [*expected], "{value} {schema}");
    }
}

#[test]
fn invalid_texts_and_numbers_are_refused() {
    let text = json!({"type": "string", "minLength": 1, "maxLength": 2, "pattern": "^a"});
    let number = json!({"type": "integer", "minimum": 1, "maximum": 3});
    let either = json!({"x-kubernetes-int-or-string": true});
    assert_each_mistake(&[
        (json!("ü"), &text, "spec: is \"ü\"; write it like ^a"),
        (
            json!(""),
            &json!({"type": "string", "minLength": 1}),
            "spec: is empty; write it, or leave the field out",
        ),
        (json!("aüü"), &text, "spec: has 3 characters, at most 2 are allowed"),
        (json!(7), &text, "spec: is 7; write a text"),
        (
            json!("c"),
            &json!({"type": "string", "enum": ["a", "b"]}),
            "spec: is \"c\"; write a or b",
        ),
        (
            json!(1),
            &json!({"type": "string", "enum": ["a", "b"]}),
            "spec: is 1; write a or b",
        ),
        (json!(4), &number, "spec: is 4; write 1 to 3"),
        (json!(1.5), &number, "spec: is 1.5; write a whole number"),
        (json!("1"), &number, "spec: is the text \"1\"; write a whole number"),
        (json!(0.5), &either, "spec: is 0.5; write a whole number or a text"),
        (
            json!("no"),
            &json!({"type": "boolean"}),
            "spec: is the text \"no\"; write true or false",
        ),
    ]);
    assert_eq!(mistake_texts(&json!("10"), &either), mistake_texts(&json!(10), &either));
}

#[test]
fn durations_need_a_unit() {
    let delay = json!({"type": "object", "required": ["interval"], "properties": {
        "fixedDelay": {"type": "string"}, "interval": {"type": "string"},
    }});
    assert_each_mistake(&[
        (
            json!({"fixedDelay": 5, "interval": "1s"}),
            &delay,
            "spec.fixedDelay: is 5 without a unit; write 5s if seconds are meant, 5ms if milliseconds",
        ),
        (
            json!({"interval": true}),
            &delay,
            "spec.interval: is true; write a number and a unit, such as 250ms, 1s or 1m30s",
        ),
        (
            json!({}),
            &delay,
            "spec.interval: is missing; write a number and a unit, such as 250ms, 1s or 1m30s",
        ),
    ]);
}

#[test]
fn invalid_lists_and_mappings_are_refused() {
    let item = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}});
    let named = json!({"type": "array", "maxItems": 2, "x-kubernetes-list-map-keys": ["name"], "items": item});
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    assert_each_mistake(&[
        (
            json!([{"name": "a"}, {"name": "a"}]),
            &named,
            "spec[1].name: is also that of spec[0]; write another",
        ),
        (json!([{}]), &named, "spec[0].name: is missing; write a text"),
        (
            json!([{"name": "a", "nme": 1}]),
            &named,
            "spec[0].nme: is not a field here; known are name; did you mean name?",
        ),
        (
            json!([{"name": "a"}, {"name": "b"}, {"name": "c"}]),
            &named,
            "spec: has 3 elements, at most 2 are allowed",
        ),
        (
            json!([]),
            &json!({"type": "array", "minItems": 1}),
            "spec: has 0 elements, at least 1 are needed",
        ),
        (json!({"a": 1}), &texts, "spec.a: is 1; write a text"),
        (json!({"a.b/c": 1}), &texts, "spec.\"a.b/c\": is 1; write a text"),
    ]);
}

#[test]
fn near_words_are_suggested_and_far_words_are_not() {
    let schema = json!({"type": "object", "properties": {
        "limits": {"type": "array"},
        "root": {"type": "object", "properties": {"resourceSelector": {"type": "array"}}},
        "policy": {"type": "string", "enum": ["Normal", "LimiterOnly"]},
    }});
    assert_each_mistake(&[
        (
            json!({"limit": []}),
            &schema,
            "spec.limit: is not a field here; known are limits, policy, root; did you mean limits?",
        ),
        (
            json!({"resourceSelector": []}),
            &schema,
            "spec.resourceSelector: is not a field here; known are limits, policy, root; did you mean root.resourceSelector?",
        ),
        (
            json!({"owner": []}),
            &schema,
            "spec.owner: is not a field here; known are limits, policy, root",
        ),
        (
            json!({"policy": "normal"}),
            &schema,
            "spec.policy: is \"normal\"; write Normal or LimiterOnly; did you mean Normal?",
        ),
    ]);
}

#[test]
fn untyped_field_accepts_any_value() {
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(
        mistake_texts(&json!({"a": [1, {"b": null}]}), &free),
        Vec::<String>::new()
    );
    let any = json!({"x-kubernetes-preserve-unknown-fields": true});
    for value in [json!("a"), json!(["a"]), json!({"a": 1})] {
        assert_eq!(mistake_texts(&value, &any), Vec::<String>::new());
    }
}
