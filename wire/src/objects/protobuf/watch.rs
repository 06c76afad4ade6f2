//! Watches in protobuf: `WatchEvent` messages (apimachinery `pkg/apis/meta/v1/generated.proto`), each behind its length
//! as four big-endian bytes. The object of an event is a whole body: the magic number and a `runtime.Unknown`.

use std::borrow::Cow;

use super::dropped::FieldRemoval;
use super::metadata::read_metadata;
use super::{PlacedField, TypeMeta, malformed, placed_fields, support_error};
use crate::objects::dropped_fields::DroppedFields;
use crate::objects::limits::{MAX_IDLE_BYTES, MAX_OBJECT_BYTES};
use crate::objects::splice::{Splice, put_spliced};
use crate::objects::{
    DecideEvent, EventDecision, EventType, FilterError, MetadataFields, NAME_FIELD, TOMBSTONE_FIELDS,
};
use crate::protobuf::{MAGIC, Message, envelope, put_bytes};

/// Length of the big-endian number before each event.
const PREFIX_BYTES: usize = 4;

/// The only field of an object that a bookmark needs.
const RESOURCE_VERSION: MetadataFields = MetadataFields {
    namespace: false,
    name: false,
    uid: false,
    resource_version: true,
    labels: false,
    annotations: false,
    controller: false,
};

/// Filters the body of a watch as its bytes come in.
///
/// Emits an event as soon as its last byte is there. Buffers at most one unfinished event of [`MAX_OBJECT_BYTES`];
/// events that are complete within a chunk are not copied before the decision. After an error, every call gives the
/// same error.
#[derive(Debug)]
pub struct ProtobufWatchFilter {
    fields: MetadataFields,
    dropped: DroppedFields,
    /// The start of an event, with the length before it.
    buffered: Vec<u8>,
    failure: Option<FilterError>,
}

impl ProtobufWatchFilter {
    /// A filter that reads these fields of metadata.
    #[must_use]
    pub fn new(fields: MetadataFields) -> Self {
        Self {
            fields,
            dropped: DroppedFields::default(),
            buffered: Vec::new(),
            failure: None,
        }
    }

    /// Leaves these fields out of the objects of kept events. If protobuf does not support them
    /// ([`DroppedFields::supports`]), the body is refused.
    #[must_use]
    pub fn with_dropped_fields(self, dropped: DroppedFields) -> Self {
        Self {
            failure: support_error(&dropped),
            dropped,
            ..self
        }
    }

    /// Takes a chunk and appends what passes to `out`. BOOKMARK and ERROR events pass without a
    /// decision if they hold no whole object.
    ///
    /// # Errors
    /// When an event is malformed, too large, of an unknown type, or its object has no metadata. The watch has to end
    /// then.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideEvent<'_>) -> Result<(), FilterError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let pushed = self.push_chunk(chunk, out, decide);
        self.failure = pushed.err();
        pushed
    }

    /// Whether an event is unfinished: the stream must not end here.
    #[must_use]
    pub fn is_mid_event(&self) -> bool {
        !self.buffered.is_empty()
    }

    fn push_chunk(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideEvent<'_>) -> Result<(), FilterError> {
        let mut rest = chunk;
        if !self.buffered.is_empty() {
            rest = self.complete_buffered(rest)?;
            let Some((frame, _)) = split_frame(&self.buffered)? else {
                return Ok(());
            };
            filter_frame(frame, self.fields, &self.dropped, out, decide)?;
            self.buffered.clear();
            self.buffered.shrink_to(MAX_IDLE_BYTES);
        }
        while let Some((frame, behind)) = split_frame(rest)? {
            filter_frame(frame, self.fields, &self.dropped, out, decide)?;
            rest = behind;
        }
        self.buffered.extend_from_slice(rest);
        Ok(())
    }

    /// Appends to the event that is buffered what it lacks, as far as the chunk has it. Gives the rest of the chunk.
    fn complete_buffered<'c>(&mut self, chunk: &'c [u8]) -> Result<&'c [u8], FilterError> {
        let mut rest = chunk;
        loop {
            let length = frame_length(&self.buffered)?.unwrap_or(PREFIX_BYTES);
            let missing = length.saturating_sub(self.buffered.len());
            let (taken, behind) = rest.split_at(missing.min(rest.len()));
            if taken.is_empty() {
                return Ok(rest);
            }
            self.buffered.reserve_exact(missing);
            self.buffered.extend_from_slice(taken);
            rest = behind;
        }
    }
}

/// Length of the frame at the start of the bytes, with its prefix; `None` if the prefix is not complete.
fn frame_length(bytes: &[u8]) -> Result<Option<usize>, FilterError> {
    let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
    if length > MAX_OBJECT_BYTES {
        return Err(FilterError::TooLarge);
    }
    Ok(Some(PREFIX_BYTES + length))
}

/// A frame, and the bytes behind it.
type SplitFrame<'a> = (&'a [u8], &'a [u8]);

/// Splits the frame off that the bytes start with; `None` if it is not complete.
fn split_frame(bytes: &[u8]) -> Result<Option<SplitFrame<'_>>, FilterError> {
    let length = frame_length(bytes)?;
    Ok(length.and_then(|length| bytes.split_at_checked(length)))
}

/// Appends what the client gets for a frame.
fn filter_frame(
    frame: &[u8],
    fields: MetadataFields,
    dropped: &DroppedFields,
    out: &mut Vec<u8>,
    decide: &mut DecideEvent<'_>,
) -> Result<(), FilterError> {
    let message = frame.get(PREFIX_BYTES..).unwrap_or_default();
    let event = WatchEvent::read(message)?;
    let event_type = match event.event_type {
        "BOOKMARK" => {
            check_bookmark(&event)?;
            out.extend_from_slice(frame);
            return Ok(());
        }
        "ERROR" => {
            check_error(&event)?;
            out.extend_from_slice(frame);
            return Ok(());
        }
        text => EventType::parse(text).ok_or(FilterError::UnknownEvent)?,
    };
    let object = event.read_object()?;
    let new_type = match decide(event_type, &read_metadata(object.bytes, object.start, fields)?) {
        EventDecision::Keep => None,
        EventDecision::KeepAs(new_type) => Some(new_type),
        EventDecision::Drop => return Ok(()),
        EventDecision::Bookmark => return put_bookmark(out, &object),
        EventDecision::Tombstone => return put_tombstone(out, &object),
    };
    let mut removal = FieldRemoval::find(object.bytes, object.start, dropped)?;
    for message in &object.around {
        removal.shorten(message)?;
    }
    let mut splices = removal.splices;
    if let Some((new_type, field)) = new_type.zip(event.type_field) {
        let mut with = Vec::new();
        put_bytes(&mut with, 1, new_type.as_str().as_bytes());
        splices.push(Splice {
            range: field.range(),
            with: Cow::Owned(with),
        });
    }
    if splices.is_empty() {
        out.extend_from_slice(frame);
        return Ok(());
    }
    let mut edited = Vec::with_capacity(message.len());
    put_spliced(&mut edited, message, splices);
    put_frame(out, &edited)
}

/// Refuses a bookmark with an object in it, which would pass without a decision. Those of API servers have a resource
/// version and annotations.
fn check_bookmark(event: &WatchEvent<'_>) -> Result<(), FilterError> {
    if event.object.is_none() {
        return Ok(());
    }
    let object = event.read_object()?;
    if read_metadata(object.bytes, object.start, NAME_FIELD)?.name.is_empty() {
        Ok(())
    } else {
        Err(malformed("a bookmark with the name of an object", object.start))
    }
}

/// Refuses an error with another object than a `Status` of `v1`, which would pass without a decision.
fn check_error(event: &WatchEvent<'_>) -> Result<(), FilterError> {
    if event.object.is_none() {
        return Ok(());
    }
    let object = event.read_object()?;
    if object.type_meta.kind == "Status" && object.type_meta.api_version == "v1" {
        Ok(())
    } else {
        Err(malformed("an error whose object is no Status", object.start))
    }
}

/// A `WatchEvent`.
struct WatchEvent<'a> {
    event_type: &'a str,
    type_field: Option<PlacedField<'a>>,
    /// A `RawExtension`.
    object: Option<PlacedField<'a>>,
}

impl<'a> WatchEvent<'a> {
    fn read(message: &'a [u8]) -> Result<Self, FilterError> {
        let [type_field, object] = read_single_fields(message, 0)?;
        Ok(Self {
            event_type: type_field.map_or(Ok(""), |field| field.text())?,
            type_field,
            object,
        })
    }

    /// Reads `runtime.Unknown` within `RawExtension`.
    fn read_object(&self) -> Result<WatchedObject<'a>, FilterError> {
        let extension = self.object.ok_or(malformed("an event without an object", 0))?;
        let [raw] = read_single_fields(extension.content()?, extension.content_start())?;
        let raw = raw.ok_or(malformed("an event without an object", extension.start))?;
        let Some(unknown) = raw.content()?.strip_prefix(MAGIC) else {
            return Err(malformed("no magic number `k8s\\0`", raw.content_start()));
        };
        let start = raw.content_start() + MAGIC.len();
        let [type_meta, object, encoding, _content_type] = read_single_fields(unknown, start)?;
        if let Some(encoding) = encoding
            && !encoding.content()?.is_empty()
        {
            return Err(malformed("an object in another encoding", encoding.start));
        }
        let type_meta = type_meta.ok_or(malformed("an object without its type", start))?;
        let object = object.ok_or(malformed("an event without an object", start))?;
        Ok(WatchedObject {
            type_meta: TypeMeta::read(type_meta.content()?, type_meta.content_start())?,
            bytes: object.content()?,
            start: object.content_start(),
            around: [object, raw, extension],
        })
    }
}

/// The object of an event, at its position in the event.
struct WatchedObject<'a> {
    type_meta: TypeMeta<'a>,
    bytes: &'a [u8],
    start: usize,
    /// The messages around the object, from within.
    around: [PlacedField<'a>; 3],
}

/// Reads the fields 1 to `N` of a message, which may occur once and have to be length-delimited.
fn read_single_fields<const N: usize>(
    message: &[u8],
    start: usize,
) -> Result<[Option<PlacedField<'_>>; N], FilterError> {
    let mut found: [Option<PlacedField<'_>>; N] = std::array::from_fn(|_| None);
    for field in placed_fields(message, start) {
        let field = field?;
        let index = usize::try_from(field.field.number)
            .ok()
            .and_then(|number| number.checked_sub(1));
        let Some(slot) = index.and_then(|index| found.get_mut(index)) else {
            continue;
        };
        field.content()?;
        let position = field.start;
        if slot.replace(field).is_some() {
            return Err(malformed("a field that occurs twice", position));
        }
    }
    Ok(found)
}

/// Appends a BOOKMARK event at the object's version. An object without a version gives none, because it would reset
/// the client's version.
fn put_bookmark(out: &mut Vec<u8>, object: &WatchedObject<'_>) -> Result<(), FilterError> {
    let version = read_metadata(object.bytes, object.start, RESOURCE_VERSION)?.resource_version;
    if version.is_empty() {
        return Ok(());
    }
    let bookmark = Message::new().message(1, &Message::new().string(6, &version));
    let body = envelope(object.type_meta.api_version, object.type_meta.kind, &bookmark);
    let event = Message::new()
        .string(1, "BOOKMARK")
        .message(2, &Message::new().bytes(1, &body));
    put_frame(out, &event.finish())
}

/// Appends a DELETED event with what tells which object it was. An object without a name gives none.
fn put_tombstone(out: &mut Vec<u8>, object: &WatchedObject<'_>) -> Result<(), FilterError> {
    let known = read_metadata(object.bytes, object.start, TOMBSTONE_FIELDS)?;
    if known.name.is_empty() {
        return Ok(());
    }
    let fields = [
        (1, &known.name),
        (3, &known.namespace),
        (5, &known.uid),
        (6, &known.resource_version),
    ];
    let mut metadata = Message::new();
    for (number, text) in fields {
        if !text.is_empty() {
            metadata = metadata.string(number, text);
        }
    }
    let tombstone = Message::new().message(1, &metadata);
    let body = envelope(object.type_meta.api_version, object.type_meta.kind, &tombstone);
    let event = Message::new()
        .string(1, EventType::Deleted.as_str())
        .message(2, &Message::new().bytes(1, &body));
    put_frame(out, &event.finish())
}

/// Appends an event behind its length.
fn put_frame(out: &mut Vec<u8>, event: &[u8]) -> Result<(), FilterError> {
    let length = u32::try_from(event.len()).map_err(|_| FilterError::TooLarge)?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(event);
    Ok(())
}

#[cfg(test)]
mod tests;
