//! Checks objects against the schemas of CustomResourceDefinitions. Also has the schemas of fields that no derive can express:
//! Kubernetes requires a structural schema, in which a field has one type. A field with two types has none there, and is checked
//! only by this crate's rules.
//!
//! | file | holds |
//! |---|---|
//! | `tolerate` | copies an object without the parts that its schema does not allow |
//! | `metadata` | checks `metadata`, which definitions of custom resources do not describe |
//! | `check` | checks an object against its schema |
//! | `duration` | fields with a duration |

mod check;
mod duration;
mod metadata;
mod tolerate;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;

pub use check::check;
pub use duration::is_duration;
pub use metadata::{check_metadata, check_metadata_fields, metadata_schema};
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

/// An object with any fields.
pub(super) fn free_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A string or a list of strings.
pub(super) fn text_or_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "A string or a list of strings.",
    })
}

/// The name of a fault, or its name with its parameters.
pub(super) fn fault_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "Name of a fault of the catalogue (conflict), or its name with parameters: {lose: {how: retry}}.",
    })
}

/// A whole number, or a string with any number.
pub(super) fn percent_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "description": "0 is never, 100 always. A fraction is written as a string: \"0.5\".",
    })
}
