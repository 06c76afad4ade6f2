//! Events of protobuf watches pass as decided, and malformed ones are refused.

use proptest::prelude::*;

use super::*;
use crate::objects::ObjectMetadata;
use crate::protobuf::{field_payload, fields};

const CHUNK_SIZES: [usize; 6] = [1, 2, 3, 7, 64, usize::MAX];

/// A Lease. `content` tells it from others.
fn lease(name: &str, version: &str, content: &str) -> Vec<u8> {
    let metadata = Message::new().string(1, name).string(3, "default").string(6, version);
    let spec = Message::new().string(1, content);
    let object = Message::new().message(1, &metadata).message(2, &spec);
    envelope("coordination.k8s.io/v1", "Lease", &object)
}

fn event(event_type: &str, body: &[u8]) -> Message {
    Message::new()
        .string(1, event_type)
        .message(2, &Message::new().bytes(1, body))
}

fn frame(message: &[u8]) -> Vec<u8> {
    [&u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

fn framed_event(event_type: &str, name: &str) -> Vec<u8> {
    let body = lease(name, "42", &format!("content-of-{name}"));
    frame(&event(event_type, &body).finish())
}

/// The bookmark that the client gets at version 42 of a Lease.
fn bookmark() -> Vec<u8> {
    let object = Message::new().message(1, &Message::new().string(6, "42"));
    let body = envelope("coordination.k8s.io/v1", "Lease", &object);
    frame(&event("BOOKMARK", &body).finish())
}

/// Pushes the stream in chunks; `decide` gets types and names.
fn filter_watch(
    stream: &[u8],
    chunk_size: usize,
    decide: impl Fn(EventType, &str) -> EventDecision,
) -> Result<Vec<u8>, FilterError> {
    let mut filter = ProtobufWatchFilter::new(MetadataFields {
        name: true,
        ..MetadataFields::default()
    });
    let mut out = Vec::new();
    let mut decide_event = |event_type: EventType, object: &ObjectMetadata<'_>| {
        assert_eq!(object.resource_version, "", "it was not asked for");
        decide(event_type, &object.name)
    };
    for chunk in stream.chunks(chunk_size) {
        filter.push(chunk, &mut out, &mut decide_event)?;
    }
    assert!(!filter.is_mid_event());
    Ok(out)
}

#[test]
fn events_pass_as_decided() {
    let stream = [
        framed_event("ADDED", "kept"),
        framed_event("ADDED", "dropped"),
        framed_event("MODIFIED", "marked"),
        framed_event("MODIFIED", "added"),
        framed_event("MODIFIED", "deleted"),
        framed_event("DELETED", "modified"),
        framed_event("MODIFIED", "kept"),
        framed_event("DELETED", "kept"),
    ]
    .concat();
    let expected = [
        framed_event("ADDED", "kept"),
        bookmark(),
        framed_event("ADDED", "added"),
        framed_event("DELETED", "deleted"),
        framed_event("MODIFIED", "modified"),
        framed_event("MODIFIED", "kept"),
        framed_event("DELETED", "kept"),
    ]
    .concat();
    for chunk_size in CHUNK_SIZES {
        let out = filter_watch(&stream, chunk_size, |_, name| match name {
            "kept" => EventDecision::Keep,
            "dropped" => EventDecision::Drop,
            "marked" => EventDecision::Bookmark,
            "added" => EventDecision::KeepAs(EventType::Added),
            "deleted" => EventDecision::KeepAs(EventType::Deleted),
            _ => EventDecision::KeepAs(EventType::Modified),
        });
        assert_eq!(out, Ok(expected.clone()), "chunks of {chunk_size}");
    }
}

#[test]
fn decision_gets_the_type_of_the_event() {
    for (name, expected) in [
        ("ADDED", EventType::Added),
        ("MODIFIED", EventType::Modified),
        ("DELETED", EventType::Deleted),
    ] {
        let stream = framed_event(name, "lock");
        let out = filter_watch(&stream, 7, |event_type, _| {
            assert_eq!(event_type, expected);
            EventDecision::Keep
        });
        assert_eq!(out, Ok(stream));
    }
}

#[test]
fn requested_metadata_is_decided_on() {
    let mut filter = ProtobufWatchFilter::new(MetadataFields::ALL);
    let mut decide = |_: EventType, object: &ObjectMetadata<'_>| {
        assert_eq!((&*object.namespace, &*object.resource_version), ("default", "42"));
        EventDecision::Drop
    };
    let mut out = Vec::new();
    filter
        .push(&framed_event("ADDED", "lock"), &mut out, &mut decide)
        .unwrap();
    assert!(out.is_empty());
}

#[test]
fn bookmarks_and_errors_pass_without_a_decision() {
    let metadata = Message::new()
        .string(1, "")
        .string(6, "42")
        .message(12, &Message::new().string(1, "a"));
    let object = Message::new().message(1, &metadata).string(2, "spec");
    let status = envelope("v1", "Status", &Message::new().string(3, "gone"));
    let stream = [
        bookmark(),
        frame(&event("BOOKMARK", &envelope("v1", "Pod", &object)).finish()),
        frame(&event("ERROR", &status).finish()),
        frame(&Message::new().string(1, "ERROR").finish()),
        frame(&Message::new().string(1, "BOOKMARK").finish()),
    ]
    .concat();
    for chunk_size in CHUNK_SIZES {
        let out = filter_watch(&stream, chunk_size, |_, _| panic!("no decision"));
        assert_eq!(out, Ok(stream.clone()));
    }
}

#[test]
fn bookmarks_and_errors_with_an_object_are_refused() {
    for stream in [
        framed_event("BOOKMARK", "lock"),
        framed_event("ERROR", "lock"),
        framed_event("ERROR", ""),
        frame(&event("BOOKMARK", b"{}").finish()),
        frame(&event("ERROR", b"{}").finish()),
    ] {
        for chunk_size in CHUNK_SIZES {
            let out = filter_watch(&stream, chunk_size, |_, _| panic!("no decision"));
            assert!(
                matches!(out, Err(FilterError::Malformed { .. })),
                "{stream:x?}: {out:x?}"
            );
        }
    }
}

#[test]
fn tombstone_has_only_what_tells_which_object_it_was() {
    let known = Message::new()
        .string(1, "lock")
        .string(3, "default")
        .string(5, "uid-1")
        .string(6, "42");
    let label = Message::new().string(1, "app").string(2, "a");
    let whole = Message::new()
        .message(11, &label)
        .string(6, "42")
        .string(5, "uid-1")
        .string(3, "default")
        .string(1, "lock");
    let cluster_scoped = Message::new().string(1, "node").string(3, "").string(6, "7");
    let cluster_scoped_known = Message::new().string(1, "node").string(6, "7");
    for (metadata, expected) in [(whole, known), (cluster_scoped, cluster_scoped_known)] {
        let object = Message::new().message(1, &metadata).string(2, "spec");
        let tombstone = Message::new().message(1, &expected);
        let expected = frame(&event("DELETED", &envelope("v1", "Pod", &tombstone)).finish());
        for event_type in ["ADDED", "MODIFIED", "DELETED"] {
            let stream = frame(&event(event_type, &envelope("v1", "Pod", &object)).finish());
            for chunk_size in CHUNK_SIZES {
                let out = filter_watch(&stream, chunk_size, |_, _| EventDecision::Tombstone);
                assert_eq!(out, Ok(expected.clone()), "{event_type} in chunks of {chunk_size}");
            }
        }
    }
}

#[test]
fn tombstone_is_not_made_without_a_name() {
    let stream = framed_event("MODIFIED", "");
    let out = filter_watch(&stream, 7, |_, _| EventDecision::Tombstone);
    assert_eq!(out, Ok(Vec::new()));
}

#[test]
fn object_keeps_its_bytes_when_the_type_changes() {
    // The fields of the event, of the extension and of the envelope are in another order, with unknown ones.
    let body = lease("lock", "42", &"content".repeat(100));
    let extension = Message::new().varint(7, 1).bytes(1, &body);
    let old = Message::new()
        .message(2, &extension)
        .varint(9, 300)
        .string(1, "MODIFIED")
        .string(8, "unknown");
    let new = Message::new()
        .message(2, &extension)
        .varint(9, 300)
        .string(1, "ADDED")
        .string(8, "unknown");
    let out = filter_watch(&frame(&old.finish()), 7, |_, _| EventDecision::KeepAs(EventType::Added));
    assert_eq!(out, Ok(frame(&new.finish())));
}

#[test]
fn bookmark_is_not_made_without_a_version() {
    let stream = frame(&event("ADDED", &lease("lock", "", "content")).finish());
    let out = filter_watch(&stream, 7, |_, _| EventDecision::Bookmark);
    assert_eq!(out, Ok(Vec::new()));
}

#[test]
fn event_is_emitted_as_soon_as_its_last_byte_is_there() {
    let stream = framed_event("ADDED", "lock");
    let (start, last) = stream.split_at(stream.len() - 1);
    let mut filter = ProtobufWatchFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let mut keep = |_: EventType, _: &ObjectMetadata<'_>| EventDecision::Keep;
    assert!(!filter.is_mid_event());
    filter.push(start, &mut out, &mut keep).unwrap();
    assert!(out.is_empty() && filter.is_mid_event());
    filter.push(last, &mut out, &mut keep).unwrap();
    assert_eq!(out, stream);
    assert!(!filter.is_mid_event());
    filter.push(&stream[..2], &mut out, &mut keep).unwrap();
    assert!(filter.is_mid_event());
}

#[test]
fn idle_watch_releases_memory() {
    let body = lease("lock", "42", &"content".repeat(100_000));
    let stream = frame(&event("ADDED", &body).finish());
    let (start, end) = stream.split_at(stream.len() / 2);
    let mut filter = ProtobufWatchFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    for chunk in [start, end] {
        filter.push(chunk, &mut out, &mut |_, _| EventDecision::Keep).unwrap();
    }
    assert!(out == stream);
    assert!(filter.buffered.capacity() <= 2 * MAX_IDLE_BYTES);
}

#[test]
fn unknown_event_types_are_refused() {
    for stream in [
        framed_event("RENAMED", "lock"),
        framed_event("added", "lock"),
        framed_event("", "lock"),
        frame(&Message::new().message(2, &Message::new()).finish()),
        frame(&[]),
    ] {
        for chunk_size in CHUNK_SIZES {
            let out = filter_watch(&stream, chunk_size, |_, _| EventDecision::Keep);
            assert_eq!(out, Err(FilterError::UnknownEvent));
        }
    }
}

/// Violations of an event.
fn malformed_events() -> Vec<(&'static str, Message)> {
    let added = || Message::new().string(1, "ADDED");
    let empty = Message::new();
    let two_bodies = Message::new().bytes(1, &lease("a", "1", "")).bytes(1, b"");
    vec![
        ("two types", event("ADDED", &lease("a", "1", "")).string(1, "ADDED")),
        ("two types of a bookmark", event("BOOKMARK", b"").string(1, "ADDED")),
        ("two objects", event("ADDED", &lease("a", "1", "")).message(2, &empty)),
        ("no object", added()),
        ("an empty object", added().message(2, &empty)),
        ("an object as a number", added().varint(2, 1)),
        ("a type as a number", Message::new().varint(1, 1)),
        ("a type that is not UTF-8", Message::new().bytes(1, b"\xff")),
        ("two bodies", added().message(2, &two_bodies)),
        ("a body as a number", added().message(2, &Message::new().varint(1, 1))),
        ("another magic number", event("ADDED", b"k8s\x01")),
        ("a body without end", event("ADDED", b"k8s\0\x0a\x05")),
    ]
}

/// Violations of an object and its envelope.
fn malformed_objects() -> Vec<(&'static str, Message)> {
    let of_unknown = |unknown: Message| event("ADDED", &[MAGIC, &*unknown.finish()].concat());
    let typed = || Message::new().message(1, &Message::new().string(1, "v1").string(2, "Pod"));
    let empty = Message::new();
    let object = Message::new().message(1, &Message::new().string(1, "lock"));
    let twice = Message::new().message(1, &empty).message(1, &empty);
    vec![
        ("no type of the object", of_unknown(Message::new().message(2, &object))),
        ("no content", of_unknown(typed())),
        (
            "two types of the object",
            of_unknown(typed().message(1, &empty).message(2, &object)),
        ),
        (
            "two contents",
            of_unknown(typed().message(2, &object).message(2, &object)),
        ),
        ("an encoding", of_unknown(typed().message(2, &object).string(3, "gzip"))),
        (
            "two encodings",
            of_unknown(typed().message(2, &object).string(3, "").string(3, "")),
        ),
        ("a content as a number", of_unknown(typed().varint(2, 1))),
        ("two metadata", of_unknown(typed().message(2, &twice))),
        (
            "a name as a number",
            of_unknown(typed().message(2, &Message::new().bytes(1, b"\x08\x01"))),
        ),
    ]
}

#[test]
fn malformed_events_are_refused() {
    for (case, message) in malformed_events().into_iter().chain(malformed_objects()) {
        let stream = frame(&message.finish());
        for chunk_size in CHUNK_SIZES {
            let out = filter_watch(&stream, chunk_size, |_, _| EventDecision::Keep);
            assert!(matches!(out, Err(FilterError::Malformed { .. })), "{case}: {out:x?}");
        }
    }
}

#[test]
fn object_without_metadata_is_refused() {
    let body = envelope("v1", "Pod", &Message::new().string(2, "spec"));
    for event_type in ["ADDED", "BOOKMARK"] {
        let stream = frame(&event(event_type, &body).finish());
        for chunk_size in CHUNK_SIZES {
            let out = filter_watch(&stream, chunk_size, |_, _| EventDecision::Keep);
            assert_eq!(out, Err(FilterError::NoMetadata));
        }
    }
}

#[test]
fn large_event_is_refused_from_its_length() {
    let largest = u32::try_from(MAX_OBJECT_BYTES).unwrap();
    let mut keep = |_: EventType, _: &ObjectMetadata<'_>| EventDecision::Keep;
    for chunk_size in [1, 4] {
        for (length, expected) in [
            (largest, Ok(())),
            (largest + 1, Err(FilterError::TooLarge)),
            (u32::MAX, Err(FilterError::TooLarge)),
        ] {
            let mut filter = ProtobufWatchFilter::new(MetadataFields::ALL);
            let mut out = Vec::new();
            let prefix = length.to_be_bytes();
            let mut chunks = prefix.chunks(chunk_size);
            let pushed = chunks.try_for_each(|chunk| filter.push(chunk, &mut out, &mut keep));
            assert_eq!(pushed, expected, "{length} in chunks of {chunk_size}");
        }
    }
}

#[test]
fn filter_passes_nothing_after_error() {
    let mut filter = ProtobufWatchFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let mut keep = |_: EventType, _: &ObjectMetadata<'_>| EventDecision::Keep;
    let failure = filter
        .push(&framed_event("RENAMED", "lock"), &mut out, &mut keep)
        .unwrap_err();
    let pushed = filter.push(&framed_event("ADDED", "lock"), &mut out, &mut keep);
    assert_eq!(pushed, Err(failure));
    assert!(out.is_empty());
}

#[test]
fn bookmark_has_only_type_and_version() {
    let stream = framed_event("ADDED", "lock");
    let out = filter_watch(&stream, usize::MAX, |_, _| EventDecision::Bookmark).unwrap();
    let extension = field_payload(&out[PREFIX_BYTES..], 2).unwrap();
    let body = field_payload(extension, 1).unwrap();
    let object = field_payload(body.strip_prefix(MAGIC).unwrap(), 2).unwrap();
    let metadata = field_payload(object, 1).unwrap();
    let read: Vec<(u32, Option<&[u8]>)> = fields(metadata)
        .map(Result::unwrap)
        .map(|field| (field.number, field.payload))
        .collect();
    assert_eq!(read, vec![(6, Some(&b"42"[..]))]);
    assert_eq!(fields(object).count(), 1);
}

proptest! {
    #[test]
    fn filtered_watch_does_not_depend_on_chunks(
        events in prop::collection::vec((0_usize..300, 0_usize..3), 0..10),
        cuts in prop::collection::vec(1_usize..200, 1..12),
    ) {
        let names = ["kept", "dropped", "marked"];
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for &(content, decision) in &events {
            let body = lease(names[decision], "42", &"x".repeat(content));
            let event = frame(&event("MODIFIED", &body).finish());
            stream.extend_from_slice(&event);
            match decision {
                0 => expected.extend_from_slice(&event),
                1 => {}
                _ => expected.extend_from_slice(&bookmark()),
            }
        }
        let mut filter = ProtobufWatchFilter::new(MetadataFields::ALL);
        let mut out = Vec::new();
        let mut decide = |_: EventType, object: &ObjectMetadata<'_>| match &*object.name {
            "kept" => EventDecision::Keep,
            "dropped" => EventDecision::Drop,
            _ => EventDecision::Bookmark,
        };
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            let (chunk, behind) = rest.split_at((*cut).min(rest.len()));
            filter.push(chunk, &mut out, &mut decide).unwrap();
            rest = behind;
            if rest.is_empty() { break; }
        }
        prop_assert!(!filter.is_mid_event());
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        chunk_size in 1_usize..50,
    ) {
        let unknown = event("ADDED", &[MAGIC, &*bytes].concat()).finish();
        for stream in [bytes.clone(), frame(&bytes), frame(&unknown)] {
            let mut filter = ProtobufWatchFilter::new(MetadataFields::ALL);
            let mut out = Vec::new();
            for chunk in stream.chunks(chunk_size) {
                if filter.push(chunk, &mut out, &mut |_, _| EventDecision::Keep).is_err() { break; }
            }
            prop_assert!(out.len() <= stream.len());
        }
    }
}
