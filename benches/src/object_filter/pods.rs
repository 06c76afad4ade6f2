//! Pods as an API server sends them: lists and watch events, in JSON and in protobuf.

use anyhow::Context;
use ctrlmesh_wire::protobuf::{Message, envelope};
use serde_json::Value;

use crate::uids::uid_of;

const POD: &str = include_str!("pod.json");

const RESOURCE_VERSION: &str = "418200000";

/// Sizes of `spec` and `status` in protobuf. Filters skip them by their lengths, so their content does not matter.
const SPEC_BYTES: usize = 520;
const STATUS_BYTES: usize = 240;

/// `creationTimestamp` as a `Time`: seconds since 1970.
const CREATED: u64 = 1_782_907_200;

/// Writes pods that differ in their names and UIDs.
pub(super) struct Pods {
    /// A pod in compact JSON, with placeholders.
    template: String,
    /// The same pod.
    pod: Value,
}

impl Pods {
    pub(super) fn new() -> anyhow::Result<Self> {
        let pod: Value = serde_json::from_str(POD).context("pod.json is no JSON")?;
        Ok(Self {
            template: pod.to_string(),
            pod,
        })
    }

    pub(super) fn json_list(&self, count: u32) -> Vec<u8> {
        let pods: Vec<String> = (0..count).map(|number| self.json_pod(number)).collect();
        let metadata = format!(r#"{{"resourceVersion":"{RESOURCE_VERSION}"}}"#);
        let pods = pods.join(",");
        let list = format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{metadata},"items":[{pods}]}}"#);
        (list + "\n").into_bytes()
    }

    pub(super) fn protobuf_list(&self, count: u32) -> Vec<u8> {
        let list = Message::new().message(1, &Message::new().string(2, RESOURCE_VERSION));
        let list = (0..count).fold(list, |list, number| list.message(2, &self.protobuf_pod(number)));
        envelope("v1", "PodList", &list)
    }

    pub(super) fn json_event(&self) -> Vec<u8> {
        let pod = self.json_pod(0);
        // Objects in lists have no type of their own.
        let fields = pod.trim_start_matches('{');
        let event = format!(r#"{{"type":"MODIFIED","object":{{"kind":"Pod","apiVersion":"v1",{fields}}}"#);
        (event + "\n").into_bytes()
    }

    pub(super) fn protobuf_event(&self) -> anyhow::Result<Vec<u8>> {
        let object = envelope("v1", "Pod", &self.protobuf_pod(0));
        let event = Message::new()
            .string(1, "MODIFIED")
            .message(2, &Message::new().bytes(1, &object))
            .finish();
        let length = u32::try_from(event.len()).context("an event above 4 GiB")?;
        Ok([length.to_be_bytes().as_slice(), event.as_slice()].concat())
    }

    fn json_pod(&self, number: u32) -> String {
        with_number(&self.template, number)
    }

    /// Fields have the numbers of `ObjectMeta` in apimachinery's `pkg/apis/meta/v1/generated.proto`.
    fn protobuf_pod(&self, number: u32) -> Message {
        let metadata = self.pod.get("metadata");
        let text = |field: &str| with_number(text_of(metadata, field), number);
        let mut message = Message::new()
            .string(1, &text("name"))
            .string(2, &text("generateName"))
            .string(3, &text("namespace"))
            .string(4, "")
            .string(5, &text("uid"))
            .string(6, &text("resourceVersion"))
            .varint(7, 0)
            .message(8, &Message::new().varint(1, CREATED).varint(2, 0));
        for (field, number) in [("labels", 11), ("annotations", 12)] {
            let entries = metadata.and_then(|metadata| metadata.get(field)?.as_object());
            for (key, value) in entries.into_iter().flatten() {
                let entry = Message::new()
                    .string(1, key)
                    .string(2, value.as_str().unwrap_or_default());
                message = message.message(number, &entry);
            }
        }
        for owner in elements(metadata, "ownerReferences") {
            message = message.message(13, &owner_reference(owner));
        }
        for entry in elements(metadata, "managedFields") {
            message = message.message(17, &managed_fields(entry));
        }
        Message::new()
            .message(1, &message)
            .bytes(2, &[b' '; SPEC_BYTES])
            .bytes(3, &[b' '; STATUS_BYTES])
    }
}

fn owner_reference(owner: &Value) -> Message {
    let text = |field: &str| text_of(Some(owner), field);
    Message::new()
        .string(1, text("kind"))
        .string(3, text("name"))
        .string(4, text("uid"))
        .string(5, text("apiVersion"))
        .varint(6, 1)
        .varint(7, 1)
}

fn managed_fields(entry: &Value) -> Message {
    let text = |field: &str| text_of(Some(entry), field);
    let fields = entry.get("fieldsV1").map(Value::to_string).unwrap_or_default();
    Message::new()
        .string(1, text("manager"))
        .string(2, text("operation"))
        .string(3, text("apiVersion"))
        .message(4, &Message::new().varint(1, CREATED).varint(2, 0))
        .string(6, text("fieldsType"))
        .message(7, &Message::new().string(1, &fields))
        .string(8, text("subresource"))
}

fn text_of<'a>(object: Option<&'a Value>, field: &str) -> &'a str {
    object
        .and_then(|object| object.get(field)?.as_str())
        .unwrap_or_default()
}

fn elements<'a>(object: Option<&'a Value>, field: &str) -> impl Iterator<Item = &'a Value> {
    let elements = object.and_then(|object| object.get(field)?.as_array());
    elements.into_iter().flatten()
}

/// Replaces the placeholders of a text.
fn with_number(text: &str, number: u32) -> String {
    text.replace("$NUMBER", &format!("{number:05}"))
        .replace("$UID", &uid_of("pod", number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_pods_have_names_and_uids_of_their_own() {
        let pods = Pods::new().unwrap();
        let list: Value = serde_json::from_slice(&pods.json_list(3)).unwrap();
        let items = list["items"].as_array().unwrap();
        assert_eq!(items.len(), 3);
        assert_eq!(items[2]["metadata"]["name"], "web-frontend-7d9c5b8f6d-00002");
        assert_eq!(items[2]["metadata"]["uid"].as_str().unwrap().len(), 36);
        assert_ne!(items[1]["metadata"]["uid"], items[2]["metadata"]["uid"]);
        let event: Value = serde_json::from_slice(&pods.json_event()).unwrap();
        assert_eq!(event["object"]["metadata"], items[0]["metadata"]);
    }

    #[test]
    fn pods_have_usual_sizes() {
        let pods = Pods::new().unwrap();
        let json_bytes = pods.json_pod(7).len();
        assert!((2400..2600).contains(&json_bytes), "{json_bytes}");
        let protobuf_bytes = pods.protobuf_pod(7).finish().len();
        assert!((1400..1900).contains(&protobuf_bytes), "{protobuf_bytes}");
    }
}
