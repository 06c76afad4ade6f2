//! Kept objects of protobuf lists pass byte for byte, others become zeros, and malformed lists are refused.

use proptest::prelude::*;

use super::*;
use crate::protobuf::{Message, envelope, field_payload, fields, text};

const CHUNK_SIZES: [usize; 6] = [1, 2, 3, 7, 64, usize::MAX];

/// An object whose content of this size tells it from others.
fn object(name: &str, content: usize) -> Message {
    let label = Message::new().string(1, "app").string(2, name);
    let metadata = Message::new()
        .string(1, name)
        .string(3, "default")
        .string(5, &format!("uid-of-{name}"))
        .message(11, &label);
    let text = format!("content-of-{name}/").repeat(content / 14 + 1);
    Message::new()
        .message(1, &metadata)
        .message(2, &Message::new().string(1, &text))
}

fn list_meta() -> Message {
    Message::new().string(1, "").string(2, "777").string(3, "token")
}

fn pod_list(list: &Message) -> Vec<u8> {
    envelope("v1", "PodList", list)
}

/// A body with these bytes instead of `runtime.Unknown`.
fn body_of(unknown: &[u8]) -> Vec<u8> {
    [MAGIC, unknown].concat()
}

fn type_meta(kind: &str) -> Message {
    Message::new().string(1, "v1").string(2, kind)
}

/// Pushes the body in chunks; keeps objects by their names.
fn filter_list(body: &[u8], chunk_size: usize, is_kept: impl Fn(&str) -> bool) -> Result<Vec<u8>, FilterError> {
    let mut filter = ProtobufListFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let mut decide = |objects: &[ObjectMetadata<'_>], flags: &mut [bool]| {
        assert_eq!(objects.len(), flags.len());
        for (object, flag) in objects.iter().zip(flags) {
            assert!(*flag, "a flag is true at first");
            assert_eq!(object.uid, format!("uid-of-{}", object.name));
            *flag = is_kept(&object.name);
        }
    };
    for chunk in body.chunks(chunk_size) {
        filter.push(chunk, &mut out, &mut decide)?;
    }
    filter.finish()?;
    Ok(out)
}

/// The content of `raw`.
fn list_of(body: &[u8]) -> &[u8] {
    field_payload(body.strip_prefix(MAGIC).unwrap(), 2).unwrap()
}

fn item_names(body: &[u8]) -> Vec<String> {
    fields(list_of(body))
        .map(Result::unwrap)
        .filter(|field| field.number == 2)
        .map(|item| text(field_payload(item.payload.unwrap(), 1).unwrap(), 1).unwrap())
        .collect()
}

fn contains(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

fn varint_bytes(number: u64) -> Vec<u8> {
    Message::new().varint(1, number).finish().split_off(1)
}

#[test]
fn items_that_are_not_kept_become_zeros() {
    let objects = [
        ("a", 10),
        ("b", 300),
        ("c", 20_000),
        ("d", 10),
        ("e", 300),
        ("f", 20_000),
    ];
    let mut list = Message::new().message(1, &list_meta());
    let mut expected = list.clone();
    for (name, content) in objects {
        let item = object(name, content);
        list = list.message(2, &item);
        expected = if "bcd".contains(name) {
            expected.message(2, &item)
        } else {
            expected.bytes(15, &vec![0; item.finish().len()])
        };
    }
    let (body, expected) = (pod_list(&list), pod_list(&expected));
    assert_eq!(body.len(), expected.len());
    for chunk_size in CHUNK_SIZES {
        let out = filter_list(&body, chunk_size, |name| "bcd".contains(name)).unwrap();
        assert!(out == expected, "chunks of {chunk_size}");
        assert_eq!(item_names(&out), ["b", "c", "d"]);
        for (name, _) in objects {
            let is_there = contains(&out, &format!("content-of-{name}/"));
            assert_eq!(is_there, "bcd".contains(name), "{name}");
        }
    }
}

#[test]
fn list_that_is_kept_passes_byte_for_byte() {
    let odd = Message::new()
        .bytes(15, &[0; 300])
        .message(2, &object("a", 10))
        .message(1, &list_meta())
        .message(2, &object("b", 10))
        .bytes(15, b"");
    let unknown = Message::new()
        .message(1, &type_meta("PodList"))
        .string(3, "")
        .message(2, &odd)
        .string(4, "application/vnd.kubernetes.protobuf");
    let bodies = [
        pod_list(&Message::new()),
        pod_list(&Message::new().message(1, &list_meta())),
        body_of(&unknown.finish()),
    ];
    for body in bodies {
        for chunk_size in CHUNK_SIZES {
            let out = filter_list(&body, chunk_size, |_| true).unwrap();
            assert!(out == body, "chunks of {chunk_size}");
        }
    }
}

#[test]
fn list_metadata_that_are_wrong_for_a_part_of_the_list_are_blanked() {
    let shard_info = Message::new().string(1, "shardRange(object.metadata.uid, '0x00', '0x10')");
    let shard_info_length = shard_info.clone().finish().len();
    for count in [0, 300, u64::MAX] {
        let list_meta_bytes = list_meta()
            .varint(4, count)
            .message(5, &shard_info)
            .string(6, "kept")
            .finish();
        let mut blank_count = vec![0x80; varint_bytes(count).len() - 1];
        blank_count.push(0);
        let blanked = [
            list_meta().finish(),
            vec![0x78],
            blank_count,
            Message::new()
                .bytes(15, &vec![0; shard_info_length])
                .string(6, "kept")
                .finish(),
        ]
        .concat();
        let body = pod_list(&Message::new().bytes(1, &list_meta_bytes).message(2, &object("a", 9)));
        let expected = pod_list(&Message::new().bytes(1, &blanked).message(2, &object("a", 9)));
        for chunk_size in CHUNK_SIZES {
            let out = filter_list(&body, chunk_size, |_| true).unwrap();
            assert!(out == expected, "count {count}, chunks of {chunk_size}");
        }
        let read = field_payload(list_of(&expected), 1).unwrap();
        let numbers: Vec<u32> = fields(read).map(|field| field.unwrap().number).collect();
        assert_eq!(numbers, [1, 2, 3, 15, 15, 6]);
    }
}

#[test]
fn filtered_list_can_be_filtered_again() {
    let list = Message::new().message(1, &list_meta().varint(4, 5));
    let body = pod_list(&list.message(2, &object("a", 9)).message(2, &object("b", 9)));
    let once = filter_list(&body, 7, |name| name == "a").unwrap();
    assert!(filter_list(&once, 7, |_| true).unwrap() == once);
}

#[test]
fn status_passes_whole() {
    let status = Message::new().string(2, "Failure").varint(6, 403);
    let body = envelope("v1", "Status", &status);
    for chunk_size in CHUNK_SIZES {
        let out = filter_list(&body, chunk_size, |_| panic!("a Status has no items"));
        assert_eq!(out, Ok(body.clone()));
    }
}

#[test]
fn status_of_another_version_or_above_64_kib_is_refused() {
    let status = Message::new().string(2, "Failure");
    let large = Message::new().bytes(3, &vec![b'x'; 64 * 1024]);
    for body in [
        envelope("", "Status", &status),
        envelope("example.com/v1", "Status", &status),
        envelope("v1", "Status", &large),
    ] {
        for chunk_size in CHUNK_SIZES {
            assert_eq!(filter_list(&body, chunk_size, |_| true), Err(FilterError::NotList));
        }
    }
}

#[test]
fn lists_of_metrics_are_refused() {
    // Their items have no `ObjectMeta` as field 1, but an object reference or a name.
    for (api_version, kind) in [
        ("custom.metrics.k8s.io/v1beta2", "MetricValueList"),
        ("external.metrics.k8s.io/v1beta1", "ExternalMetricValueList"),
    ] {
        let body = envelope(api_version, kind, &Message::new().message(2, &object("a", 9)));
        for chunk_size in CHUNK_SIZES {
            assert_eq!(filter_list(&body, chunk_size, |_| true), Err(FilterError::NotList));
        }
    }
    let body = envelope("metrics.k8s.io/v1beta1", "PodMetricsList", &Message::new());
    assert_eq!(filter_list(&body, 7, |_| true), Ok(body.clone()));
}

#[test]
fn other_kinds_are_refused() {
    for kind in ["Pod", "List", "", "Listing", "podlist"] {
        let body = envelope("v1", kind, &object("a", 9));
        for chunk_size in CHUNK_SIZES {
            let out = filter_list(&body, chunk_size, |_| true);
            assert_eq!(out, Err(FilterError::NotList), "{kind}");
        }
    }
}

#[test]
fn items_of_one_chunk_are_decided_together_and_in_order() {
    let mut list = Message::new().message(1, &list_meta());
    for index in 0..2500 {
        list = list.message(2, &object(&index.to_string(), 1));
    }
    let body = pod_list(&list);
    let (head, tail) = body.split_at(400);
    let mut filter = ProtobufListFilter::new(MetadataFields {
        name: true,
        ..MetadataFields::default()
    });
    let (mut out, mut batches, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let mut decide = |objects: &[ObjectMetadata<'_>], _: &mut [bool]| {
        batches.push(objects.len());
        names.extend(objects.iter().map(|object| object.name.clone().into_owned()));
    };
    filter.push(head, &mut out, &mut decide).unwrap();
    filter.push(tail, &mut out, &mut decide).unwrap();
    filter.finish().unwrap();
    assert!(out == body);
    let first = batches[0];
    assert!((1..20).contains(&first), "{first} items are complete in 400 bytes");
    assert_eq!(batches, [first, 1024, 1024, 2500 - 2048 - first]);
    assert!(names.iter().map(|name| name.parse::<usize>().unwrap()).eq(0..2500));
}

#[test]
fn object_is_emitted_as_soon_as_it_is_complete() {
    let list = Message::new().message(2, &object("a", 9)).message(2, &object("b", 9));
    let body = pod_list(&list);
    let end_of_list = body.len() - 4;
    let mut filter = ProtobufListFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let (all_but_last, rest) = body.split_at(end_of_list - 1);
    filter.push(all_but_last, &mut out, &mut |_, _| {}).unwrap();
    assert!(contains(&out, "content-of-a/") && !contains(&out, "content-of-b/"));
    filter.push(&rest[..1], &mut out, &mut |_, _| {}).unwrap();
    assert!(out == body[..end_of_list]);
}

#[test]
fn body_that_ends_early_is_unfinished() {
    let body = pod_list(&Message::new().message(1, &list_meta()).message(2, &object("a", 200)));
    // Behind the object, and behind its empty content encoding.
    let boundaries = [body.len() - 4, body.len() - 2];
    for end in 0..body.len() {
        for chunk_size in [1, usize::MAX] {
            let out = filter_list(&body[..end], chunk_size, |_| true);
            if boundaries.contains(&end) {
                assert!(out.is_ok(), "{end}");
            } else {
                assert_eq!(out, Err(FilterError::Unfinished), "{end}");
            }
        }
    }
    assert_eq!(filter_list(&[], 1, |_| true), Err(FilterError::Unfinished));
    let no_object = body_of(&Message::new().message(1, &type_meta("PodList")).finish());
    assert_eq!(filter_list(&no_object, 1, |_| true), Err(FilterError::Unfinished));
}

/// Violations of the envelope.
fn malformed_envelopes() -> Vec<(&'static str, Vec<u8>)> {
    let typed = || Message::new().message(1, &type_meta("PodList"));
    let empty = Message::new();
    vec![
        (
            "another magic number",
            [b"k8s\x01", &*typed().message(2, &empty).finish()].concat(),
        ),
        (
            "an object before its type",
            body_of(&Message::new().message(2, &empty).finish()),
        ),
        (
            "two types",
            body_of(&typed().message(1, &type_meta("PodList")).finish()),
        ),
        (
            "two objects",
            body_of(&typed().message(2, &empty).message(2, &empty).finish()),
        ),
        ("two encodings", body_of(&typed().string(3, "").string(3, "").finish())),
        (
            "two content types",
            body_of(&typed().string(4, "").string(4, "").finish()),
        ),
        (
            "an encoding",
            body_of(&typed().string(3, "gzip").message(2, &empty).finish()),
        ),
        (
            "an unknown field",
            body_of(&typed().message(2, &empty).string(5, "").finish()),
        ),
        (
            "an unknown number",
            body_of(&typed().message(2, &empty).varint(10, 1).finish()),
        ),
        (
            "an encoding behind the object",
            body_of(&typed().message(2, &empty).string(3, "gzip").finish()),
        ),
    ]
}

/// Violations of the wire format in the envelope.
fn broken_envelopes() -> Vec<(&'static str, Vec<u8>)> {
    let typed = || Message::new().message(1, &type_meta("PodList"));
    vec![
        ("a type as a number", body_of(&Message::new().varint(1, 1).finish())),
        ("an object as a number", body_of(&typed().varint(2, 1).finish())),
        ("an encoding as a number", body_of(&typed().varint(3, 1).finish())),
        (
            "a large type",
            body_of(&Message::new().bytes(1, &vec![0; 64 * 1024 + 1]).finish()),
        ),
        (
            "a kind that is not UTF-8",
            body_of(&Message::new().bytes(1, b"\x12\x01\xff").finish()),
        ),
        (
            "a kind as a number",
            body_of(&Message::new().bytes(1, b"\x10\x01").finish()),
        ),
        ("a group", body_of(&[&*typed().finish(), &[0x4b, 0x4c]].concat())),
        ("field 0", body_of(&[&*typed().finish(), &[0x02, 0]].concat())),
        ("wire type 7", body_of(&[&*typed().finish(), &[0x4f]].concat())),
        (
            "a number of eleven bytes",
            body_of(&[&*typed().finish(), &[0x50], &[0xff; 10], &[1]].concat()),
        ),
    ]
}

/// Violations of the list message.
fn malformed_lists() -> Vec<(&'static str, Vec<u8>)> {
    let list = pod_list_of_bytes;
    let item = object("a", 9).finish();
    let long_length = [&[0x12, 0x80 | u8::try_from(item.len() % 128).unwrap(), 0x80, 0], &*item].concat();
    let large_number = [&*varint_bytes(1 << 32 | 0x12), &[2, 0x0a, 0]].concat();
    let item_of = |message: Message| pod_list(&Message::new().message(2, &message));
    let metadata = Message::new();
    vec![
        ("an item beyond the end", list(&[0x12, 5, 0x0a, 0])),
        ("a head beyond the end", list(&[0x0a, 0, 0x12])),
        ("a length beyond the end", list(&[0x12, 0x80])),
        ("an item with a long length", list(&long_length)),
        ("an item with a long tag", list(&[0x92, 0, 2, 0x0a, 0])),
        ("items of a number above 29 bits", list(&large_number)),
        ("list metadata as a number", pod_list(&Message::new().varint(1, 1))),
        ("items as a number", pod_list(&Message::new().varint(2, 1))),
        ("a group", list(&[0x1b, 0x1c])),
        (
            "two metadata",
            item_of(Message::new().message(1, &metadata).message(1, &metadata)),
        ),
        ("metadata as a number", item_of(Message::new().varint(1, 1))),
        ("an unknown text", pod_list(&Message::new().string(3, ""))),
        ("an unknown number", pod_list(&Message::new().varint(4, 0))),
        ("padding as a number", pod_list(&Message::new().varint(15, 0))),
        (
            "padding with content",
            pod_list(&Message::new().bytes(15, b"\0\0\0\0\0\0\0\0\0\x01")),
        ),
    ]
}

/// Violations of a `ListMeta`.
fn malformed_list_metas() -> Vec<(&'static str, Vec<u8>)> {
    let of_bytes = |bytes: &[u8]| pod_list(&Message::new().bytes(1, bytes));
    let of_message = |message: Message| pod_list(&Message::new().message(1, &message));
    vec![
        ("large list metadata", of_bytes(&[0; 64 * 1024 + 1])),
        ("list metadata without end", of_bytes(&[0x12, 9])),
        ("a count as a text", of_message(Message::new().string(4, "1"))),
        ("a count with a long tag", of_bytes(&[0xa0, 0, 1])),
        ("shard info as a number", of_message(Message::new().varint(5, 1))),
        ("shard info with a long tag", of_bytes(&[0xaa, 0, 0])),
    ]
}

fn pod_list_of_bytes(list: &[u8]) -> Vec<u8> {
    body_of(&Message::new().message(1, &type_meta("PodList")).bytes(2, list).finish())
}

#[test]
fn malformed_bodies_are_refused() {
    let tables = [
        malformed_envelopes(),
        broken_envelopes(),
        malformed_lists(),
        malformed_list_metas(),
    ];
    for (case, body) in tables.concat() {
        for chunk_size in CHUNK_SIZES {
            let out = filter_list(&body, chunk_size, |_| true);
            assert!(matches!(out, Err(FilterError::Malformed { .. })), "{case}: {out:x?}");
        }
    }
}

#[test]
fn item_without_metadata_is_refused() {
    let body = pod_list(&Message::new().message(2, &Message::new().string(2, "spec")));
    for chunk_size in CHUNK_SIZES {
        assert_eq!(filter_list(&body, chunk_size, |_| true), Err(FilterError::NoMetadata));
    }
}

#[test]
fn large_item_is_refused_from_its_length() {
    let head_of = |length: usize| {
        let length = u64::try_from(length).unwrap();
        [
            &body_of(&Message::new().message(1, &type_meta("PodList")).finish())[..],
            &[0x12],
            &varint_bytes(length + 100),
            &[0x12],
            &varint_bytes(length),
        ]
        .concat()
    };
    for chunk_size in CHUNK_SIZES {
        let largest = filter_list(&head_of(MAX_OBJECT_BYTES), chunk_size, |_| true);
        assert_eq!(largest, Err(FilterError::Unfinished));
        let larger = filter_list(&head_of(MAX_OBJECT_BYTES + 1), chunk_size, |_| true);
        assert_eq!(larger, Err(FilterError::TooLarge));
    }
}

#[test]
fn filter_passes_nothing_after_error() {
    let body = pod_list(&Message::new().message(2, &object("a", 9)));
    let mut filter = ProtobufListFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let failure = filter.push(b"JSON", &mut out, &mut |_, _| {}).unwrap_err();
    assert_eq!(filter.push(&body, &mut out, &mut |_, _| {}), Err(failure));
    assert_eq!(filter.finish(), Err(failure));
    assert!(out.is_empty());
}

/// A body that upstream's serializer wrote (`tests/golden`).
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct GoldenBody {
    name: String,
    content_type: String,
    #[serde(default)]
    is_watch: bool,
    #[serde(default)]
    before: String,
}

#[test]
fn upstream_lists_are_filtered() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/bodies.jsonl");
    let golden = std::fs::read_to_string(path).unwrap();
    let bodies = golden
        .lines()
        .map(|line| serde_json::from_str::<GoldenBody>(line).unwrap());
    let mut lists = 0;
    for golden in bodies {
        let is_protobuf = golden.content_type.starts_with("application/vnd.kubernetes.protobuf");
        if !is_protobuf || golden.is_watch || !golden.name.ends_with("List") {
            continue;
        }
        lists += 1;
        let digits: Vec<&str> = (0..golden.before.len() / 2)
            .map(|index| &golden.before[2 * index..2 * index + 2])
            .collect();
        let body: Vec<u8> = digits
            .iter()
            .map(|digits| u8::from_str_radix(digits, 16).unwrap())
            .collect();
        let names = item_names(&body);
        assert!(!names.is_empty(), "{}", golden.name);
        for (keep, expected) in [(true, names), (false, Vec::new())] {
            let mut filter = ProtobufListFilter::new(MetadataFields::ALL);
            let mut out = Vec::new();
            filter.push(&body, &mut out, &mut |_, flags| flags.fill(keep)).unwrap();
            filter.finish().unwrap();
            assert_eq!(item_names(&out), expected, "{}", golden.name);
            assert_eq!(out.len(), body.len(), "{}", golden.name);
        }
    }
    assert!(lists >= 3, "{lists} lists");
}

proptest! {
    #[test]
    fn filtered_list_does_not_depend_on_chunks(
        items in prop::collection::vec((0_usize..400, any::<bool>()), 0..12),
        cuts in prop::collection::vec(1_usize..200, 1..12),
    ) {
        let mut list = Message::new().message(1, &list_meta());
        let mut expected = list.clone();
        for (index, &(content, is_kept)) in items.iter().enumerate() {
            let item = object(&format!("{index}"), content);
            list = list.message(2, &item);
            expected = if is_kept {
                expected.message(2, &item)
            } else {
                expected.bytes(15, &vec![0; item.finish().len()])
            };
        }
        let body = pod_list(&list);
        let mut filter = ProtobufListFilter::new(MetadataFields::ALL);
        let mut out = Vec::new();
        let mut decide = |objects: &[ObjectMetadata<'_>], flags: &mut [bool]| {
            for (object, flag) in objects.iter().zip(flags) {
                *flag = items[object.name.parse::<usize>().unwrap()].1;
            }
        };
        let mut rest = &body[..];
        for cut in cuts.iter().cycle() {
            let (chunk, behind) = rest.split_at((*cut).min(rest.len()));
            filter.push(chunk, &mut out, &mut decide).unwrap();
            rest = behind;
            if rest.is_empty() { break; }
        }
        prop_assert_eq!(filter.finish(), Ok(()));
        prop_assert_eq!(out, pod_list(&expected));
    }

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        chunk_size in 1_usize..50,
    ) {
        let list = pod_list_of_bytes(&bytes);
        for body in [bytes.clone(), body_of(&bytes), list] {
            let mut filter = ProtobufListFilter::new(MetadataFields::ALL);
            let mut out = Vec::new();
            for chunk in body.chunks(chunk_size) {
                if filter.push(chunk, &mut out, &mut |_, flags| flags.fill(false)).is_err() { break; }
            }
            prop_assert!(out.len() <= body.len());
        }
    }
}
