//! Leaves objects out of lists and tables, as the bytes come in.
//!
//! An element of `items` or `rows` and what precedes it, a comma and white space, are one unit: both pass or neither.

use std::mem;

use super::dropped::{find_dropped, row_search_start, search_start};
use super::item::{Members, OBJECT_PATH, ROW_PATH, read_metadata, read_row};
use super::malformed;
use super::scanner::{Member, Path, Scanner};
use super::text::{decode_nullable, is_text, without_quotes};
use crate::objects::dropped_fields::DroppedFields;
use crate::objects::keys::is_look_alike;
use crate::objects::limits::{MAX_BATCH, MAX_BUFFERED_BYTES, MAX_OBJECT_BYTES};
use crate::objects::splice::put_spliced;
use crate::objects::{DecideObjects, FilterError, MetadataFields, ObjectMetadata, STATUS_MEMBERS};

/// Fields of a list's metadata that would be wrong once objects are left out.
const REMOVED_FIELDS: [&str; 2] = ["remainingItemCount", "shardInfo"];

/// Members of a list's metadata are noted, and of no object within it.
const LIST_METADATA_PATH: Path = &[];

/// Takes a list or a table as JSON in chunks of any size, and leaves out objects. A `Status` of `v1` passes, unless it
/// has members that no `Status` has.
///
/// Guarantees: kept objects pass byte for byte, but for fields that are dropped; `remainingItemCount` and `shardInfo`
/// of the list are removed, because they count other objects too; after an error nothing passes any more. Buffers
/// at most one unfinished object, and 64 KiB before the objects.
#[derive(Debug)]
pub struct JsonListFilter {
    fields: MetadataFields,
    dropped: DroppedFields,
    phase: Phase,
    /// The top-level key whose value follows.
    key: ListKey,
    /// Steps through keys, and through values other than the objects.
    scanner: Scanner,
    array: ObjectArray,
    /// The beginning of a key, of a value or of an object, from earlier chunks.
    pending: Vec<u8>,
    /// The bytes before the first object; `None` once the objects have begun.
    buffered: Option<Vec<u8>>,
    /// Empty if the list's metadata have none, or have not come yet.
    continue_token: String,
    seen: SeenKeys,
    /// Whether a top-level key is none of a `Status`: other objects may claim that kind.
    has_foreign_key: bool,
    failure: Option<FilterError>,
}

/// Where in the top-level object the filter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Start,
    /// A key or the end of the object follows.
    FirstKey,
    NextKey,
    InKey,
    Colon,
    Value,
    /// In a value that passes as it comes.
    InPassedValue,
    /// In a value that has to be complete first.
    InBufferedValue,
    InArray,
    BehindValue,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListKey {
    Items,
    Rows,
    Metadata,
    Kind,
    ApiVersion,
    Other,
}

#[derive(Debug, Default)]
struct SeenKeys {
    /// The known keys that came.
    known: Vec<ListKey>,
    /// The kind is `Status`, which custom resources can have too.
    is_status: bool,
    /// The API version is `v1`.
    is_core: bool,
}

impl JsonListFilter {
    /// `fields` are those that `decide` reads.
    #[must_use]
    pub fn new(fields: MetadataFields) -> Self {
        Self {
            fields,
            dropped: DroppedFields::default(),
            phase: Phase::Start,
            key: ListKey::Other,
            scanner: Scanner::default(),
            array: ObjectArray::default(),
            pending: Vec::new(),
            buffered: Some(Vec::new()),
            continue_token: String::new(),
            seen: SeenKeys::default(),
            has_foreign_key: false,
            failure: None,
        }
    }

    /// Leaves these fields out of kept objects.
    #[must_use]
    pub fn with_dropped_fields(self, dropped: DroppedFields) -> Self {
        Self { dropped, ..self }
    }

    /// Takes a chunk, and appends what the client gets. All objects that the chunk completes are decided about in one
    /// call, or in several if there are more than 1,024.
    ///
    /// # Errors
    /// When the body is malformed or no list, or an object is too large or has no metadata. The response has to end
    /// with an error then.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideObjects<'_>) -> Result<(), FilterError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let outcome = self.push_bytes(chunk, out, decide);
        self.failure = outcome.err();
        outcome
    }

    /// Ends the body.
    ///
    /// # Errors
    /// When the body is not complete, or an earlier chunk had an error: the client must not take what it got for all.
    pub fn finish(&mut self) -> Result<(), FilterError> {
        match self.failure {
            Some(failure) => Err(failure),
            None if self.phase == Phase::End => Ok(()),
            None => Err(FilterError::Unfinished),
        }
    }

    /// The token of the next page (`metadata.continue`); `None` if there is none, or it has not come yet.
    #[must_use]
    pub fn continue_token(&self) -> Option<&str> {
        Some(self.continue_token.as_str()).filter(|token| !token.is_empty())
    }

    fn push_bytes(
        &mut self,
        chunk: &[u8],
        out: &mut Vec<u8>,
        decide: &mut DecideObjects<'_>,
    ) -> Result<(), FilterError> {
        let mut rest = chunk;
        while !rest.is_empty() {
            rest = match self.phase {
                Phase::InArray => self.filter_objects(rest, out, decide)?,
                Phase::InKey | Phase::InBufferedValue => self.buffer_value(rest, out)?,
                Phase::InPassedValue => self.pass_value(rest, out)?,
                _ => self.pass_byte(rest, out)?,
            };
        }
        Ok(())
    }

    /// Reads one byte between the tokens of the top-level object. Gives the rest of the chunk, as do all below.
    fn pass_byte<'c>(&mut self, chunk: &'c [u8], out: &mut Vec<u8>) -> Result<&'c [u8], FilterError> {
        let Some((&byte, rest)) = chunk.split_first() else {
            return Ok(chunk);
        };
        let phase_behind = match (self.phase, byte) {
            (phase, b' ' | b'\t' | b'\r' | b'\n') => phase,
            (Phase::Start, b'{') => Phase::FirstKey,
            (Phase::FirstKey | Phase::NextKey, b'"') => {
                self.scanner.restart(None);
                self.phase = Phase::InKey;
                return Ok(chunk);
            }
            (Phase::Colon, b':') => Phase::Value,
            (Phase::Value, b'[') if matches!(self.key, ListKey::Items | ListKey::Rows) => {
                self.release_buffered(out);
                self.array = ObjectArray::new(self.key == ListKey::Rows);
                Phase::InArray
            }
            (Phase::Value, _) => {
                self.begin_value();
                return Ok(chunk);
            }
            (Phase::BehindValue, b',') => Phase::NextKey,
            (Phase::FirstKey | Phase::BehindValue, b'}') => {
                if self.seen.is_status && self.seen.is_core && !self.has_foreign_key {
                    self.release_buffered(out);
                }
                if self.buffered.is_some() {
                    return Err(FilterError::NotList);
                }
                Phase::End
            }
            _ => return Err(malformed("no object, or a missing key, colon or comma", 0)),
        };
        self.emit(&[byte], out)?;
        self.phase = phase_behind;
        Ok(rest)
    }

    fn begin_value(&mut self) {
        let (path, phase) = match self.key {
            ListKey::Items | ListKey::Rows | ListKey::Kind | ListKey::ApiVersion => (None, Phase::InBufferedValue),
            ListKey::Metadata => (Some(LIST_METADATA_PATH), Phase::InBufferedValue),
            ListKey::Other => (None, Phase::InPassedValue),
        };
        self.scanner.restart(path);
        self.phase = phase;
    }

    fn pass_value<'c>(&mut self, chunk: &'c [u8], out: &mut Vec<u8>) -> Result<&'c [u8], FilterError> {
        let end = self.scanner.scan(chunk)?;
        let (bytes, rest) = chunk
            .split_at_checked(end.unwrap_or(chunk.len()))
            .unwrap_or((chunk, &[]));
        self.emit(bytes, out)?;
        if end.is_some() {
            self.phase = Phase::BehindValue;
        }
        Ok(rest)
    }

    fn buffer_value<'c>(&mut self, chunk: &'c [u8], out: &mut Vec<u8>) -> Result<&'c [u8], FilterError> {
        let end = self.scanner.scan(chunk)?;
        let (bytes, rest) = chunk
            .split_at_checked(end.unwrap_or(chunk.len()))
            .unwrap_or((chunk, &[]));
        if self.pending.len().saturating_add(bytes.len()) > MAX_BUFFERED_BYTES {
            return Err(FilterError::TooLarge);
        }
        self.pending.extend_from_slice(bytes);
        if end.is_some() {
            let value = mem::take(&mut self.pending);
            match self.phase {
                Phase::InKey => self.end_key(&value, out)?,
                _ => self.end_buffered_value(&value, out)?,
            }
        }
        Ok(rest)
    }

    fn end_key(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        if is_look_alike(without_quotes(raw).unwrap_or_default()) {
            return Err(malformed("a key that looks like another one", 0));
        }
        let keys = [
            ("items", ListKey::Items),
            ("rows", ListKey::Rows),
            ("metadata", ListKey::Metadata),
            ("kind", ListKey::Kind),
            ("apiVersion", ListKey::ApiVersion),
        ];
        let known = keys.into_iter().find(|(name, _)| is_text(raw, name));
        self.key = known.map_or(ListKey::Other, |(_, key)| key);
        if self.key != ListKey::Other {
            if self.seen.known.contains(&self.key) {
                return Err(malformed("a key of the list that occurs twice", 0));
            }
            self.seen.known.push(self.key);
        }
        self.has_foreign_key |= !STATUS_MEMBERS.iter().any(|name| is_text(raw, name));
        self.phase = Phase::Colon;
        self.emit(raw, out)
    }

    fn end_buffered_value(&mut self, value: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        self.phase = Phase::BehindValue;
        match self.key {
            ListKey::Items | ListKey::Rows if value != b"null" => {
                return Err(malformed("items or rows that are no array", 0));
            }
            ListKey::Items | ListKey::Rows => self.release_buffered(out),
            ListKey::Metadata => {
                self.continue_token = read_continue_token(value, self.scanner.members());
                let edited = remove_fields(value, self.scanner.members());
                return self.emit(&edited, out);
            }
            ListKey::Kind => self.seen.is_status = is_text(value, "Status"),
            ListKey::ApiVersion => self.seen.is_core = is_text(value, "v1"),
            ListKey::Other => {}
        }
        self.emit(value, out)
    }

    /// Steps through the objects in the chunk, and to the end of the array if it is there.
    fn filter_objects<'c>(
        &mut self,
        chunk: &'c [u8],
        out: &mut Vec<u8>,
        decide: &mut DecideObjects<'_>,
    ) -> Result<&'c [u8], FilterError> {
        let mut carried = mem::take(&mut self.pending);
        let found = self.array.advance(chunk)?;
        if !carried.is_empty() {
            let end = found.length().unwrap_or(chunk.len());
            carried.extend_from_slice(chunk.get(..end).unwrap_or_default());
            if found == Found::Nothing {
                self.keep_pending(carried)?;
                return Ok(&[]);
            }
        }
        let stop = self.filter_units(&carried, chunk, found, out, decide)?;
        carried.clear();
        match stop {
            Stop::ArrayEnd(position) => {
                self.phase = Phase::BehindValue;
                Ok(chunk.get(position..).unwrap_or_default())
            }
            Stop::ChunkEnd(position) => {
                carried.extend_from_slice(chunk.get(position..).unwrap_or_default());
                self.keep_pending(carried)?;
                Ok(&[])
            }
        }
    }

    fn keep_pending(&mut self, pending: Vec<u8>) -> Result<(), FilterError> {
        if pending.len() > MAX_OBJECT_BYTES {
            return Err(FilterError::TooLarge);
        }
        self.pending = pending;
        Ok(())
    }

    /// Decides about the units that end in the chunk. `carried` is the whole first one if it began in an earlier chunk.
    fn filter_units<'a>(
        &mut self,
        mut carried: &'a [u8],
        chunk: &'a [u8],
        first: Found,
        out: &mut Vec<u8>,
        decide: &mut DecideObjects<'_>,
    ) -> Result<Stop, FilterError> {
        let mut batch = Batch::default();
        let mut position = 0;
        let mut found = first;
        while let Some(length) = found.length() {
            let end = position + length;
            let unit = match mem::take(&mut carried) {
                [] => chunk.get(position..end).unwrap_or_default(),
                whole => whole,
            };
            position = end;
            if matches!(found, Found::ArrayEnd(_)) {
                batch.put_kept(&mut self.array.has_kept, &self.dropped, out, decide)?;
                out.extend_from_slice(unit);
                return Ok(Stop::ArrayEnd(position));
            }
            if unit.len() > MAX_OBJECT_BYTES {
                return Err(FilterError::TooLarge);
            }
            batch.add_unit(self.array.take_unit(unit, self.fields, &self.dropped)?);
            if batch.objects.len() == MAX_BATCH {
                batch.put_kept(&mut self.array.has_kept, &self.dropped, out, decide)?;
            }
            found = self.array.advance(chunk.get(position..).unwrap_or_default())?;
        }
        batch.put_kept(&mut self.array.has_kept, &self.dropped, out, decide)?;
        Ok(Stop::ChunkEnd(position))
    }

    fn emit(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        match &mut self.buffered {
            None => out.extend_from_slice(bytes),
            Some(buffered) if buffered.len().saturating_add(bytes.len()) > MAX_BUFFERED_BYTES => {
                return Err(FilterError::NotList);
            }
            Some(buffered) => buffered.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn release_buffered(&mut self, out: &mut Vec<u8>) {
        if let Some(buffered) = self.buffered.take() {
            out.extend_from_slice(&buffered);
        }
    }
}

/// Where units of a chunk end.
enum Stop {
    /// The position behind the closing bracket.
    ArrayEnd(usize),
    /// The position of the unit that is not complete.
    ChunkEnd(usize),
}

/// The array of objects or rows.
#[derive(Debug, Default)]
struct ObjectArray {
    is_table: bool,
    scanner: Scanner,
    step: ArrayStep,
    /// Number of bytes of the unit before its object.
    lead: usize,
    /// Whether an object was kept: the next one needs a comma.
    has_kept: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ArrayStep {
    #[default]
    Start,
    BehindObject,
    BehindComma,
    InObject,
}

/// Where a unit or the array ends, in bytes from the current position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Unit(usize),
    ArrayEnd(usize),
    Nothing,
}

impl Found {
    fn length(self) -> Option<usize> {
        match self {
            Self::Unit(length) | Self::ArrayEnd(length) => Some(length),
            Self::Nothing => None,
        }
    }
}

impl ObjectArray {
    fn new(is_table: bool) -> Self {
        Self {
            is_table,
            ..Self::default()
        }
    }

    /// Steps to the end of the unit, of the array or of the bytes, whichever is nearest.
    fn advance(&mut self, bytes: &[u8]) -> Result<Found, FilterError> {
        let mut position = 0;
        while self.step != ArrayStep::InObject {
            let Some(&byte) = bytes.get(position) else {
                self.lead += position;
                return Ok(Found::Nothing);
            };
            match (self.step, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => position += 1,
                (ArrayStep::BehindObject, b',') => {
                    self.step = ArrayStep::BehindComma;
                    position += 1;
                }
                (ArrayStep::Start | ArrayStep::BehindComma, b'{') => {
                    self.lead += position;
                    let path = if self.is_table { ROW_PATH } else { OBJECT_PATH };
                    self.scanner.restart(Some(path));
                    self.step = ArrayStep::InObject;
                }
                (ArrayStep::Start | ArrayStep::BehindObject, b']') => return Ok(Found::ArrayEnd(position + 1)),
                _ => return Err(malformed("something else than an object in a list", 0)),
            }
        }
        let end = self.scanner.scan(bytes.get(position..).unwrap_or_default())?;
        Ok(end.map_or(Found::Nothing, |length| Found::Unit(position + length)))
    }

    /// Takes the unit that has just ended.
    fn take_unit<'a>(
        &mut self,
        bytes: &'a [u8],
        fields: MetadataFields,
        dropped: &DroppedFields,
    ) -> Result<(Unit<'a>, ObjectMetadata<'a>), FilterError> {
        let (lead, object) = bytes.split_at_checked(mem::take(&mut self.lead)).unwrap_or_default();
        self.step = ArrayStep::BehindObject;
        let members = Members::of_text(object, self.scanner.members());
        let (metadata, search_start) = if self.is_table {
            (read_row(&members, fields)?, row_search_start(&members, dropped)?)
        } else {
            (read_metadata(&members, fields)?, search_start(&members, 0, dropped)?)
        };
        let unit = Unit {
            lead,
            object,
            search_start,
        };
        Ok((unit, metadata))
    }
}

/// An object, and the comma and white space before it.
struct Unit<'a> {
    lead: &'a [u8],
    object: &'a [u8],
    /// Where fields that are dropped are looked for in the object.
    search_start: usize,
}

impl Unit<'_> {
    /// Appends the object without the fields that are dropped.
    fn put_object(&self, out: &mut Vec<u8>, dropped: &DroppedFields) -> Result<(), FilterError> {
        let mut splices = Vec::new();
        if !dropped.is_empty() {
            find_dropped(self.object, self.search_start, dropped, &mut splices)?;
        }
        put_spliced(out, self.object, splices);
        Ok(())
    }
}

/// Objects that are decided about together.
#[derive(Default)]
struct Batch<'a> {
    units: Vec<Unit<'a>>,
    objects: Vec<ObjectMetadata<'a>>,
    flags: Vec<bool>,
}

impl<'a> Batch<'a> {
    fn add_unit(&mut self, (unit, metadata): (Unit<'a>, ObjectMetadata<'a>)) {
        self.units.push(unit);
        self.objects.push(metadata);
    }

    fn put_kept(
        &mut self,
        has_kept: &mut bool,
        dropped: &DroppedFields,
        out: &mut Vec<u8>,
        decide: &mut DecideObjects<'_>,
    ) -> Result<(), FilterError> {
        if self.objects.is_empty() {
            return Ok(());
        }
        self.flags.clear();
        self.flags.resize(self.objects.len(), true);
        decide(&self.objects, &mut self.flags);
        for (unit, is_kept) in self.units.iter().zip(&self.flags) {
            if *is_kept {
                put_lead(out, unit.lead, *has_kept);
                unit.put_object(out, dropped)?;
                *has_kept = true;
            }
        }
        self.units.clear();
        self.objects.clear();
        Ok(())
    }
}

/// Appends what precedes a kept element. The first one that is kept has no comma, even if it was not the first.
fn put_lead(out: &mut Vec<u8>, lead: &[u8], needs_comma: bool) {
    if needs_comma {
        out.extend_from_slice(lead);
    } else {
        out.extend(lead.iter().filter(|byte| **byte != b','));
    }
}

/// The token in a list's metadata. It is empty if it cannot be read: then the list ends here.
fn read_continue_token(metadata: &[u8], members: &[Member]) -> String {
    let value = Members::of_text(metadata, members).only_value("continue");
    let token = value.ok().flatten().map(|value| decode_nullable(value.raw));
    token.and_then(Result::ok).unwrap_or_default().into_owned()
}

/// A list's metadata without the fields that would be wrong.
fn remove_fields(metadata: &[u8], members: &[Member]) -> Vec<u8> {
    let mut edited = Vec::with_capacity(metadata.len());
    let slice = |start: usize, end: usize| metadata.get(start..end).unwrap_or_default();
    let mut copied = usize::from(!members.is_empty());
    edited.extend_from_slice(slice(0, copied));
    let mut has_kept = false;
    for member in members {
        let raw_key = slice(member.key.start, member.key.end);
        if !REMOVED_FIELDS.iter().any(|name| is_text(raw_key, name)) {
            put_lead(&mut edited, slice(copied, member.key.start), has_kept);
            edited.extend_from_slice(slice(member.key.start, member.tail.end));
            has_kept = true;
        }
        copied = member.tail.end;
    }
    edited.extend_from_slice(slice(copied, metadata.len()));
    edited
}

#[cfg(test)]
mod tests;
