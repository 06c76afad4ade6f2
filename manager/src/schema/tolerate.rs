//! What is left of an object without the fields that its schema does not allow, for rules that are to be asked about the rest.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::{Map, Value, json};

/// The value without unknown fields and without optional ones of another type; a word that is none of those that are known becomes the
/// first of them, a number out of range the nearest. Recursion is bounded by the schema's depth.
pub(crate) fn tolerated(value: &Value, schema: &JSONSchemaProps) -> Value {
    match (schema.type_.as_deref(), value) {
        (Some("object"), Value::Object(fields)) => Value::Object(object(fields, schema)),
        (Some("array"), Value::Array(items)) => match &schema.items {
            Some(JSONSchemaPropsOrArray::Schema(schema)) => items.iter().map(|item| tolerated(item, schema)).collect(),
            _ => value.clone(),
        },
        (Some("string"), Value::String(text)) => word(text, schema),
        (Some("integer"), Value::Number(number)) => number.as_f64().map_or(Value::Null, |it| near(it, value, schema)),
        _ => value.clone(),
    }
}

fn object(fields: &Map<String, Value>, schema: &JSONSchemaProps) -> Map<String, Value> {
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
        return fields.clone();
    }
    let required: Vec<&String> = schema.required.iter().flatten().collect();
    let kept = fields.iter().filter_map(|(name, value)| {
        let known = schema.properties.as_ref().and_then(|known| known.get(name));
        match (known, &schema.additional_properties, &schema.properties) {
            (Some(schema), ..) if required.contains(&name) || has_type(value, schema) => {
                Some((name.clone(), tolerated(value, schema)))
            }
            (None, Some(JSONSchemaPropsOrBool::Schema(schema)), _) => Some((name.clone(), tolerated(value, schema))),
            (None, _, None) => Some((name.clone(), value.clone())),
            _ => None,
        }
    });
    kept.collect()
}

/// Whether a value is of a schema's type.
pub(crate) fn has_type(value: &Value, schema: &JSONSchemaProps) -> bool {
    match schema.type_.as_deref() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    }
}

fn word(text: &str, schema: &JSONSchemaProps) -> Value {
    let allowed: Vec<&Value> = schema.enum_.iter().flatten().map(|JSON(value)| value).collect();
    match allowed.first() {
        Some(first) if allowed.iter().all(|it| *it != text) => (*first).clone(),
        _ => json!(text),
    }
}

fn near(number: f64, value: &Value, schema: &JSONSchemaProps) -> Value {
    let bound = |bound: Option<f64>, is_beyond: fn(f64, f64) -> bool| bound.filter(|it| is_beyond(number, *it));
    let low = bound(schema.minimum, |number, min| number < min);
    match low.or_else(|| bound(schema.maximum, |number, max| number > max)) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "bounds of our schemas are whole and small"
        )]
        Some(nearest) => json!(nearest as i64),
        None => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_not_allowed_are_left_out_and_the_rest_stays() {
        let schema = json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"},
            "word": {"type": "string", "enum": ["a", "b"]},
            "number": {"type": "integer", "minimum": 1, "maximum": 3},
            "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "texts": {"type": "object", "additionalProperties": {"type": "string"}},
        }});
        let schema: JSONSchemaProps = serde_json::from_value(schema).unwrap();
        let wrong = json!({
            "name": 1, "word": "c", "number": 7, "list": [{"x": 1, "y": 2}, {"x": "text"}], "free": {"any": 1},
            "texts": {"a": "b"}, "unknown": {},
        });
        let expected = json!({
            "name": 1, "word": "a", "number": 3, "list": [{"x": 1}, {}], "free": {"any": 1}, "texts": {"a": "b"},
        });
        assert_eq!(tolerated(&wrong, &schema), expected);
        assert_eq!(tolerated(&expected, &schema), expected);
        let low = json!({"number": 0, "word": "b"});
        assert_eq!(tolerated(&low, &schema), json!({"number": 1, "word": "b"}));
    }
}
