use serde_json::{Value, json};

use super::*;
use crate::protobuf::{Message, envelope, field_payload, text};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn bound_json(content_type: &str, body: &str, place: UidPlace) -> Value {
    serde_json::from_slice(&bind_to_uid(content_type, body.as_bytes(), place, "u-1").unwrap()).unwrap()
}

/// The object in a protobuf body.
fn raw(body: &[u8]) -> &[u8] {
    field_payload(body.strip_prefix(MAGIC).unwrap(), RAW).unwrap()
}

#[test]
fn uid_is_added_to_metadata_of_objects_and_patches_in_json() {
    let expected = json!({"metadata": {"name": "w", "uid": "u-1"}, "spec": {"big": 1}});
    for content_type in [
        "",
        "application/json; charset=utf-8",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ] {
        for uid in ["", r#","uid":"""#, r#","uid":null"#, r#","uid":"u-1""#] {
            let body = format!(r#"{{"metadata":{{"name":"w"{uid}}},"spec":{{"big":1}}}}"#);
            let bound = bound_json(content_type, &body, UidPlace::Metadata);
            assert_eq!(bound, expected, "{content_type} {uid}");
        }
        let bound = bound_json(content_type, r#"{"spec":{"a":2}}"#, UidPlace::Metadata);
        assert_eq!(bound, json!({"metadata": {"uid": "u-1"}, "spec": {"a": 2}}));
    }
}

#[test]
fn numbers_keep_their_digits() {
    let body = br#"{"spec":{"a":1.500,"b":123456789012345678901234567890}}"#;
    let bound = bind_to_uid("application/json", body, UidPlace::Metadata, "u-1").unwrap();
    let text = String::from_utf8(bound).unwrap();
    assert!(
        text.contains(r#"{"a":1.500,"b":123456789012345678901234567890}"#),
        "{text}"
    );
}

#[test]
fn json_patch_tests_the_uid_first() {
    let body = r#"[{"op":"remove","path":"/spec"}]"#;
    let bound = bound_json("application/json-patch+json", body, UidPlace::Metadata);
    let expected = json!([
        {"op": "test", "path": "/metadata/uid", "value": "u-1"},
        {"op": "remove", "path": "/spec"},
    ]);
    assert_eq!(bound, expected);
}

#[test]
fn preconditions_get_the_uid() {
    let options = r#"{"kind":"DeleteOptions","preconditions":{"resourceVersion":"7"},"gracePeriodSeconds":0}"#;
    let bound = bound_json("application/json", options, UidPlace::Preconditions);
    assert_eq!(bound["preconditions"], json!({"resourceVersion": "7", "uid": "u-1"}));
    assert_eq!(bound["gracePeriodSeconds"], 0);
    for options in [
        "",
        r#","deleteOptions":null"#,
        r#","deleteOptions":{"preconditions":null}"#,
    ] {
        let eviction = format!(r#"{{"metadata":{{"name":"p"}}{options}}}"#);
        let bound = bound_json("application/json", &eviction, UidPlace::EvictionPreconditions);
        let expected = json!({"metadata": {"name": "p"}, "deleteOptions": {"preconditions": {"uid": "u-1"}}});
        assert_eq!(bound, expected, "{options}");
    }
}

#[test]
fn yaml_gets_a_line_above_the_name() {
    let body = "apiVersion: v1 # a comment\nmetadata:\n  labels: {a: b}\n  name: \"w\"\nspec: {on: 0o7}\n";
    let bound = bind_to_uid(
        "application/apply-patch+yaml",
        body.as_bytes(),
        UidPlace::Metadata,
        "u-1",
    );
    let expected =
        "apiVersion: v1 # a comment\nmetadata:\n  labels: {a: b}\n  uid: \"u-1\"\n  name: \"w\"\nspec: {on: 0o7}\n";
    assert_eq!(String::from_utf8(bound.unwrap()).unwrap(), expected);
    let has_it = "metadata:\n  uid: u-1\n  name: w\n";
    let bound = bind_to_uid(
        "application/apply-patch+yaml",
        has_it.as_bytes(),
        UidPlace::Metadata,
        "u-1",
    );
    assert_eq!(bound.unwrap(), has_it.as_bytes());
    for body in ["metadata: {name: w}\n", "metadata:\n  labels: {}\n", "spec: {}\n"] {
        let refused = bind_to_uid(
            "application/apply-patch+yaml",
            body.as_bytes(),
            UidPlace::Metadata,
            "u-1",
        );
        assert_eq!(refused, Err(UidError::YamlForm), "{body}");
    }
}

#[test]
fn protobuf_objects_get_the_uid_and_keep_other_fields() {
    let metadata = Message::new().string(1, "w").string(3, "n");
    let object = Message::new().message(1, &metadata).string(9, "spec");
    let body = envelope("v1", "Widget", &object);
    let bound = bind_to_uid(PROTOBUF, &body, UidPlace::Metadata, "u-1").unwrap();
    let metadata = field_payload(raw(&bound), 1).unwrap();
    assert_eq!(
        (text(metadata, 1), text(metadata, 5)),
        (Some("w".into()), Some("u-1".into()))
    );
    assert_eq!(text(raw(&bound), 9).as_deref(), Some("spec"));
    assert_eq!(object_uid(PROTOBUF, &bound).as_deref(), Some("u-1"));
    let again = bind_to_uid(PROTOBUF, &bound, UidPlace::Metadata, "u-1").unwrap();
    assert_eq!(object_uid(PROTOBUF, &again).as_deref(), Some("u-1"));
    let without = envelope("v1", "Widget", &Message::new());
    let bound = bind_to_uid(PROTOBUF, &without, UidPlace::Metadata, "u-1").unwrap();
    assert_eq!(object_uid(PROTOBUF, &bound).as_deref(), Some("u-1"));
}

#[test]
fn protobuf_options_get_the_uid_in_their_preconditions() {
    let preconditions = Message::new().string(2, "7");
    let options = Message::new().varint(1, 5).message(2, &preconditions);
    let body = envelope("v1", "DeleteOptions", &options);
    let bound = bind_to_uid(PROTOBUF, &body, UidPlace::Preconditions, "u-1").unwrap();
    let preconditions = field_payload(raw(&bound), 2).unwrap();
    let texts = (text(preconditions, 1), text(preconditions, 2));
    assert_eq!(texts, (Some("u-1".into()), Some("7".into())));
    let eviction = Message::new().message(1, &Message::new().string(1, "p"));
    let body = envelope("policy/v1", "Eviction", &eviction);
    let bound = bind_to_uid(PROTOBUF, &body, UidPlace::EvictionPreconditions, "u-1").unwrap();
    let preconditions = field_payload(field_payload(raw(&bound), 2).unwrap(), 2).unwrap();
    assert_eq!(text(preconditions, 1).as_deref(), Some("u-1"));
    assert_eq!(text(field_payload(raw(&bound), 1).unwrap(), 1).as_deref(), Some("p"));
}

#[test]
fn other_uid_in_body_is_an_error() {
    let other = Err(UidError::OtherObject {
        wanted: "u-2".to_owned(),
        found: "u-1".to_owned(),
    });
    let protobuf = Message::new().message(1, &Message::new().string(5, "u-2"));
    let protobuf = envelope("v1", "Widget", &protobuf);
    for (content_type, body, place) in [
        (
            "application/json",
            &br#"{"metadata":{"uid":"u-2"}}"#[..],
            UidPlace::Metadata,
        ),
        (
            "application/merge-patch+json",
            br#"{"metadata":{"uid":"u-2"}}"#,
            UidPlace::Metadata,
        ),
        (
            "application/apply-patch+yaml",
            b"metadata:\n  uid: u-2\n  name: w\n",
            UidPlace::Metadata,
        ),
        (
            "application/json",
            br#"{"preconditions":{"uid":"u-2"}}"#,
            UidPlace::Preconditions,
        ),
        (PROTOBUF, &protobuf, UidPlace::Metadata),
    ] {
        assert_eq!(bind_to_uid(content_type, body, place, "u-1"), other, "{content_type}");
    }
}

#[test]
fn uneditable_bodies_are_refused() {
    for content_type in [
        "application/cbor",
        "application/apply-patch+cbor",
        "application/yaml",
        "text/plain",
    ] {
        let refused = bind_to_uid(content_type, b"{}", UidPlace::Metadata, "u-1");
        assert_eq!(refused, Err(UidError::Unsupported(content_type.to_owned())));
    }
    for content_type in [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/json-patch+json",
        "application/apply-patch+yaml",
    ] {
        for place in [UidPlace::Preconditions, UidPlace::EvictionPreconditions] {
            let refused = bind_to_uid(content_type, b"{}", place, "u-1");
            assert_eq!(
                refused,
                Err(UidError::Unsupported(content_type.to_owned())),
                "{place:?}"
            );
        }
    }
    for (content_type, body) in [
        ("application/json", &b""[..]),
        ("application/json", b"[]"),
        ("application/json", br#"{"metadata":[]}"#),
        ("application/json", br#"{"metadata":{"uid":7}}"#),
        ("application/json-patch+json", b"{}"),
        ("application/apply-patch+yaml", b"a: [\n"),
        (PROTOBUF, b"{}"),
        (PROTOBUF, b"k8s\0\x12\x05a"),
        (PROTOBUF, b"k8s\0\x12\x02\x0a\x05"),
    ] {
        let refused = bind_to_uid(content_type, body, UidPlace::Metadata, "u-1");
        assert!(
            matches!(refused, Err(UidError::Malformed { .. })),
            "{content_type}: {refused:?}"
        );
    }
}

/// Whichever of the values a decoder takes, and however the keys are spelled.
#[test]
fn bodies_with_a_key_twice_are_refused() {
    let (metadata, eviction) = (UidPlace::Metadata, UidPlace::EvictionPreconditions);
    let (json, merge_patch, apply) = (
        "application/json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
    );
    for (content_type, body, place) in [
        (json, r#"{"metadata":{"uid":"u-1"},"metadata":{"uid":"u-2"}}"#, metadata),
        (json, r#"{"metadata":{"uid":"u-2"},"metadata":{}}"#, metadata),
        (json, r#"{"metadata":{"uid":"u-1"},"met\u0061data":null}"#, metadata),
        (merge_patch, r#"{"metadata":{"uid":"u-1","uid":"u-2"}}"#, metadata),
        (merge_patch, r#"{"metadata":{"uid":"u-1","\u0075id":"u-2"}}"#, metadata),
        (apply, r#"{"metadata":{"name":"w","uid":"","uid":"u-2"}}"#, metadata),
        (json, r#"{"spec":1,"spec":2}"#, metadata),
        (
            json,
            r#"{"preconditions":{"uid":"u-2"},"preconditions":{}}"#,
            UidPlace::Preconditions,
        ),
        (
            json,
            r#"{"deleteOptions":{"preconditions":{},"preconditions":{"uid":"u-2"}}}"#,
            eviction,
        ),
        (apply, "metadata:\n  name: w\nmetadata:\n  uid: u-2\n", metadata),
        (
            apply,
            "metadata:\n  uid: u-1\n  name: w\n  \"\\u0075id\": u-2\n",
            metadata,
        ),
    ] {
        let refused = bind_to_uid(content_type, body.as_bytes(), place, "u-1");
        assert!(
            matches!(refused, Err(UidError::Malformed { .. })),
            "{body}: {refused:?}"
        );
    }
    let twice = bind_to_uid(
        "application/json",
        br#"{"metadata":{"uid":"","uid":""}}"#,
        UidPlace::Metadata,
        "u-1",
    );
    let message = twice.unwrap_err().to_string();
    assert!(
        message.contains(r#"the key "uid" occurs twice; remove one"#),
        "{message}"
    );
}

#[test]
fn keys_are_compared_as_api_servers_do() {
    let escaped = bound_json(
        "application/json",
        r#"{"\u006detadata":{"\u0075id":"u-1","name":"w"}}"#,
        UidPlace::Metadata,
    );
    assert_eq!(escaped, json!({"metadata": {"uid": "u-1", "name": "w"}}));
    let other = br#"{"metadata":{"\u0075id":"u-2"}}"#;
    let refused = bind_to_uid("application/json", other, UidPlace::Metadata, "u-1");
    assert!(matches!(refused, Err(UidError::OtherObject { .. })), "{refused:?}");
    // An unknown field.
    let other_case = bound_json(
        "application/json",
        r#"{"Metadata":{"uid":"u-2"},"metadata":{"UID":"u-2"}}"#,
        UidPlace::Metadata,
    );
    let expected = json!({"Metadata": {"uid": "u-2"}, "metadata": {"UID": "u-2", "uid": "u-1"}});
    assert_eq!(other_case, expected);
}

#[test]
fn yaml_that_decoders_read_differently_is_refused() {
    let bind = |body: &str| {
        bind_to_uid(
            "application/apply-patch+yaml",
            body.as_bytes(),
            UidPlace::Metadata,
            "u-1",
        )
    };
    for body in [
        "metadata:\n  uid: u-1\n  <<: {uid: u-2}\n  name: w\n",
        "metadata:\n  name: w\n  <<: {uid: u-2}\n",
        "metadata:\n  name: w # \u{2028}  uid: u-2\n",
        "metadata:\n  uid: u-1\n  name: w # \u{85}  uid: u-2\n",
    ] {
        let refused = bind(body);
        assert!(
            matches!(refused, Err(UidError::Malformed { .. })),
            "{body}: {refused:?}"
        );
    }
    let aliased = "metadata: &m\n  name: w\nspec: *m\n";
    assert_eq!(bind(aliased), Err(UidError::YamlForm), "the UID would be in both");
    let alias_elsewhere = "metadata:\n  name: w\nspec: {a: &a [x], b: *a }\n";
    let expected = "metadata:\n  uid: \"u-1\"\n  name: w\nspec: {a: &a [x], b: *a }\n";
    assert_eq!(bind(alias_elsewhere).unwrap(), expected.as_bytes());
}

#[test]
fn uid_is_read_only_where_decoders_agree_on_it() {
    let json = |body: &str| object_uid("application/json", body.as_bytes());
    assert_eq!(json(r#"{"metadata":{"uid":"u-1"}}"#).as_deref(), Some("u-1"));
    for body in [
        "",
        "{}",
        r#"{"metadata":{"uid":""}}"#,
        r#"{"metadata":{"uid":"a","uid":"b"}}"#,
        r#"{"metadata":{"uid":"a"},"metadata":{}}"#,
    ] {
        assert_eq!(json(body), None, "{body}");
    }
    let twice = Message::new().string(5, "a").string(5, "b");
    for metadata in [Message::new(), twice] {
        let object = Message::new().message(1, &metadata);
        assert_eq!(object_uid(PROTOBUF, &envelope("v1", "Widget", &object)), None);
    }
    let metadata = Message::new().string(5, "a");
    let object = Message::new().message(1, &metadata).message(1, &metadata);
    assert_eq!(object_uid(PROTOBUF, &envelope("v1", "Widget", &object)), None);
    assert_eq!(object_uid("application/yaml", b"metadata: {uid: a}"), None);
}
