use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Style, all_styles, any_metadata, any_style, any_value, decode_all, document, encode};
use crate::objects::tests::remove_field;
use crate::objects::{
    CborListFilter, CborWatchFilter, DroppedFields, EventDecision, EventType, FilterError, MetadataFields,
    ObjectMetadata,
};

const SIZES: [usize; 3] = [1, 7, 4096];

const PATHS: [&str; 5] = [
    "metadata.managedFields",
    "metadata.labels[\"a.b/c\"]",
    "status",
    "spec.template.spec",
    "spec.other",
];

/// The keys of [`PATHS`].
const KEYS: [&[&str]; 5] = [
    &["metadata", "managedFields"],
    &["metadata", "labels", "a.b/c"],
    &["status"],
    &["spec", "template", "spec"],
    &["spec", "other"],
];

fn dropped_fields() -> DroppedFields {
    DroppedFields::parse(PATHS).unwrap()
}

/// Keeps objects whose name does not begin with `d`.
fn filter_list(body: &[u8], size: usize, dropped: DroppedFields) -> Result<Vec<u8>, FilterError> {
    let mut filter = CborListFilter::new(MetadataFields::ALL).with_dropped_fields(dropped);
    let mut out = Vec::new();
    let mut decide = |objects: &[ObjectMetadata<'_>], kept: &mut [bool]| {
        for (object, is_kept) in objects.iter().zip(kept) {
            *is_kept = !object.name.starts_with('d');
        }
    };
    for chunk in body.chunks(size) {
        filter.push(chunk, &mut out, &mut decide)?;
    }
    filter.finish()?;
    Ok(out)
}

/// Keeps events, those of objects whose name begins with `x` as DELETED.
fn filter_watch(body: &[u8], size: usize) -> Result<Vec<u8>, FilterError> {
    let mut filter = CborWatchFilter::new(MetadataFields::ALL).with_dropped_fields(dropped_fields());
    let mut out = Vec::new();
    let mut decide = |_: EventType, object: &ObjectMetadata<'_>| match object.name.chars().next() {
        Some('x') => EventDecision::KeepAs(EventType::Deleted),
        Some('d') => EventDecision::Drop,
        _ => EventDecision::Keep,
    };
    for chunk in body.chunks(size) {
        filter.push(chunk, &mut out, &mut decide)?;
    }
    Ok(out)
}

/// The object without the dropped fields.
fn without_fields(object: &Value) -> Value {
    let mut object = object.clone();
    KEYS.iter().for_each(|path| remove_field(&mut object, path));
    object
}

/// An object with more members than a head of one byte counts, and one without.
fn pod(name: &str, label_count: usize) -> Value {
    let labels = (0..label_count).map(|number| (format!("l{number}"), json!("")));
    let labels: serde_json::Map<String, Value> = labels.chain([("a.b/c".to_owned(), json!("c"))]).collect();
    json!({
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "managedFields": [{"manager": "m", "fieldsV1": {"f:status": {}}}]},
        "spec": {"template": {"spec": {"x": 1}, "metadata": {"managedFields": 1}}, "other": null, "status": 2},
        "status": {"phase": "Running"},
    })
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn objects_of_lists_lose_fields_in_every_style() {
    for style in all_styles() {
        for label_count in [0, 22, 23, 24, 255] {
            let objects = [pod("a", label_count), pod("dropped", 1), pod("b", 1)];
            let list = json!({"kind": "PodList", "metadata": {"managedFields": 1}, "status": 1, "items": objects});
            let kept = [without_fields(&objects[0]), without_fields(&objects[2])];
            let mut expected = list.clone();
            expected["items"] = json!(kept);
            let body = document(&list, style);
            for size in SIZES {
                let out = filter_list(&body, size, dropped_fields()).unwrap();
                assert_eq!(
                    decode_all(&out),
                    std::slice::from_ref(&expected),
                    "{style:?} in chunks of {size}"
                );
                for object in &kept {
                    assert!(contains(&out, &encode(object, style)), "{style:?} in chunks of {size}");
                }
                assert!(filter_list(&out, size, dropped_fields()).as_ref() == Ok(&out));
            }
        }
    }
}

#[test]
fn objects_in_rows_lose_fields_and_rows_do_not() {
    for style in all_styles() {
        let row =
            |object: &Value| json!({"cells": ["a"], "object": object, "status": 1, "metadata": {"managedFields": 2}});
        let table = |object: &Value| json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": [row(object)]});
        let object = pod("a", 3);
        let (before, expected) = (table(&object), table(&without_fields(&object)));
        let event = |table: &Value| json!({"type": "ADDED", "object": table, "status": 1});
        for size in SIZES {
            let out = filter_list(&document(&before, style), size, dropped_fields()).unwrap();
            assert_eq!(
                decode_all(&out),
                std::slice::from_ref(&expected),
                "{style:?} in chunks of {size}"
            );
            let out = filter_watch(&document(&event(&before), style), size);
            assert_eq!(
                out,
                Ok(document(&event(&expected), style)),
                "{style:?} in chunks of {size}"
            );
        }
    }
}

#[test]
fn objects_of_events_lose_fields_and_bookmarks_do_not() {
    let event = |event_type: &str, object: &Value| json!({"type": event_type, "object": object, "status": 1});
    let mut bookmark = pod("", 1);
    bookmark["metadata"]["resourceVersion"] = json!("7");
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"});
    let events = [
        event("ADDED", &pod("a", 23)),
        event("MODIFIED", &pod("dropped", 1)),
        event("BOOKMARK", &bookmark),
        event("MODIFIED", &pod("x", 0)),
        event("ERROR", &status),
    ];
    let expected = [
        event("ADDED", &without_fields(&pod("a", 23))),
        event("BOOKMARK", &bookmark),
        event("DELETED", &without_fields(&pod("x", 0))),
        event("ERROR", &status),
    ];
    for style in all_styles() {
        let body: Vec<u8> = events.iter().flat_map(|event| document(event, style)).collect();
        for size in SIZES {
            let out = filter_watch(&body, size).unwrap();
            assert_eq!(decode_all(&out), expected, "{style:?} in chunks of {size}");
        }
    }
}

proptest! {
    #[test]
    fn fields_are_gone_and_everything_else_is_there(
        parts in proptest::collection::vec((any_metadata(), any_value(), any_value()), 0..4),
        style in any_style(),
    ) {
        let object = |(metadata, spec, status): &(Value, Value, Value)| {
            let template = json!({"spec": spec, "x": status});
            json!({"metadata": metadata, "spec": {"template": template, "y": spec}, "status": status})
        };
        let objects: Vec<Value> = parts.iter().map(object).collect();
        let is_kept = |object: &&Value| !object["metadata"]["name"].as_str().unwrap().starts_with('d');
        let kept: Vec<Value> = objects.iter().filter(is_kept).map(without_fields).collect();
        let body = document(&json!({"items": objects, "spec": {"other": 1}}), style);
        for size in SIZES {
            let out = filter_list(&body, size, dropped_fields()).unwrap();
            prop_assert_eq!(decode_all(&out), vec![json!({"items": kept, "spec": {"other": 1}})]);
            for object in &kept {
                prop_assert!(contains(&out, &encode(object, style)));
            }
            prop_assert!(filter_list(&out, size, DroppedFields::default()).as_ref() == Ok(&out));
        }
    }
}

#[test]
fn map_that_loses_all_entries_is_empty() {
    let plain = Style::default();
    let indefinite = Style {
        is_indefinite: true,
        ..plain
    };
    for style in [plain, indefinite] {
        let list = |metadata: &Value| json!({"items": [{"metadata": metadata}]});
        let body = document(&list(&json!({"labels": {"a.b/c": "d"}, "managedFields": []})), style);
        let out = filter_list(&body, 7, dropped_fields()).unwrap();
        assert_eq!(decode_all(&out), [list(&json!({"labels": {}}))]);
    }
}
