//! The name of the object in a request body: a create has it there and nowhere else.

use serde::Deserialize;

use crate::protobuf::{MAGIC, fields};

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
struct Metadata {
    #[serde(default)]
    name: Option<String>,
}

/// `metadata.name` of the object in a body; `None` if it has none (`generateName`), or can't be read.
///
/// Reads JSON and protobuf, which is what clients create objects in.
#[must_use]
pub fn object_name(content_type: &str, body: &[u8]) -> Option<String> {
    let name = if content_type.contains("protobuf") {
        protobuf_name(body)
    } else {
        let object: Object = serde_json::from_slice(body).ok()?;
        object.metadata.name
    };
    name.filter(|name| !name.is_empty())
}

/// Field 2 of `runtime.Unknown` is the object, field 1 of every object its metadata, and field 1 of that the name.
fn protobuf_name(body: &[u8]) -> Option<String> {
    let object = payload(body.strip_prefix(MAGIC)?, 2)?;
    let name = payload(payload(object, 1)?, 1)?;
    String::from_utf8(name.to_vec()).ok()
}

fn payload(message: &[u8], number: u32) -> Option<&[u8]> {
    let field = fields(message).find(|field| field.as_ref().map_or(true, |field| field.number == number))?;
    field.ok()?.payload
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::{Message, envelope};

    #[test]
    fn the_name_is_found_in_both_encodings() {
        let json = br#"{"kind":"Pod","spec":{"name":"other"},"metadata":{"namespace":"a","name":"b"}}"#;
        assert_eq!(object_name("application/json", json).as_deref(), Some("b"));
        let metadata = Message::new().string(1, "b").string(3, "a");
        let pod = Message::new().message(1, &metadata);
        let body = envelope("v1", "Pod", &pod);
        let protobuf = "application/vnd.kubernetes.protobuf";
        assert_eq!(object_name(protobuf, &body).as_deref(), Some("b"));
    }

    #[test]
    fn no_name_is_none() {
        assert_eq!(
            object_name("application/json", br#"{"metadata":{"generateName":"b-"}}"#),
            None
        );
        assert_eq!(object_name("application/json", br#"{"metadata":{"name":""}}"#), None);
        assert_eq!(object_name("application/json", b"{"), None);
        assert_eq!(object_name("application/vnd.kubernetes.protobuf", b"k8s\0\x12"), None);
        assert_eq!(object_name("application/vnd.kubernetes.protobuf", b"{}"), None);
    }
}
