//! Media types, encodings of a watch, and the event that ends one with an error.

use crate::protobuf::Message;
use crate::{Status, StatusCause, StatusDetails};

/// The encoding of a watch's events, or of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchEncoding {
    /// JSON objects, one after the other, each with a line feed.
    Json,
    /// `WatchEvent` messages, each behind its length as four big-endian bytes.
    Protobuf,
    /// A CBOR sequence (RFC 8742).
    Cbor,
}

impl WatchEncoding {
    /// The encoding of a watch response; `None` for a type in which no API server answers a watch.
    #[must_use]
    pub fn from_content_type(content_type: &str) -> Option<Self> {
        match media_type(content_type).as_str() {
            "application/json" => Some(Self::Json),
            "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            "application/cbor" | "application/cbor-seq" => Some(Self::Cbor),
            _ => None,
        }
    }
}

/// The media type without its parameters, in lower case.
pub(crate) fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
}

/// An ERROR event, framed for its stream. A client takes it as the end of the watch; at code 410 it lists again.
#[must_use]
pub fn watch_error_event(status: &Status, encoding: WatchEncoding) -> Vec<u8> {
    match encoding {
        WatchEncoding::Json => [br#"{"type":"ERROR","object":"#, &*status.to_json(), b"}\n"].concat(),
        WatchEncoding::Protobuf => {
            let object = Message::new().bytes(1, &status.to_protobuf());
            let event = Message::new().string(1, "ERROR").message(2, &object).finish();
            // A Status is far below 4 GiB, because callers bound its message.
            let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
            [&length.to_be_bytes(), &*event].concat()
        }
        WatchEncoding::Cbor => cbor_event(status),
    }
}

/// First bytes of every CBOR item of the API (RFC 8949 §3.4.6), and of an object within an event.
pub(crate) const SELF_DESCRIBED: &[u8] = &[0xd9, 0xd9, 0xf7];

/// Writes what upstream's encoder writes: keys sorted by their encoded bytes, texts as byte strings.
fn cbor_event(status: &Status) -> Vec<u8> {
    let mut object = CborMap::default();
    object.add_unsigned("code", status.code.into());
    object.text("kind", "Status");
    object.text("reason", &status.reason);
    object.text("status", status.status_text());
    if let Some(details) = &status.details {
        object.value("details", &cbor_details(details));
    }
    object.text("message", &status.message);
    object.value("metadata", &CborMap::default().finish());
    object.required_text("apiVersion", "v1");
    let mut event = CborMap::default();
    event.text("type", "ERROR");
    event.value("object", &[SELF_DESCRIBED, &object.finish()].concat());
    [SELF_DESCRIBED, &event.finish()].concat()
}

fn cbor_details(details: &StatusDetails) -> Vec<u8> {
    let mut map = CborMap::default();
    map.text("uid", &details.uid);
    map.text("kind", &details.kind);
    map.text("name", &details.name);
    map.text("group", &details.group);
    if !details.causes.is_empty() {
        let mut causes = Vec::new();
        put_head(&mut causes, 4, details.causes.len() as u64);
        causes.extend(details.causes.iter().flat_map(cbor_cause));
        map.value("causes", &causes);
    }
    if details.retry_after_seconds > 0 {
        map.add_unsigned("retryAfterSeconds", details.retry_after_seconds.into());
    }
    map.finish()
}

fn cbor_cause(cause: &StatusCause) -> Vec<u8> {
    let mut map = CborMap::default();
    map.text("field", &cause.field);
    map.text("reason", &cause.reason);
    map.text("message", &cause.message);
    map.finish()
}

/// A CBOR map under construction; the caller gives the keys in order.
#[derive(Default)]
struct CborMap {
    entries: u64,
    bytes: Vec<u8>,
}

impl CborMap {
    /// An entry that is left out when empty.
    fn text(&mut self, key: &str, text: &str) {
        if !text.is_empty() {
            self.required_text(key, text);
        }
    }

    fn required_text(&mut self, key: &str, text: &str) {
        let mut value = Vec::new();
        put_text(&mut value, text);
        self.value(key, &value);
    }

    fn add_unsigned(&mut self, key: &str, number: u64) {
        let mut value = Vec::new();
        put_head(&mut value, 0, number);
        self.value(key, &value);
    }

    fn value(&mut self, key: &str, value: &[u8]) {
        put_text(&mut self.bytes, key);
        self.bytes.extend_from_slice(value);
        self.entries += 1;
    }

    fn finish(self) -> Vec<u8> {
        let mut map = Vec::with_capacity(self.bytes.len() + 1);
        put_head(&mut map, 5, self.entries);
        map.extend_from_slice(&self.bytes);
        map
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_head(out, 2, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// The head of a data item: its major type, and a number in the fewest bytes.
pub(crate) fn put_head(out: &mut Vec<u8>, major: u8, number: u64) {
    let bytes = number.to_be_bytes();
    let (info, skipped) = match number {
        0..24 => (bytes[7], 8),
        24..0x100 => (24, 7),
        0x100..0x1_0000 => (25, 6),
        0x1_0000..0x1_0000_0000 => (26, 4),
        _ => (27, 0),
    };
    out.push(major << 5 | info);
    out.extend(bytes.iter().skip(skipped));
}
