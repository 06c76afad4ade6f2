//! The protobuf wire format: writing small messages, and reading fields without a schema. What the fields mean is
//! known to the callers.

/// First bytes of every protobuf body of the API (apimachinery `serializer/protobuf`).
pub(crate) const MAGIC: &[u8] = b"k8s\0";

/// A message under construction. Fields are written in the order of the calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub(crate) fn string(self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    #[must_use]
    pub(crate) fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.bytes)
    }

    #[must_use]
    pub(crate) fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        put_bytes(&mut self.bytes, field, bytes);
        self
    }

    #[must_use]
    pub(crate) fn varint(mut self, field: u32, number: u64) -> Self {
        put_varint(&mut self.bytes, u64::from(field) << 3);
        put_varint(&mut self.bytes, number);
        self
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Wraps an object as the API does: magic number and `runtime.Unknown` with type, object, and two empty strings.
pub(crate) fn envelope(api_version: &str, kind: &str, object: &Message) -> Vec<u8> {
    let type_meta = Message::new().string(1, api_version).string(2, kind);
    let unknown = Message::new()
        .message(1, &type_meta)
        .message(2, object)
        .string(3, "")
        .string(4, "");
    [MAGIC, &unknown.finish()].concat()
}

/// Appends a length-delimited field.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(out, u64::from(field) << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[expect(clippy::cast_possible_truncation, reason = "the low seven bits are meant")]
fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
