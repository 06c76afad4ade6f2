//! Handles fields without a value, such as `matchLabels:` with nothing after it.

use serde_json::Value;

/// Removes fields without a value, as an API server does for fields that are not nullable
/// (`PruneNonNullableNullsWithoutDefaults` in apiextensions-apiserver).
pub fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}
