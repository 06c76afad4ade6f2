//! Converts schemas that the derives make of Rust types into schemas that Kubernetes knows.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

/// Removes formats of unsigned numbers, because Kubernetes does not know them and would warn. Makes nothing nullable: an absent
/// field is not `null` there, so rules need only ask `has(self.x)`.
pub(crate) fn tidy_schema(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if matches!(&schema.default, Some(JSON(Value::Null))) {
        schema.default = None;
    }
    match schema.format.as_deref() {
        Some("uint32") => {
            schema.format = Some("int64".to_owned());
            schema.maximum = schema.maximum.or(Some(f64::from(u32::MAX)));
        }
        Some("uint64") => schema.format = Some("int64".to_owned()),
        _ => {}
    }
    for property in schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
    {
        tidy_schema(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy_schema(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tidy_schema(values);
    }
}
