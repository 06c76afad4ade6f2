//! JSON lists and tables keep their bytes except for dropped objects and wrong counts, and unreadable ones are refused.

use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;

const SIZES: [usize; 5] = [1, 2, 3, 7, usize::MAX];

/// Filters the body in chunks of this size. Keeps the objects whose UID begins with `k`.
fn filter_chunks(body: &[u8], size: usize) -> Result<Vec<u8>, FilterError> {
    let mut filter = JsonListFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    for chunk in body.chunks(size.min(body.len().max(1))) {
        filter.push(chunk, &mut out, &mut |objects, flags| {
            assert_eq!(objects.len(), flags.len());
            for (object, flag) in objects.iter().zip(flags) {
                *flag = object.uid.starts_with('k');
            }
        })?;
    }
    filter.finish()?;
    Ok(out)
}

fn assert_filtered(body: &str, expected: &str) {
    for size in SIZES {
        let out = filter_chunks(body.as_bytes(), size).map(|out| String::from_utf8(out).unwrap());
        assert_eq!(out.as_deref(), Ok(expected), "{body} in chunks of {size}");
    }
}

fn assert_refused(body: &[u8], is_expected: impl Fn(FilterError) -> bool) {
    for size in SIZES {
        let outcome = filter_chunks(body, size);
        let text = String::from_utf8_lossy(body);
        assert!(
            outcome.as_ref().is_err_and(|error| is_expected(*error)),
            "{text} in chunks of {size}: {outcome:?}"
        );
    }
}

fn item(uid: &str) -> String {
    format!(r#"{{"metadata":{{"name":"}}]","uid":"{uid}"}},"spec":[{{"metadata":1}},"\\"]}}"#)
}

#[test]
fn dropped_items_leave_with_one_comma() {
    let cases: [(&[&str], &[&str]); 8] = [
        (&[], &[]),
        (&["d"], &[]),
        (&["k"], &["k"]),
        (&["d1", "k1", "k2"], &["k1", "k2"]),
        (&["k1", "d1", "k2"], &["k1", "k2"]),
        (&["k1", "k2", "d1"], &["k1", "k2"]),
        (&["d1", "d2", "k1", "d3"], &["k1"]),
        (&["d1", "d2"], &[]),
    ];
    let list = |uids: &[&str]| {
        let items: Vec<String> = uids.iter().map(|uid| item(uid)).collect();
        format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{}]}}"#,
            items.join(",")
        ) + "\n"
    };
    for (uids, kept) in cases {
        assert_filtered(&list(uids), &list(kept));
    }
}

#[test]
fn items_may_precede_other_keys_and_have_escaped_keys() {
    assert_filtered(
        r#"{"apiVersion":"g/v1","items":[{"met\u0061data":{"uid":"d"}},{"metadata":{"uid":"k"}}],"kind":"XList"}"#,
        r#"{"apiVersion":"g/v1","items":[{"metadata":{"uid":"k"}}],"kind":"XList"}"#,
    );
}

#[test]
fn white_space_of_pretty_lists_passes() {
    let dropped = "\n  {\"metadata\":{\"uid\":\"d\"}},";
    let kept = "\n  {\"metadata\" : {\"uid\":\"k\"}} ,\n  {\"metadata\":{\"uid\":\"k2\"}}";
    let list = |items: &str| format!("{{ \"items\" : [{items}\n ]\n}}\n");
    assert_filtered(&list(&[dropped, kept].concat()), &list(kept));
    assert_filtered(&list(dropped.trim_end_matches(',')), &list(""));
}

#[test]
fn rows_of_tables_are_decided_by_their_objects() {
    let row = |uid: &str| format!(r#"{{"cells":["a",1],"object":{{"kind":"P","metadata":{{"uid":"{uid}"}}}}}}"#);
    let table = |rows: &str| format!(r#"{{"kind":"Table","columnDefinitions":[{{"name":"Name"}}],"rows":[{rows}]}}"#);
    assert_filtered(&table(&[row("d"), row("k"), row("d")].join(",")), &table(&row("k")));
    let without_object = table(r#"{"cells":[],"object":null}"#);
    assert_refused(without_object.as_bytes(), |error| error == FilterError::NoMetadata);
}

#[test]
fn counts_are_removed_from_the_lists_own_metadata() {
    let cases = [
        (r#"{"remainingItemCount":7}"#, "{}"),
        (
            r#"{"shardInfo":{"selector":"{,"},"continue":"c"}"#,
            r#"{"continue":"c"}"#,
        ),
        (
            r#"{"resourceVersion":"1","remainingItemCount":7,"continue":"c"}"#,
            r#"{"resourceVersion":"1","continue":"c"}"#,
        ),
        (
            r#"{"continue":"c" , "remaining\u0049temCount":7 }"#,
            r#"{"continue":"c" }"#,
        ),
        (
            r#"{"remainingItemCount":7,"shardInfo":null,"selfLink":""}"#,
            r#"{"selfLink":""}"#,
        ),
        ("null", "null"),
        ("{ }", "{ }"),
    ];
    for (metadata, expected) in cases {
        for (before, behind) in [
            ("{\"metadata\":", ",\"items\":[]}"),
            ("{\"items\":null,\"metadata\":", "}"),
        ] {
            assert_filtered(
                &[before, metadata, behind].concat(),
                &[before, expected, behind].concat(),
            );
        }
    }
    let item = r#"{"items":[{"metadata":{"uid":"k","shardInfo":1}}]}"#;
    assert_filtered(item, item);
}

#[test]
fn null_items_and_statuses_pass() {
    let bodies = [
        r#"{"items":null,"kind":"PodList"}"#,
        r#"{"rows": null }"#,
        r#"{"kind":"Status","apiVersion":"v1","message":"m","code":410}"#,
        r#"{"apiVersion":"v1","kind":"Status","metadata":{},"status":"Failure","reason":"Expired","details":{"a":1}}"#,
        r#"{"kind":"Status","spec":{},"items":[]}"#,
        r#"{"apiVersion":"v1","message":"items","details":{"items":[1]},"kind" : "Stat\u0075s"}"#,
    ];
    for body in bodies {
        assert_filtered(body, body);
    }
}

#[test]
fn body_that_is_no_list_does_not_pass() {
    let bodies = [
        "{}",
        r#"{"kind":"Pod","metadata":{"uid":"k"}}"#,
        r#"{"kind":"PodList"}"#,
        r#"{"apiVersion":"v1","kind":"Status","metadata":{"uid":"k"},"spec":{}}"#,
        r#"{"apiVersion":"v1","data":{"a":"b"},"kind":"Status","code":410}"#,
        r#"{"apiVersion":"example.com/v1","kind":"Status"}"#,
    ];
    for body in bodies {
        assert_refused(body.as_bytes(), |error| error == FilterError::NotList);
        let mut out = Vec::new();
        let mut filter = JsonListFilter::new(MetadataFields::ALL);
        let _ = filter.push(body.as_bytes(), &mut out, &mut |_, _| {});
        assert_eq!(out, b"", "{body}");
    }
}

#[test]
fn broken_lists_are_malformed() {
    let bodies: [&[u8]; 20] = [
        b"[]",
        b"x",
        br#"{"items":[],"items":[]}"#,
        br#"{"items":[],"it\u0065ms":[]}"#,
        br#"{"items":null,"items":[]}"#,
        br#"{"kind":"Status","kind":"Pod"}"#,
        br#"{"items":{}}"#,
        br#"{"items":nil}"#,
        br#"{"items":[1]}"#,
        br#"{"items":[{"metadata":{"uid":"k"}},]}"#,
        br#"{"items":[{"metadata":{"uid":"k"}}{"metadata":{}}]}"#,
        br#"{"items":[,{"metadata":{"uid":"k"}}]}"#,
        br#"{"items":[{"metadata":{"uid":"k"]}]}"#,
        br#"{"items":[]]"#,
        br#"{"items":[]}x"#,
        br#"{"items":[],"a"}"#,
        br#"{"apiVersion":"v1","apiVersion":"v1","items":[]}"#,
        br#"{"items":[],"metadata":{},"metadata":{}}"#,
        br#"{"Items":[{"x":1}],"items":[]}"#,
        br#"{"items":[],"x\u0079":1}"#,
    ];
    for body in bodies {
        assert_refused(body, |error| matches!(error, FilterError::Malformed { .. }));
    }
}

#[test]
fn cut_list_is_unfinished() {
    let body = br#"{"kind":"L","items":[{"metadata":{"uid":"k"}},{"metadata":{"uid":"d"}}],"metadata":{}}"#;
    for length in 0..body.len() {
        assert_refused(&body[..length], |error| error == FilterError::Unfinished);
    }
}

#[test]
fn filter_passes_nothing_after_error() {
    let mut filter = JsonListFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let error = filter.push(br#"{"items":[{}"#, &mut out, &mut |_, _| {}).unwrap_err();
    assert_eq!(error, FilterError::NoMetadata);
    let length = out.len();
    assert_eq!(
        filter.push(br#",{"metadata":{}}]}"#, &mut out, &mut |_, _| {}),
        Err(error)
    );
    assert_eq!(out.len(), length);
    assert_eq!(filter.finish(), Err(error));
}

#[test]
fn buffered_bytes_are_bounded() {
    let long = "x".repeat(MAX_BUFFERED_BYTES);
    assert_refused_whole(&format!(r#"{{"a":"{long}","items":[]}}"#), FilterError::NotList);
    assert_refused_whole(
        &format!(r#"{{"items":[],"metadata":{{"a":"{long}"}}}}"#),
        FilterError::TooLarge,
    );
    let long = "x".repeat(MAX_OBJECT_BYTES);
    assert_refused_whole(
        &format!(r#"{{"items":[{{"a":"{long}","metadata":{{}}}}]}}"#),
        FilterError::TooLarge,
    );
}

fn assert_refused_whole(body: &str, error: FilterError) {
    for size in [100_000, usize::MAX] {
        assert_eq!(filter_chunks(body.as_bytes(), size), Err(error), "chunks of {size}");
    }
}

#[test]
fn objects_of_a_chunk_are_decided_about_together() {
    let items: Vec<String> = (0..MAX_BATCH + 2).map(|index| item(&format!("k{index}"))).collect();
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    let mut filter = JsonListFilter::new(MetadataFields::ALL);
    let (mut out, mut batches) = (Vec::new(), Vec::new());
    let (head, tail) = body.as_bytes().split_at(body.len() - 10);
    for chunk in [head, tail] {
        filter
            .push(chunk, &mut out, &mut |objects, _| batches.push(objects.len()))
            .unwrap();
    }
    assert_eq!(batches, [MAX_BATCH, 1, 1]);
    assert_eq!(out, body.as_bytes());
}

#[derive(serde::Deserialize)]
struct RawList<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

fn any_object() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec![
        "",
        "}",
        "]",
        "{\"",
        "\\",
        "\\\"",
        "items",
        "\u{e4}\n",
        "a longer text, of two words",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        text.prop_map(Value::from)
    ];
    let key = prop::sample::select(vec!["metadata", "metadatb", "uid", "spec", "items", "a\"b"]);
    let any_value = leaf.prop_recursive(3, 24, 4, move |inner| {
        let members = prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner.clone(), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    let uid = prop::sample::select(vec!["k", "k\"}", "d", "\\"]);
    (uid, any_value.clone(), any_value)
        .prop_map(|(uid, spec, extra)| json!({"a": extra, "metadata": {"uid": uid, "x": spec}, "spec": spec}))
}

proptest! {
    #[test]
    fn kept_items_equal_those_of_the_model(
        objects in prop::collection::vec(any_object(), 0..6),
        size in prop::sample::select(vec![1_usize, 2, 3, 7, 50, 10_000]),
        is_pretty in any::<bool>(),
    ) {
        let list = json!({"kind": "L", "items": objects, "metadata": {"continue": "c", "remainingItemCount": 3}});
        let body = if is_pretty { serde_json::to_string_pretty(&list) } else { serde_json::to_string(&list) };
        let body = body.unwrap();
        let out = String::from_utf8(filter_chunks(body.as_bytes(), size).unwrap()).unwrap();
        let is_kept = |raw: &&&RawValue| {
            let object: Value = serde_json::from_str(raw.get()).unwrap();
            object["metadata"]["uid"].as_str().unwrap().starts_with('k')
        };
        let raw_texts = |items: Vec<&RawValue>| items.into_iter().map(|raw| raw.get().to_owned()).collect::<Vec<_>>();
        let before: RawList = serde_json::from_str(&body).unwrap();
        let expected: Vec<&RawValue> = before.items.iter().filter(is_kept).copied().collect();
        let after: RawList = serde_json::from_str(&out).unwrap();
        prop_assert_eq!(raw_texts(after.items), raw_texts(expected));
        let after: Value = serde_json::from_str(&out).unwrap();
        prop_assert_eq!(&after["metadata"], &json!({"continue": "c"}));
        prop_assert_eq!(&after["kind"], "L");
    }

    #[test]
    fn chunks_do_not_change_the_outcome(
        text in r#"(\{|\}|\[|\]|"|,|:| |null|"items":\[|"metadata":\{|"uid":"k"|"uid":"d"|"kind":"Status"|\\){0,24}"#,
        size in 1_usize..9,
    ) {
        let whole = filter_chunks(text.as_bytes(), usize::MAX);
        let is_ok = whole.is_ok();
        let chunked = filter_chunks(text.as_bytes(), size);
        prop_assert_eq!(chunked.is_ok(), is_ok);
        if let (Ok(chunked), Ok(whole)) = (chunked, whole) {
            prop_assert_eq!(chunked, whole);
        }
    }

    #[test]
    fn filter_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), size in 1_usize..9) {
        let _ = filter_chunks(&bytes, size);
        let _ = filter_chunks(&[br#"{"items":["#, &*bytes].concat(), size);
    }
}
