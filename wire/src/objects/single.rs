//! The metadata of one object that was read by its name, in JSON.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Controller, ObjectMetadata, TextPairs};

#[derive(Deserialize)]
struct ObjectText {
    metadata: MetadataText,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataText {
    #[serde(default)]
    namespace: String,
    name: String,
    uid: String,
    #[serde(default)]
    resource_version: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerText>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnerText {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    controller: Option<bool>,
}

/// Reads the metadata of an object, whole or as `PartialObjectMetadata`.
///
/// # Errors
/// The text says why the body is no object with a name and a UID.
pub fn object_metadata(body: &[u8]) -> Result<ObjectMetadata<'static>, String> {
    let ObjectText { metadata } = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if metadata.uid.is_empty() {
        return Err("its UID is empty".to_owned());
    }
    let mut owners = metadata.owner_references.unwrap_or_default().into_iter();
    let controller = owners.find(|owner| owner.controller == Some(true));
    Ok(ObjectMetadata {
        namespace: metadata.namespace.into(),
        name: metadata.name.into(),
        uid: metadata.uid.into(),
        resource_version: metadata.resource_version.into(),
        labels: text_pairs(metadata.labels),
        annotations: text_pairs(metadata.annotations),
        controller: controller.map(|owner| Controller {
            api_version: owner.api_version.into(),
            kind: owner.kind.into(),
            name: owner.name.into(),
            uid: owner.uid.into(),
        }),
    })
}

fn text_pairs(pairs: Option<BTreeMap<String, String>>) -> TextPairs<'static> {
    let pairs = pairs.unwrap_or_default().into_iter();
    pairs.map(|(key, value)| (key.into(), value.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_partial_metadata_are_read() {
        let body = br#"{"kind":"PartialObjectMetadata","metadata":{"name":"w","namespace":"n","uid":"u","resourceVersion":"7",
            "labels":{"a":"b"},"annotations":null,"generation":3,
            "ownerReferences":[{"kind":"A","name":"a","uid":"1"},{"apiVersion":"v1","kind":"B","name":"b","uid":"2","controller":true},
                {"kind":"C","name":"c","uid":"3","controller":true}]}}"#;
        let read = object_metadata(body).unwrap();
        let controller = read.controller.clone().unwrap();
        assert_eq!((&*read.namespace, &*read.name, &*read.uid), ("n", "w", "u"));
        assert_eq!((read.label("a"), read.annotations.len()), (Some("b"), 0));
        assert_eq!((&*controller.kind, &*controller.uid), ("B", "2"));
    }

    #[test]
    fn body_without_name_or_uid_is_no_object() {
        for body in [
            "",
            "{}",
            r#"{"metadata":{"name":"w"}}"#,
            r#"{"metadata":{"name":"w","uid":""}}"#,
        ] {
            assert!(object_metadata(body.as_bytes()).is_err(), "{body}");
        }
    }
}
