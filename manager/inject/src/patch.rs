//! Makes a JSON patch (RFC 6902) from two pods.
//!
//! Whole fields of `metadata` and `spec` are replaced: a patch of list items would have to match the right ones, and a person who
//! reads it in an audit log wants to see the result.

use serde_json::{Value, json};

/// The operations that turn `before` into `after`; empty if they are equal. Both may differ in metadata and spec only.
pub(super) fn json_patch(before: &Value, after: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    for part in ["metadata", "spec"] {
        let fields = |pod: &Value| pod.get(part).and_then(Value::as_object).cloned().unwrap_or_default();
        let (before, after) = (fields(before), fields(after));
        for (field, value) in &after {
            if before.get(field) != Some(value) {
                // `add` replaces an existing field.
                operations.push(json!({"op": "add", "path": field_pointer(part, field), "value": value}));
            }
        }
        for field in before.keys().filter(|field| !after.contains_key(*field)) {
            operations.push(json!({"op": "remove", "path": field_pointer(part, field)}));
        }
    }
    operations
}

fn field_pointer(part: &str, field: &str) -> String {
    format!("/{part}/{}", field.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_turns_first_pod_into_second() {
        let before =
            json!({"kind": "Pod", "metadata": {"name": "a", "labels": {}}, "spec": {"a": 1, "b": [1, 2], "c~/": 0}});
        let after =
            json!({"kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"a": 1, "b": [2], "d": 4}});
        let operations = json_patch(&before, &after);
        let fields: Vec<&str> = operations.iter().map(|it| it["path"].as_str().unwrap()).collect();
        assert_eq!(fields, ["/metadata/labels", "/spec/b", "/spec/d", "/spec/c~0~1"]);
        let mut patched = before.clone();
        let operations: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        json_patch::patch(&mut patched, &operations).unwrap();
        assert_eq!(patched, after);
        assert!(json_patch(&after, &after).is_empty());
    }
}
