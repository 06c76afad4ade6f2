//! The CustomResourceDefinitions, made from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube_core::CustomResourceExt;
use serde_json::Value;

use crate::{CircuitBreaker, FaultInjection, ManagerState, ShardingConfig};

/// All definitions, in the order of their names.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    [
        CircuitBreaker::crd(),
        FaultInjection::crd(),
        ManagerState::crd(),
        ShardingConfig::crd(),
    ]
    .into_iter()
    .map(tidy_definition)
    .collect()
}

/// A definition as YAML. The bytes are the same each time, because its fields have an order, and its maps are sorted.
///
/// # Errors
/// Never for [`definitions`]: every valid schema can be written as YAML.
pub fn to_yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(crd)
}

/// Name of the definition's file in `deploy/crd`.
#[must_use]
pub fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}.yaml", crd.spec.names.plural)
}

/// The schema of a kind's only version.
#[must_use]
pub fn schema_of(crd: &CustomResourceDefinition) -> Option<&JSONSchemaProps> {
    crd.spec.versions.first()?.schema.as_ref()?.open_api_v3_schema.as_ref()
}

fn tidy_definition(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        let schema = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut());
        if let Some(schema) = schema {
            tidy_schema(schema);
        }
    }
    crd
}

/// Converts the schema that a derive makes of a Rust type into one that Kubernetes knows. Removes formats of unsigned numbers,
/// because Kubernetes does not know them and would warn. Makes nothing nullable: an absent field is not `null` there, so rules
/// need only ask `has(self.x)`.
fn tidy_schema(schema: &mut JSONSchemaProps) {
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

#[cfg(test)]
mod tests;
