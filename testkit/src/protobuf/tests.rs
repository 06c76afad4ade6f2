use ctrlmesh_wire::protobuf::{Message, envelope};
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::{Element, schema};
use super::{decode_delete_options, decode_object, encode_object, has_kind};

/// An object as upstream encodes it in both forms; see `tests/golden/protobuf_objects.go`.
#[derive(Deserialize)]
struct Golden {
    name: String,
    json: Value,
    protobuf: String,
}

impl Golden {
    fn bytes(&self) -> Vec<u8> {
        let digits = self.protobuf.as_bytes().chunks(2);
        digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }
}

fn golden_objects() -> Vec<Golden> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/protobuf_objects.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn objects_are_read_and_written_like_upstream() {
    let lines = golden_objects();
    assert!(lines.len() > 100, "only {} objects", lines.len());
    for line in lines {
        let bytes = line.bytes();
        assert_eq!(decode_object(&bytes, "", "").as_ref(), Ok(&line.json), "{}", line.name);
        assert_eq!(encode_object(&line.json), Ok(bytes), "{}", line.name);
    }
}

#[test]
fn missing_fields_are_read_as_go_zero_values() {
    let lines = golden_objects();
    let empty: Vec<_> = lines.iter().filter(|line| line.name.starts_with("empty ")).collect();
    assert!(empty.len() > 50, "only {} empty objects", empty.len());
    for line in empty {
        let text = |field: &str| line.json[field].as_str().unwrap();
        let bare = envelope(text("apiVersion"), text("kind"), &Message::new());
        assert_eq!(decode_object(&bare, "", "").as_ref(), Ok(&line.json), "{}", line.name);
    }
}

#[test]
fn schema_has_every_message_it_names() {
    let known: Vec<_> = schema().messages().map(|(name, _)| name).collect();
    let fields = schema().messages().flat_map(|(_, fields)| fields);
    let named = fields.filter_map(|field| match &field.element {
        Element::Message(name) => Some(name.as_str()),
        _ => None,
    });
    let missing: Vec<_> = named
        .chain(schema().kinds())
        .filter(|name| !known.contains(name))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn only_kinds_of_the_six_groups_are_served() {
    for (api_version, kind) in [
        ("v1", "Pod"),
        ("v1", "PodList"),
        ("apps/v1", "StatefulSet"),
        ("batch/v1", "CronJob"),
        ("coordination.k8s.io/v1", "LeaseList"),
        ("events.k8s.io/v1", "Event"),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ] {
        assert!(has_kind(api_version, kind), "{api_version} {kind}");
    }
    for (api_version, kind) in [
        ("example.com/v1", "Widget"),
        ("apps/v1beta1", "Deployment"),
        ("batch/v1", "Pod"),
    ] {
        assert!(!has_kind(api_version, kind), "{api_version} {kind}");
    }
}

#[test]
fn truncated_bodies_never_panic() {
    for line in golden_objects().iter().filter(|line| line.protobuf.len() < 1_000) {
        let bytes = line.bytes();
        for length in 0..bytes.len() {
            drop(decode_object(&bytes[..length], "", ""));
        }
        // After the object, the envelope has two empty texts.
        let unfinished = decode_object(&bytes[..bytes.len() - 5], "", "");
        assert!(unfinished.is_err(), "{}: {unfinished:?}", line.name);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            // Many are another valid object; none may panic.
            drop(decode_object(&damaged, "", ""));
        }
    }
}

#[test]
fn unknown_fields_are_left_out() {
    let object = Message::new()
        .message(1, &Message::new().string(1, "a").string(900, "later"))
        .varint(901, 7);
    let body = envelope("v1", "ConfigMap", &object);
    let expected = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } });
    assert_eq!(decode_object(&body, "", ""), Ok(expected.clone()));
    let mut with_more = expected.clone();
    with_more["later"] = json!(true);
    assert_eq!(encode_object(&with_more), encode_object(&expected));
}

#[test]
fn object_without_type_gets_kind_of_path() {
    let body = envelope("", "", &Message::new().message(1, &Message::new().string(1, "a")));
    let read = decode_object(&body, "v1", "ConfigMap").unwrap();
    assert_eq!(
        (&read["apiVersion"], &read["kind"]),
        (&json!("v1"), &json!("ConfigMap"))
    );
}

#[test]
fn invalid_bodies_are_refused_with_reason() {
    let config_map = |object: Message| envelope("v1", "ConfigMap", &object);
    for (body, expected) in [
        (b"{}".to_vec(), "it does not begin with the four bytes `k8s\\0`"),
        (
            envelope("example.com/v1", "Widget", &Message::new()),
            "no kind \"Widget\" of \"example.com/v1\" is known in protobuf",
        ),
        (b"k8s\0\x12\x7fabc".to_vec(), "a length beyond the end at byte 0"),
        (
            config_map(Message::new().varint(1, 7)),
            "metadata: expected a length and as many bytes",
        ),
        (
            config_map(Message::new().string(4, "true")),
            "immutable: expected a number",
        ),
        (
            config_map(Message::new().message(1, &Message::new().bytes(1, &[0xff]))),
            "metadata.name: the text is not UTF-8",
        ),
    ] {
        assert_eq!(decode_object(&body, "", "").unwrap_err().to_string(), expected);
    }
}

#[test]
fn type_errors_name_their_field() {
    let pod = |spec: Value| json!({ "apiVersion": "v1", "kind": "Pod", "spec": spec });
    for (object, expected) in [
        (
            pod(json!({ "priority": 3_000_000_000_u32 })),
            "spec.priority: expected an integer of 32 bits, found 3000000000",
        ),
        (
            pod(json!({ "containers": [{}, { "name": 1 }] })),
            "spec.containers[1].name: expected a string, found 1",
        ),
        (
            pod(json!({ "nodeSelector": { "a": [] } })),
            "spec.nodeSelector[\"a\"]: expected a string, found []",
        ),
        (
            pod(json!({ "hostNetwork": "yes" })),
            "spec.hostNetwork: expected a boolean, found \"yes\"",
        ),
        (
            pod(json!({ "volumes": [{ "emptyDir": 7 }] })),
            "spec.volumes[0].emptyDir: expected an object, found 7",
        ),
        (
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "creationTimestamp": "today" } }),
            "metadata.creationTimestamp: expected a time as of RFC 3339, found \"today\"",
        ),
        (
            json!({ "apiVersion": "v1", "kind": "Secret", "data": { "a": "*" } }),
            "data[\"a\"]: expected base64, found \"*\"",
        ),
        (
            json!({ "apiVersion": "example.com/v1", "kind": "Widget" }),
            "no kind \"Widget\" of \"example.com/v1\" is known in protobuf",
        ),
    ] {
        assert_eq!(encode_object(&object).unwrap_err().to_string(), expected, "{object}");
    }
}

#[test]
fn forms_that_go_does_not_write_are_read_like_go() {
    let pod = |resources: Value, created: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "creationTimestamp": created },
            "spec": { "containers": [{ "name": "c", "resources": { "limits": resources } }] },
        })
    };
    let plain = encode_object(&pod(json!({ "cpu": "2" }), "2026-07-01T12:00:00Z")).unwrap();
    let other = encode_object(&pod(json!({ "cpu": 2 }), "2026-07-01T14:00:00.75+02:00")).unwrap();
    assert_eq!(plain, other);
}

#[test]
fn delete_options_are_read_in_any_group() {
    let preconditions = Message::new().string(1, "u");
    let options = Message::new().message(2, &preconditions).string(5, "All");
    for (api_version, kind) in [
        ("v1", "DeleteOptions"),
        ("apps/v1", "DeleteOptions"),
        ("meta.k8s.io/v1", "DeleteOptions"),
        ("", ""),
    ] {
        let read = decode_delete_options(&envelope(api_version, kind, &options)).unwrap();
        assert_eq!(
            (&read["preconditions"]["uid"], &read["dryRun"]),
            (&json!("u"), &json!(["All"])),
            "{api_version}"
        );
    }
    let pod = envelope("v1", "Pod", &Message::new());
    let error = decode_delete_options(&pod).unwrap_err().to_string();
    assert_eq!(error, "it is a Pod, not DeleteOptions");
}
