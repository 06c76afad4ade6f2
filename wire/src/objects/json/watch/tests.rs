//! Watches of objects and of tables.

use proptest::prelude::*;

use super::*;

const SIZES: [usize; 5] = [1, 2, 3, 7, usize::MAX];

/// The decision that an object's name asks for.
fn decide_by_name(name: &str) -> EventDecision {
    match name {
        "drop" => EventDecision::Drop,
        "bookmark" => EventDecision::Bookmark,
        "delete" => EventDecision::KeepAs(EventType::Deleted),
        "hidden" => EventDecision::Tombstone,
        _ => EventDecision::Keep,
    }
}

fn filter_chunks(body: &[u8], size: usize) -> Result<Vec<u8>, FilterError> {
    let mut filter = JsonWatchFilter::new(MetadataFields {
        name: true,
        ..MetadataFields::default()
    });
    let mut out = Vec::new();
    for chunk in body.chunks(size.min(body.len().max(1))) {
        filter.push(chunk, &mut out, &mut |_, object| decide_by_name(&object.name))?;
    }
    Ok(out)
}

fn assert_filtered(body: &str, expected: &str) {
    for size in SIZES {
        let out = filter_chunks(body.as_bytes(), size).map(|out| String::from_utf8(out).unwrap());
        assert_eq!(out.as_deref(), Ok(expected), "{body} in chunks of {size}");
    }
}

fn assert_refused(body: &str, is_expected: impl Fn(FilterError) -> bool) {
    for size in SIZES {
        let outcome = filter_chunks(body.as_bytes(), size);
        let is_refused = outcome.as_ref().is_err_and(|error| is_expected(*error));
        assert!(is_refused, "{body} in chunks of {size}: {outcome:?}");
    }
}

fn event(event_type: &str, name: &str) -> String {
    let metadata = format!(r#"{{"name":"{name}","resourceVersion":"7"}}"#);
    format!(r#"{{"type":"{event_type}","object":{{"kind":"P\"","apiVersion":"g/v1","metadata":{metadata}}}}}"#) + "\n"
}

fn table(event_type: &str, columns: &str, names: &[&str]) -> String {
    let row = |name: &&str| format!(r#"{{"cells":["{name}"],"object":{{"metadata":{{"name":"{name}"}}}}}}"#);
    let rows: Vec<String> = names.iter().map(row).collect();
    let object = format!(
        r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{{}},"columnDefinitions":{columns},"rows":[{}]}}"#,
        rows.join(",")
    );
    format!(r#"{{"type":"{event_type}","object":{object}}}"#) + "\n"
}

#[test]
fn event_passes_or_leaves_with_its_line_feed() {
    let kept = [event("ADDED", "a"), event("MODIFIED", "b"), event("DELETED", "c")];
    let dropped = ["ADDED", "MODIFIED", "DELETED"].map(|event_type| event(event_type, "drop"));
    let all = [&dropped[0], &kept[0], &kept[1], &dropped[1], &kept[2], &dropped[2]].map(String::as_str);
    assert_filtered(&all.concat(), &kept.concat());
}

#[test]
fn bookmarks_and_errors_pass() {
    let events = [
        event("BOOKMARK", ""),
        r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"name":"a"}}}}"#.to_owned(),
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410}}"#.to_owned(),
        table("BOOKMARK", "null", &[""]),
        table("BOOKMARK", "null", &[]),
        table("BOOKMARK", "null", &[]).replace("[]", "null"),
    ];
    assert_filtered(&events.concat(), &events.concat());
}

#[test]
fn bookmark_with_an_object_is_refused() {
    for body in [
        event("BOOKMARK", "a"),
        event("BOOKMARK", "\\u0061"),
        table("BOOKMARK", "null", &["a"]),
        table("BOOKMARK", "null", &["", "a"]),
    ] {
        assert_refused(&body, |error| matches!(error, FilterError::Malformed { .. }));
    }
    assert_refused(r#"{"type":"BOOKMARK","object":{"kind":"Pod"}}"#, |error| {
        error == FilterError::NoMetadata
    });
}

#[test]
fn error_with_another_object_than_a_status_is_refused() {
    let without_kind = r#"{"type":"ERROR","object":{"code":410}}"#.to_owned();
    for body in [event("ERROR", "a"), without_kind, table("ERROR", "null", &["a"])] {
        assert_refused(&body, |error| matches!(error, FilterError::Malformed { .. }));
    }
}

#[test]
fn keys_of_an_event_come_in_any_order() {
    let kept = r#"{"object" : {"metadata":{"name":"a"}}, "type" : "ADDED"}"#;
    let dropped = r#"{"object":{"spec":{"name":"a"},"metadata":{"name":"drop"}},"type":"ADDED"}"#;
    assert_filtered(&[kept, "\n", dropped, "\n"].concat(), &[kept, "\n"].concat());
}

#[test]
fn event_is_emitted_with_its_last_byte_and_so_is_its_line_feed() {
    let mut filter = JsonWatchFilter::new(MetadataFields::ALL);
    let text = event("ADDED", "a");
    let event = text.trim_end();
    let (head, tail) = event.split_at(30);
    let mut outs = Vec::new();
    for chunk in [head, tail, "\n", event, "\n"] {
        let mut out = Vec::new();
        filter
            .push(chunk.as_bytes(), &mut out, &mut |_, _| EventDecision::Keep)
            .unwrap();
        outs.push((String::from_utf8(out).unwrap(), filter.is_mid_event()));
    }
    let expected = [("", true), (event, false), ("\n", false), (event, false), ("\n", false)];
    assert_eq!(outs, expected.map(|(out, is_mid_event)| (out.to_owned(), is_mid_event)));
}

#[test]
fn only_the_type_of_an_event_is_replaced() {
    assert_filtered(&event("MODIFIED", "delete"), &event("DELETED", "delete"));
    assert_filtered(
        r#"{"object":{"type":"ADDED","metadata":{"name":"delete"}},"type": "ADD\u0045D" }"#,
        r#"{"object":{"type":"ADDED","metadata":{"name":"delete"}},"type": "DELETED" }"#,
    );
}

#[test]
fn decision_sees_the_type_of_the_event() {
    let mut filter = JsonWatchFilter::new(MetadataFields::default());
    let mut types = Vec::new();
    let body = [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("BOOKMARK", "")]
        .map(|(event_type, name)| event(event_type, name))
        .concat();
    let outcome = filter.push(body.as_bytes(), &mut Vec::new(), &mut |event_type, _| {
        types.push(event_type);
        EventDecision::Keep
    });
    assert_eq!(outcome, Ok(()));
    assert_eq!(types, [EventType::Added, EventType::Modified, EventType::Deleted]);
}

#[test]
fn bookmark_has_the_raw_strings_of_the_object() {
    let bookmark =
        r#"{"type":"BOOKMARK","object":{"kind":"P\"","apiVersion":"g/v1","metadata":{"resourceVersion":"7"}}}"#;
    assert_filtered(&event("ADDED", "bookmark"), &[bookmark, "\n"].concat());
    assert_filtered(
        "{\"type\":\"ADDED\",\"object\":{\"kind\":\"P\",\"metadata\":{\"name\":\"bookmark\"}}}\n",
        "",
    );
}

#[test]
fn tombstone_has_the_raw_strings_that_tell_which_object_it_was() {
    let type_meta = r#""kind":"P\"","apiVersion":"g/v1""#;
    let known = r#""name":"hid\u0064en","namespace":"n\u0031","uid":"u","resourceVersion":"7""#;
    let tombstone = format!(r#"{{"type":"DELETED","object":{{{type_meta},"metadata":{{{known}}}}}}}"#) + "\n";
    for event_type in ["ADDED", "MODIFIED", "DELETED"] {
        let metadata = format!(r#"{{"labels":{{"a":"b"}}, {known},"finalizers":["f"]}}"#);
        let object = format!(r#"{{"metadata":{metadata},"spec":{{"name":"s"}},{type_meta},"data":1}}"#);
        let body = format!(r#"{{"type":"{event_type}","object":{object}}}"#) + "\n";
        assert_filtered(&body, &tombstone);
    }
    let without_namespace = format!(
        r#"{{"type":"DELETED","object":{{{type_meta},"metadata":{{"name":"hidden","resourceVersion":"7"}}}}}}"#
    );
    assert_filtered(&event("MODIFIED", "hidden"), &(without_namespace + "\n"));
}

#[test]
fn tombstone_is_checked_and_needs_a_name() {
    let push = |metadata: &str| {
        let mut filter = JsonWatchFilter::new(MetadataFields::default());
        let mut out = Vec::new();
        let body = format!(r#"{{"type":"MODIFIED","object":{{"kind":"Pod","metadata":{metadata}}}}}"#);
        let outcome = filter.push(body.as_bytes(), &mut out, &mut |_, _| EventDecision::Tombstone);
        outcome.map(|()| out)
    };
    for metadata in [r#"{"uid":"u"}"#, r#"{"name":""}"#, r#"{"name":null}"#] {
        assert_eq!(push(metadata), Ok(Vec::new()), "{metadata}");
    }
    for metadata in [r#"{"name":"a","uid":1}"#, r#"{"name":"a","name":null}"#] {
        let outcome = push(metadata);
        assert!(
            matches!(outcome, Err(FilterError::Malformed { .. })),
            "{metadata}: {outcome:?}"
        );
    }
}

#[test]
fn table_event_is_decided_by_its_rows() {
    let kept = table("ADDED", "[]", &["a", "b"]);
    let events = [
        table("ADDED", "null", &["drop"]),
        kept.clone(),
        table("DELETED", "null", &["bookmark", "drop"]),
        table("MODIFIED", "null", &["hidden", "drop"]),
    ];
    assert_filtered(&events.concat(), &kept);
    assert_filtered(
        &table("MODIFIED", "null", &["delete"]),
        &table("DELETED", "null", &["delete"]),
    );
    assert_refused(&table("ADDED", "null", &["a", "drop"]), |error| {
        matches!(error, FilterError::Malformed { .. })
    });
    assert_refused(&table("ADDED", "null", &[]), |error| error == FilterError::NoMetadata);
    let table_object = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}"#;
    for rows in ["", ",\"rows\":null"] {
        let body = format!(r#"{{"type":"ADDED","object":{table_object}{rows}}}}}"#);
        assert_refused(&body, |error| error == FilterError::NoMetadata);
    }
}

#[test]
fn custom_resource_of_kind_table_is_an_object() {
    let body =
        r#"{"type":"ADDED","object":{"kind":"Table","apiVersion":"db.io/v1","rows":[],"metadata":{"name":"a"}}}"#;
    assert_filtered(body, body);
}

#[test]
fn column_definitions_of_a_dropped_event_move_to_the_next_one_that_passes() {
    let columns = r#"[{"name":"Name"}]"#;
    for empty in ["null", "[]", "[ ]"] {
        let events = [
            table("ADDED", columns, &["drop"]),
            table("ADDED", empty, &["drop"]),
            table("MODIFIED", empty, &["delete"]),
            table("ADDED", empty, &["a"]),
        ];
        let expected = [table("DELETED", columns, &["delete"]), table("ADDED", empty, &["a"])];
        assert_filtered(&events.concat(), &expected.concat());
    }
    let bookmark = [table("ADDED", columns, &["drop"]), table("BOOKMARK", "null", &[""])];
    assert_filtered(&bookmark.concat(), &table("BOOKMARK", columns, &[""]));
    let newer = [
        table("ADDED", columns, &["drop"]),
        table("ADDED", "[1]", &["a"]),
        table("ADDED", "null", &["b"]),
    ];
    assert_filtered(&newer.concat(), &newer[1..].concat());
}

#[test]
fn broken_events_are_refused() {
    let malformed = [
        "x",
        "[]",
        "{}",
        r#"{"type":"ADDED"}"#,
        r#"{"object":{}}"#,
        r#"{"type":"ADDED","object":null}"#,
        r#"{"type":"ADDED","type":"BOOKMARK","object":{"metadata":{}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{}},"object":{}}"#,
        r#"{"type":"ADDED","object":{"metadata":{},"metadata":{}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{}]}"#,
        r#"{"type":1,"object":{"metadata":{}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{},"kind":"A","kind":"Table"}}"#,
        r#"{"type":"ADDED","object":{"apiVersion":"v1","apiVersion":"v1","metadata":{}}}"#,
        r#"{"type":"ADDED","ob\u006aect":{"metadata":{}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{}},"x\u0079":1}"#,
    ];
    for body in malformed {
        assert_refused(body, |error| matches!(error, FilterError::Malformed { .. }));
    }
    for event_type in ["", "added", "SYNC"] {
        assert_refused(&event(event_type, "a"), |error| error == FilterError::UnknownEvent);
    }
    assert_refused(r#"{"type":"ADDED","object":{}}"#, |error| {
        error == FilterError::NoMetadata
    });
}

#[test]
fn filter_passes_nothing_after_error() {
    let mut filter = JsonWatchFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let mut keep = |_: EventType, _: &crate::objects::ObjectMetadata<'_>| EventDecision::Keep;
    let error = filter
        .push(br#"{"type":"ADDED","object":{}}"#, &mut out, &mut keep)
        .unwrap_err();
    assert_eq!(
        filter.push(event("ADDED", "a").as_bytes(), &mut out, &mut keep),
        Err(error)
    );
    assert_eq!(out, b"");
}

#[test]
fn events_and_column_definitions_are_bounded() {
    let long = "x".repeat(MAX_OBJECT_BYTES);
    for size in [100_000, usize::MAX] {
        assert_eq!(
            filter_chunks(event("ADDED", &long).as_bytes(), size),
            Err(FilterError::TooLarge)
        );
    }
    let columns = format!("[\"{}\"]", "x".repeat(MAX_BUFFERED_BYTES));
    let body = table("ADDED", &columns, &["drop"]);
    assert_eq!(filter_chunks(body.as_bytes(), usize::MAX), Err(FilterError::TooLarge));
    let body = table("ADDED", &columns, &["a"]);
    assert_eq!(
        filter_chunks(body.as_bytes(), usize::MAX),
        Ok(body.clone().into_bytes())
    );
}

#[test]
fn idle_watch_releases_memory() {
    let body = event("ADDED", &"k".repeat(1 << 20));
    let (start, end) = body.as_bytes().split_at(body.len() / 2);
    let mut filter = JsonWatchFilter::new(MetadataFields {
        name: true,
        ..MetadataFields::default()
    });
    let mut out = Vec::new();
    for chunk in [start, end] {
        filter.push(chunk, &mut out, &mut |_, _| EventDecision::Keep).unwrap();
    }
    assert!(out == body.as_bytes());
    assert!(filter.pending.capacity() <= MAX_IDLE_BYTES);
}

proptest! {
    #[test]
    fn events_that_pass_are_those_of_the_model(
        events in prop::collection::vec((
            prop::sample::select(vec!["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]),
            prop::sample::select(vec!["a", "drop", "{\\\"", "\\u0064rop", "\\\\"]),
        ), 0..8),
        size in 1_usize..200,
    ) {
        let text = |(event_type, name): &(&str, &str)| match *event_type {
            "BOOKMARK" => event(event_type, ""),
            _ => event(event_type, name),
        };
        let body: String = events.iter().map(text).collect();
        let is_kept = |(event_type, name): &&(&str, &str)| *event_type == "BOOKMARK" || !name.ends_with("rop");
        let expected: String = events.iter().filter(is_kept).map(text).collect();
        let out = filter_chunks(body.as_bytes(), size).unwrap();
        prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn chunks_do_not_change_the_outcome(
        text in r#"(\{|\}|\[|\]|"|,|:| |\\|"type":"ADDED"|"object":\{|"metadata":\{|"name":"drop"|\}\}\}){0,24}"#,
        size in 1_usize..9,
    ) {
        prop_assert_eq!(filter_chunks(text.as_bytes(), size), filter_chunks(text.as_bytes(), usize::MAX));
    }

    #[test]
    fn filter_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), size in 1_usize..9) {
        let _ = filter_chunks(&bytes, size);
        let _ = filter_chunks(&[br#"{"type":"ADDED","object":{"#, &*bytes].concat(), size);
    }
}
