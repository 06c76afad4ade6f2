//! From what the derives make of Rust types to what Kubernetes knows.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

/// Formats of unsigned numbers are unknown to Kubernetes, which would warn. An absent field is not `null` there: nothing is
/// nullable, so that rules (`has(self.x)`) need not ask twice.
pub(crate) fn tidy(schema: &mut JSONSchemaProps) {
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
        tidy(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tidy(values);
    }
}
