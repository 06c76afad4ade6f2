use proptest::prelude::*;
use serde_json::{Value, json};

use super::{CHUNK_SIZES, Style, all_styles, any_metadata, any_style, any_value, decode_all, document, encode};
use crate::objects::{CborListFilter, Controller, FilterError, MAX_OBJECT_BYTES, MetadataFields, ObjectMetadata};

/// Keeps objects whose name begins with `k`.
fn filter_list(body: &[u8], chunk_size: usize) -> Result<Vec<u8>, FilterError> {
    let mut filter = CborListFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let mut decide = |objects: &[ObjectMetadata<'_>], kept: &mut [bool]| {
        for (object, is_kept) in objects.iter().zip(kept) {
            *is_kept = object.name.starts_with('k');
        }
    };
    for chunk in body.chunks(chunk_size) {
        filter.push(chunk, &mut out, &mut decide)?;
    }
    filter.finish()?;
    Ok(out)
}

/// Does to values what the filter does to bytes.
fn filtered(list: &Value) -> Value {
    let mut list = list.clone();
    let is_kept = |name: &Value| name.as_str().is_some_and(|name| name.starts_with('k'));
    if let Some(Value::Array(items)) = list.get_mut("items") {
        items.retain(|item| is_kept(&item["metadata"]["name"]));
    }
    if let Some(Value::Array(rows)) = list.get_mut("rows") {
        rows.retain(|row| is_kept(&row["object"]["metadata"]["name"]));
    }
    if let Some(Value::Object(metadata)) = list.get_mut("metadata") {
        metadata.remove("remainingItemCount");
        metadata.remove("shardInfo");
    }
    list
}

fn pod(name: &str) -> Value {
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "managedFields": [{"manager": "m", "time": null}]},
        "spec": {"containers": [{"name": "k", "args": ["-1", -1, 70_000, true, {}]}]},
    })
}

fn pod_list(names: &[&str]) -> Value {
    json!({
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {
            "resourceVersion": "7", "continue": "token", "remainingItemCount": 5, "shardInfo": {"selector": "s"},
        },
        "items": names.iter().copied().map(pod).collect::<Vec<_>>(),
    })
}

fn table(names: &[&str]) -> Value {
    let rows: Vec<_> = names
        .iter()
        .map(|name| json!({"cells": [name, 1], "object": pod(name)}))
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "7", "remainingItemCount": 5},
        "columnDefinitions": [{"name": "Name", "type": "string"}],
        "rows": rows,
    })
}

#[test]
fn list_leaves_out_objects_in_every_style_and_chunk_size() {
    let lists = [
        pod_list(&["k1", "d1", "k2", "d2", "d3"]),
        pod_list(&["d1", "d2"]),
        pod_list(&[]),
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": null, "items": null}),
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"shardInfo": {}}, "items": [pod("k1")]}),
        table(&["d1", "k1", "d2"]),
        table(&[]),
    ];
    for list in &lists {
        for style in all_styles() {
            for chunk_size in CHUNK_SIZES {
                let out = filter_list(&document(list, style), chunk_size);
                let out = decode_all(&out.unwrap_or_else(|error| panic!("{style:?} {chunk_size}: {error}")));
                assert_eq!(out, [filtered(list)], "{style:?} {chunk_size}");
            }
        }
    }
}

#[test]
fn list_passes_byte_for_byte_but_for_array_and_counts() {
    let style = Style::default();
    // The name in a longer head than needed, and a tagged value.
    let odd_element = b"\xb9\x00\x02\x44spec\xd6\x41x\x48metadata\xa1\x44name\x59\x00\x02k1";
    let dropped = encode(&pod("d1"), style);
    let key = |key: &str| encode(&json!(key), style);
    let before = [&b"\xd9\xd9\xf7\xa4"[..], &key("kind"), &key("PodList"), &key("items")].concat();
    let behind = [key("apiVersion"), key("v1")].concat();
    let metadata = json!({"remainingItemCount": 3, "resourceVersion": "7"});
    let metadata = [key("metadata"), encode(&metadata, style)].concat();
    let kept_metadata = [key("metadata"), encode(&json!({"resourceVersion": "7"}), style)].concat();
    let body = [
        &*before,
        b"\x83",
        odd_element,
        &dropped,
        odd_element,
        &metadata,
        &behind,
    ]
    .concat();
    let expected = [
        &*before,
        b"\x9f",
        odd_element,
        odd_element,
        b"\xff",
        &kept_metadata,
        &behind,
    ]
    .concat();
    for chunk_size in CHUNK_SIZES {
        assert_eq!(filter_list(&body, chunk_size).unwrap(), expected, "{chunk_size}");
    }
}

#[test]
fn status_passes_and_other_kinds_are_no_list() {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": 403, "message": "no"});
    let full_status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "details": {"uid": "u"},
    });
    let cases = [
        (status, true),
        (full_status, true),
        (
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {"name": "k1"}, "spec": {}}),
            false,
        ),
        (json!({"kind": "Status", "apiVersion": "v1", "data": {"a": "b"}}), false),
        (json!({"kind": "Status", "apiVersion": "example.com/v1"}), false),
        (pod("k1"), false),
        (json!({}), false),
        (json!({"kind": "ConfigMap", "items": {"a": "b"}}), false),
        (json!({"kind": "Status", "items": "k"}), false),
        (
            json!({"kind": "Status", "apiVersion": "v1", "message": "a".repeat(65 * 1024)}),
            false,
        ),
        (json!([pod("k1")]), false),
    ];
    for (value, passes) in &cases {
        for style in all_styles() {
            for chunk_size in CHUNK_SIZES {
                let body = document(value, style);
                let expected = if *passes {
                    Ok(body.clone())
                } else {
                    Err(FilterError::NotList)
                };
                assert_eq!(
                    filter_list(&body, chunk_size),
                    expected,
                    "{value} {style:?} {chunk_size}"
                );
            }
        }
    }
}

#[test]
fn list_of_kind_status_is_filtered() {
    let list = json!({"kind": "Status", "items": [pod("d1"), pod("k1")]});
    let out = filter_list(&document(&list, Style::default()), 7).unwrap();
    assert_eq!(decode_all(&out), [filtered(&list)]);
}

#[test]
fn nothing_is_written_before_body_is_known_to_be_list() {
    let body = document(&pod("k1"), Style::default());
    let mut filter = CborListFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    for byte in body {
        let result = filter.push(&[byte], &mut out, &mut |_, _| panic!("no object"));
        assert!(out.is_empty());
        if result.is_err() {
            return;
        }
    }
    panic!("an object passed");
}

#[test]
fn element_without_metadata_is_refused() {
    let cases = [
        json!({"items": [{"kind": "Pod"}]}),
        json!({"items": [{"metadata": null}]}),
        json!({"items": [{"metadata": "k"}]}),
        json!({"items": [null]}),
        json!({"rows": [{"object": null, "cells": []}]}),
        json!({"rows": [{"cells": []}]}),
        json!({"rows": [pod("k1")]}),
    ];
    for list in &cases {
        for style in all_styles() {
            for chunk_size in CHUNK_SIZES {
                let result = filter_list(&document(list, style), chunk_size);
                assert_eq!(result, Err(FilterError::NoMetadata), "{list} {style:?}");
            }
        }
    }
}

#[test]
fn list_that_ends_early_is_unfinished() {
    for style in all_styles() {
        let body = document(&pod_list(&["k1", "d1"]), style);
        for length in 0..body.len() {
            let result = filter_list(&body[..length], usize::MAX);
            assert_eq!(result, Err(FilterError::Unfinished), "{length} {style:?}");
        }
    }
}

#[test]
fn element_is_refused_above_largest_size() {
    let sized = |name: &str, size: usize| {
        let element = |length: usize| json!({"metadata": {"name": name}, "data": "x".repeat(length)});
        // The head of the long string takes four bytes more.
        let overhead = encode(&element(0), Style::default()).len() + 4;
        element(size - overhead)
    };
    for chunk_size in [4096, usize::MAX] {
        let largest = json!({"items": [sized("k1", MAX_OBJECT_BYTES)]});
        let body = document(&largest, Style::default());
        assert!(filter_list(&body, chunk_size).is_ok());
        for name in ["k1", "d1"] {
            let larger = json!({"items": [sized(name, MAX_OBJECT_BYTES + 1)]});
            let result = filter_list(&document(&larger, Style::default()), chunk_size);
            assert_eq!(result, Err(FilterError::TooLarge));
        }
    }
}

#[test]
fn list_metadata_is_refused_above_64_kib() {
    let list = json!({"items": [], "metadata": {"continue": "c".repeat(65 * 1024)}});
    for chunk_size in [4096, usize::MAX] {
        let result = filter_list(&document(&list, Style::default()), chunk_size);
        assert!(matches!(result, Err(FilterError::Malformed { .. })), "{result:?}");
    }
}

#[test]
fn objects_of_one_chunk_are_decided_together() {
    let names: Vec<_> = (0..3000).map(|index| format!("k{index}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let body = document(&pod_list(&names), Style::default());
    let (first, second) = body.split_at(body.len() / 2);
    let mut batches = Vec::new();
    let mut filter = CborListFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let mut decide = |objects: &[ObjectMetadata<'_>], kept: &mut [bool]| {
        assert_eq!(kept, vec![true; objects.len()]);
        batches.push(objects.len());
    };
    filter.push(first, &mut out, &mut decide).unwrap();
    filter.push(second, &mut out, &mut decide).unwrap();
    filter.finish().unwrap();
    assert_eq!(batches.len(), 4, "{batches:?}");
    assert_eq!(batches.iter().sum::<usize>(), 3000);
    assert_eq!(batches.iter().max(), Some(&1024));
}

#[test]
fn metadata_has_fields_that_were_asked_for() {
    let object = json!({"metadata": {
        "namespace": "n", "name": "k1", "uid": "u", "resourceVersion": "9",
        "labels": {"b": "1", "a": ""}, "annotations": {"c": null}, "ownerReferences": [
            {"kind": "A", "name": "a", "uid": "1", "controller": false},
            {"kind": "B", "name": "b", "uid": "2", "controller": null},
            {"kind": "C", "name": "c", "uid": "3", "apiVersion": "v1", "controller": true, "blockOwnerDeletion": true},
            {"kind": "D", "name": "d", "uid": "4", "controller": true},
        ],
    }});
    let all = ObjectMetadata {
        namespace: "n".into(),
        name: "k1".into(),
        uid: "u".into(),
        resource_version: "9".into(),
        labels: vec![("a".into(), "".into()), ("b".into(), "1".into())],
        annotations: vec![("c".into(), "".into())],
        controller: Some(Controller {
            api_version: "v1".into(),
            kind: "C".into(),
            name: "c".into(),
            uid: "3".into(),
        }),
    };
    let only_uid = MetadataFields {
        uid: true,
        ..MetadataFields::default()
    };
    let uid = ObjectMetadata {
        uid: "u".into(),
        ..ObjectMetadata::default()
    };
    for style in all_styles() {
        for (fields, expected) in [(MetadataFields::ALL, &all), (only_uid, &uid)] {
            let mut filter = CborListFilter::new(fields);
            let mut seen_count = 0;
            let mut decide = |objects: &[ObjectMetadata<'_>], _: &mut [bool]| {
                let mut object = objects[0].clone();
                object.labels.sort();
                assert_eq!(&object, expected, "{style:?}");
                seen_count += 1;
            };
            let body = document(&json!({"items": [object.clone()]}), style);
            filter.push(&body, &mut Vec::new(), &mut decide).unwrap();
            assert_eq!(seen_count, 1);
        }
    }
}

proptest! {
    #[test]
    fn list_equals_filtered_model(
        items in proptest::collection::vec((any_metadata(), any_value()), 0..6),
        other in any_value(),
        style in any_style(),
        chunk_size in 1_usize..200,
    ) {
        let items: Vec<_> =
            items.into_iter().map(|(metadata, spec)| json!({"metadata": metadata, "spec": spec})).collect();
        let list = json!({
            "kind": "List", "items": items, "other": other,
            "metadata": {"resourceVersion": "1", "remainingItemCount": 1, "other": other},
        });
        let body = document(&list, style);
        // The list comes last in this order, behind more than may be buffered.
        prop_assume!(body.len() < 64 * 1024);
        let out = filter_list(&body, chunk_size).unwrap();
        prop_assert_eq!(decode_all(&out), [filtered(&list)]);
    }

    #[test]
    fn list_never_panics(body in proptest::collection::vec(any::<u8>(), 0..60), chunk_size in 1_usize..60) {
        let _ = filter_list(&[&b"\xd9\xd9\xf7\xbf\x45items\x9f\xbf\x48metadata\xbf"[..], &body].concat(), chunk_size);
        let _ = filter_list(&body, chunk_size);
    }
}
