//! The UID of the object that a request body is about: reads it, and adds it, so that the API server refuses the request for another
//! object of the same name. The rest of a body keeps its values; JSON loses the order of its keys where the UID is added.
//!
//! Bodies that decoders read differently are refused, because the API server could see another UID than the one that is added: keys
//! that occur twice beside it, and in YAML merge keys and the line breaks of YAML 1.1. API servers match keys in JSON by case
//! (sigs.k8s.io/json), so `UID` is another key.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use serde_saphyr::Spanned;

use crate::protobuf::{MAGIC, OpenEnvelope, RAW, fields, put_bytes};
use crate::watch_event::media_type;

/// Characters that end a line in YAML 1.1, which API servers read, and not in YAML 1.2.
const LINE_BREAKS_OF_YAML_1_1: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];
/// Field 1 of every object: its metadata.
const METADATA: u32 = 1;
/// Field 5 of `ObjectMeta`.
const UID: u32 = 5;

/// Where a body has the UID of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UidPlace {
    /// `metadata.uid` of an object, of a patch, or of a Binding.
    Metadata,
    /// `preconditions.uid` of `DeleteOptions`.
    Preconditions,
    /// `deleteOptions.preconditions.uid` of an Eviction.
    EvictionPreconditions,
}

impl UidPlace {
    /// The keys of the objects that have it, from the outside.
    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Metadata => &["metadata"],
            Self::Preconditions => &["preconditions"],
            Self::EvictionPreconditions => &["deleteOptions", "preconditions"],
        }
    }

    /// The numbers of the messages that have it, from the outside (`generated.proto` of apimachinery and of `policy/v1`).
    const fn messages(self) -> &'static [u32] {
        match self {
            Self::Metadata => &[METADATA],
            Self::Preconditions => &[2],
            Self::EvictionPreconditions => &[2, 2],
        }
    }

    /// The number of the field itself.
    const fn field_number(self) -> u32 {
        match self {
            Self::Metadata => UID,
            Self::Preconditions | Self::EvictionPreconditions => 1,
        }
    }
}

/// An error that prevents adding a UID. The request must not be sent on: it could change another object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UidError {
    /// The encoding can't be edited; a server answers 415 to a request in it.
    #[error("can't add the UID of the object to a body in {0:?}: send JSON, protobuf, or plain YAML for an apply")]
    Unsupported(String),
    /// The YAML is valid, but there is no place for the UID.
    #[error(
        "can't add metadata.uid to this YAML: write metadata.name as a plain or quoted text on a line of its own, or send JSON"
    )]
    YamlForm,
    /// The body breaks its own format.
    #[error("the body is no valid {format}: {problem}")]
    Malformed {
        /// Format that the content type names.
        format: &'static str,
        /// Message of the parser of that format.
        problem: String,
    },
    /// The body has the UID of another object.
    #[error("the request is for the object with the UID {wanted}, and the object with this name has the UID {found}")]
    OtherObject {
        /// The UID in the body.
        wanted: String,
        /// The UID that was to be added.
        found: String,
    },
}

/// Adds the UID to a body, so that it is for this object alone.
///
/// # Errors
/// When the body has another UID, is broken, or is in an encoding that cannot be edited.
pub fn bind_to_uid(content_type: &str, body: &[u8], place: UidPlace, uid: &str) -> Result<Vec<u8>, UidError> {
    match (media_type(content_type).as_str(), place) {
        // The API server takes JSON when a body has no type. Patches are of objects, and not of options.
        ("" | "application/json", _)
        | ("application/merge-patch+json" | "application/strategic-merge-patch+json", UidPlace::Metadata) => {
            bind_json(body, place.keys(), uid)
        }
        ("application/vnd.kubernetes.protobuf", _) => bind_protobuf(body, place, uid),
        ("application/json-patch+json", UidPlace::Metadata) => bind_json_patch(body, uid),
        ("application/apply-patch+yaml", UidPlace::Metadata) => bind_apply(body, uid),
        (other, _) => Err(UidError::Unsupported(other.to_owned())),
    }
}

/// The UID in the metadata of an object, in JSON or protobuf. `None` if it has none, or if decoders could see another one.
#[must_use]
pub fn object_uid(content_type: &str, body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: String,
    }
    let uid = match media_type(content_type).as_str() {
        // A key that occurs twice is an error here.
        "" | "application/json" => serde_json::from_slice::<Object>(body).ok()?.metadata.uid,
        "application/vnd.kubernetes.protobuf" => {
            let object = only_field(body.strip_prefix(MAGIC)?, RAW)?;
            let uid = only_field(only_field(object, METADATA)?, UID)?;
            String::from_utf8(uid.to_vec()).ok()?
        }
        _ => return None,
    };
    Some(uid).filter(|uid| !uid.is_empty())
}

/// The content of a field that occurs once.
fn only_field(message: &[u8], number: u32) -> Option<&[u8]> {
    let mut found = None;
    for field in fields(message) {
        let field = field.ok()?;
        if field.number == number && found.replace(field.payload?).is_some() {
            return None;
        }
    }
    found
}

/// The values of an object as they are written: numbers keep their digits. A key that occurs twice is an error: some decoders take the
/// last value, and some merge both.
struct Members(BTreeMap<String, Box<RawValue>>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
            match members.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(value);
                }
                Entry::Occupied(entry) => {
                    let key = entry.key();
                    return Err(A::Error::custom(format_args!(
                        "the key {key:?} occurs twice; remove one"
                    )));
                }
            }
        }
        Ok(Members(members))
    }
}

fn bind_json(body: &[u8], keys: &[&str], uid: &str) -> Result<Vec<u8>, UidError> {
    let Members(mut members): Members = serde_json::from_slice(body).map_err(malformed_json)?;
    match keys.split_first() {
        None => {
            if let Some(wanted) = members.get("uid") {
                let wanted: Option<String> = serde_json::from_str(wanted.get()).map_err(malformed_json)?;
                check_wanted(&wanted.unwrap_or_default(), uid)?;
            }
            members.insert("uid".to_owned(), raw_json(quote(uid))?);
        }
        Some((key, inner_keys)) => {
            let inner = members.get(*key).map(|value| value.get());
            let inner = inner.filter(|text| *text != "null").unwrap_or("{}");
            let bound = bind_json(inner.as_bytes(), inner_keys, uid)?;
            let bound = String::from_utf8(bound).map_err(|error| UidError::Malformed {
                format: "JSON",
                problem: error.to_string(),
            })?;
            members.insert((*key).to_owned(), raw_json(bound)?);
        }
    }
    serde_json::to_vec(&members).map_err(malformed_json)
}

/// A test of another value makes the API server refuse the whole patch.
fn bind_json_patch(body: &[u8], uid: &str) -> Result<Vec<u8>, UidError> {
    let mut operations: Vec<Box<RawValue>> = serde_json::from_slice(body).map_err(malformed_json)?;
    let test = serde_json::json!({"op": "test", "path": "/metadata/uid", "value": uid});
    operations.insert(0, raw_json(test.to_string())?);
    serde_json::to_vec(&operations).map_err(malformed_json)
}

/// Apply configurations are YAML, and mostly JSON: client libraries send the latter.
fn bind_apply(body: &[u8], uid: &str) -> Result<Vec<u8>, UidError> {
    if serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        return bind_json(body, UidPlace::Metadata.keys(), uid);
    }
    let malformed = |problem: String| UidError::Malformed {
        format: "YAML",
        problem,
    };
    let text = std::str::from_utf8(body).map_err(|error| malformed(error.to_string()))?;
    if text.contains(LINE_BREAKS_OF_YAML_1_1) {
        return Err(malformed(
            "it has U+0085, U+2028 or U+2029, which only some decoders take for the end of a line; write it as an escape, or send JSON".to_owned(),
        ));
    }
    let metadata = yaml_metadata(text).map_err(malformed)?;
    if !metadata.uid.is_empty() {
        check_wanted(&metadata.uid, uid)?;
        return Ok(body.to_vec());
    }
    let bound = metadata.name.as_ref().and_then(|name| insert_yaml_uid(text, name, uid));
    let bound = bound.ok_or(UidError::YamlForm)?;
    // Other values may be aliases of the metadata: read it back.
    match (with_uid(text, uid), read_yaml::<Value>(&bound)) {
        (Some(expected), Ok(read)) if read == expected => Ok(bound.into_bytes()),
        _ => Err(UidError::YamlForm),
    }
}

/// The value of the YAML with the UID. `None`: JSON has no such value, or it has no metadata.
fn with_uid(text: &str, uid: &str) -> Option<Value> {
    let mut object: Value = read_yaml(text).ok()?;
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    metadata.insert("uid".to_owned(), uid.into());
    Some(object)
}

#[derive(Deserialize, Default)]
struct YamlObject {
    metadata: Option<YamlMetadata>,
}

#[derive(Deserialize, Default)]
struct YamlMetadata {
    name: Option<Spanned<String>>,
    #[serde(default)]
    uid: String,
}

fn yaml_metadata(text: &str) -> Result<YamlMetadata, String> {
    let object: YamlObject = read_yaml(text)?;
    Ok(object.metadata.unwrap_or_default())
}

/// Decoders differ in whether a merge key replaces a key that is written above it.
fn read_yaml<'y, T: Deserialize<'y>>(text: &'y str) -> Result<T, String> {
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}

/// Adds a line for the UID above that of the name. `None` if the name has no line of its own.
fn insert_yaml_uid(text: &str, name: &Spanned<String>, uid: &str) -> Option<String> {
    if name.referenced != name.defined {
        return None;
    }
    let start = usize::try_from(name.defined.span().byte_offset()?).ok()?;
    let before = text.get(..start)?;
    let line_start = before.rfind('\n').map_or(0, |end_of_line| end_of_line + 1);
    let (above, line) = (text.get(..line_start)?, text.get(line_start..)?);
    let key = before.get(line_start..)?.trim_end();
    let indentation = key.strip_suffix("name:")?;
    let is_blank = indentation.bytes().all(|byte| byte == b' ');
    // A JSON string is a YAML scalar, too.
    is_blank.then(|| format!("{above}{indentation}uid: {}\n{line}", quote(uid)))
}

fn bind_protobuf(body: &[u8], place: UidPlace, uid: &str) -> Result<Vec<u8>, UidError> {
    let envelope = OpenEnvelope::open(body).map_err(malformed_protobuf)?;
    for field in envelope.other_fields() {
        match (field.number, field.payload) {
            (3, Some(encoding)) if !encoding.is_empty() => {
                let encoding = encoding.escape_ascii();
                return Err(UidError::Unsupported(format!("content encoding {encoding}")));
            }
            (4, Some(content_type)) if !matches!(content_type, b"" | b"application/vnd.kubernetes.protobuf") => {
                return Err(UidError::Unsupported(content_type.escape_ascii().to_string()));
            }
            _ => {}
        }
    }
    let bound = bind_message(envelope.object, place.messages(), place.field_number(), uid)?;
    Ok(envelope.close(&bound))
}

/// A message that occurs several times is merged, as decoders do: what comes later counts.
fn bind_message(message: &[u8], messages: &[u32], uid_field: u32, uid: &str) -> Result<Vec<u8>, UidError> {
    let number = messages.first().copied().unwrap_or(uid_field);
    let (mut out, mut found) = (Vec::with_capacity(message.len() + uid.len()), Vec::new());
    for field in fields(message) {
        let field = field.map_err(|error| malformed_protobuf(error.to_string()))?;
        match field.payload {
            Some(payload) if field.number == number => {
                if messages.is_empty() {
                    found.clear();
                }
                found.extend_from_slice(payload);
            }
            _ => out.extend_from_slice(field.whole),
        }
    }
    let content = match messages.split_first() {
        None => {
            check_wanted(&String::from_utf8_lossy(&found), uid)?;
            uid.as_bytes().to_vec()
        }
        Some((_, inner)) => bind_message(&found, inner, uid_field, uid)?,
    };
    put_bytes(&mut out, number, &content);
    Ok(out)
}

/// An empty UID is none.
fn check_wanted(wanted: &str, uid: &str) -> Result<(), UidError> {
    if wanted.is_empty() || wanted == uid {
        return Ok(());
    }
    Err(UidError::OtherObject {
        wanted: wanted.to_owned(),
        found: uid.to_owned(),
    })
}

fn raw_json(text: String) -> Result<Box<RawValue>, UidError> {
    RawValue::from_string(text).map_err(malformed_json)
}

/// Encodes a text as a JSON string, with its quotation marks.
fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

fn malformed_json(error: serde_json::Error) -> UidError {
    UidError::Malformed {
        format: "JSON",
        problem: error.to_string(),
    }
}

fn malformed_protobuf(problem: String) -> UidError {
    UidError::Malformed {
        format: "protobuf",
        problem,
    }
}

#[cfg(test)]
mod tests;
