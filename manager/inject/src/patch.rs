//! From two pods to a JSON patch (RFC 6902).
//!
//! Whole fields of `metadata` and `spec` are written: a patch that goes into lists would have to hit the right items, and a person
//! who reads it in an audit log wants to see what there is afterwards.

use serde_json::{Value, json};

/// The operations that make `before` to `after`; empty if they are the same. They differ in metadata and spec alone.
pub(super) fn patch(before: &Value, after: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    for part in ["metadata", "spec"] {
        let fields = |pod: &Value| pod.get(part).and_then(Value::as_object).cloned().unwrap_or_default();
        let (before, after) = (fields(before), fields(after));
        for (field, value) in &after {
            if before.get(field) != Some(value) {
                // `add` replaces what there is.
                operations.push(json!({"op": "add", "path": path(part, field), "value": value}));
            }
        }
        for field in before.keys().filter(|field| !after.contains_key(*field)) {
            operations.push(json!({"op": "remove", "path": path(part, field)}));
        }
    }
    operations
}

fn path(part: &str, field: &str) -> String {
    format!("/{part}/{}", field.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_leads_from_one_to_the_other() {
        let before =
            json!({"kind": "Pod", "metadata": {"name": "a", "labels": {}}, "spec": {"a": 1, "b": [1, 2], "c~/": 0}});
        let after =
            json!({"kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"a": 1, "b": [2], "d": 4}});
        let operations = patch(&before, &after);
        let fields: Vec<&str> = operations.iter().map(|it| it["path"].as_str().unwrap()).collect();
        assert_eq!(fields, ["/metadata/labels", "/spec/b", "/spec/d", "/spec/c~0~1"]);
        let mut patched = before.clone();
        let operations: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        json_patch::patch(&mut patched, &operations).unwrap();
        assert_eq!(patched, after);
        assert!(patch(&after, &after).is_empty());
    }
}
