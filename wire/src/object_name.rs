//! The name of the object in a request body: a create has it there and nowhere else.

use serde::Deserialize;

use crate::protobuf::{MAGIC, field_payload, text};

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    generate_name: Option<String>,
}

/// The name of a body's object in errors: its `metadata.name`, or else its `generateName` (k8s.io/apiserver
/// `pkg/admission/errors.go`). `None` if it has neither, or can't be read.
///
/// Reads JSON and protobuf, which is what clients create objects in.
#[must_use]
pub fn object_name(content_type: &str, body: &[u8]) -> Option<String> {
    let Metadata { name, generate_name } = if content_type.contains("protobuf") {
        protobuf_metadata(body)?
    } else {
        let object: Object = serde_json::from_slice(body).ok()?;
        object.metadata
    };
    let is_there = |name: &String| !name.is_empty();
    name.filter(is_there).or(generate_name.filter(is_there))
}

/// Field 2 of `runtime.Unknown` is the object, field 1 of every object its metadata; there field 1 is the name, field 2
/// `generateName`.
fn protobuf_metadata(body: &[u8]) -> Option<Metadata> {
    let object = field_payload(body.strip_prefix(MAGIC)?, 2)?;
    let metadata = field_payload(object, 1)?;
    Some(Metadata {
        name: text(metadata, 1),
        generate_name: text(metadata, 2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::{Message, envelope};

    #[test]
    fn name_is_found_in_both_encodings() {
        let json = br#"{"kind":"Pod","spec":{"name":"other"},"metadata":{"namespace":"a","name":"b"}}"#;
        assert_eq!(object_name("application/json", json).as_deref(), Some("b"));
        let metadata = Message::new().string(1, "b").string(3, "a");
        let pod = Message::new().message(1, &metadata);
        let body = envelope("v1", "Pod", &pod);
        let protobuf = "application/vnd.kubernetes.protobuf";
        assert_eq!(object_name(protobuf, &body).as_deref(), Some("b"));
    }

    #[test]
    fn generate_name_is_used_without_a_name() {
        for name in ["", r#","name":"""#] {
            let json = format!(r#"{{"metadata":{{"generateName":"b-"{name}}}}}"#);
            assert_eq!(object_name("application/json", json.as_bytes()).as_deref(), Some("b-"));
        }
        let metadata = Message::new().string(1, "").string(2, "b-").string(3, "a");
        let body = envelope("v1", "Pod", &Message::new().message(1, &metadata));
        assert_eq!(
            object_name("application/vnd.kubernetes.protobuf", &body).as_deref(),
            Some("b-")
        );
    }

    #[test]
    fn missing_name_is_none() {
        assert_eq!(object_name("application/json", br#"{"metadata":{"name":""}}"#), None);
        assert_eq!(object_name("application/json", b"{"), None);
        assert_eq!(object_name("application/vnd.kubernetes.protobuf", b"k8s\0\x12"), None);
        assert_eq!(object_name("application/vnd.kubernetes.protobuf", b"{}"), None);
    }
}
