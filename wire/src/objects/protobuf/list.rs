//! Lists in protobuf: the magic number and a `runtime.Unknown` (apimachinery `pkg/runtime/generated.proto`) whose `raw`
//! is a list message, with `ListMeta` as field 1 and the items as field 2 in every list type. Items have an
//! `ObjectMeta` as field 1, but for those of metrics APIs (`custom.metrics.k8s.io`, `external.metrics.k8s.io`), whose
//! lists are refused.
//!
//! The length of `raw` was sent before its items are known, so no byte may be added or removed: an item that is left
//! out becomes an unknown field of zeros and of the same length, which decoders skip. Such a field also stands behind
//! an item of which fields are dropped.

use super::dropped::FieldRemoval;
use super::metadata::read_metadata;
use super::padding::{PADDING_FIELD, put_gap, put_list_meta, put_padding};
use super::{PlacedField, TypeMeta, malformed, support_error, wrong_wire_type};
use crate::objects::dropped_fields::DroppedFields;
use crate::objects::limits::{MAX_BATCH, MAX_BUFFERED_BYTES, MAX_OBJECT_BYTES};
use crate::objects::splice::put_spliced;
use crate::objects::{DecideObjects, FilterError, METRIC_VALUE_GROUPS, MetadataFields, ObjectMetadata};
use crate::protobuf::{Field, MAGIC, MAX_FIELD_NUMBER, text};

/// Largest `ListMeta`, `TypeMeta` and `Status`, in bytes.
const MAX_META_BYTES: u64 = MAX_BUFFERED_BYTES as u64;

/// Most pieces that wait for a decision: objects, and fields between them.
const MAX_PIECES: usize = 2 * MAX_BATCH;

/// Field of the items in all list types.
const ITEMS_FIELD: u32 = 2;

/// Field of the token of the next page in a `ListMeta`.
const CONTINUE_FIELD: u32 = 3;

/// Filters the body of a list as its bytes come in. The output is as long as the input.
///
/// Buffers at most one unfinished item of [`MAX_OBJECT_BYTES`]. Items that are complete within a chunk are not
/// copied before the decision. `remainingItemCount` and `shardInfo` are removed, because they are wrong for a part of a
/// list. After an error, every call gives the same error.
#[derive(Debug)]
pub struct ProtobufListFilter {
    fields: MetadataFields,
    dropped: DroppedFields,
    place: Place,
    body: Option<Body>,
    /// Which fields of the envelope came, by their numbers.
    is_seen: [bool; 5],
    /// Number of bytes that pass before the next field.
    passing: u64,
    /// The bytes that pass have to be zeros.
    is_padding: bool,
    /// The start of a field that is needed whole, or whose head is not complete.
    buffered: Vec<u8>,
    /// Empty if the list's metadata have none, or have not come yet.
    continue_token: String,
    failure: Option<FilterError>,
}

/// The message whose field comes next.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The magic number.
    Start,
    /// `runtime.Unknown`
    Envelope,
    /// The list, of which this many bytes come.
    List { left: u64 },
}

/// The content of `raw`, known from `typeMeta`.
#[derive(Debug, Clone, Copy)]
enum Body {
    List,
    Status,
}

impl Body {
    /// The items of a `v1.List` are bodies of any encoding; the API server sends none. Those of metrics have no
    /// `ObjectMeta`: another text is in its place.
    fn of_type(type_meta: &TypeMeta<'_>) -> Result<Self, FilterError> {
        let group = type_meta.api_version.split_once('/').map_or("", |(group, _)| group);
        let is_metrics = METRIC_VALUE_GROUPS.contains(&group);
        match (type_meta.kind, type_meta.api_version) {
            ("Status", "v1") => Ok(Self::Status),
            ("List", _) => Err(FilterError::NotList),
            (kind, _) if kind.ends_with("List") && !is_metrics => Ok(Self::List),
            _ => Err(FilterError::NotList),
        }
    }
}

impl ProtobufListFilter {
    /// A filter that reads these fields of metadata.
    #[must_use]
    pub fn new(fields: MetadataFields) -> Self {
        Self {
            fields,
            dropped: DroppedFields::default(),
            place: Place::Start,
            body: None,
            is_seen: [false; 5],
            passing: 0,
            is_padding: false,
            buffered: Vec::new(),
            continue_token: String::new(),
            failure: None,
        }
    }

    /// Leaves these fields out of kept objects. If protobuf does not support them ([`DroppedFields::supports`]), the
    /// body is refused.
    #[must_use]
    pub fn with_dropped_fields(self, dropped: DroppedFields) -> Self {
        Self {
            failure: support_error(&dropped),
            dropped,
            ..self
        }
    }

    /// Takes a chunk and appends what passes to `out`. All items that the chunk completes are decided on in one call,
    /// or in calls of 1,024.
    ///
    /// # Errors
    /// When the body is malformed, no list, or has an object that is too large or has no metadata. The response has to
    /// end with an error then.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideObjects<'_>) -> Result<(), FilterError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let pushed = self.push_chunk(chunk, out, decide);
        self.failure = pushed.err();
        pushed
    }

    /// Ends the body.
    ///
    /// # Errors
    /// [`FilterError::Unfinished`] if the body ended early.
    pub fn finish(&mut self) -> Result<(), FilterError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let [_, _, has_object, ..] = self.is_seen;
        let is_at_boundary = matches!(self.place, Place::Envelope) && self.buffered.is_empty() && self.passing == 0;
        if has_object && is_at_boundary {
            Ok(())
        } else {
            Err(FilterError::Unfinished)
        }
    }

    /// The token of the next page (`metadata.continue`); `None` if there is none, or it has not come yet.
    #[must_use]
    pub fn continue_token(&self) -> Option<&str> {
        Some(self.continue_token.as_str()).filter(|token| !token.is_empty())
    }

    fn push_chunk(
        &mut self,
        chunk: &[u8],
        out: &mut Vec<u8>,
        decide: &mut DecideObjects<'_>,
    ) -> Result<(), FilterError> {
        let mut buffered = std::mem::take(&mut self.buffered);
        let Some(rest) = self.complete_buffered(&mut buffered, chunk)? else {
            self.buffered = buffered;
            return Ok(());
        };
        // Scanning needs the rest of the filter. After an error no field is needed any more.
        let dropped = std::mem::take(&mut self.dropped);
        let unfinished = {
            let mut batch = Batch {
                fields: self.fields,
                dropped: &dropped,
                pieces: Vec::new(),
                objects: Vec::new(),
                out,
                decide,
            };
            self.scan(&buffered, &mut batch)?;
            let unfinished = self.scan(rest, &mut batch)?;
            batch.flush()?;
            unfinished
        };
        self.dropped = dropped;
        buffered.clear();
        buffered.extend_from_slice(rest.get(rest.len() - unfinished..).unwrap_or_default());
        self.buffered = buffered;
        Ok(())
    }

    /// Completes what is buffered with the start of a chunk. Gives the rest of the chunk, or `None` if all of it was
    /// needed and more is missing.
    fn complete_buffered<'c>(&self, buffered: &mut Vec<u8>, chunk: &'c [u8]) -> Result<Option<&'c [u8]>, FilterError> {
        let mut rest = chunk;
        while !buffered.is_empty() {
            let missing = match self.next_unit(buffered)? {
                Some(unit) => {
                    let missing = unit.whole_length().saturating_sub(buffered.len());
                    buffered.reserve_exact(missing);
                    missing
                }
                None => 1,
            };
            if missing == 0 {
                break;
            }
            let (taken, behind) = rest.split_at(missing.min(rest.len()));
            if taken.is_empty() {
                return Ok(None);
            }
            buffered.extend_from_slice(taken);
            rest = behind;
        }
        Ok(Some(rest))
    }

    /// Takes all complete units into the batch. Gives the number of bytes behind them.
    fn scan<'a>(&mut self, bytes: &'a [u8], batch: &mut Batch<'a, '_, '_>) -> Result<usize, FilterError> {
        let mut rest = bytes;
        loop {
            rest = self.pass_on(rest, batch)?;
            if rest.is_empty() {
                return Ok(0);
            }
            let Some(unit) = self.next_unit(rest)? else {
                return Ok(rest.len());
            };
            if let Role::Passed { is_padding } = unit.role {
                self.advance(&unit)?;
                rest = self.pass_head(&unit, is_padding, rest, batch)?;
                continue;
            }
            let Some((whole, behind)) = rest.split_at_checked(unit.whole_length()) else {
                return Ok(rest.len());
            };
            self.take_unit(&unit, whole, batch)?;
            self.advance(&unit)?;
            rest = behind;
        }
    }

    /// Passes on the head of a field that is not buffered. Gives the bytes behind it.
    fn pass_head<'a>(
        &mut self,
        unit: &Unit,
        is_padding: bool,
        bytes: &'a [u8],
        batch: &mut Batch<'a, '_, '_>,
    ) -> Result<&'a [u8], FilterError> {
        let (head, behind) = bytes.split_at_checked(unit.head).unwrap_or((bytes, &[]));
        self.passing = unit.length.saturating_sub(head.len() as u64);
        self.is_padding = is_padding;
        batch.push(Piece::Passed(head))?;
        Ok(behind)
    }

    /// Passes on the bytes of a field that is not buffered. Gives the bytes behind them.
    fn pass_on<'a>(&mut self, bytes: &'a [u8], batch: &mut Batch<'a, '_, '_>) -> Result<&'a [u8], FilterError> {
        let length = usize::try_from(self.passing).unwrap_or(usize::MAX).min(bytes.len());
        if length == 0 {
            return Ok(bytes);
        }
        let (passed, behind) = bytes.split_at(length);
        if self.is_padding && passed.iter().any(|byte| *byte != 0) {
            return Err(malformed("an unknown field of a list", 0));
        }
        self.passing = self.passing.saturating_sub(length as u64);
        batch.push(Piece::Passed(passed))?;
        Ok(behind)
    }

    /// The unit at the start of the bytes; `None` if its head is not complete.
    fn next_unit(&self, bytes: &[u8]) -> Result<Option<Unit>, FilterError> {
        match self.place {
            Place::Start => Ok(Some(Unit {
                role: Role::Magic,
                number: 0,
                head: 0,
                length: MAGIC.len() as u64,
            })),
            Place::Envelope => self.envelope_unit(bytes),
            Place::List { left } => list_unit(bytes, left),
        }
    }

    fn envelope_unit(&self, bytes: &[u8]) -> Result<Option<Unit>, FilterError> {
        let Some(head) = Head::read(bytes)? else {
            return Ok(None);
        };
        let role = match (head.number, self.body) {
            (1..=4, _) if head.wire_type != 2 => return Err(wrong_wire_type(0)),
            (1, _) if head.content > MAX_META_BYTES => return Err(malformed("a type of more than 64 KiB", 0)),
            (1, _) => Role::TypeMeta,
            (2, None) => return Err(malformed("an object before its type", 0)),
            (2, Some(Body::List)) => return Ok(Some(head.list_unit())),
            (2, Some(Body::Status)) if head.content > MAX_META_BYTES => return Err(FilterError::NotList),
            (3, _) if head.content > 0 => return Err(malformed("an object in another encoding", 0)),
            (2..=4, _) => Role::Passed { is_padding: false },
            _ => return Err(malformed("an unknown field of an envelope", 0)),
        };
        Ok(Some(head.unit(role)))
    }

    fn take_unit<'a>(
        &mut self,
        unit: &Unit,
        whole: &'a [u8],
        batch: &mut Batch<'a, '_, '_>,
    ) -> Result<(), FilterError> {
        let head = unit.head;
        match unit.role {
            Role::Magic if whole != MAGIC => return Err(malformed("no magic number `k8s\\0`", 0)),
            Role::TypeMeta => {
                let type_meta = TypeMeta::read(whole.get(head..).unwrap_or_default(), head)?;
                self.body = Some(Body::of_type(&type_meta)?);
            }
            Role::ListMeta => {
                let list_meta = whole.get(head..).unwrap_or_default();
                self.continue_token = text(list_meta, CONTINUE_FIELD).unwrap_or_default();
                return batch.push(Piece::ListMeta { whole, head });
            }
            Role::Item => return batch.push_item(whole, head),
            Role::Magic | Role::ListStart { .. } | Role::Passed { .. } => {}
        }
        batch.push(Piece::Passed(whole))
    }

    /// Steps behind a unit.
    fn advance(&mut self, unit: &Unit) -> Result<(), FilterError> {
        if matches!(self.place, Place::Envelope) {
            self.mark_seen(unit.number)?;
        }
        let left = match (self.place, unit.role) {
            (Place::List { left }, _) => left.saturating_sub(unit.length),
            (_, Role::ListStart { length }) => length,
            _ => 0,
        };
        self.place = match left {
            0 => Place::Envelope,
            left => Place::List { left },
        };
        Ok(())
    }

    fn mark_seen(&mut self, number: u32) -> Result<(), FilterError> {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        match self.is_seen.get_mut(index) {
            Some(is_seen) if *is_seen => Err(malformed("a field that occurs twice", 0)),
            Some(is_seen) => {
                *is_seen = true;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// A field, or the magic number.
#[derive(Debug, Clone, Copy)]
struct Unit {
    role: Role,
    number: u32,
    /// Length of the tag and of the number behind it.
    head: usize,
    /// Length with its head; of the head alone for [`Role::ListStart`].
    length: u64,
}

impl Unit {
    /// Number of bytes that are needed at once.
    fn whole_length(&self) -> usize {
        match self.role {
            Role::Passed { .. } => self.head,
            // Bounded by the largest object.
            _ => usize::try_from(self.length).unwrap_or(usize::MAX),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Magic,
    TypeMeta,
    /// The head of `raw`, when it is a list of this length.
    ListStart {
        length: u64,
    },
    ListMeta,
    Item,
    /// A field that passes as it comes. Padding is checked to be zeros.
    Passed {
        is_padding: bool,
    },
}

fn list_unit(bytes: &[u8], left: u64) -> Result<Option<Unit>, FilterError> {
    let reachable = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    let beyond_end = malformed("a field beyond the end of its list", 0);
    let Some(head) = Head::read(bytes.get(..reachable).unwrap_or_default())? else {
        let is_list_over = reachable as u64 == left;
        return if is_list_over { Err(beyond_end) } else { Ok(None) };
    };
    let role = match (head.number, head.wire_type) {
        _ if head.field_length() > left => return Err(beyond_end),
        (1, 2) if head.content > MAX_META_BYTES => return Err(malformed("list metadata of more than 64 KiB", 0)),
        (1, 2) => Role::ListMeta,
        (2, 2) if head.content > MAX_OBJECT_BYTES as u64 => return Err(FilterError::TooLarge),
        (2, 2) => Role::Item,
        (1 | 2, _) => return Err(wrong_wire_type(0)),
        (PADDING_FIELD, 2) => Role::Passed { is_padding: true },
        _ => return Err(malformed("an unknown field of a list", 0)),
    };
    Ok(Some(head.unit(role)))
}

/// The start of a field: its tag, and the number or the length behind it.
#[derive(Debug, Clone, Copy)]
struct Head {
    number: u32,
    wire_type: u64,
    length: usize,
    /// Length of the content behind the head.
    content: u64,
}

impl Head {
    /// Reads the head at the start of the bytes; `None` if it is not complete. Groups, which no API server writes, are
    /// refused.
    fn read(bytes: &[u8]) -> Result<Option<Self>, FilterError> {
        let Some((tag, tag_length)) = read_minimal_number(bytes)? else {
            return Ok(None);
        };
        let Ok(number @ 1..=MAX_FIELD_NUMBER) = u32::try_from(tag >> 3) else {
            return Err(malformed("an illegal field number", 0));
        };
        let wire_type = tag & 7;
        let (length, content) = match wire_type {
            0 | 2 => {
                let Some((behind, length)) = read_minimal_number(bytes.get(tag_length..).unwrap_or_default())? else {
                    return Ok(None);
                };
                (tag_length + length, if wire_type == 2 { behind } else { 0 })
            }
            1 => (tag_length, 8),
            5 => (tag_length, 4),
            _ => return Err(malformed("a group or an unknown wire type", 0)),
        };
        Ok(Some(Self {
            number,
            wire_type,
            length,
            content,
        }))
    }

    fn field_length(&self) -> u64 {
        self.content.saturating_add(self.length as u64)
    }

    fn unit(&self, role: Role) -> Unit {
        Unit {
            role,
            number: self.number,
            head: self.length,
            length: self.field_length(),
        }
    }

    fn list_unit(&self) -> Unit {
        Unit {
            role: Role::ListStart { length: self.content },
            number: self.number,
            head: self.length,
            length: self.length as u64,
        }
    }
}

/// Reads a number and its length; `None` if it is not complete. A number that takes more bytes than it needs is
/// refused, so that an item's tag is one byte.
fn read_minimal_number(bytes: &[u8]) -> Result<Option<(u64, usize)>, FilterError> {
    let mut number = 0_u64;
    for (index, &byte) in bytes.iter().take(10).enumerate() {
        let is_padding = index > 0 && byte == 0;
        let is_too_large = index == 9 && byte > 1;
        if is_padding || is_too_large {
            return Err(malformed("a number that is not in its shortest form", index));
        }
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((number, index + 1)));
        }
    }
    Ok(None)
}

/// Objects and the bytes between them, in order, before the decision on the objects.
struct Batch<'a, 'o, 'd> {
    fields: MetadataFields,
    dropped: &'o DroppedFields,
    pieces: Vec<Piece<'a>>,
    objects: Vec<ObjectMetadata<'a>>,
    out: &'o mut Vec<u8>,
    decide: &'o mut DecideObjects<'d>,
}

/// A part of the body; `head` is the length of the tag and of the length behind it.
enum Piece<'a> {
    Passed(&'a [u8]),
    ListMeta { whole: &'a [u8], head: usize },
    Item { whole: &'a [u8], head: usize },
}

impl<'a> Batch<'a, '_, '_> {
    fn push_item(&mut self, whole: &'a [u8], head: usize) -> Result<(), FilterError> {
        let object = whole.get(head..).unwrap_or_default();
        self.objects.push(read_metadata(object, 0, self.fields)?);
        self.push(Piece::Item { whole, head })
    }

    fn push(&mut self, piece: Piece<'a>) -> Result<(), FilterError> {
        self.pieces.push(piece);
        if self.objects.len() < MAX_BATCH && self.pieces.len() < MAX_PIECES {
            return Ok(());
        }
        self.flush()
    }

    /// Decides on the objects and writes everything.
    fn flush(&mut self) -> Result<(), FilterError> {
        let mut flags = vec![true; self.objects.len()];
        if !flags.is_empty() {
            (self.decide)(&self.objects, &mut flags);
        }
        let mut flags = flags.into_iter();
        for piece in self.pieces.drain(..) {
            match piece {
                Piece::Passed(bytes) => self.out.extend_from_slice(bytes),
                Piece::ListMeta { whole, head } => put_list_meta(self.out, whole, head)?,
                Piece::Item { whole, head } => {
                    if flags.next().unwrap_or(false) {
                        put_kept_item(self.out, whole, head, self.dropped)?;
                    } else {
                        put_padding(self.out, whole, head);
                    }
                }
            }
        }
        self.objects.clear();
        Ok(())
    }
}

/// Appends an item without the fields that are dropped, and padding behind it that takes as many bytes.
fn put_kept_item(out: &mut Vec<u8>, whole: &[u8], head: usize, dropped: &DroppedFields) -> Result<(), FilterError> {
    let object = whole.get(head..).unwrap_or_default();
    let mut removal = FieldRemoval::find(object, head, dropped)?;
    let field = Field {
        number: ITEMS_FIELD,
        whole,
        payload: Some(object),
    };
    removal.shorten(&PlacedField { field, start: 0 })?;
    put_spliced(out, whole, removal.splices);
    put_gap(out, removal.saved);
    Ok(())
}

#[cfg(test)]
mod tests;
