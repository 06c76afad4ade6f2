//! Checks `metadata` of an object. Definitions of custom resources do not describe it, because API servers know its type.

use std::sync::LazyLock;

use ctrlmesh_contract::Mistakes;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::{Value, json};

use super::check;

/// The fields of `ObjectMeta` in apimachinery. Lists of mappings are not checked, because nobody writes them into a file.
static METADATA: LazyLock<JSONSchemaProps> = LazyLock::new(|| {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    let list_of = |items: &Value| json!({"type": "array", "items": items});
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let number = json!({"type": "integer"});
    let schema = json!({"type": "object", "properties": {
        "annotations": texts, "creationTimestamp": text, "deletionGracePeriodSeconds": number, "deletionTimestamp": text,
        "finalizers": list_of(&text), "generateName": text, "generation": number, "labels": texts, "managedFields": list_of(&free),
        "name": text, "namespace": text, "ownerReferences": list_of(&free), "resourceVersion": text, "selfLink": text, "uid": text,
    }});
    serde_json::from_value(schema).unwrap_or_default()
});

pub fn metadata_schema() -> &'static JSONSchemaProps {
    &METADATA
}

/// Adds known fields of `metadata` that have another type. Unknown fields are accepted: a later Kubernetes may define them, and
/// objects that it stores must stay readable.
pub fn check_metadata(document: &Value, mistakes: &mut Mistakes) {
    if let Some(metadata) = document.get("metadata") {
        check(&known_fields(metadata), &METADATA, "metadata", mistakes);
    }
}

/// Adds unknown fields of `metadata`. An API server refuses them, or drops them silently.
pub fn check_metadata_fields(document: &Value, mistakes: &mut Mistakes) {
    let mut metadata = document.get("metadata").cloned().unwrap_or_default();
    if let Value::Object(fields) = &mut metadata {
        fields.retain(|field, _| !is_known(field));
        check(&metadata, &METADATA, "metadata", mistakes);
    }
}

fn known_fields(metadata: &Value) -> Value {
    let mut metadata = metadata.clone();
    if let Value::Object(fields) = &mut metadata {
        fields.retain(|field, _| is_known(field));
    }
    metadata
}

fn is_known(field: &str) -> bool {
    let known = METADATA.properties.as_ref();
    known.is_some_and(|known| known.contains_key(field))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn mistakes_of(check: fn(&Value, &mut Mistakes), metadata: &Value) -> Vec<String> {
        let mut mistakes = Mistakes::default();
        check(&json!({"metadata": metadata}), &mut mistakes);
        let messages = mistakes.list().iter();
        messages.map(|it| format!("{}: {}", it.path, it.problem)).collect()
    }

    #[test]
    fn fields_are_those_of_kubernetes() {
        // Fails to compile when Kubernetes has another field.
        let ObjectMeta {
            annotations: _,
            creation_timestamp: _,
            deletion_grace_period_seconds: _,
            deletion_timestamp: _,
            finalizers: _,
            generate_name: _,
            generation: _,
            labels: _,
            managed_fields: _,
            name: _,
            namespace: _,
            owner_references: _,
            resource_version: _,
            self_link: _,
            uid: _,
        } = ObjectMeta::default();
        assert_eq!(METADATA.properties.as_ref().unwrap().len(), 15);
        let metadata = json!({
            "annotations": {"a": "b"}, "creationTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 1,
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"], "generateName": "a-", "generation": 1,
            "labels": {"a": "b"}, "managedFields": [{"manager": "a"}], "name": "a", "namespace": "b",
            "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "u"}], "resourceVersion": "1",
            "selfLink": "/a", "uid": "u",
        });
        let read: ObjectMeta = serde_json::from_value(metadata.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), metadata);
        assert_eq!(mistakes_of(check_metadata, &metadata), Vec::<String>::new());
        assert_eq!(mistakes_of(check_metadata_fields, &metadata), Vec::<String>::new());
    }

    #[test]
    fn misspelt_fields_are_reported_with_suggestion() {
        let metadata = json!({"lables": {"a": "b"}, "namspace": "b", "name": "a", "colour": "red"});
        let messages = mistakes_of(check_metadata_fields, &metadata);
        let begins = ["metadata.colour: ", "metadata.lables: ", "metadata.namspace: "];
        let ends = [", uid", "; did you mean labels?", "; did you mean namespace?"];
        assert_eq!(messages.len(), 3, "{messages:?}");
        for (message, (begin, end)) in messages.iter().zip(begins.into_iter().zip(ends)) {
            assert!(
                message.starts_with(&format!("{begin}is not a field here; known are annotations, "))
                    && message.ends_with(end),
                "{message}"
            );
        }
        assert_eq!(
            super::tests::mistakes_of(check_metadata, &metadata),
            Vec::<String>::new(),
            "a later Kubernetes may have more"
        );
    }

    #[test]
    fn known_fields_of_another_type_are_reported() {
        for (metadata, expected) in [
            (json!([]), "metadata: is a list; write a mapping"),
            (json!({"labels": {"a": 1}}), "metadata.labels.a: is 1; write a text"),
            (
                json!({"finalizers": "a/b"}),
                "metadata.finalizers: is the text \"a/b\"; write a list",
            ),
        ] {
            assert_eq!(mistakes_of(check_metadata, &metadata), [expected]);
            assert_eq!(
                mistakes_of(check_metadata_fields, &metadata),
                Vec::<String>::new(),
                "told once"
            );
        }
    }
}
