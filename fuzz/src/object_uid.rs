//! Binding of bodies to a UID: a first byte that selects the encoding and the place of the UID, then the body.

use ctrlmesh_wire::protobuf::{MAGIC, fields};
use ctrlmesh_wire::{UidError, UidPlace, bind_to_uid};
use serde_json::{Value, json};

const UID: &str = "u-1";
const OTHER_UID: &str = "u-2";

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Encodings, the beginning of their bodies, and where these have the UID.
const ENCODINGS: [(&str, &[u8], UidPlace); 10] = [
    ("application/json", b"", UidPlace::Metadata),
    ("application/json", b"", UidPlace::Preconditions),
    ("application/json", b"", UidPlace::EvictionPreconditions),
    ("application/merge-patch+json", b"", UidPlace::Metadata),
    (JSON_PATCH, b"", UidPlace::Metadata),
    (APPLY, b"", UidPlace::Metadata),
    (PROTOBUF, b"", UidPlace::Metadata),
    (PROTOBUF, b"k8s\0", UidPlace::Metadata),
    (PROTOBUF, b"k8s\0", UidPlace::Preconditions),
    (PROTOBUF, b"k8s\0", UidPlace::EvictionPreconditions),
];

/// A key by which `serde_json` knows its own type for text that it does not parse.
const RAW_VALUE_KEY: &str = "$serde_json";

/// Field 2 of `runtime.Unknown`: the object.
const RAW: u32 = 2;

/// No panic, whatever the content type; a bound body has the UID once, in its place, and no other value changes; it is bound already, and
/// cannot be bound to another UID.
pub fn object_uid(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let (content_type, head, place) = ENCODINGS[usize::from(*choice) % ENCODINGS.len()];
    let (line, behind) = crate::split_line(rest);
    if let Ok(any_type) = std::str::from_utf8(line) {
        let _ = bind_to_uid(any_type, behind, place, UID);
    }
    let body = [head, rest].concat();
    let Ok(bound) = bind_to_uid(content_type, &body, place, UID) else {
        return;
    };
    match content_type {
        PROTOBUF => check_protobuf(&body, &bound, place),
        JSON_PATCH => check_json_patch(&body, &bound),
        APPLY => check_apply(&body, &bound),
        _ => check_json(&body, &bound, place),
    }
    if content_type != JSON_PATCH {
        check_bound_again(content_type, &bound, place);
    }
}

fn check_bound_again(content_type: &str, bound: &[u8], place: UidPlace) {
    assert!(bind_to_uid(content_type, bound, place, UID).is_ok());
    let other = bind_to_uid(content_type, bound, place, OTHER_UID);
    assert!(matches!(other, Err(UidError::OtherObject { .. })), "{other:?}");
    if place == UidPlace::Metadata {
        let read = ctrlmesh_wire::object_uid(content_type, bound);
        assert!(matches!(read.as_deref(), None | Some(UID)), "{read:?}");
    }
}

fn check_json(body: &[u8], bound: &[u8], place: UidPlace) {
    let Ok(mut expected) = serde_json::from_slice::<Value>(body) else {
        // Nested too deeply, or a number that is too large: such values are copied.
        return;
    };
    if crate::contains_text(body, RAW_VALUE_KEY) {
        return;
    }
    let keys: &[&str] = match place {
        UidPlace::Metadata => &["metadata"],
        UidPlace::Preconditions => &["preconditions"],
        UidPlace::EvictionPreconditions => &["deleteOptions", "preconditions"],
    };
    set_uid(&mut expected, keys);
    let read: Value = serde_json::from_slice(bound).expect("a bound body is read");
    assert_eq!(read, expected);
}

fn set_uid(value: &mut Value, keys: &[&str]) {
    if value.is_null() {
        *value = json!({});
    }
    let object = value.as_object_mut().expect("an object has the UID");
    match keys.split_first() {
        Some((key, inner)) => set_uid(object.entry(*key).or_insert(Value::Null), inner),
        None => {
            object.insert("uid".to_owned(), UID.into());
        }
    }
}

fn check_json_patch(body: &[u8], bound: &[u8]) {
    let Ok(mut expected) = serde_json::from_slice::<Vec<Value>>(body) else {
        return;
    };
    let test = json!({"op": "test", "path": "/metadata/uid", "value": UID});
    expected.insert(0, test);
    let read: Vec<Value> = serde_json::from_slice(bound).expect("a bound patch is read");
    assert_eq!(read, expected);
}

fn check_apply(body: &[u8], bound: &[u8]) {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'{') {
        check_json(body, bound, UidPlace::Metadata);
        return;
    }
    let text = |body| std::str::from_utf8(body).expect("YAML is text");
    let Ok(mut expected) = serde_saphyr::from_str::<Value>(text(body)) else {
        return;
    };
    set_uid(&mut expected, &["metadata"]);
    let read: Value = serde_saphyr::from_str(text(bound)).expect("bound YAML is read");
    assert_eq!(read, expected);
}

fn check_protobuf(body: &[u8], bound: &[u8], place: UidPlace) {
    let unknown = |body: &[u8]| body.strip_prefix(MAGIC).expect("a magic number").to_vec();
    let (unknown, bound) = (unknown(body), unknown(bound));
    assert_eq!(other_fields(&unknown, RAW), other_fields(&bound, RAW));
    let object = payloads(&unknown, RAW).last().copied().unwrap_or_default();
    let messages: &[u32] = match place {
        UidPlace::Metadata => &[1],
        UidPlace::Preconditions => &[2],
        UidPlace::EvictionPreconditions => &[2, 2],
    };
    let uid = if place == UidPlace::Metadata { 5 } else { 1 };
    check_message(object, only_payload(&bound, RAW), messages, uid);
}

/// `messages`: the numbers of the messages that have the UID, from the outside. Several of the same number are one, as for decoders.
fn check_message(message: &[u8], bound: &[u8], messages: &[u32], uid: u32) {
    let number = messages.first().copied().unwrap_or(uid);
    assert_eq!(other_fields(message, number), other_fields(bound, number));
    let inner = only_payload(bound, number);
    match messages.split_first() {
        Some((_, messages)) => check_message(&payloads(message, number).concat(), inner, messages, uid),
        None => assert_eq!(inner, UID.as_bytes()),
    }
}

fn only_payload(message: &[u8], number: u32) -> &[u8] {
    let found = payloads(message, number);
    assert_eq!(found.len(), 1, "fields with the number {number}");
    found[0]
}

fn payloads(message: &[u8], number: u32) -> Vec<&[u8]> {
    let fields = fields(message).map(|field| field.expect("a bound message is read"));
    let fields = fields.filter(|field| field.number == number);
    fields.filter_map(|field| field.payload).collect()
}

fn other_fields(message: &[u8], number: u32) -> Vec<&[u8]> {
    let fields = fields(message).map(|field| field.expect("a bound message is read"));
    let others = fields.filter(|field| field.number != number || field.payload.is_none());
    others.map(|field| field.whole).collect()
}
