//! Fields with a duration. Schemas of Kubernetes have no type for Go's notation, so they treat it as a text.

/// Names of these fields, in any mapping.
const FIELDS: [&str; 11] = [
    "fixedDelay",
    "interval",
    "max",
    "maxDuration",
    "maxSleepingWindowSize",
    "mean",
    "min",
    "queue",
    "sleepingWindowSize",
    "slowerThan",
    "window",
];

/// Whether the last field of a path, such as `spec.httpFault[0].delay.fixedDelay`, is a duration.
pub fn is_duration(path: &str) -> bool {
    let field = path.rsplit_once('.').map_or(path, |(_, field)| field);
    FIELDS.contains(&field)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};

    use super::*;
    use crate::crds;

    /// Every text in a schema: field, and its description.
    fn collect_texts(schema: &JSONSchemaProps, found: &mut BTreeSet<(String, String)>) {
        for (name, schema) in schema.properties.iter().flatten() {
            if schema.type_.as_deref() == Some("string") {
                found.insert((name.clone(), schema.description.clone().unwrap_or_default()));
            }
            collect_texts(schema, found);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            collect_texts(items, found);
        }
    }

    #[test]
    fn duration_fields_are_those_of_definitions() {
        let mut found = BTreeSet::new();
        for crd in crds::definitions() {
            collect_texts(crds::schema_of(&crd).unwrap(), &mut found);
        }
        // Fields beside fixedDelay, in the same notation.
        let of_delay = ["max", "mean", "min"];
        let described: BTreeSet<&str> = found
            .iter()
            .filter(|(_, description)| description.contains("Go's notation"))
            .map(|(name, _)| name.as_str())
            .chain(of_delay)
            .collect();
        assert_eq!(described, FIELDS.into_iter().collect());
        for (name, description) in &found {
            let is_told = description.contains("Go's notation") || of_delay.contains(&name.as_str());
            assert_eq!(
                is_duration(&format!("spec.x[0].{name}")),
                is_told,
                "{name}: {description}"
            );
        }
    }
}
