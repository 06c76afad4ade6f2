use super::*;
use crate::protobuf::{Message, envelope};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

const LEASE: &str = r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"lock","annotations":{"a":"b"}},"spec":{
    "holderIdentity":"me","leaseDurationSeconds":15,"acquireTime":"2026-01-01T00:00:00.000000Z","renewTime":"2026-01-01T00:00:02.000000Z",
    "leaseTransitions":3,"strategy":"OldestEmulationVersion"}}"#;

/// The annotation as client-go writes it.
const ANNOTATION: &str = r#"{"holderIdentity":"me","leaseDurationSeconds":15,"acquireTime":"2026-01-01T00:00:00Z","renewTime":"2026-01-01T00:00:02Z","leaderTransitions":3}"#;

fn expected_record(renew_time: &str) -> LockRecord {
    LockRecord {
        name: "lock".to_owned(),
        holder: "me".to_owned(),
        lease_duration: Duration::from_secs(15),
        renew_time: renew_time.to_owned(),
        transitions: Some(3),
    }
}

/// A ConfigMap or Endpoints with this record.
fn annotated_object(kind: &str, record: &str) -> String {
    let annotations = serde_json::json!({ "a": "b", LOCK_ANNOTATION: record });
    serde_json::json!({ "kind": kind, "metadata": { "name": "lock", "annotations": annotations } }).to_string()
}

fn lease_message() -> Message {
    let time = |seconds| Message::new().varint(1, seconds).varint(2, 5000);
    let spec = Message::new().string(1, "me").varint(2, 15).message(3, &time(1));
    let spec = spec
        .message(4, &time(2))
        .varint(5, 3)
        .string(6, "OldestEmulationVersion");
    let metadata = Message::new().string(1, "lock").string(3, "namespace");
    Message::new().message(1, &metadata).message(2, &spec)
}

fn annotated_message(record: &str) -> Message {
    let annotation = |key, value| Message::new().string(1, key).string(2, value);
    let metadata = Message::new()
        .string(1, "lock")
        .message(12, &annotation("a", "b"))
        .message(12, &annotation(LOCK_ANNOTATION, record));
    Message::new().message(1, &metadata)
}

#[test]
fn record_is_read_from_every_kind_of_lock_in_both_encodings() {
    let (text, number) = ("2026-01-01T00:00:02.000000Z", "2.000005000");
    assert_eq!(lock_record(JSON, LEASE.as_bytes()), Some(expected_record(text)));
    assert_eq!(
        lock_record("application/JSON; charset=utf-8", LEASE.as_bytes()),
        Some(expected_record(text))
    );
    let body = envelope("coordination.k8s.io/v1", "Lease", &lease_message());
    assert_eq!(lock_record(PROTOBUF, &body), Some(expected_record(number)));
    for kind in ["ConfigMap", "Endpoints"] {
        let expected = Some(expected_record("2026-01-01T00:00:02Z"));
        assert_eq!(
            lock_record(JSON, annotated_object(kind, ANNOTATION).as_bytes()),
            expected
        );
        let body = envelope("v1", kind, &annotated_message(ANNOTATION));
        assert_eq!(lock_record(PROTOBUF, &body), expected, "{kind}");
    }
}

#[test]
fn released_lock_has_no_holder() {
    let nobody = Some(LockRecord {
        name: "lock".to_owned(),
        ..LockRecord::default()
    });
    for spec in [
        "",
        r#","spec":{}"#,
        r#","spec":null"#,
        r#","spec":{"holderIdentity":""}"#,
        r#","spec":{"holderIdentity":null,"leaseDurationSeconds":-1}"#,
    ] {
        let body = format!(r#"{{"metadata":{{"name":"lock"}},"kind":"Lease"{spec}}}"#);
        assert_eq!(lock_record(JSON, body.as_bytes()), nobody, "{body}");
    }
    let named = Message::new().message(1, &Message::new().string(1, "lock"));
    for object in [named.clone(), named.message(2, &Message::new().string(1, ""))] {
        let body = envelope("coordination.k8s.io/v1", "Lease", &object);
        assert_eq!(lock_record(PROTOBUF, &body), nobody);
    }
    let released = r#"{"holderIdentity":"","leaseDurationSeconds":1,"leaderTransitions":4}"#;
    let record = lock_record(JSON, annotated_object("ConfigMap", released).as_bytes()).unwrap();
    assert_eq!((&*record.holder, record.transitions), ("", Some(4)));
}

#[test]
fn other_objects_and_unreadable_locks_have_no_record() {
    let list = format!(r#"{{"kind":"LeaseList","items":[{LEASE}]}}"#);
    let numbers = LEASE.replace("15", "\"15\"");
    let maps = [
        annotated_object("ConfigMap", "{"),
        annotated_object("Secret", ANNOTATION),
        annotated_object("ConfigMap", "").replace(LOCK_ANNOTATION, "other"),
    ];
    let others = [
        "",
        "{",
        "[]",
        r#"{"kind":"Lease"}"#,
        r#"{"kind":"Status","metadata":{},"details":{"name":"lock"}}"#,
        r#"{"kind":"Table","metadata":{},"rows":[]}"#,
        r#"{"kind":"PartialObjectMetadata","metadata":{"name":"lock"}}"#,
        r#"{"kind":"ConfigMap","metadata":{"name":"lock","annotations":null},"data":{"holderIdentity":"me"}}"#,
        list.as_str(),
        numbers.as_str(),
    ];
    for body in others.into_iter().chain(maps.iter().map(String::as_str)) {
        assert_eq!(lock_record(JSON, body.as_bytes()), None, "{body}");
    }
    let body = envelope("coordination.k8s.io/v1", "Lease", &lease_message());
    for (content_type, body) in [
        ("", LEASE.as_bytes()),
        ("application/cbor", LEASE.as_bytes()),
        (JSON, &*body),
        (PROTOBUF, LEASE.as_bytes()),
        (PROTOBUF, &body[..body.len() / 2]),
        (PROTOBUF, &*envelope("v1", "Secret", &annotated_message(ANNOTATION))),
        (PROTOBUF, &*envelope("v1", "ConfigMap", &annotated_message("{"))),
        (PROTOBUF, &*envelope("v1", "ConfigMap", &lease_message())),
    ] {
        assert_eq!(lock_record(content_type, body), None, "{content_type}");
    }
}

#[test]
fn watch_events_have_the_record_unless_the_lock_is_deleted() {
    let body = envelope("coordination.k8s.io/v1", "Lease", &lease_message());
    for (kind, is_there) in [
        ("ADDED", true),
        ("MODIFIED", true),
        ("DELETED", false),
        ("BOOKMARK", false),
    ] {
        let json = format!("{{\"type\":\"{kind}\",\"object\":{LEASE}}}\n");
        let message = Message::new()
            .string(1, kind)
            .message(2, &Message::new().bytes(1, &body));
        for (encoding, event) in [
            (WatchEncoding::Json, json.into_bytes()),
            (WatchEncoding::Protobuf, message.finish()),
        ] {
            let holder = watched_lock_record(encoding, &event).map(|record| record.holder);
            assert_eq!(holder.as_deref(), is_there.then_some("me"), "{kind} {encoding:?}");
            assert_eq!(watched_lock_record(WatchEncoding::Cbor, &event), None);
        }
    }
    let error = br#"{"type":"ERROR","object":{"kind":"Status","metadata":{}}}"#;
    assert_eq!(watched_lock_record(WatchEncoding::Json, error), None);
    assert_eq!(watched_lock_record(WatchEncoding::Json, b"\n"), None);
}

#[test]
fn patches_that_name_a_holder_are_distinguished() {
    for patch in [
        r#"{"spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}"#,
        "spec:\n  holderIdentity: me\n",
        r#"[{"op":"replace","path":"/spec/holderIdentity","value":"me"}]"#,
        r#"[{"op":"add","path":"/metadata/annotations/control-plane.alpha.kubernetes.io~1leader","value":"{}"}]"#,
        r#"{"metadata":{"annotations":{"control-plane.alpha.kubernetes.io/leader":null}}}"#,
    ] {
        assert!(names_holder(patch.as_bytes()), "{patch}");
    }
    assert!(!names_holder(br#"{"metadata":{"labels":{"holder":"me"}}}"#));
    assert!(!names_holder(b""));
}
