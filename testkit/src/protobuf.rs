//! Objects in protobuf, byte for byte as upstream's generated marshallers write them. The store holds JSON, so bodies are translated, by
//! a schema of the kinds that `tests/golden` generates from upstream's types.

mod decode;
mod encode;
mod schema;

use std::fmt;

use ctrlmesh_wire::protobuf::{Field, MAGIC, Message, envelope, fields};
use serde_json::{Map, Value};

use schema::schema;

/// Media type of an object; that of a watch has `;stream=watch` appended.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Why an object can't be read or written, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProtobufError {
    /// Field names and item numbers; empty for the whole object.
    path: String,
    problem: String,
}

impl ProtobufError {
    fn new(problem: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            problem: problem.into(),
        }
    }

    fn in_field(mut self, field: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("{field}{dot}{}", self.path);
        self
    }
}

impl fmt::Display for ProtobufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.problem)
        } else {
            write!(f, "{}: {}", self.path, self.problem)
        }
    }
}

/// Whether the kind has a protobuf encoding here.
pub(crate) fn has_kind(api_version: &str, kind: &str) -> bool {
    schema().message_of(api_version, kind).is_some()
}

/// Encodes an object or a list with its envelope. Skips fields that upstream's type does not have.
///
/// # Errors
/// If its kind is unknown, or if a field has a value of the wrong type.
pub(crate) fn encode_object(object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let message = message_of(api_version, kind)?;
    let fields = object
        .as_object()
        .ok_or_else(|| ProtobufError::new("it is not an object"))?;
    Ok(envelope(
        api_version,
        kind,
        &encode::encode_message(schema(), message, fields)?,
    ))
}

/// Decodes an object. If it has no type, it is of the kind that the path names.
///
/// # Errors
/// If it is no protobuf, or of an unknown kind.
pub(crate) fn decode_object(body: &[u8], api_version: &str, kind: &str) -> Result<Value, ProtobufError> {
    let envelope = Envelope::parse_envelope(body)?;
    let stated = |stated: String, default: &str| if stated.is_empty() { default.to_owned() } else { stated };
    let api_version = stated(envelope.api_version, api_version);
    let kind = stated(envelope.kind, kind);
    let mut object = decode::decode_message(schema(), message_of(&api_version, &kind)?, envelope.object)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(Value::Object(object))
}

/// Decodes `DeleteOptions`, which every group has in its own version.
///
/// # Errors
/// If it is no protobuf, or another kind.
pub(crate) fn decode_delete_options(body: &[u8]) -> Result<Value, ProtobufError> {
    const KIND: &str = "DeleteOptions";
    let envelope = Envelope::parse_envelope(body)?;
    if !matches!(envelope.kind.as_str(), "" | KIND) {
        return Err(ProtobufError::new(format!("it is a {}, not {KIND}", envelope.kind)));
    }
    decode::decode_message(schema(), message_of("v1", KIND)?, envelope.object).map(Value::Object)
}

/// Encodes a watch event with its length prefix, around an object that [`encode_object`] wrote.
pub(crate) fn watch_event(kind: &str, object: &[u8]) -> Vec<u8> {
    let raw = Message::new().bytes(1, object);
    let event = Message::new().string(1, kind).message(2, &raw).finish();
    // Objects are far below 4 GiB, because bodies are bounded.
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), event.as_slice()].concat()
}

fn message_of(api_version: &str, kind: &str) -> Result<&'static str, ProtobufError> {
    let unknown = || ProtobufError::new(format!("no kind \"{kind}\" of \"{api_version}\" is known in protobuf"));
    schema().message_of(api_version, kind).ok_or_else(unknown)
}

/// `runtime.Unknown`, the envelope of every object.
struct Envelope<'a> {
    api_version: String,
    kind: String,
    object: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn parse_envelope(body: &'a [u8]) -> Result<Self, ProtobufError> {
        let unknown = body
            .strip_prefix(MAGIC)
            .ok_or_else(|| ProtobufError::new("it does not begin with the four bytes `k8s\\0`"))?;
        let mut envelope = Self {
            api_version: String::new(),
            kind: String::new(),
            object: &[],
        };
        for field in parse_fields(unknown)? {
            match (field.number, field.payload) {
                (1, Some(type_meta)) => {
                    for field in parse_fields(type_meta)? {
                        match field.number {
                            1 => envelope.api_version = decode::read_text(&field)?,
                            2 => envelope.kind = decode::read_text(&field)?,
                            _ => {}
                        }
                    }
                }
                (2, Some(object)) => envelope.object = object,
                _ => {}
            }
        }
        Ok(envelope)
    }
}

/// The fields of a message in the order of the bytes.
fn parse_fields(message: &[u8]) -> Result<Vec<Field<'_>>, ProtobufError> {
    fields(message)
        .map(|field| field.map_err(|error| ProtobufError::new(format!("{} at byte {}", error.problem, error.position))))
        .collect()
}

type Object = Map<String, Value>;

#[cfg(test)]
mod tests;
