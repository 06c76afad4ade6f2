//! The protobuf wire format: writing small messages, and reading fields without a schema. Callers know the meaning of
//! the fields.

use std::fmt;

/// First bytes of every protobuf body of the API (apimachinery `serializer/protobuf`).
pub const MAGIC: &[u8] = b"k8s\0";

/// Field 2 of `runtime.Unknown`: the object.
pub(crate) const RAW: u32 = 2;

/// Largest number of a field. Some decoders ignore the bits above it, and would see another field.
pub(crate) const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;

/// A message under construction. Fields are written in the order of the calls.
#[derive(Debug, Clone, Default)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message without fields.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field of type `string`.
    #[must_use]
    pub fn string(self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    /// Adds a message within this one.
    #[must_use]
    pub fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.bytes)
    }

    /// Adds a field of type `bytes`.
    #[must_use]
    pub fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        put_bytes(&mut self.bytes, field, bytes);
        self
    }

    /// Adds a number. A negative one is written as the unsigned number of the same 64 bits.
    #[must_use]
    pub fn varint(mut self, field: u32, number: u64) -> Self {
        put_varint(&mut self.bytes, u64::from(field) << 3);
        put_varint(&mut self.bytes, number);
        self
    }

    /// The message as bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Wraps an object as the API does: magic number and `runtime.Unknown` with type, object, and two empty strings.
#[must_use]
pub fn envelope(api_version: &str, kind: &str, object: &Message) -> Vec<u8> {
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
    put_head(out, field, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends the tag of a length-delimited field, and the length of its content.
pub(crate) fn put_head(out: &mut Vec<u8>, field: u32, length: usize) {
    put_varint(out, u64::from(field) << 3 | 2);
    put_varint(out, length as u64);
}

#[expect(clippy::cast_possible_truncation, reason = "the low seven bits are meant")]
fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The number of the field in the schema.
    pub number: u32,
    /// Tag, length and content.
    pub whole: &'a [u8],
    /// The content of a length-delimited field; none for numbers and groups.
    pub payload: Option<&'a [u8]>,
}

impl Field<'_> {
    /// The number in a field of wire type 0; none for others.
    #[must_use]
    pub fn varint(&self) -> Option<u64> {
        let mut rest = self.whole;
        match read_tag(&mut rest) {
            Ok((_, 0)) => read_varint(&mut rest).ok(),
            _ => None,
        }
    }
}

/// An error in the wire format, with its position in bytes from the start of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireError {
    /// The violation of the wire format, as a phrase.
    pub problem: &'static str,
    /// Number of bytes before the violation.
    pub position: usize,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.problem, self.position)
    }
}

/// A body of the API that is about to be edited: what is around its object, and the object.
#[derive(Debug)]
pub(crate) struct OpenEnvelope<'a> {
    /// Magic number and `runtime.Unknown` without the object.
    around: Vec<u8>,
    pub(crate) object: &'a [u8],
}

impl<'a> OpenEnvelope<'a> {
    /// Takes a body apart.
    ///
    /// # Errors
    /// The violation of the format, as a phrase.
    pub(crate) fn open(body: &'a [u8]) -> Result<Self, String> {
        let unknown = body.strip_prefix(MAGIC).ok_or("no magic number `k8s\\0`")?;
        let (mut around, mut object) = (MAGIC.to_vec(), &[][..]);
        for field in fields(unknown) {
            let field = field.map_err(|error| error.to_string())?;
            match field.payload {
                // The last one counts, as for every field that is not repeated.
                Some(raw) if field.number == RAW => object = raw,
                _ => around.extend_from_slice(field.whole),
            }
        }
        Ok(Self { around, object })
    }

    /// The fields of `runtime.Unknown` but the object. They were read before, so none is broken.
    pub(crate) fn other_fields(&self) -> impl Iterator<Item = Field<'_>> {
        let around = self.around.get(MAGIC.len()..).unwrap_or_default();
        fields(around).filter_map(Result::ok)
    }

    /// The body with another object.
    pub(crate) fn close(mut self, object: &[u8]) -> Vec<u8> {
        put_bytes(&mut self.around, RAW, object);
        self.around
    }
}

/// Iterates over the fields of a message; ends after the first error.
pub fn fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, WireError>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let position = message.len() - rest.len();
        let field = read_field(&mut rest).map_err(|problem| WireError { problem, position });
        if field.is_err() {
            rest = &[];
        }
        Some(field)
    })
}

/// The first field of this number; none if there is none, or the message breaks before it.
pub(crate) fn field(message: &[u8], number: u32) -> Option<Field<'_>> {
    let found = fields(message).find(|field| field.as_ref().map_or(true, |field| field.number == number))?;
    found.ok()
}

/// The content of the first field of this number, if it has one.
pub(crate) fn field_payload(message: &[u8], number: u32) -> Option<&[u8]> {
    field(message, number)?.payload
}

/// The content of a field as text; `None` if it is not UTF-8.
pub(crate) fn text(message: &[u8], number: u32) -> Option<String> {
    String::from_utf8(field_payload(message, number)?.to_vec()).ok()
}

fn read_field<'a>(rest: &mut &'a [u8]) -> Result<Field<'a>, &'static str> {
    let start = *rest;
    let (number, wire_type) = read_tag(rest)?;
    let payload = match wire_type {
        // A group, long deprecated: upstream skips an unknown one, nested groups and all.
        3 => skip_group(rest).map(|()| None)?,
        wire_type => read_value(rest, wire_type)?,
    };
    let whole = start.get(..start.len() - rest.len()).unwrap_or_default();
    Ok(Field { number, whole, payload })
}

fn read_value<'a>(rest: &mut &'a [u8], wire_type: u64) -> Result<Option<&'a [u8]>, &'static str> {
    match wire_type {
        0 => read_varint(rest).map(|_| None),
        1 => take_bytes(rest, 8).map(|_| None),
        2 => {
            let length = usize::try_from(read_varint(rest)?).map_err(|_| "a length beyond the end")?;
            take_bytes(rest, length).map(Some)
        }
        5 => take_bytes(rest, 4).map(|_| None),
        _ => Err("an unknown wire type"),
    }
}

fn skip_group(rest: &mut &[u8]) -> Result<(), &'static str> {
    let mut open = 1_u32;
    while open > 0 {
        match read_tag(rest)? {
            (_, 3) => open += 1,
            (_, 4) => open -= 1,
            (_, wire_type) => drop(read_value(rest, wire_type)?),
        }
    }
    Ok(())
}

fn read_tag(rest: &mut &[u8]) -> Result<(u32, u64), &'static str> {
    let tag = read_varint(rest)?;
    match u32::try_from(tag >> 3) {
        Ok(number @ 1..=MAX_FIELD_NUMBER) => Ok((number, tag & 7)),
        _ => Err("an illegal field number"),
    }
}

fn read_varint(rest: &mut &[u8]) -> Result<u64, &'static str> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [byte, behind @ ..] = *rest else {
            return Err("an unfinished number");
        };
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err("a number of more than ten bytes")
}

fn take_bytes<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], &'static str> {
    let (taken, behind) = rest.split_at_checked(length).ok_or("a length beyond the end")?;
    *rest = behind;
    Ok(taken)
}

#[cfg(test)]
mod tests;
