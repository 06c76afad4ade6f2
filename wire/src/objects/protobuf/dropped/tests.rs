//! Fields that are left out of lists and watches.

use proptest::prelude::*;

use crate::objects::tests::{fields_of, keep_all_but_hidden};
use crate::objects::{
    EventDecision, EventType, FilterError, MetadataFields, ObjectMetadata, ProtobufListFilter, ProtobufWatchFilter,
};
use crate::protobuf::{MAGIC, Message, envelope, field_payload, fields};

const SIZES: [usize; 3] = [1, 7, 4096];

const PATHS: [&str; 3] = [
    "metadata.managedFields",
    "metadata.labels.l",
    "metadata.annotations[\"a/b\"]",
];

/// Keeps objects whose name is not `hidden`.
fn filter_list(body: &[u8], paths: &[&str], size: usize) -> Result<Vec<u8>, FilterError> {
    let mut filter = ProtobufListFilter::new(MetadataFields::ALL).with_dropped_fields(fields_of(paths));
    let mut out = Vec::new();
    for chunk in body.chunks(size) {
        filter.push(chunk, &mut out, &mut keep_all_but_hidden)?;
    }
    filter.finish()?;
    Ok(out)
}

/// Keeps events, those of objects named `deleted` as DELETED, and hides those of objects named `hidden`.
fn filter_watch(stream: &[u8], paths: &[&str], size: usize) -> Result<Vec<u8>, FilterError> {
    let mut filter = ProtobufWatchFilter::new(MetadataFields::ALL).with_dropped_fields(fields_of(paths));
    let mut out = Vec::new();
    let mut decide = |_: EventType, object: &ObjectMetadata<'_>| match &*object.name {
        "deleted" => EventDecision::KeepAs(EventType::Deleted),
        "hidden" => EventDecision::Drop,
        _ => EventDecision::Keep,
    };
    for chunk in stream.chunks(size) {
        filter.push(chunk, &mut out, &mut decide)?;
    }
    Ok(out)
}

/// An object with managed fields of these lengths, between other fields.
fn object(name: &str, managed: &[usize]) -> Message {
    let mut metadata = Message::new().string(1, name).string(6, "7");
    for length in managed {
        metadata = metadata.bytes(17, &vec![b'm'; *length]);
    }
    let label = Message::new().string(1, "app").string(2, "managedFields");
    // The spec has a field of the same number.
    let spec = Message::new()
        .bytes(17, b"spec")
        .message(1, &Message::new().bytes(17, b""));
    Message::new()
        .message(1, &metadata.message(11, &label))
        .message(2, &spec)
}

/// An object with these pairs of one map.
fn object_with_pairs(number: u32, pairs: &[(&str, &str)]) -> Message {
    let pair = |(key, value): &(&str, &str)| Message::new().string(1, key).string(2, value);
    let metadata = Message::new().string(1, "a");
    let metadata = pairs
        .iter()
        .map(pair)
        .fold(metadata, |metadata, pair| metadata.message(number, &pair));
    Message::new().message(1, &metadata)
}

fn list_of(objects: &[Message]) -> Vec<u8> {
    let list = Message::new().message(1, &Message::new().string(2, "777"));
    let list = objects.iter().fold(list, |list, object| list.message(2, object));
    envelope("v1", "PodList", &list)
}

/// The items of a list. Checks that the list has zeros beside them and its metadata alone.
fn items_of(body: &[u8]) -> Vec<Vec<u8>> {
    let list = field_payload(body.strip_prefix(MAGIC).unwrap(), 2).unwrap();
    let mut items = Vec::new();
    for field in fields(list).map(Result::unwrap) {
        let content = field.payload.unwrap();
        match field.number {
            1 => assert_eq!(content, Message::new().string(2, "777").finish()),
            2 => items.push(content.to_vec()),
            15 => assert!(content.iter().all(|byte| *byte == 0)),
            number => panic!("field {number}"),
        }
    }
    items
}

fn bytes_of(objects: &[Message]) -> Vec<Vec<u8>> {
    objects.iter().cloned().map(Message::finish).collect()
}

fn assert_list(objects: &[Message], paths: &[&str], expected: &[Message]) {
    let body = list_of(objects);
    for size in SIZES {
        let out = filter_list(&body, paths, size).unwrap();
        assert_eq!(out.len(), body.len(), "chunks of {size}");
        assert!(items_of(&out) == bytes_of(expected), "chunks of {size}");
        assert!(
            filter_list(&out, paths, size).as_ref() == Ok(&out),
            "a second time changes something"
        );
        assert!(
            filter_list(&out, &[], size).as_ref() == Ok(&out),
            "the list is not read again"
        );
    }
}

fn event(event_type: &str, object: &Message) -> Vec<u8> {
    let body = envelope("v1", "Pod", object);
    let message = Message::new()
        .string(1, event_type)
        .message(2, &Message::new().bytes(1, &body))
        .finish();
    [&u32::try_from(message.len()).unwrap().to_be_bytes(), &*message].concat()
}

#[test]
fn items_without_managed_fields_take_as_many_bytes() {
    // Around these lengths, numbers before contents take another byte.
    let lengths = (0..300).chain(16_000..16_500);
    for length in lengths {
        let body = list_of(&[object("a", &[length]), object("b", &[])]);
        let out = filter_list(&body, &PATHS, 4096).unwrap();
        assert_eq!(out.len(), body.len(), "{length}");
        assert!(
            items_of(&out) == bytes_of(&[object("a", &[]), object("b", &[])]),
            "{length}"
        );
        assert!(filter_list(&out, &[], 4096).as_ref() == Ok(&out), "{length}");
    }
    assert_list(
        &[object("a", &[3, 0, 20_000]), object("hidden", &[9]), object("b", &[1])],
        &PATHS,
        &[object("a", &[]), object("b", &[])],
    );
}

#[test]
fn objects_without_the_fields_pass_byte_for_byte() {
    let body = list_of(&[object("a", &[]), object_with_pairs(12, &[("c", "d")])]);
    let stream = [event("ADDED", &object("a", &[])), event("MODIFIED", &object("b", &[]))].concat();
    for size in SIZES {
        assert!(filter_list(&body, &PATHS, size).as_ref() == Ok(&body));
        assert!(filter_watch(&stream, &PATHS, size).as_ref() == Ok(&stream));
        let managed = list_of(&[object("a", &[200])]);
        assert!(filter_list(&managed, &PATHS[1..], size).as_ref() == Ok(&managed));
    }
}

#[test]
fn single_pairs_leave_or_all_of_them() {
    type Pair = (&'static str, &'static str);
    const PAIRS: [Pair; 5] = [("a/b", "1"), ("c", ""), ("a/b", "2"), ("", ""), ("l", "a/b")];
    let cases: [(u32, &str, &[Pair]); 6] = [
        (
            12,
            "metadata.annotations[\"a/b\"]",
            &[("c", ""), ("", ""), ("l", "a/b")],
        ),
        (12, "metadata.annotations", &[]),
        (12, "metadata.labels", &PAIRS),
        (11, "metadata.labels.l", &PAIRS[..4]),
        (11, "metadata.labels", &[]),
        (11, "metadata.annotations[\"a/b\"]", &PAIRS),
    ];
    for (number, path, kept) in cases {
        let (object, expected) = (object_with_pairs(number, &PAIRS), object_with_pairs(number, kept));
        assert_list(&[object], &[path], &[expected]);
    }
}

#[test]
fn metadata_whose_length_is_in_a_longer_form_is_shortened() {
    let metadata = Message::new().string(1, "a").bytes(17, b"m").finish();
    let length = u8::try_from(metadata.len()).unwrap();
    let item = [&[0x0a, length | 0x80, 0], &*metadata].concat();
    let list = Message::new()
        .message(1, &Message::new().string(2, "777"))
        .bytes(2, &item);
    let body = envelope("v1", "PodList", &list);
    let out = filter_list(&body, &PATHS, 7).unwrap();
    assert_eq!(out.len(), body.len());
    let expected = Message::new().message(1, &Message::new().string(1, "a"));
    assert_eq!(items_of(&out), [expected.finish()]);
}

#[test]
fn events_are_shortened_and_may_change_their_type() {
    for length in (0..300).chain(16_000..16_500).step_by(3) {
        let stream = [
            event("ADDED", &object("a", &[length])),
            event("MODIFIED", &object("hidden", &[length])),
            event("MODIFIED", &object("deleted", &[1, length])),
            event("DELETED", &object("b", &[])),
        ]
        .concat();
        let expected = [
            event("ADDED", &object("a", &[])),
            event("DELETED", &object("deleted", &[])),
            event("DELETED", &object("b", &[])),
        ]
        .concat();
        for size in [7, 4096] {
            assert!(
                filter_watch(&stream, &PATHS, size).as_ref() == Ok(&expected),
                "{length}"
            );
        }
    }
}

#[test]
fn bookmarks_and_errors_keep_their_fields() {
    let end = Message::new().string(1, "k8s.io/initial-events-end").string(2, "true");
    let metadata = Message::new().string(6, "7").message(12, &end).bytes(17, b"m");
    let status = envelope(
        "v1",
        "Status",
        &Message::new().message(1, &Message::new().bytes(17, b"")),
    );
    let error = Message::new()
        .string(1, "ERROR")
        .message(2, &Message::new().bytes(1, &status))
        .finish();
    let stream = [
        event("BOOKMARK", &Message::new().message(1, &metadata)),
        [&u32::try_from(error.len()).unwrap().to_be_bytes(), &*error].concat(),
    ]
    .concat();
    for size in SIZES {
        let out = filter_watch(&stream, &["metadata.annotations", "metadata.managedFields"], size);
        assert!(out.as_ref() == Ok(&stream));
    }
}

#[test]
fn fields_with_other_numbers_in_each_kind_are_refused() {
    let body = list_of(&[object("a", &[])]);
    for paths in [&["status"][..], &["metadata.managedFields", "spec.x"]] {
        assert_eq!(filter_list(&body, paths, 7), Err(FilterError::UndroppableFields));
        let stream = event("ADDED", &object("a", &[]));
        assert_eq!(filter_watch(&stream, paths, 7), Err(FilterError::UndroppableFields));
        let mut unread = ProtobufListFilter::new(MetadataFields::ALL).with_dropped_fields(fields_of(paths));
        assert_eq!(unread.finish(), Err(FilterError::UndroppableFields));
    }
}

/// A field of an `ObjectMeta`, and whether it is dropped.
fn any_field() -> impl Strategy<Value = (u32, Vec<u8>, bool)> {
    let texts = (prop_oneof![Just(3_u32), Just(5), Just(6), Just(14)], "[a-z]{0,9}");
    let texts = texts.prop_map(|(number, text)| (number, text.into_bytes(), false));
    let pairs = (prop_oneof![Just(11_u32), Just(12)], "l|a/b|c", "[a-z]{0,140}");
    let pairs = pairs.prop_map(|(number, key, value)| {
        let is_dropped = matches!((number, &*key), (11, "l") | (12, "a/b"));
        let pair = Message::new().string(1, &key).string(2, &value);
        (number, pair.finish(), is_dropped)
    });
    let managed = proptest::collection::vec(any::<u8>(), 0..300).prop_map(|content| (17, content, true));
    prop_oneof![texts, pairs, managed]
}

proptest! {
    #[test]
    fn fields_are_gone_and_everything_else_is_there(
        metadata in proptest::collection::vec(proptest::collection::vec(any_field(), 0..6), 0..5),
        spec in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let object = |fields: &Vec<(u32, Vec<u8>, bool)>, has_all: bool| {
            let kept = fields.iter().filter(|(_, _, is_dropped)| has_all || !is_dropped);
            let metadata = kept.fold(Message::new(), |metadata, (number, content, _)| metadata.bytes(*number, content));
            Message::new().bytes(2, &spec).message(1, &metadata)
        };
        let objects: Vec<Message> = metadata.iter().map(|fields| object(fields, true)).collect();
        let expected: Vec<Message> = metadata.iter().map(|fields| object(fields, false)).collect();
        assert_list(&objects, &PATHS, &expected);
        let stream_of = |objects: &[Message]| -> Vec<u8> {
            objects.iter().flat_map(|object| event("ADDED", object)).collect()
        };
        for size in SIZES {
            let out = filter_watch(&stream_of(&objects), &PATHS, size);
            prop_assert!(out.as_ref() == Ok(&stream_of(&expected)));
        }
    }
}
