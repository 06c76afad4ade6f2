//! Names in protobuf, found by field numbers (`generated.proto` of k8s.io/apimachinery and k8s.io/api). Messages on the
//! way to a name get a new length; every other field is copied byte for byte, known or not.

use super::{Rename, RenameError, is_lock_kind};
use crate::protobuf::{Field, MAGIC, WireError, fields, put_bytes};

/// Treatment of a length-delimited field of a message.
enum Rule {
    /// The name of an object: replaced if it is the renamed one.
    Name,
    /// A message for people that may contain the name in quotes.
    Text,
    /// A message with fields of interest.
    Into(&'static [(u32, Rule)]),
    /// An `ObjectReference`: renamed if it is about a lock.
    Reference,
    /// A whole body: magic number and `runtime.Unknown`.
    Body,
}

/// Every object: `ObjectMeta` is field 1, and its field 1 is the name.
const OBJECT: &[(u32, Rule)] = &[(1, Rule::Into(&[(1, Rule::Name)]))];
/// Every list, `PartialObjectMetadataList` too: the items are field 2.
const LIST: &[(u32, Rule)] = &[(2, Rule::Into(OBJECT))];
/// `metav1.Status`: message, details (name, causes (message)).
const STATUS: &[(u32, Rule)] = &[
    (3, Rule::Text),
    (5, Rule::Into(&[(1, Rule::Name), (4, Rule::Into(&[(2, Rule::Text)]))])),
];
/// `v1.Event`: involvedObject is field 2.
const CORE_EVENT: &[(u32, Rule)] = &[(1, Rule::Into(&[(1, Rule::Name)])), (2, Rule::Reference)];
const CORE_EVENT_LIST: &[(u32, Rule)] = &[(2, Rule::Into(CORE_EVENT))];
/// `events.k8s.io/v1.Event`: regarding is field 8.
const EVENT: &[(u32, Rule)] = &[(1, Rule::Into(&[(1, Rule::Name)])), (8, Rule::Reference)];
const EVENT_LIST: &[(u32, Rule)] = &[(2, Rule::Into(EVENT))];
/// `v1.ObjectReference`: the name is field 3.
const REFERENCE: &[(u32, Rule)] = &[(3, Rule::Name)];
/// `metav1.WatchEvent`: the object is field 2, a `RawExtension` whose field 1 is a whole body.
const WATCH_EVENT: &[(u32, Rule)] = &[(2, Rule::Into(&[(1, Rule::Body)]))];

/// Renames in one body.
pub(super) fn rename(body: &[u8], rename: &Rename) -> Result<Option<Vec<u8>>, RenameError> {
    let unknown = body
        .strip_prefix(MAGIC)
        .ok_or(malformed("no magic number `k8s\\0`", 0))?;
    let Unknown { api_version, kind } = Unknown::read(unknown)?;
    let rules = match (api_version.as_str(), kind.as_str()) {
        (_, "Status") => STATUS,
        ("v1", "Event") => CORE_EVENT,
        ("v1", "EventList") => CORE_EVENT_LIST,
        (_, "Event") => EVENT,
        (_, "EventList") => EVENT_LIST,
        // Items of such a list are bodies of any encoding; the API server sends none.
        (_, "List") => return Err(RenameError::Unsupported("a protobuf v1.List".to_owned())),
        (_, kind) if kind.ends_with("List") => LIST,
        _ => OBJECT,
    };
    let mut out = MAGIC.to_vec();
    let mut is_changed = false;
    for field in read_fields(unknown) {
        let field = field?;
        match field.payload {
            Some(object) if field.number == 2 => {
                is_changed |= put_field(&mut out, &field, apply_rules(object, rules, rename)?)
            }
            _ => out.extend_from_slice(field.whole),
        }
    }
    Ok(is_changed.then_some(out))
}

/// Renames in one watch event, without its length prefix.
pub(super) fn rename_watch_event(event: &[u8], rename: &Rename) -> Result<Option<Vec<u8>>, RenameError> {
    apply_rules(event, WATCH_EVENT, rename)
}

/// The type of the object in the envelope.
struct Unknown {
    api_version: String,
    kind: String,
}

impl Unknown {
    /// Reads `runtime.Unknown`; refuses an object in another encoding than protobuf.
    fn read(unknown: &[u8]) -> Result<Self, RenameError> {
        let mut read = Self {
            api_version: String::new(),
            kind: String::new(),
        };
        for field in read_fields(unknown) {
            let field = field?;
            match (field.number, field.payload) {
                (1, Some(type_meta)) => read.read_type(type_meta)?,
                (3, Some(encoding)) if !encoding.is_empty() => {
                    return Err(RenameError::Unsupported(format!(
                        "content encoding {}",
                        encoding.escape_ascii()
                    )));
                }
                (4, Some(content_type)) if !is_protobuf(content_type) => {
                    return Err(RenameError::Unsupported(content_type.escape_ascii().to_string()));
                }
                _ => {}
            }
        }
        Ok(read)
    }

    fn read_type(&mut self, type_meta: &[u8]) -> Result<(), RenameError> {
        for field in read_fields(type_meta) {
            let field = field?;
            let text = || String::from_utf8_lossy(field.payload.unwrap_or_default()).into_owned();
            match field.number {
                1 => self.api_version = text(),
                2 => self.kind = text(),
                _ => {}
            }
        }
        Ok(())
    }
}

fn is_protobuf(content_type: &[u8]) -> bool {
    matches!(content_type, b"" | b"application/vnd.kubernetes.protobuf")
}

/// Applies the rules to a message; `None` when nothing is to change. Recursion is as deep as the rules are.
fn apply_rules(message: &[u8], rules: &[(u32, Rule)], rename: &Rename) -> Result<Option<Vec<u8>>, RenameError> {
    let mut out = Vec::with_capacity(message.len() + rename.to.len());
    let mut is_changed = false;
    for field in read_fields(message) {
        let field = field?;
        let rule = rules.iter().find(|(number, _)| *number == field.number);
        let replaced = match (rule, field.payload) {
            (Some((_, rule)), Some(payload)) => replace_payload(payload, rule, rename)?,
            _ => None,
        };
        is_changed |= put_field(&mut out, &field, replaced);
    }
    Ok(is_changed.then_some(out))
}

fn replace_payload(payload: &[u8], rule: &Rule, rename: &Rename) -> Result<Option<Vec<u8>>, RenameError> {
    match rule {
        Rule::Name => Ok((payload == rename.from.as_bytes()).then(|| rename.to.as_bytes().to_vec())),
        Rule::Text => {
            let (from, to) = (format!("\"{}\"", rename.from), format!("\"{}\"", rename.to));
            let text = std::str::from_utf8(payload).ok().filter(|text| text.contains(&from));
            Ok(text.map(|text| text.replace(&from, &to).into_bytes()))
        }
        Rule::Into(rules) => apply_rules(payload, rules, rename),
        Rule::Reference if is_about_lock(payload)? => apply_rules(payload, REFERENCE, rename),
        Rule::Reference => Ok(None),
        Rule::Body => self::rename(payload, rename),
    }
}

/// `v1.ObjectReference`: the kind is field 1, and the last one counts.
fn is_about_lock(reference: &[u8]) -> Result<bool, RenameError> {
    let mut is_lock = false;
    for field in read_fields(reference) {
        let field = field?;
        if field.number == 1 {
            is_lock = field
                .payload
                .is_some_and(|kind| is_lock_kind(&String::from_utf8_lossy(kind)));
        }
    }
    Ok(is_lock)
}

/// Appends a field, with its new payload if there is one. Tells whether there is.
fn put_field(out: &mut Vec<u8>, field: &Field<'_>, replaced: Option<Vec<u8>>) -> bool {
    match &replaced {
        Some(payload) => put_bytes(out, field.number, payload),
        None => out.extend_from_slice(field.whole),
    }
    replaced.is_some()
}

/// The fields of a message, with this module's error.
fn read_fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, RenameError>> {
    fields(message).map(|field| field.map_err(|WireError { problem, position }| malformed(problem, position)))
}

fn malformed(problem: &'static str, position: usize) -> RenameError {
    RenameError::Malformed {
        format: "protobuf",
        problem,
        position,
    }
}
