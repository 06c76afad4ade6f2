//! Properties that all encodings have in common.

use serde_json::{Value, json};

use super::limits::MAX_PAIRS;
use super::rows::RowsDecision;
use super::*;
use crate::WatchEncoding;
use crate::protobuf::{MAGIC, Message, envelope};

fn push_list(encoding: WatchEncoding, body: &[u8]) -> Result<Vec<u8>, FilterError> {
    let mut out = Vec::new();
    let mut keep = |_: &[ObjectMetadata<'_>], _: &mut [bool]| {};
    match encoding {
        WatchEncoding::Json => {
            let mut filter = JsonListFilter::new(MetadataFields::ALL);
            filter.push(body, &mut out, &mut keep)?;
            filter.finish()?;
        }
        WatchEncoding::Protobuf => {
            let mut filter = ProtobufListFilter::new(MetadataFields::ALL);
            filter.push(body, &mut out, &mut keep)?;
            filter.finish()?;
        }
        WatchEncoding::Cbor => {
            let mut filter = CborListFilter::new(MetadataFields::ALL);
            filter.push(body, &mut out, &mut keep)?;
            filter.finish()?;
        }
    }
    Ok(out)
}

fn push_watch(encoding: WatchEncoding, body: &[u8]) -> Result<Vec<u8>, FilterError> {
    let mut out = Vec::new();
    let mut keep = |_: EventType, _: &ObjectMetadata<'_>| EventDecision::Keep;
    match encoding {
        WatchEncoding::Json => JsonWatchFilter::new(MetadataFields::ALL).push(body, &mut out, &mut keep)?,
        WatchEncoding::Protobuf => ProtobufWatchFilter::new(MetadataFields::ALL).push(body, &mut out, &mut keep)?,
        WatchEncoding::Cbor => CborWatchFilter::new(MetadataFields::ALL).push(body, &mut out, &mut keep)?,
    }
    Ok(out)
}

/// The value in JSON or CBOR.
fn encode(encoding: WatchEncoding, value: &Value) -> Vec<u8> {
    match encoding {
        WatchEncoding::Json => value.to_string().into_bytes(),
        _ => encode_cbor(value),
    }
}

fn encode_cbor(value: &Value) -> Vec<u8> {
    let head =
        |major: u8, number: usize| [&[major << 5 | 26][..], &u32::try_from(number).unwrap().to_be_bytes()].concat();
    match value {
        Value::String(text) => [head(2, text.len()), text.clone().into_bytes()].concat(),
        Value::Array(elements) => {
            let elements: Vec<u8> = elements.iter().flat_map(encode_cbor).collect();
            [head(4, elements_of(value)), elements].concat()
        }
        Value::Object(map) => {
            let encode_entry =
                |(key, value): (&String, &Value)| [encode_cbor(&json!(key)), encode_cbor(value)].concat();
            let entries: Vec<u8> = map.iter().flat_map(encode_entry).collect();
            [head(5, map.len()), entries].concat()
        }
        _ => vec![0xf6],
    }
}

fn elements_of(array: &Value) -> usize {
    array.as_array().map_or(0, Vec::len)
}

pub(super) fn fields_of(paths: &[&str]) -> DroppedFields {
    DroppedFields::parse(paths.iter().copied()).unwrap()
}

/// Keeps objects whose name is not `hidden`.
pub(super) fn keep_all_but_hidden(objects: &[ObjectMetadata<'_>], are_kept: &mut [bool]) {
    for (object, is_kept) in objects.iter().zip(are_kept) {
        *is_kept = object.name != "hidden";
    }
}

/// Removes a field, as filters do that drop it.
pub(super) fn remove_field(value: &mut Value, path: &[&str]) {
    match (value, path) {
        (Value::Object(map), [key]) => drop(map.remove(*key)),
        (Value::Object(map), [key, behind @ ..]) => {
            if let Some(inner) = map.get_mut(*key) {
                remove_field(inner, behind);
            }
        }
        _ => {}
    }
}

const SCHEMALESS: [WatchEncoding; 2] = [WatchEncoding::Json, WatchEncoding::Cbor];

fn is_malformed<T>(outcome: &Result<T, FilterError>) -> bool {
    matches!(outcome, Err(FilterError::Malformed { .. }))
}

#[test]
fn keys_that_decoders_could_confuse_are_refused_in_lists_events_and_tables() {
    for encoding in SCHEMALESS {
        for key in [
            "Kind",
            "APIVERSION",
            "Metadata",
            "ITEMS",
            "Rows",
            "\u{212a}ind",
            "items\0",
        ] {
            for (list, is_refused) in [
                (json!({"items": [], key: null}), true),
                (
                    json!({"items": [{"metadata": {"name": "a", key: null}, key: null}]}),
                    false,
                ),
            ] {
                let outcome = push_list(encoding, &encode(encoding, &list));
                assert_eq!(is_malformed(&outcome), is_refused, "{encoding:?}, {list}: {outcome:?}");
            }
        }
        for key in ["Type", "OBJECT", "type\0", "\u{e4}"] {
            let event = json!({"type": "ADDED", "object": {"metadata": {}}, key: null});
            let outcome = push_watch(encoding, &encode(encoding, &event));
            assert!(is_malformed(&outcome), "{encoding:?}, {event}: {outcome:?}");
        }
        for key in [
            "Kind",
            "APIVersion",
            "METADATA",
            "Rows",
            "columndefinitions",
            "row\u{17f}",
        ] {
            for (api_version, is_refused) in [("meta.k8s.io/v1", true), ("example.com/v1", false)] {
                let row = json!({"object": {"metadata": {}}});
                let table = json!({
                    "kind": "Table", "apiVersion": api_version, "metadata": {}, "rows": [row], key: null,
                });
                let event = json!({"type": "ADDED", "object": table});
                let outcome = push_watch(encoding, &encode(encoding, &event));
                assert_eq!(is_malformed(&outcome), is_refused, "{encoding:?}, {event}: {outcome:?}");
            }
        }
    }
}

#[test]
fn custom_resource_of_kind_status_passes_neither_as_list_nor_as_error() {
    for encoding in SCHEMALESS {
        for (api_version, passes) in [("v1", true), ("example.com/v1", false), ("", false)] {
            let status = json!({"kind": "Status", "apiVersion": api_version, "metadata": {}});
            let listed = push_list(encoding, &encode(encoding, &status));
            assert_eq!(listed.is_ok(), passes, "{encoding:?}, {status}");
            let event = json!({"type": "ERROR", "object": status});
            let watched = push_watch(encoding, &encode(encoding, &event));
            assert_eq!(watched.is_ok(), passes, "{encoding:?}, {event}");
        }
        let without_version = json!({"kind": "Status"});
        let listed = push_list(encoding, &encode(encoding, &without_version));
        assert_eq!(listed, Err(FilterError::NotList), "{encoding:?}");
    }
    for (api_version, passes) in [("v1", true), ("example.com/v1", false), ("", false)] {
        let body = envelope(api_version, "Status", &Message::new());
        assert_eq!(push_list(WatchEncoding::Protobuf, &body).is_ok(), passes);
        assert!(body.starts_with(MAGIC));
        let event = protobuf_event("ERROR", &body);
        assert_eq!(push_watch(WatchEncoding::Protobuf, &event).is_ok(), passes);
    }
}

fn protobuf_event(event_type: &str, body: &[u8]) -> Vec<u8> {
    let object = Message::new().bytes(1, body);
    let message = Message::new().string(1, event_type).message(2, &object).finish();
    [&u32::try_from(message.len()).unwrap().to_be_bytes(), &*message].concat()
}

/// The token that the filter has read from a body in chunks of this size.
fn token_of(encoding: WatchEncoding, body: &[u8], size: usize) -> Option<String> {
    let (mut out, chunks) = (Vec::new(), body.chunks(size));
    let mut keep = |_: &[ObjectMetadata<'_>], _: &mut [bool]| {};
    match encoding {
        WatchEncoding::Json => {
            let mut filter = JsonListFilter::new(MetadataFields::ALL);
            chunks.for_each(|chunk| filter.push(chunk, &mut out, &mut keep).unwrap());
            filter.continue_token().map(str::to_owned)
        }
        WatchEncoding::Protobuf => {
            let mut filter = ProtobufListFilter::new(MetadataFields::ALL);
            chunks.for_each(|chunk| filter.push(chunk, &mut out, &mut keep).unwrap());
            filter.continue_token().map(str::to_owned)
        }
        WatchEncoding::Cbor => {
            let mut filter = CborListFilter::new(MetadataFields::ALL);
            chunks.for_each(|chunk| filter.push(chunk, &mut out, &mut keep).unwrap());
            filter.continue_token().map(str::to_owned)
        }
    }
}

#[test]
fn token_of_the_next_page_is_read_from_the_metadata_of_the_list() {
    for size in [1, 7, usize::MAX] {
        for encoding in SCHEMALESS {
            let item = json!({"metadata": {"continue": "of an object"}});
            for (metadata, expected) in [
                (
                    json!({"continue": "t\"1", "remainingItemCount": null, "resourceVersion": "7"}),
                    Some("t\"1"),
                ),
                (json!({"continue": "", "resourceVersion": "7"}), None),
                (json!({"continue": null}), None),
                (json!({"continue": ["t1"]}), None),
                (json!({"resourceVersion": "7"}), None),
                (Value::Null, None),
            ] {
                let list = json!({"items": [item], "metadata": metadata});
                let token = token_of(encoding, &encode(encoding, &list), size);
                assert_eq!(token.as_deref(), expected, "{encoding:?}, {list} in chunks of {size}");
            }
        }
        for (token, expected) in [("t1", Some("t1")), ("", None)] {
            let list_meta = Message::new().string(2, "7").string(3, token).varint(4, 8);
            let body = envelope("v1", "PodList", &Message::new().message(1, &list_meta));
            let token = token_of(WatchEncoding::Protobuf, &body, size);
            assert_eq!(token.as_deref(), expected, "protobuf in chunks of {size}");
        }
    }
}

#[test]
fn labels_and_annotations_are_bounded() {
    for (number, name) in [(11, "labels"), (12, "annotations")] {
        for (count, expected) in [(MAX_PAIRS, None), (MAX_PAIRS + 1, Some(FilterError::TooLarge))] {
            let pairs: serde_json::Map<String, Value> = (0..count).map(|key| (key.to_string(), json!(""))).collect();
            let list = json!({"items": [{"metadata": {name: pairs}}]});
            for encoding in SCHEMALESS {
                let outcome = push_list(encoding, &encode(encoding, &list));
                assert_eq!(outcome.err(), expected, "{count} {name}, {encoding:?}");
            }
            let mut metadata = Message::new();
            for key in 0..count {
                metadata = metadata.message(number, &Message::new().string(1, &key.to_string()));
            }
            let list = Message::new().message(2, &Message::new().message(1, &metadata));
            let outcome = push_list(WatchEncoding::Protobuf, &envelope("v1", "PodList", &list));
            assert_eq!(outcome.err(), expected, "{count} {name}, protobuf");
        }
    }
}

#[test]
fn deep_objects_pass() {
    // A list, its items, an item, and arrays within each other: 10,000 levels in all.
    let arrays = 10_000 - 3;
    let json = format!(
        r#"{{"items":[{{"metadata":{{}},"spec":{}{}}}]}}"#,
        "[".repeat(arrays),
        "]".repeat(arrays)
    );
    assert_eq!(
        push_list(WatchEncoding::Json, json.as_bytes()),
        Ok(json.clone().into_bytes())
    );
    let spec = [vec![0x81; arrays - 1], vec![0x80]].concat();
    let item = [&b"\xa2\x48metadata\xa0\x44spec"[..], &spec].concat();
    let cbor = [&b"\xa1\x45items\x9f"[..], &item, b"\xff"].concat();
    assert_eq!(push_list(WatchEncoding::Cbor, &cbor), Ok(cbor.clone()));
}

#[test]
fn object_with_many_members_passes() {
    let members: serde_json::Map<String, Value> = (0..2000).map(|key| (format!("member-{key}"), json!("a"))).collect();
    let object = json!({"metadata": {}, "settings": members, "<settings>": members});
    let escaped = |body: Vec<u8>| String::from_utf8(body).unwrap().replace('<', "\\u003c").into_bytes();
    let list = escaped(encode(WatchEncoding::Json, &json!({"items": [object]})));
    assert_eq!(push_list(WatchEncoding::Json, &list), Ok(list.clone()));
    let event = escaped(encode(WatchEncoding::Json, &json!({"object": object, "type": "ADDED"})));
    assert_eq!(push_watch(WatchEncoding::Json, &event), Ok(event.clone()));
    let metadata = ("metadata".to_owned(), json!({}));
    let object: Value = members.into_iter().chain([metadata]).collect();
    let list = encode(WatchEncoding::Json, &json!({"items": [object]}));
    assert_eq!(push_list(WatchEncoding::Json, &list), Ok(list.clone()));
}

#[test]
fn object_of_the_largest_request_passes_when_it_is_escaped() {
    let data = "\\u003c".repeat(3 * 1024 * 1024);
    let object = format!(r#"{{"metadata":{{}},"data":"{data}"}}"#);
    let list = format!(r#"{{"items":[{object}]}}"#).into_bytes();
    assert!(push_list(WatchEncoding::Json, &list).as_ref() == Ok(&list));
    let event = format!(r#"{{"type":"ADDED","object":{object}}}"#).into_bytes();
    assert!(push_watch(WatchEncoding::Json, &event).as_ref() == Ok(&event));
}

#[test]
fn event_type_is_parsed_from_its_text() {
    for event_type in [EventType::Added, EventType::Modified, EventType::Deleted] {
        assert_eq!(EventType::parse(event_type.as_str()), Some(event_type));
    }
    for text in ["", "added", "BOOKMARK", "ERROR", "ADDED "] {
        assert_eq!(EventType::parse(text), None, "{text}");
    }
}

#[test]
fn rows_share_a_decision() {
    use EventDecision::{Bookmark, Drop, Keep, KeepAs, Tombstone};
    let modified = EventType::Modified;
    let cases = [
        (vec![], None),
        (vec![Keep], Some(Keep)),
        (vec![Keep, KeepAs(modified)], Some(Keep)),
        (vec![KeepAs(EventType::Added)], Some(KeepAs(EventType::Added))),
        (vec![Bookmark, Tombstone, Drop], Some(Drop)),
    ];
    for (decisions, expected) in cases {
        let mut rows = RowsDecision::new(modified);
        assert!(decisions.iter().all(|decision| rows.add(*decision)), "{decisions:?}");
        assert_eq!(rows.finish().ok(), expected, "{decisions:?}");
    }
    let mut rows = RowsDecision::new(modified);
    assert!(rows.add(Keep) && !rows.add(Drop));
}
