//! Pieces of schema that no derive can express. Kubernetes requires a structural schema, in which a field has one type. A field
//! with two types has none there, and is checked only by this crate's rules.

use schemars::{Schema, SchemaGenerator, json_schema};

/// An object with any fields.
pub(super) fn free_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A text, or a list of texts.
pub(super) fn text_or_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "A text, or a list of texts.",
    })
}

/// The name of a fault, or its name with its parameters.
pub(super) fn fault_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "A fault of the catalogue by name (conflict), or its name with what it takes: {lose: {how: retry}}.",
    })
}

/// A whole number, or a text with any number.
pub(super) fn percent_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "description": "0 is never, 100 always. A part of a percent is written as text: \"0.5\".",
    })
}
