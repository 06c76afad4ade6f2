//! Metadata is read as upstream's decoder reads it, and malformed metadata is refused.

use super::*;
use crate::protobuf::Message;

fn entry(key: &str, value: &str) -> Message {
    Message::new().string(1, key).string(2, value)
}

fn owner(name: &str, is_controller: u64) -> Message {
    Message::new()
        .string(1, "ReplicaSet")
        .string(3, name)
        .string(4, "owner-uid")
        .string(5, "apps/v1")
        .varint(6, is_controller)
        .varint(7, 1)
}

/// An `ObjectMeta` with every field that is read, and others.
fn object_meta() -> Message {
    Message::new()
        .string(1, "web")
        .string(2, "generated-")
        .string(3, "default")
        .string(5, "uid")
        .string(6, "42")
        .varint(7, 3)
        .message(11, &entry("app", "web"))
        .message(11, &entry("tier", "front"))
        .message(12, &entry("note", "a b"))
        .message(13, &owner("other", 0))
        .message(13, &owner("web-1", 1))
        .message(13, &owner("web-2", 1))
        .bytes(17, b"\xff not a message")
}

fn object_of(meta: &Message) -> Vec<u8> {
    let object = Message::new()
        .message(1, meta)
        .message(2, &Message::new().string(1, "x"));
    object.finish()
}

fn expected_metadata() -> ObjectMetadata<'static> {
    ObjectMetadata {
        namespace: "default".into(),
        name: "web".into(),
        uid: "uid".into(),
        resource_version: "42".into(),
        labels: vec![("app".into(), "web".into()), ("tier".into(), "front".into())],
        annotations: vec![("note".into(), "a b".into())],
        controller: Some(Controller {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: "web-1".into(),
            uid: "owner-uid".into(),
        }),
    }
}

fn read_all(object: &[u8]) -> Result<ObjectMetadata<'_>, FilterError> {
    read_metadata(object, 0, MetadataFields::ALL)
}

#[test]
fn all_fields_are_read() {
    assert_eq!(read_all(&object_of(&object_meta())), Ok(expected_metadata()));
}

/// Asks for a field.
type Ask = fn(&mut MetadataFields);
/// Takes a field from the metadata that are complete.
type Take = fn(&mut ObjectMetadata<'static>, ObjectMetadata<'static>);

#[test]
fn only_requested_fields_are_read() {
    let cases: [(Ask, Take); 8] = [
        (|_| {}, |_, _| {}),
        (|requested| requested.name = true, |read, all| read.name = all.name),
        (
            |requested| requested.namespace = true,
            |read, all| read.namespace = all.namespace,
        ),
        (|requested| requested.uid = true, |read, all| read.uid = all.uid),
        (
            |requested| requested.resource_version = true,
            |read, all| read.resource_version = all.resource_version,
        ),
        (
            |requested| requested.labels = true,
            |read, all| read.labels = all.labels,
        ),
        (
            |requested| requested.annotations = true,
            |read, all| read.annotations = all.annotations,
        ),
        (
            |requested| requested.controller = true,
            |read, all| read.controller = all.controller,
        ),
    ];
    let object = object_of(&object_meta());
    for (ask, take) in cases {
        let (mut requested, mut expected) = (MetadataFields::default(), ObjectMetadata::default());
        ask(&mut requested);
        take(&mut expected, expected_metadata());
        assert_eq!(read_metadata(&object, 0, requested), Ok(expected), "{requested:?}");
    }
}

#[test]
fn last_occurrence_of_a_field_counts() {
    let twice = entry("a", "0").string(1, "app").string(2, "1");
    let controller = owner("first", 0).string(3, "last").varint(6, 1);
    let object = object_of(
        &object_meta()
            .string(1, "renamed")
            .message(11, &entry("tier", "back"))
            .message(11, &twice),
    );
    let read = read_all(&object).unwrap();
    assert_eq!(read.name, "renamed");
    assert_eq!((read.label("app"), read.label("tier")), (Some("1"), Some("back")));

    let object = object_of(&Message::new().message(13, &controller));
    assert_eq!(read_all(&object).unwrap().controller.unwrap().name, "last");
    let object = object_of(&Message::new().message(13, &owner("x", 1).varint(6, 0)));
    assert_eq!(read_all(&object).unwrap().controller, None);
}

#[test]
fn missing_key_or_value_of_a_map_is_empty() {
    let no_value = Message::new().string(1, "app");
    let no_key = Message::new().string(2, "web");
    let object = object_of(&Message::new().message(11, &no_value).message(12, &no_key));
    let read = read_all(&object).unwrap();
    let labels: Vec<Entry<'_>> = vec![("app".into(), "".into())];
    let annotations: Vec<Entry<'_>> = vec![("".into(), "web".into())];
    assert_eq!((read.labels, read.annotations), (labels, annotations));
}

#[test]
fn object_without_metadata_is_refused() {
    assert_eq!(read_all(&[]), Err(FilterError::NoMetadata));
    let object = Message::new().string(2, "spec").finish();
    assert_eq!(read_all(&object), Err(FilterError::NoMetadata));
    assert_eq!(read_all(&object_of(&Message::new())), Ok(ObjectMetadata::default()));
}

#[test]
fn malformed_metadata_is_refused() {
    let meta = Message::new;
    let cases = [
        (
            "metadata twice",
            [object_of(&object_meta()), object_of(&meta())].concat(),
        ),
        ("metadata as a number", Message::new().varint(1, 1).finish()),
        (
            "a field that does not end",
            [object_of(&meta()), vec![0x1a, 9, 1]].concat(),
        ),
        (
            "metadata that do not end",
            Message::new().bytes(1, &[0x0a, 9, 1]).finish(),
        ),
        ("a name as a number", object_of(&meta().varint(1, 1))),
        ("a namespace as a number", object_of(&meta().varint(3, 1))),
        ("a UID as a number", object_of(&meta().varint(5, 1))),
        ("a version as a number", object_of(&meta().varint(6, 1))),
        ("labels as a number", object_of(&meta().varint(11, 1))),
        ("annotations as a number", object_of(&meta().varint(12, 1))),
        ("owners as a number", object_of(&meta().varint(13, 1))),
        (
            "a key as a number",
            object_of(&meta().message(11, &meta().varint(1, 1))),
        ),
        (
            "a flag as a text",
            object_of(&meta().message(13, &meta().string(6, "true"))),
        ),
    ];
    for (case, object) in cases {
        let read = read_all(&object);
        assert!(matches!(read, Err(FilterError::Malformed { .. })), "{case}: {read:?}");
    }
}

#[test]
fn wrong_wire_type_of_an_unrequested_field_is_refused() {
    for number in [1, 3, 5, 6, 11, 12, 13] {
        let object = object_of(&Message::new().varint(number, 1));
        let read = read_metadata(&object, 0, MetadataFields::default());
        assert!(matches!(read, Err(FilterError::Malformed { .. })), "field {number}");
    }
}

#[test]
fn position_of_a_violation_is_counted_from_the_start_of_the_object() {
    // Tag and length of the metadata.
    let object = object_of(&Message::new().varint(1, 1));
    let Err(FilterError::Malformed { position, .. }) = read_metadata(&object, 100, MetadataFields::ALL) else {
        panic!("the name is a number");
    };
    assert_eq!(position, 102);
}

#[test]
fn bytes_that_are_not_utf8_are_replaced() {
    let text = b"a\xff";
    let owner = Message::new().bytes(4, text).varint(6, 1);
    let pair = Message::new().bytes(1, text).bytes(2, text);
    let meta = Message::new()
        .bytes(1, text)
        .message(11, &pair)
        .message(12, &pair)
        .message(13, &owner);
    let object = object_of(&meta);
    let read = read_all(&object).unwrap();
    let replaced = "a\u{fffd}";
    assert_eq!(read.name, replaced);
    assert_eq!(read.label(replaced), Some(replaced));
    let annotations: Vec<Entry<'_>> = vec![(replaced.into(), replaced.into())];
    assert_eq!(read.annotations, annotations);
    assert_eq!(read.controller.unwrap().uid, replaced);
}
