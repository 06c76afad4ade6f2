use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    CHUNK_SIZES, SELF_DESCRIBED, Style, all_styles, any_metadata, any_style, any_value, decode_all, encode, head,
};
use crate::objects::cbor::scanner::ItemCollector;
use crate::objects::limits::MAX_IDLE_BYTES;
use crate::objects::{
    CborWatchFilter, EventDecision, EventType, FilterError, MAX_OBJECT_BYTES, MetadataFields, ObjectMetadata,
};
use crate::{Status, WatchEncoding, watch_error_event};

const ONLY_NAME: MetadataFields = MetadataFields {
    namespace: false,
    name: true,
    uid: false,
    resource_version: false,
    labels: false,
    annotations: false,
    controller: false,
};

/// An event as an API server writes it: the object has a self-described tag of its own.
fn event(event_type: &str, object: &Value, style: Style) -> Vec<u8> {
    let entries = [
        encode(&json!("type"), style),
        encode(&json!(event_type), style),
        encode(&json!("object"), style),
        SELF_DESCRIBED.to_vec(),
        encode(object, style),
    ];
    [SELF_DESCRIBED.to_vec(), head(5, 2), entries.concat()].concat()
}

fn pod(name: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "resourceVersion": "12"}, "spec": {"a": [1]}})
}

fn table(columns: &Value, names: &[&str]) -> Value {
    let rows: Vec<_> = names
        .iter()
        .map(|name| json!({"cells": [name], "object": pod(name)}))
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "12"},
        "columnDefinitions": columns, "rows": rows,
    })
}

/// Decides by the first letter of the name.
fn decide_by_name(_: EventType, metadata: &ObjectMetadata<'_>) -> EventDecision {
    assert_eq!(metadata.resource_version, "", "was not asked for");
    match metadata.name.chars().next() {
        Some('k') => EventDecision::Keep,
        Some('a') => EventDecision::KeepAs(EventType::Added),
        Some('m') => EventDecision::KeepAs(EventType::Modified),
        Some('x') => EventDecision::KeepAs(EventType::Deleted),
        Some('b') => EventDecision::Bookmark,
        Some('t') => EventDecision::Tombstone,
        _ => EventDecision::Drop,
    }
}

fn filter_watch(body: &[u8], chunk_size: usize) -> Result<Vec<u8>, FilterError> {
    let mut filter = CborWatchFilter::new(ONLY_NAME);
    let mut out = Vec::new();
    for chunk in body.chunks(chunk_size) {
        filter.push(chunk, &mut out, &mut decide_by_name)?;
    }
    assert!(!filter.is_mid_event());
    Ok(out)
}

#[test]
fn events_follow_their_decisions() {
    for style in all_styles() {
        let plain = Style::default();
        let bookmark = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "12"}});
        // A changed type keeps its kind of string, in one piece.
        let retyped_style = Style {
            is_indefinite: false,
            ..style
        };
        let retyped = |from: &str, to: &str, object: &Value| {
            let old = encode(&json!(from), style);
            let new = encode(&json!(to), retyped_style);
            let whole = event(from, object, style);
            let start = whole.windows(old.len()).position(|window| window == old).unwrap();
            [&whole[..start], &new, &whole[start + old.len()..]].concat()
        };
        let cases = [
            (event("ADDED", &pod("k1"), style), event("ADDED", &pod("k1"), style)),
            (
                event("MODIFIED", &pod("k1"), style),
                event("MODIFIED", &pod("k1"), style),
            ),
            (event("DELETED", &pod("k1"), style), event("DELETED", &pod("k1"), style)),
            (event("ADDED", &pod("d1"), style), Vec::new()),
            (
                event("MODIFIED", &pod("x1"), style),
                retyped("MODIFIED", "DELETED", &pod("x1")),
            ),
            (
                event("MODIFIED", &pod("a1"), style),
                retyped("MODIFIED", "ADDED", &pod("a1")),
            ),
            (
                event("ADDED", &pod("m1"), style),
                retyped("ADDED", "MODIFIED", &pod("m1")),
            ),
            (
                event("MODIFIED", &pod("b1"), style),
                event("BOOKMARK", &bookmark, plain),
            ),
            (event("BOOKMARK", &bookmark, style), event("BOOKMARK", &bookmark, style)),
            (
                event("ERROR", &json!({"kind": "Status", "apiVersion": "v1"}), style),
                event("ERROR", &json!({"kind": "Status", "apiVersion": "v1"}), style),
            ),
        ];
        for chunk_size in CHUNK_SIZES {
            for (input, expected) in &cases {
                assert_eq!(
                    &filter_watch(input, chunk_size).unwrap(),
                    expected,
                    "{style:?} {chunk_size} {input:x?}"
                );
            }
            let body: Vec<_> = cases.iter().flat_map(|(input, _)| input.clone()).collect();
            let expected: Vec<_> = cases.iter().flat_map(|(_, expected)| expected.clone()).collect();
            assert_eq!(
                filter_watch(&body, chunk_size).unwrap(),
                expected,
                "{style:?} {chunk_size}"
            );
        }
    }
}

#[test]
fn event_passes_with_its_last_byte() {
    let body = event("ADDED", &pod("k1"), Style::default());
    let (last, before) = body.split_last().unwrap();
    let mut filter = CborWatchFilter::new(ONLY_NAME);
    let mut out = Vec::new();
    for byte in before {
        filter.push(&[*byte], &mut out, &mut decide_by_name).unwrap();
        assert!(out.is_empty() && filter.is_mid_event());
    }
    filter.push(&[*last], &mut out, &mut decide_by_name).unwrap();
    assert_eq!(out, body);
    assert!(!filter.is_mid_event());
}

#[test]
fn idle_watch_releases_memory() {
    let object = json!({"metadata": {"name": "k1"}, "data": "x".repeat(1 << 20)});
    let body = event("ADDED", &object, Style::default());
    let mut filter = CborWatchFilter::new(ONLY_NAME);
    let mut out = Vec::new();
    for chunk in body.chunks(body.len() / 2 + 1) {
        filter.push(chunk, &mut out, &mut decide_by_name).unwrap();
    }
    assert!(out == body);
    let ItemCollector { pending, completed, .. } = &filter.collector;
    assert!(pending.capacity() + completed.capacity() <= 2 * MAX_IDLE_BYTES);
}

#[test]
fn error_event_of_this_crate_passes() {
    let status = Status {
        code: 410,
        reason: "Expired".to_owned(),
        message: "list again".to_owned(),
        details: None,
    };
    let body = watch_error_event(&status, WatchEncoding::Cbor);
    assert_eq!(filter_watch(&body, 3).unwrap(), body);
}

#[test]
fn bookmark_is_not_made_without_resource_version() {
    for object in [
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "b1"}}),
        json!({"apiVersion": "v1", "metadata": {"name": "b1", "resourceVersion": "1"}}),
    ] {
        let body = event("MODIFIED", &object, Style::default());
        assert_eq!(filter_watch(&body, 7).unwrap(), b"");
    }
}

#[test]
fn tombstone_has_only_what_tells_which_object_it_was() {
    let known = json!({"name": "t1", "namespace": "n", "uid": "u", "resourceVersion": "12"});
    let tombstone = json!({"kind": "Pod", "apiVersion": "v1", "metadata": known});
    let mut object = tombstone.clone();
    object["metadata"]["labels"] = json!({"a": "b"});
    object["spec"] = json!({"containers": [1]});
    let without_namespace = json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "t1", "resourceVersion": "12"},
    });
    let without_kind = json!({"metadata": {"name": "t1"}});
    let cases = [
        (&object, &tombstone),
        (&pod("t1"), &without_namespace),
        (&without_kind, &without_kind),
    ];
    for (object, expected) in cases {
        let expected = event("DELETED", expected, Style::default());
        for style in all_styles() {
            for event_type in ["ADDED", "MODIFIED", "DELETED"] {
                for chunk_size in CHUNK_SIZES {
                    let out = filter_watch(&event(event_type, object, style), chunk_size);
                    assert_eq!(out.as_ref(), Ok(&expected), "{style:?} {event_type} {chunk_size}");
                }
            }
        }
    }
}

#[test]
fn tombstone_is_not_made_without_name() {
    for metadata in [json!({"uid": "u"}), json!({"name": ""}), json!({"name": null})] {
        let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata});
        let body = event("MODIFIED", &object, Style::default());
        let mut filter = CborWatchFilter::new(MetadataFields::default());
        let mut out = Vec::new();
        filter
            .push(&body, &mut out, &mut |_, _| EventDecision::Tombstone)
            .unwrap();
        assert_eq!(out, b"", "{metadata}");
    }
}

#[test]
fn bookmark_without_object_passes() {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": "12", "annotations": annotations});
    let objects = [
        json!({"kind": "Pod", "metadata": metadata, "spec": {"name": "k1"}}),
        table(&json!(null), &[]),
        table(&json!(null), &[""]),
        json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": null}),
        json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": [{"object": {"metadata": metadata}}]}),
    ];
    for object in objects {
        for style in all_styles() {
            let body = event("BOOKMARK", &object, style);
            assert_eq!(filter_watch(&body, 7), Ok(body), "{style:?} {object}");
        }
    }
}

#[test]
fn bookmark_with_object_is_refused() {
    let cases = [
        (pod("k1"), false),
        (table(&json!(null), &["k1"]), false),
        (table(&json!(null), &["", "k1"]), false),
        (json!({"kind": "Table", "metadata": {"name": "k1"}, "rows": []}), false),
        (json!({"kind": "Pod"}), true),
        (json!(null), true),
    ];
    for (object, lacks_metadata) in cases {
        for style in all_styles() {
            let result = filter_watch(&event("BOOKMARK", &object, style), 7);
            let is_expected = match result {
                Err(FilterError::Malformed { .. }) => !lacks_metadata,
                Err(FilterError::NoMetadata) => lacks_metadata,
                _ => false,
            };
            assert!(is_expected, "{style:?} {object}: {result:?}");
        }
    }
}

#[test]
fn error_with_another_object_than_status_is_refused() {
    for object in [
        pod("k1"),
        json!({"code": 410}),
        json!(null),
        table(&json!(null), &["k1"]),
    ] {
        for style in all_styles() {
            let result = filter_watch(&event("ERROR", &object, style), 7);
            assert!(
                matches!(result, Err(FilterError::Malformed { .. })),
                "{style:?} {object}: {result:?}"
            );
        }
    }
}

#[test]
fn unreadable_events_are_refused() {
    let columns = json!([]);
    let cases = [
        ("SYNC", pod("k1"), FilterError::UnknownEvent),
        ("added", pod("k1"), FilterError::UnknownEvent),
        ("", pod("k1"), FilterError::UnknownEvent),
        ("ADDED", json!(null), FilterError::NoMetadata),
        ("ADDED", json!({"kind": "Pod"}), FilterError::NoMetadata),
        ("ADDED", json!({"metadata": null}), FilterError::NoMetadata),
        ("ADDED", table(&columns, &[]), FilterError::NoMetadata),
        (
            "ADDED",
            json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": [{"object": null}]}),
            FilterError::NoMetadata,
        ),
    ];
    for (event_type, object, expected) in cases {
        for chunk_size in CHUNK_SIZES {
            let result = filter_watch(&event(event_type, &object, Style::default()), chunk_size);
            assert_eq!(result, Err(expected), "{event_type} {object}");
        }
    }
    // Neither type nor object.
    assert_eq!(filter_watch(b"\xd9\xd9\xf7\xa0", 1), Err(FilterError::UnknownEvent));
    assert_eq!(filter_watch(b"\xa1\x44type\x45ADDED", 1), Err(FilterError::NoMetadata));
}

#[test]
fn event_is_refused_above_largest_size() {
    let object = json!({"metadata": {"name": "d1"}, "data": "x".repeat(MAX_OBJECT_BYTES)});
    let body = event("ADDED", &object, Style::default());
    for chunk_size in [4096, usize::MAX] {
        assert_eq!(filter_watch(&body, chunk_size), Err(FilterError::TooLarge));
    }
}

#[test]
fn table_follows_decision_on_its_rows() {
    let columns = json!(null);
    let cases: [(&[&str], Option<&str>); 8] = [
        (&["k1"], Some("MODIFIED")),
        (&["d1"], None),
        (&["b1"], None),
        (&["k1", "m2"], Some("MODIFIED")),
        (&["d1", "b2"], None),
        (&["t1"], None),
        (&["d1", "t2"], None),
        (&["x1", "x2"], Some("DELETED")),
    ];
    for (names, expected) in cases {
        let table = table(&columns, names);
        let out = filter_watch(&event("MODIFIED", &table, Style::default()), 7).unwrap();
        let expected: Vec<_> = expected
            .iter()
            .map(|event_type| json!({"type": event_type, "object": table}))
            .collect();
        assert_eq!(decode_all(&out), expected, "{names:?}");
    }
    for names in [["k1", "d1"], ["d1", "k1"], ["k1", "x1"]] {
        let result = filter_watch(&event("MODIFIED", &table(&columns, &names), Style::default()), 7);
        assert!(matches!(result, Err(FilterError::Malformed { .. })), "{names:?}");
    }
}

#[test]
fn custom_resource_of_kind_table_is_decided_by_its_own_metadata() {
    let object = json!({"kind": "Table", "apiVersion": "furniture.io/v1", "metadata": {"name": "d1"}, "rows": []});
    assert_eq!(
        filter_watch(&event("ADDED", &object, Style::default()), 7).unwrap(),
        b""
    );
}

#[test]
fn column_definitions_of_dropped_table_come_with_next_one() {
    let columns = json!([{"name": "Name"}, {"name": "Age"}]);
    let others = json!([{"name": "Other"}]);
    let (none, empty) = (json!(null), json!([]));
    let bookmark = || {
        (
            "BOOKMARK",
            table(&empty, &[""]),
            Some(("BOOKMARK", table(&columns, &[""]))),
        )
    };
    let pod_bookmark = ("BOOKMARK", pod(""), Some(("BOOKMARK", pod(""))));
    let dropped = |columns: &Value| ("ADDED", table(columns, &["d1"]), None);
    let passed = |event_type, before: &Value, name, changed_type, after: &Value| {
        (
            event_type,
            table(before, &[name]),
            Some((changed_type, table(after, &[name]))),
        )
    };
    let cases = [
        vec![
            dropped(&columns),
            dropped(&empty),
            passed("ADDED", &none, "k1", "ADDED", &columns),
            passed("ADDED", &empty, "k2", "ADDED", &empty),
        ],
        vec![dropped(&columns), passed("MODIFIED", &empty, "x1", "DELETED", &columns)],
        vec![
            dropped(&columns),
            pod_bookmark,
            bookmark(),
            passed("ADDED", &none, "k1", "ADDED", &none),
        ],
        vec![
            dropped(&columns),
            passed("ADDED", &others, "k1", "ADDED", &others),
            passed("ADDED", &none, "k2", "ADDED", &none),
        ],
        vec![
            dropped(&others),
            dropped(&columns),
            passed("ADDED", &none, "k1", "ADDED", &columns),
        ],
        vec![
            passed("ADDED", &columns, "k1", "ADDED", &columns),
            passed("ADDED", &none, "k2", "ADDED", &none),
        ],
    ];
    for events in &cases {
        for style in all_styles() {
            for chunk_size in CHUNK_SIZES {
                let body: Vec<_> = events
                    .iter()
                    .flat_map(|(event_type, object, _)| event(event_type, object, style))
                    .collect();
                let expected: Vec<_> = events
                    .iter()
                    .filter_map(|(_, _, expected)| expected.as_ref())
                    .map(|(event_type, object)| json!({"type": event_type, "object": object}))
                    .collect();
                let out = filter_watch(&body, chunk_size).unwrap();
                assert_eq!(decode_all(&out), expected, "{style:?} {chunk_size}");
            }
        }
    }
}

#[test]
fn column_definitions_above_64_kib_are_refused() {
    let columns = json!([{"name": "n".repeat(65 * 1024)}]);
    let result = filter_watch(&event("ADDED", &table(&columns, &["d1"]), Style::default()), 4096);
    assert!(matches!(result, Err(FilterError::Malformed { .. })), "{result:?}");
}

proptest! {
    #[test]
    fn watch_equals_filtered_model(
        objects in proptest::collection::vec((any_metadata(), any_value()), 0..6),
        style in any_style(),
        chunk_size in 1_usize..200,
    ) {
        let objects: Vec<_> = objects
            .into_iter()
            .map(|(metadata, spec)| json!({"kind": "K", "metadata": metadata, "spec": spec}))
            .collect();
        let body: Vec<_> = objects.iter().flat_map(|object| event("MODIFIED", object, style)).collect();
        let expected: Vec<_> = objects
            .iter()
            .filter(|object| object["metadata"]["name"].as_str().unwrap().starts_with('k'))
            .flat_map(|object| event("MODIFIED", object, style))
            .collect();
        prop_assert_eq!(filter_watch(&body, chunk_size).unwrap(), expected);
    }

    #[test]
    fn watch_never_panics(body in proptest::collection::vec(any::<u8>(), 0..60), chunk_size in 1_usize..60) {
        let mut filter = CborWatchFilter::new(MetadataFields::ALL);
        for chunk in [&b"\xa2\x44type\x45ADDED\x46object\xbf"[..], &body].concat().chunks(chunk_size) {
            let _ = filter.push(chunk, &mut Vec::new(), &mut |_, _| EventDecision::Bookmark);
        }
    }
}
