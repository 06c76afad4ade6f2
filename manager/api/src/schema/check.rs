//! Checks an object against its schema as an API server would, without one, and reports all mistakes at once.
//!
//! Knows the keywords that our schemas use. CEL rules are in `ctrlmesh-manager-planner`, which has each of them in Rust.

use std::collections::BTreeMap;

use ctrlmesh_contract::Mistakes;
use ctrlmesh_contract::error::{field_path, quote};
use ctrlmesh_contract::suggest::did_you_mean;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::{Map, Value};

use super::is_duration;

/// Adds the mistakes of a value. Recursion is bounded by the schema's depth.
pub fn check(value: &Value, schema: &JSONSchemaProps, path: &str, mistakes: &mut Mistakes) {
    if schema.x_kubernetes_int_or_string == Some(true) {
        if !value.is_i64() && !value.is_string() {
            mistakes.add(
                path,
                format!("is {}; write a whole number or a text", describe_value(value)),
            );
        }
        return;
    }
    match (schema.type_.as_deref(), value) {
        (Some("object"), Value::Object(fields)) => check_object(fields, schema, path, mistakes),
        (Some("array"), Value::Array(items)) => check_array(items, schema, path, mistakes),
        (Some("string"), Value::String(text)) => check_string(text, schema, path, mistakes),
        (Some("integer"), Value::Number(number)) if number.is_i64() => {
            check_range(number.as_f64().unwrap_or_default(), schema, path, mistakes);
        }
        (Some("boolean"), Value::Bool(_)) | (None, _) => {}
        (Some("string"), Value::Number(number)) if is_duration(path) => {
            mistakes.add(
                path,
                format!("is {number} without a unit; write {number}s if seconds are meant, {number}ms if milliseconds"),
            );
        }
        (Some(_), value) => mistakes.add(
            path,
            format!("is {}; write {}", describe_value(value), expected_content(schema, path)),
        ),
    }
}

fn check_object(fields: &Map<String, Value>, schema: &JSONSchemaProps, path: &str, mistakes: &mut Mistakes) {
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
        return;
    }
    for name in schema.required.iter().flatten() {
        if !fields.contains_key(name) {
            let path = quoted_field_path(path, name);
            let field = schema.properties.as_ref().and_then(|known| known.get(name));
            let expected = field.map_or_else(|| "it".to_owned(), |field| expected_content(field, &path));
            mistakes.add(path, format!("is missing; write {expected}"));
        }
    }
    for (name, value) in fields {
        let path = quoted_field_path(path, name);
        match (&schema.properties, &schema.additional_properties) {
            (Some(known), _) if known.contains_key(name) => {
                if let Some(schema) = known.get(name) {
                    check(value, schema, &path, mistakes);
                }
            }
            (_, Some(JSONSchemaPropsOrBool::Schema(schema))) => check(value, schema, &path, mistakes),
            (Some(known), _) => {
                let names = known.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let meant = suggested_field(name, known);
                mistakes.add(path, format!("is not a field here; known are {names}{meant}"));
            }
            // `metadata` has no schema here: the API server knows its type.
            (None, _) => {}
        }
    }
}

/// Suggests a known field with a similar name, or a field of this name in a mapping below.
fn suggested_field(name: &str, known: &BTreeMap<String, JSONSchemaProps>) -> String {
    let near = did_you_mean(name, known.keys().map(String::as_str));
    let has_it = |schema: &JSONSchemaProps| {
        schema
            .properties
            .as_ref()
            .is_some_and(|fields| fields.contains_key(name))
    };
    match known.iter().find(|(_, schema)| has_it(schema)) {
        Some((below, _)) if near.is_empty() => format!("; did you mean {below}.{name}?"),
        _ => near,
    }
}

fn check_array(items: &[Value], schema: &JSONSchemaProps, path: &str, mistakes: &mut Mistakes) {
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(max) = schema.max_items.filter(|max| length > *max) {
        mistakes.add(path, format!("has {length} elements, at most {max} are allowed"));
    }
    if let Some(min) = schema.min_items.filter(|min| length < *min) {
        mistakes.add(path, format!("has {length} elements, at least {min} are needed"));
    }
    if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
        for (index, item) in items.iter().enumerate() {
            check(item, schema, &format!("{path}[{index}]"), mistakes);
        }
    }
    if let Some(keys) = &schema.x_kubernetes_list_map_keys {
        check_unique_keys(items, keys, path, mistakes);
    }
}

/// Checks `x-kubernetes-list-type: map`.
fn check_unique_keys(items: &[Value], keys: &[String], path: &str, mistakes: &mut Mistakes) {
    let key = |item: &Value| keys.iter().map(|key| item.get(key).cloned()).collect::<Vec<_>>();
    let mut seen: Vec<Vec<Option<Value>>> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let key = key(item);
        if let Some(first) = seen
            .iter()
            .position(|other| *other == key && key.iter().all(Option::is_some))
        {
            let named = keys.join(", ");
            mistakes.add(
                format!("{path}[{index}].{named}"),
                format!("is also that of {path}[{first}]; write another"),
            );
        }
        seen.push(key);
    }
}

fn check_string(text: &str, schema: &JSONSchemaProps, path: &str, mistakes: &mut Mistakes) {
    let allowed: Vec<&str> = allowed_values(schema).collect();
    if !allowed.is_empty() && !allowed.contains(&text) {
        let meant = did_you_mean(text, allowed.iter().copied());
        mistakes.add(path, format!("is {}; write {}{meant}", quote(text), or_list(&allowed)));
    }
    // Counts characters, not bytes, as the API server does.
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if schema.min_length.is_some_and(|min| length < min) {
        mistakes.add(path, "is empty; write it, or leave the field out");
    }
    if let Some(max) = schema.max_length.filter(|max| length > *max) {
        mistakes.add(path, format!("has {length} characters, at most {max} are allowed"));
    }
    if let Some(pattern) = &schema.pattern
        && !regex_lite::Regex::new(pattern).is_ok_and(|regex| regex.is_match(text))
    {
        mistakes.add(path, format!("is {}; {}", quote(text), pattern_advice(pattern)));
    }
}

/// Advice for a value that should match one of our patterns.
fn pattern_advice(pattern: &str) -> String {
    match pattern {
        "^oci://.+" => "write it like oci://ghcr.io/you/plugin:1.0".to_owned(),
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" => {
            "use lower-case letters, digits and '-', and a letter or digit at both ends".to_owned()
        }
        "^([0-9]|[12][0-9]|3[01])$" => "write a number from 0 to 31".to_owned(),
        "^(uid|namespace|owner|label\\(.+\\))$" => "write uid, namespace, owner or label(<key of a label>)".to_owned(),
        "^[0-9]+(-[0-9]+)?$" => "write numbers from 0 to 1023, such as 7, or 0-340".to_owned(),
        pattern => format!("write it like {pattern}"),
    }
}

fn check_range(number: f64, schema: &JSONSchemaProps, path: &str, mistakes: &mut Mistakes) {
    let is_below = schema.minimum.is_some_and(|min| number < min);
    let is_above = schema.maximum.is_some_and(|max| number > max);
    if is_below || is_above {
        let allowed = match (schema.minimum, schema.maximum) {
            (Some(min), Some(max)) => format!("{min} to {max}"),
            (Some(min), None) => format!("at least {min}"),
            (None, max) => format!("at most {}", max.unwrap_or_default()),
        };
        mistakes.add(path, format!("is {number}; write {allowed}"));
    }
}

fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "empty".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the text {}", quote(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}

/// Describes the content that a field must have.
fn expected_content(schema: &JSONSchemaProps, path: &str) -> String {
    let words: Vec<&str> = allowed_values(schema).collect();
    match schema.type_.as_deref() {
        _ if !words.is_empty() => or_list(&words),
        Some("string") if is_duration(path) => "a number and a unit, such as 250ms, 1s or 1m30s".to_owned(),
        Some("object") => "a mapping".to_owned(),
        Some("array") => "a list".to_owned(),
        Some("integer") => "a whole number".to_owned(),
        Some("boolean") => "true or false".to_owned(),
        _ => "a text".to_owned(),
    }
}

/// The allowed values of a text; none if any text is allowed.
pub(super) fn allowed_values(schema: &JSONSchemaProps) -> impl Iterator<Item = &str> {
    let allowed = schema.enum_.iter().flatten();
    allowed.filter_map(|JSON(value)| value.as_str())
}

fn or_list(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
    }
}

/// The path of a field, whose name is quoted if it has other characters than letters and digits.
pub(super) fn quoted_field_path(path: &str, name: &str) -> String {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain || path.is_empty() {
        field_path(path, name)
    } else {
        field_path(path, &quote(name))
    }
}

#[cfg(test)]
mod tests;
