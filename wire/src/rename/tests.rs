//! Renaming in paths, selectors and bodies.

use proptest::prelude::*;

use super::*;
use crate::RequestInfo;

fn lock_rename() -> Rename {
    Rename {
        from: "lock".into(),
        to: "lock---a".into(),
    }
}

fn renamed_body(content_type: &str, text: &str) -> Option<String> {
    body(content_type, text.as_bytes(), &lock_rename())
        .unwrap()
        .map(|bytes| String::from_utf8(bytes).unwrap())
}

/// The input, with each `<lock>` replaced by the name that is expected there, renamed or not.
fn assert_renamed(content_type: &str, template: &str) {
    let before = template.replace(['<', '>'], "");
    let after = template.replace("<lock>", "lock---a");
    let expected = (before != after).then_some(after);
    assert_eq!(renamed_body(content_type, &before), expected, "{template}");
}

#[test]
fn name_segment_of_a_path_is_replaced() {
    let rename = |target: &str, from: &str| {
        let info = RequestInfo::parse("GET", target, None).unwrap();
        path(
            target,
            &info,
            &Rename {
                from: from.into(),
                to: "l--/%".into(),
            },
        )
    };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/n/leases";
    assert_eq!(
        rename(&format!("{leases}/lock"), "lock").unwrap(),
        format!("{leases}/l--%2F%25")
    );
    assert_eq!(
        rename(&format!("{leases}/l%6Fck/"), "lock").unwrap(),
        format!("{leases}/l--%2F%25/")
    );
    assert_eq!(
        rename(&format!("{leases}%2Flock"), "lock").unwrap(),
        format!("{leases}%2Fl--%2F%25")
    );
    assert_eq!(
        rename("//api/v1/namespaces/lock/lock/lock/lock", "lock").unwrap(),
        "//api/v1/namespaces/lock/lock/l--%2F%25/lock"
    );
    assert_eq!(
        rename("/api/v1/watch/namespaces/n/configmaps/lock", "lock").unwrap(),
        "/api/v1/watch/namespaces/n/configmaps/l--%2F%25"
    );
    for other in ["/lock2", "/LOCK", "", "/x/lock", "//lock"] {
        assert_eq!(rename(&format!("{leases}{other}"), "lock"), None, "{other}");
    }
    assert_eq!(rename("/lock/lock/lock/lock/lock", "lock"), None);
}

#[test]
fn name_from_a_field_selector_is_not_replaced_in_the_path() {
    let info = RequestInfo::parse(
        "GET",
        "/api/v1/namespaces/lock/configmaps",
        Some("fieldSelector=metadata.name=lock"),
    )
    .unwrap();
    assert_eq!(info.name, "lock");
    assert_eq!(path("/api/v1/namespaces/lock/configmaps", &info, &lock_rename()), None);
}

#[test]
fn field_selectors_are_renamed() {
    let rename = |query: &str| field_selector(query, &lock_rename()).unwrap();
    assert_eq!(
        rename("a=1&fieldSelector=metadata.name%3Dlock&b").unwrap(),
        "a=1&fieldSelector=metadata.name%3Dlock---a&b"
    );
    assert_eq!(
        rename("fieldSelector=metadata.name!=lock").unwrap(),
        "fieldSelector=metadata.name%21%3Dlock---a"
    );
    let event = "fieldSelector=involvedObject.kind=Lease,involvedObject.name=lock";
    assert!(rename(event).unwrap().ends_with("involvedObject.name%3Dlock---a"));
    for query in [
        "",
        "limit=1",
        "fieldSelector=metadata.name=lock2",
        "fieldSelector=metadata.namespace=lock",
        "fieldSelector=involvedObject.kind=Pod,involvedObject.name=lock",
        "fieldSelector=metadata.name=x&fieldSelector=metadata.name=lock",
    ] {
        assert_eq!(rename(query), None, "{query}");
    }
    assert!(matches!(
        field_selector("fieldSelector=lock", &lock_rename()),
        Err(RenameError::FieldSelector(_))
    ));
}

#[test]
fn renaming_changes_only_the_name_in_a_json_object() {
    let json = "application/json";
    assert_renamed(
        json,
        r#"{"kind":"Lease", "metadata" : {"labels":{"name":"lock"},"name":"<lock>" ,"x":"lock"},"spec":{"name":"lock"}}"#,
    );
    assert_renamed(json, "\n{\"metadata\":{\"name\":\"<lock>\"}}\n");
    assert_renamed(
        json,
        r#"{"metadata":{"name":"lock2"},"items":[{"metadata":{"name":"lock"}}]}"#,
    );
    assert_renamed(json, r#"{"metadata":{"name":"<lock>"},"metadata":{"name":"<lock>"}}"#);
    assert_renamed(
        json,
        r#"{"metadata":{"Name":"lock"},"Metadata":{"name":"lock"},"metadata":["name","lock"]}"#,
    );
    assert_renamed(
        json,
        r#"{"a":[[],{},[{"b":[1.5e3,-0,true,null,"]}"]}],"\\\""],"metadata":{"name":"<lock>"}}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"Lease","metadata":{"managedFields":[{"manager":"lock","fieldsV1":{"f:metadata":{"name":"lock"}}}],"name":"<lock>"},"spec":{"holderIdentity":"lock"}}"#,
    );
    assert_renamed("", r#"{"metadata":{"name":"<lock>"}}"#);
    assert_renamed(
        "application/merge-patch+json; charset=utf-8",
        r#"{"metadata":{"name":"<lock>"}}"#,
    );
    assert_renamed(
        "Application/Strategic-Merge-Patch+JSON",
        r#"{"metadata":{"name":"<lock>"}}"#,
    );
    assert_renamed(json, r#"{"kind":"DeleteOptions","preconditions":{"uid":"lock"}}"#);
    assert_eq!(
        renamed_body(json, r#"{"m\u0065tadata":{"name":"l\u006fck"}}"#).unwrap(),
        r#"{"m\u0065tadata":{"name":"lock---a"}}"#
    );
    assert_eq!(renamed_body(json, ""), None);
}

#[test]
fn lists_tables_and_status_are_recognized_by_kind() {
    let json = "application/json";
    assert_renamed(
        json,
        r#"{"kind":"LeaseList","metadata":{},"items":[{"metadata":{"name":"<lock>"}},{"metadata":{"name":"b"}}]}"#,
    );
    assert_renamed(
        json,
        r#"{"items":[{"metadata":{"name":"<lock>"},"message":"\"lock\""}],"kind":"LeaseList"}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"Table","rows":[{"cells":["<lock>","holder",1],"object":{"kind":"PartialObjectMetadata","metadata":{"name":"<lock>"}}},{"cells":["<lock>"],"object":null}]}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"Lease","rows":[{"cells":["lock"]}],"items":[{"metadata":{"name":"lock"}}]}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"Status","message":"leases \"<lock>\" not found, \"lock2\"","details":{"name":"<lock>","kind":"lock","causes":[{"message":"\"<lock>\" \"<lock>\"","field":"lock"}]}}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"Lease","message":"\"lock\"","details":{"name":"lock"}}"#,
    );
}

#[test]
fn events_are_renamed_when_about_a_lock() {
    let json = "application/json";
    assert_renamed(
        json,
        r#"{"kind":"Event","metadata":{"name":"lock.17"},"involvedObject":{"kind":"Lease","name":"<lock>"}}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"Event","regarding":{"name":"<lock>","kind":"ConfigMap"},"related":{"kind":"Lease","name":"lock"}}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"Event","involvedObject":{"kind":"Pod","name":"lock"}}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"Pod","involvedObject":{"kind":"Lease","name":"lock"}}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"EventList","items":[{"involvedObject":{"kind":"Endpoints","name":"<lock>"}},{"involvedObject":{"kind":"Pod","name":"lock"}}]}"#,
    );
    assert_renamed(
        json,
        r#"{"kind":"List","items":[{"kind":"Event","involvedObject":{"kind":"Lease","name":"<lock>"}},{"involvedObject":{"kind":"Lease","name":"lock"}}]}"#,
    );
}

#[test]
fn json_patches_are_renamed_by_their_paths() {
    let patch = "application/json-patch+json";
    assert_renamed(
        patch,
        r#"[{"op":"test","path":"/metadata/name","value":"<lock>"},{"op":"add","value":"lock","path":"/metadata/labels/a"}]"#,
    );
    assert_renamed(
        patch,
        r#"[{"op":"replace","value":{"name":"<lock>","labels":{"name":"lock"}},"path":"/metadata"}]"#,
    );
    assert_renamed(
        patch,
        r#"[{"op":"replace","path":"","value":{"metadata":{"name":"<lock>"},"name":"lock"}}]"#,
    );
    assert_renamed(
        patch,
        r#"[{"op":"remove","path":"/spec"},{"op":"add","path":"/spec","value":{"metadata":{"name":"lock"},"name":"lock"}}]"#,
    );
    assert_renamed(patch, r#"[]"#);
}

#[test]
fn broken_json_is_refused() {
    let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(2000), "]".repeat(2000));
    for text in [
        "{",
        "[",
        "{}x",
        "{} {}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":tru}"#,
        r#"{"a":"\x"}"#,
        r#"{"a":"\u00"}"#,
        "{\"a\":\"\n\"}",
        r#"{"a":[1 2]}"#,
        r#"{"a":[1,]}"#,
        r#"{"a":{"b":1]}"#,
        r#"{a:1}"#,
        "nul",
        "'a'",
        &deep,
    ] {
        let error = body("application/json", text.as_bytes(), &lock_rename()).unwrap_err();
        assert!(
            matches!(error, RenameError::Malformed { format: "JSON", .. }),
            "{text}: {error}"
        );
    }
}

#[test]
fn apply_configuration_keeps_its_comments() {
    let yaml = "application/apply-patch+yaml";
    let template = "# name: lock\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: <lock> # lock\n  labels: {name: lock}\ndata: {on: yes}\n";
    let before = template.replace("<lock>", "lock");
    assert_eq!(
        renamed_body(yaml, &before).unwrap(),
        template.replace("<lock>", "\"lock---a\"")
    );
    assert_eq!(
        renamed_body(yaml, "metadata: {name: 'lock', x: \u{e4}}").unwrap(),
        "metadata: {name: \"lock---a\", x: \u{e4}}"
    );
    assert_eq!(
        renamed_body(yaml, "# \u{e4}\n---\nmetadata:\n  name: \"lock\"\n").unwrap(),
        "# \u{e4}\n---\nmetadata:\n  name: \"lock---a\"\n"
    );
    assert_eq!(renamed_body(yaml, "metadata: {name: lock2}"), None);
    // An apply that leaves the name to the path, as kube-lease-manager sends it.
    assert_eq!(
        renamed_body(yaml, r#"{"kind":"Lease","spec":{"holderIdentity":"lock"}}"#),
        None
    );
    assert_eq!(renamed_body(yaml, "spec: {name: lock}"), None);
    assert_renamed(yaml, r#"{"kind":"Lease","metadata":{"name":"<lock>"}}"#);
}

#[test]
fn yaml_name_in_another_place_is_refused() {
    let yaml = |text: &str| body("application/apply-patch+yaml", text.as_bytes(), &lock_rename());
    assert_eq!(
        yaml("spec: &n lock\nmetadata:\n  name: *n\n"),
        Err(RenameError::YamlName)
    );
    assert_eq!(yaml("metadata:\n  name: >-\n    lock\n"), Err(RenameError::YamlName));
    assert_eq!(yaml("metadata:\n  name: \"l\\u006fck\"\n"), Err(RenameError::YamlName));
    assert!(matches!(yaml("metadata: [\n"), Err(RenameError::Yaml(_))));
    assert!(matches!(
        yaml("metadata: {name: lock}\n---\na: 1\n"),
        Err(RenameError::Yaml(_))
    ));
    assert!(matches!(
        body("application/yaml", b"a: \xff", &lock_rename()),
        Err(RenameError::Malformed { format: "UTF-8", .. })
    ));
}

#[test]
fn other_encodings_are_refused() {
    for content_type in [
        "application/cbor",
        "application/apply-patch+cbor",
        "text/plain",
        "application/x-www-form-urlencoded",
    ] {
        assert_eq!(
            body(content_type, b"x", &lock_rename()),
            Err(RenameError::Unsupported(content_type.into()))
        );
    }
    assert!(matches!(
        body("application/vnd.kubernetes.protobuf", b"{}", &lock_rename()),
        Err(RenameError::Malformed { .. })
    ));
}

fn json_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i32>().prop_map(serde_json::Value::from),
        prop::sample::select(vec![
            "lock",
            "Lease",
            "Event",
            "LeaseList",
            "Table",
            "Status",
            "\"lock\" \u{e4}\\"
        ])
        .prop_map(Into::into),
    ];
    let key = prop::sample::select(vec![
        "metadata",
        "name",
        "kind",
        "items",
        "rows",
        "cells",
        "object",
        "message",
        "details",
        "causes",
        "involvedObject",
        "x",
    ]);
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn renaming_back_restores_the_body(value in json_value()) {
        let text = value.to_string();
        let there = body("application/json", text.as_bytes(), &lock_rename()).unwrap();
        let back = there.map(|there| body("application/json", &there, &lock_rename().reversed()).unwrap().unwrap());
        if let Some(back) = back {
            prop_assert_eq!(String::from_utf8(back).unwrap(), text);
        }
    }

    #[test]
    fn renaming_changes_only_names(value in json_value()) {
        let text = value.to_string();
        if let Some(there) = renamed_body("application/json", &text) {
            prop_assert_eq!(there.replace("lock---a", "lock"), text);
        }
    }

    #[test]
    fn renaming_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
        text in r#"[{}\[\]",:a-z\\ 0-9u]{0,48}"#
    ) {
        for content_type in ["application/json", "application/json-patch+json", "application/apply-patch+yaml", "application/vnd.kubernetes.protobuf"] {
            let _ = body(content_type, &bytes, &lock_rename());
            let _ = body(content_type, text.as_bytes(), &lock_rename());
            let _ = body(content_type, &[b"k8s\0", &*bytes].concat(), &lock_rename());
        }
    }
}
