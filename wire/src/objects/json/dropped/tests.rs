//! Fields that are left out of lists, tables and watches.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::objects::tests::{fields_of, keep_all_but_hidden, remove_field};
use crate::objects::{
    EventDecision, EventType, FilterError, JsonListFilter, JsonWatchFilter, MetadataFields, ObjectMetadata,
};

const SIZES: [usize; 3] = [1, 7, 4096];

/// Keeps objects whose name is not `hidden`.
fn filter_list(body: &[u8], paths: &[&str], size: usize) -> Result<Vec<u8>, FilterError> {
    let mut filter = JsonListFilter::new(MetadataFields::ALL).with_dropped_fields(fields_of(paths));
    let mut out = Vec::new();
    for chunk in body.chunks(size) {
        filter.push(chunk, &mut out, &mut keep_all_but_hidden)?;
    }
    filter.finish()?;
    Ok(out)
}

fn assert_list(body: &str, paths: &[&str], expected: &str) {
    for size in SIZES {
        let out = filter_list(body.as_bytes(), paths, size).map(|out| String::from_utf8(out).unwrap());
        assert_eq!(
            out.as_deref(),
            Ok(expected),
            "{body} without {paths:?} in chunks of {size}"
        );
    }
}

/// Keeps objects, those named `deleted` as DELETED, and hides those named `hidden`.
fn assert_watch(body: &str, paths: &[&str], expected: &str) {
    for size in SIZES {
        let mut filter = JsonWatchFilter::new(MetadataFields::ALL).with_dropped_fields(fields_of(paths));
        let mut out = Vec::new();
        let mut decide = |_: EventType, object: &ObjectMetadata<'_>| match &*object.name {
            "deleted" => EventDecision::KeepAs(EventType::Deleted),
            "hidden" => EventDecision::Tombstone,
            "dropped" => EventDecision::Drop,
            _ => EventDecision::Keep,
        };
        for chunk in body.as_bytes().chunks(size) {
            filter.push(chunk, &mut out, &mut decide).unwrap();
        }
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out, expected, "{body} without {paths:?} in chunks of {size}");
    }
}

/// Checks an object as the only one of a list, between two others, and in a row of a table.
fn assert_object(object: &str, paths: &[&str], expected: &str) {
    let other = r#"{"metadata":{"name":"b"},"x":[1.50e+3,"\u0041"]}"#;
    let cases = [
        (r#"{"kind":"PodList","items":["#.to_owned(), "]}".to_owned()),
        (format!(r#"{{"items":[{other} , "#), format!(" ,\n{other} ]}}\n")),
        (
            r#"{"kind":"Table","rows":[ {"cells":["status",{"status":1}],"object": "#.to_owned(),
            r#" , "status":1}]}"#.to_owned(),
        ),
    ];
    for (before, behind) in cases {
        assert_list(
            &format!("{before}{object}{behind}"),
            paths,
            &format!("{before}{expected}{behind}"),
        );
    }
}

#[test]
fn member_leaves_with_one_comma_and_its_space() {
    let cases = [
        (
            r#"{"metadata":{"name":"a"},"status":{"x":"}"}}"#,
            r#"{"metadata":{"name":"a"}}"#,
        ),
        (
            r#"{"status":1,"metadata":{"name":"a"}}"#,
            r#"{"metadata":{"name":"a"}}"#,
        ),
        (
            r#"{ "metadata":{"name":"a"} , "status" : [1,"}"] , "spec":1.50e+3 }"#,
            r#"{ "metadata":{"name":"a"} , "spec":1.50e+3 }"#,
        ),
        (
            "{\n  \"status\": 1,\n  \"metadata\": {\"name\":\"a\"},\n  \"status\": 2\n}",
            "{\n  \"metadata\": {\"name\":\"a\"}\n}",
        ),
        (
            r#"{"status":1,"status":2,"metadata":{"name":"a"},"st\u0061tus":3,"status":4,"z":"\u0041"}"#,
            r#"{"metadata":{"name":"a"},"z":"\u0041"}"#,
        ),
        (
            r#"{"metadata":{"name":"a"},"Status":1,"spec":{"status":1}}"#,
            r#"{"metadata":{"name":"a"},"Status":1,"spec":{"status":1}}"#,
        ),
    ];
    for (object, expected) in cases {
        assert_object(object, &["status"], expected);
    }
}

#[test]
fn fields_of_metadata_are_left_out_of_metadata_alone() {
    let paths = ["metadata.managedFields", "metadata.annotations[\"a/b\"]"];
    let cases = [
        (
            r#"{"metadata":{"managedFields":[{"f":"]"}],"name":"a"},"managedFields":1}"#,
            r#"{"metadata":{"name":"a"},"managedFields":1}"#,
        ),
        (r#"{"metadata":{ "managedFields":null }}"#, r#"{"metadata":{  }}"#),
        (
            r#"{"x":{"metadata":{"managedFields":[]}},"metadata" : {"name":"a","managedFields":[]}}"#,
            r#"{"x":{"metadata":{"managedFields":[]}},"metadata" : {"name":"a"}}"#,
        ),
        (
            r#"{"metadata":{"managedFields":[],"annotations":{"c":"","a/b":"{\"x\":1}"}}}"#,
            r#"{"metadata":{"annotations":{"c":""}}}"#,
        ),
        (
            r#"{"metadata":{"annotations":{"a\/b":""},"annotations.a/b":1}}"#,
            r#"{"metadata":{"annotations":{},"annotations.a/b":1}}"#,
        ),
        (
            r#"{"metadata":{"annotations":null,"name":"a"}}"#,
            r#"{"metadata":{"annotations":null,"name":"a"}}"#,
        ),
    ];
    for (object, expected) in cases {
        assert_object(object, &paths, expected);
        assert_object(object, &[&paths[..], &["status"]].concat(), expected);
    }
}

#[test]
fn path_ends_at_what_is_no_map() {
    for value in ["null", "\"b\"", "7", "[{\"b\":1}]", "{}", "{ }", "{\"c\":{\"b\":1}}"] {
        let object = format!(r#"{{"metadata":{{}},"spec":{{"a":{value}}}}}"#);
        assert_object(&object, &["spec.a.b", "spec.a.x.y"], &object);
    }
}

#[test]
fn objects_are_decided_on_before_fields_are_dropped() {
    let list = |objects: &str| format!(r#"{{"items":[{objects}]}}"#);
    let hidden = r#"{"status":1,"metadata":{"name":"hidden"}}"#;
    let kept = r#"{"status":1,"metadata":{"name":"a"}}"#;
    assert_list(
        &list(&[hidden, kept, hidden, kept].join(",")),
        &["status"],
        &list(r#"{"metadata":{"name":"a"}},{"metadata":{"name":"a"}}"#),
    );
}

#[test]
fn list_around_the_objects_keeps_its_fields() {
    let list = r#"{"status":1,"metadata":{"managedFields":1,"labels":{}},"items":[],"spec":{"a":1}}"#;
    assert_list(
        list,
        &["status", "metadata.managedFields", "metadata.labels", "spec.a"],
        list,
    );
    let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure"}"#;
    assert_list(status, &["status"], status);
}

#[test]
fn objects_of_events_lose_fields_and_may_change_their_type() {
    let event = |event_type: &str, name: &str, status: &str| {
        let object = format!(r#"{{"kind":"P","metadata":{{"name":"{name}"}}{status}}}"#);
        format!(r#"{{"type":"{event_type}","object":{object},"status":1}}"#) + "\n"
    };
    let status = ",\"status\":{\"x\":1}";
    let tombstone = "{\"type\":\"DELETED\",\"object\":{\"kind\":\"P\",\"metadata\":{\"name\":\"hidden\"}}}\n";
    assert_watch(
        &[
            event("ADDED", "a", status),
            event("MODIFIED", "deleted", status),
            event("MODIFIED", "hidden", status),
            event("MODIFIED", "b", ""),
        ]
        .concat(),
        &["status"],
        &[
            event("ADDED", "a", ""),
            event("DELETED", "deleted", ""),
            tombstone.to_owned(),
            event("MODIFIED", "b", ""),
        ]
        .concat(),
    );
}

#[test]
fn objects_of_events_lose_fields_of_metadata() {
    let event = |before: &str, behind: &str| {
        let object = format!(r#"{{"x":{{"managedFields":2}},"metadata" : {{{before}"name":"a"{behind}}}}}"#);
        format!(r#"{{"managedFields":1,"object":{object},"type":"ADDED"}}"#)
    };
    let managed = r#""managedFields":[{"f:metadata":{"managedFields":{}}}]"#;
    for body in [
        event(&format!("{managed},"), ""),
        event("", &format!(",{managed}")),
        event(&format!("{managed},"), &format!(",{managed}")),
        event("", ""),
    ] {
        assert_watch(&body, &["metadata.managedFields"], &event("", ""));
        assert_watch(&body, &["metadata.managedFields", "spec"], &event("", ""));
    }
}

#[test]
fn bookmarks_and_errors_keep_their_fields() {
    let metadata = r#"{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}"#;
    let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{"labels":{}},"status":"Failure"}"#;
    let bookmark = format!(r#"{{"type":"BOOKMARK","object":{{"kind":"P","metadata":{metadata},"status":1}}}}"#);
    let body = format!(r#"{bookmark}{{"type":"ERROR","object":{status}}}"#);
    assert_watch(&body, &["metadata.annotations", "metadata.labels", "status"], &body);
    assert_watch(&body, &["metadata.annotations", "metadata.labels"], &body);
}

#[test]
fn rows_of_a_table_event_lose_fields() {
    let event = |columns: &str, name: &str, managed: &str, status: &str| {
        let row = format!(r#"{{"cells":["status"],"object":{{"metadata":{{"name":"{name}"{managed}}}{status}}}}}"#);
        let start = r#"{"object":{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"columnDefinitions":"#;
        format!(r#"{start}{columns},"rows":[ {row} , {row}],"status":1}},"type":"ADDED"}}"#)
    };
    let (managed, status, columns) = (",\"managedFields\":[{}]", ",\"status\":1", "[{\"name\":\"Name\"}]");
    let body = [
        event(columns, "dropped", managed, status),
        event("null", "a", managed, status),
    ]
    .concat();
    let with_columns = event(columns, "a", "", "");
    assert_watch(&body, &["metadata.managedFields", "status"], &with_columns);
    assert_watch(&body, &["metadata.managedFields"], &event(columns, "a", "", status));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i32>().prop_map(Value::from),
        "[a-z\"\\\\{}\\[\\],:\u{e4}\n]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let entries = proptest::collection::vec(("a|b|status|spec|\"", inner.clone()), 0..5);
        prop_oneof![
            proptest::collection::vec(inner, 0..3).prop_map(Value::from),
            entries.prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn fields_are_gone_and_everything_else_is_there(
        object in proptest::collection::vec(("a|status|spec|zone", any_value()), 0..5),
        managed in any_value(),
        labels in proptest::collection::vec(("a|b|c/d", "[a-c]{0,3}"), 0..4),
        is_pretty in any::<bool>(),
        is_of_metadata in any::<bool>(),
    ) {
        let labels: serde_json::Map<String, Value> =
            labels.into_iter().map(|(key, value)| (key, Value::from(value))).collect();
        let mut object: serde_json::Map<String, Value> = object.into_iter().collect();
        object.insert("metadata".to_owned(), json!({"labels": labels, "managedFields": managed, "name": "n"}));
        let list = json!({"items": [object, {"metadata": {}}, object]});
        let body = if is_pretty { serde_json::to_vec_pretty(&list) } else { serde_json::to_vec(&list) }.unwrap();
        let mut paths = vec!["metadata.managedFields", "metadata.labels[\"c/d\"]"];
        let of_metadata: [&[&str]; 2] = [&["metadata", "managedFields"], &["metadata", "labels", "c/d"]];
        let mut keys = of_metadata.to_vec();
        if !is_of_metadata {
            paths.extend(["status", "spec.a", "spec.b.a", "zone.status.spec"]);
            let others: [&[&str]; 4] = [&["status"], &["spec", "a"], &["spec", "b", "a"], &["zone", "status", "spec"]];
            keys.extend(others);
        }
        let mut expected = list.clone();
        for item in expected["items"].as_array_mut().unwrap() {
            keys.iter().for_each(|path| remove_field(item, path));
        }
        for size in SIZES {
            let out = filter_list(&body, &paths, size).unwrap();
            prop_assert_eq!(&serde_json::from_slice::<Value>(&out).unwrap(), &expected);
            prop_assert_eq!(&filter_list(&out, &paths, size).unwrap(), &out);
            prop_assert_eq!(&filter_list(&out, &[], size).unwrap(), &out);
        }
    }
}
