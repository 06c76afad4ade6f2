//! Checks objects against the schemas of CustomResourceDefinitions.

mod check;
mod duration;
mod metadata;
mod tolerate;

use serde_json::Value;

pub use check::check;
pub use duration::is_duration;
pub use metadata::{check_metadata, check_metadata_fields, metadata};
pub use tolerate::{Tolerated, has_type, tolerate_mistakes};

/// Removes fields without a value, such as `matchLabels:` with nothing after it, as an API server does for fields that are not
/// nullable (`PruneNonNullableNullsWithoutDefaults` in apiextensions-apiserver).
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
