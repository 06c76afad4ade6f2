//! The CustomResourceDefinitions, made from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use kube_core::CustomResourceExt;

use crate::{CircuitBreaker, FaultInjection, ManagerState, ShardingConfig, schema};

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
            schema::tidy_schema(schema);
        }
    }
    crd
}

#[cfg(test)]
mod tests;
