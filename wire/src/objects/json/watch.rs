//! Leaves events out of watches, as the bytes come in.

use std::borrow::Cow;
use std::mem;

use super::dropped::{find_dropped, row_search_start, search_start};
use super::item::{Members, ROW_PATH, Value, moved_error, read_metadata, read_row, visit_elements};
use super::malformed;
use super::scanner::{Level, Member, Noted, Path, Scanner};
use super::text::{decode_nullable, is_text};
use crate::objects::dropped_fields::DroppedFields;
use crate::objects::limits::{MAX_BUFFERED_BYTES, MAX_IDLE_BYTES, MAX_OBJECT_BYTES};
use crate::objects::rows::RowsDecision;
use crate::objects::splice::{Splice, put_spliced};
use crate::objects::{
    DecideEvent, EventDecision, EventType, FilterError, MetadataFields, NAME_FIELD, ObjectMetadata, TOMBSTONE_FIELDS,
};

/// The members that have to be noted of an event.
const EVENT_PATH: Path = &[
    Level {
        name: "object",
        noted: Noted::All,
    },
    Level {
        name: "metadata",
        noted: Noted::Names(&["kind", "apiVersion", "metadata", "columnDefinitions", "rows"]),
    },
];

/// Takes a watch as JSON in chunks of any size, and leaves out events. Bookmarks and errors pass if they hold no whole
/// object.
///
/// Guarantees: kept events pass byte for byte, but for a type that was decided on, fields that are dropped, and the
/// column definitions of a table; an event is never delayed once it is complete; after an error nothing passes any
/// more. Buffers at most one unfinished event, and 64 KiB of column definitions.
#[derive(Debug)]
pub struct JsonWatchFilter {
    events: EventFilter,
    scanner: Scanner,
    /// The beginning of an event, from earlier chunks.
    pending: Vec<u8>,
    is_in_event: bool,
    /// Whether white space passes: the line feed of an event passes with it.
    passes_space: bool,
    failure: Option<FilterError>,
}

impl JsonWatchFilter {
    /// `fields` are those that `decide` reads.
    #[must_use]
    pub fn new(fields: MetadataFields) -> Self {
        Self {
            events: EventFilter {
                fields,
                dropped: DroppedFields::default(),
                columns: Vec::new(),
                row_scanner: Scanner::default(),
            },
            scanner: Scanner::default(),
            pending: Vec::new(),
            is_in_event: false,
            passes_space: true,
            failure: None,
        }
    }

    /// Leaves these fields out of the objects of kept events.
    #[must_use]
    pub fn with_dropped_fields(mut self, dropped: DroppedFields) -> Self {
        self.events.dropped = dropped;
        self
    }

    /// Takes a chunk, and appends what the client gets of the events that it completes.
    ///
    /// # Errors
    /// When an event is malformed or too large, or has an unknown type or no metadata. The watch has to end then.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideEvent<'_>) -> Result<(), FilterError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let outcome = self.push_bytes(chunk, out, decide);
        self.failure = outcome.err();
        outcome
    }

    /// Whether an event is unfinished: the stream must not end here.
    #[must_use]
    pub fn is_mid_event(&self) -> bool {
        self.is_in_event
    }

    fn push_bytes(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideEvent<'_>) -> Result<(), FilterError> {
        let mut rest = chunk;
        while let Some((&byte, behind)) = rest.split_first() {
            if self.is_in_event {
                rest = self.filter_event(rest, out, decide)?;
                continue;
            }
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {
                    if self.passes_space {
                        out.push(byte);
                    }
                    rest = behind;
                }
                b'{' => {
                    self.scanner.restart(Some(EVENT_PATH));
                    self.is_in_event = true;
                }
                _ => return Err(malformed("something else than an event in a watch", 0)),
            }
        }
        Ok(())
    }

    /// Steps to the end of the event, if it is in the chunk. Gives the rest of the chunk.
    fn filter_event<'c>(
        &mut self,
        chunk: &'c [u8],
        out: &mut Vec<u8>,
        decide: &mut DecideEvent<'_>,
    ) -> Result<&'c [u8], FilterError> {
        let end = self.scanner.scan(chunk)?;
        let (bytes, rest) = chunk
            .split_at_checked(end.unwrap_or(chunk.len()))
            .unwrap_or((chunk, &[]));
        if self.pending.len().saturating_add(bytes.len()) > MAX_OBJECT_BYTES {
            return Err(FilterError::TooLarge);
        }
        if end.is_none() {
            self.pending.extend_from_slice(bytes);
            return Ok(rest);
        }
        let mut carried = mem::take(&mut self.pending);
        let event = if carried.is_empty() {
            bytes
        } else {
            carried.extend_from_slice(bytes);
            carried.as_slice()
        };
        self.passes_space = self.events.put_event(event, self.scanner.members(), out, decide)?;
        self.is_in_event = false;
        if carried.capacity() <= MAX_IDLE_BYTES {
            carried.clear();
            self.pending = carried;
        }
        Ok(rest)
    }
}

/// Decides about whole events.
#[derive(Debug)]
struct EventFilter {
    fields: MetadataFields,
    dropped: DroppedFields,
    /// Column definitions of a table that the client did not get yet; empty if there are none.
    columns: Vec<u8>,
    row_scanner: Scanner,
}

impl EventFilter {
    /// Appends what the client gets. True if the event passes, and so does the white space behind it.
    fn put_event(
        &mut self,
        event: &[u8],
        noted: &[Member],
        out: &mut Vec<u8>,
        decide: &mut DecideEvent<'_>,
    ) -> Result<bool, FilterError> {
        let members = Members::of_text(event, noted);
        members.refuse_look_alikes()?;
        let (Some(event_type), Some(object_member)) = (members.only_member("type")?, members.only_member("object")?)
        else {
            return Err(malformed("an event without type or object", 0));
        };
        let event_type = members.value(event_type);
        if !members.value(object_member).raw.starts_with(b"{") {
            return Err(malformed("an event whose object is none", object_member.key.start));
        }
        let object = members.inside(object_member);
        let known_type = KnownType::read(&event_type)?;
        let table = Table::read(&object)?;
        let decision = match (known_type, &table) {
            (KnownType::Decided(decided), None) => decide(decided, &read_metadata(&object, self.fields)?),
            (KnownType::Decided(decided), Some(table)) => self.decide_rows(table, decided, decide)?,
            (KnownType::Bookmark, table) => {
                self.check_bookmark(&object, table.as_ref().and_then(|table| table.rows.as_ref()))?;
                EventDecision::Keep
            }
            (KnownType::Error, _) => {
                check_error(&object)?;
                EventDecision::Keep
            }
        };
        let columns = table.as_ref().and_then(|table| table.columns.as_ref());
        let new_type = match decision {
            EventDecision::Keep => None,
            EventDecision::KeepAs(new_type) => Some(new_type),
            EventDecision::Drop => {
                self.keep_columns(columns)?;
                return Ok(false);
            }
            EventDecision::Bookmark => {
                put_bookmark(out, &object)?;
                return Ok(false);
            }
            EventDecision::Tombstone => {
                put_tombstone(out, &object)?;
                return Ok(false);
            }
        };
        let splices = match known_type {
            KnownType::Decided(_) if !self.dropped.is_empty() => {
                let start = members.value(object_member).range.start;
                self.find_dropped(&object, start, table.as_ref())?
            }
            _ => Vec::new(),
        };
        self.put_kept_event(out, event, &event_type, new_type, columns, splices);
        Ok(true)
    }

    /// The members that are left out of an object that begins at `start`, or of the objects in the rows of a table.
    fn find_dropped(
        &mut self,
        object: &Members<'_, '_>,
        start: usize,
        table: Option<&Table<'_>>,
    ) -> Result<Vec<Splice<'static>>, FilterError> {
        let mut splices = Vec::new();
        let dropped = &self.dropped;
        let text = object.text();
        let Some(table) = table else {
            find_dropped(text, search_start(object, start, dropped)?, dropped, &mut splices)?;
            return Ok(splices);
        };
        let rows = table.rows.as_ref().ok_or(FilterError::NoMetadata)?;
        let scanner = &mut self.row_scanner;
        let outcome = visit_elements(rows.raw, |row, row_start| {
            scanner.restart(Some(ROW_PATH));
            scanner.scan(row)?;
            let start = row_search_start(&Members::of_text(row, scanner.members()), dropped)?;
            find_dropped(text, rows.range.start + row_start + start, dropped, &mut splices)
        });
        outcome.map_err(|error| moved_error(error, rows.range.start))?;
        Ok(splices)
    }

    /// Decides about the rows of a table. API servers send one; of several all must have the same decision.
    fn decide_rows(
        &mut self,
        table: &Table<'_>,
        event_type: EventType,
        decide: &mut DecideEvent<'_>,
    ) -> Result<EventDecision, FilterError> {
        let rows = table.rows.as_ref().filter(|rows| rows.raw != b"null");
        let rows = rows.ok_or(FilterError::NoMetadata)?;
        let mut common = RowsDecision::new(event_type);
        let fields = self.fields;
        let scanner = &mut self.row_scanner;
        let outcome = visit_elements(rows.raw, |row, _| {
            scanner.restart(Some(ROW_PATH));
            scanner.scan(row)?;
            let metadata = read_row(&Members::of_text(row, scanner.members()), fields)?;
            if common.add(decide(event_type, &metadata)) {
                Ok(())
            } else {
                Err(malformed("rows of one event with different decisions", 0))
            }
        });
        outcome.map_err(|error| moved_error(error, rows.range.start))?;
        common.finish()
    }

    /// Refuses a bookmark with an object in it, which would pass without a decision. Those of API servers have a
    /// resource version and annotations, in a table in its row.
    fn check_bookmark(&mut self, object: &Members<'_, '_>, rows: Option<&Value<'_>>) -> Result<(), FilterError> {
        let Some(rows) = rows else {
            return check_unnamed(&read_metadata(object, NAME_FIELD)?);
        };
        if rows.raw == b"null" {
            return Ok(());
        }
        let scanner = &mut self.row_scanner;
        let outcome = visit_elements(rows.raw, |row, _| {
            scanner.restart(Some(ROW_PATH));
            scanner.scan(row)?;
            check_unnamed(&read_row(&Members::of_text(row, scanner.members()), NAME_FIELD)?)
        });
        outcome.map_err(|error| moved_error(error, rows.range.start))
    }

    /// Keeps the column definitions of an event that the client does not get: only the first event has them.
    fn keep_columns(&mut self, columns: Option<&Value<'_>>) -> Result<(), FilterError> {
        let Some(columns) = columns.filter(|columns| !is_empty_array(columns.raw)) else {
            return Ok(());
        };
        if columns.raw.len() > MAX_BUFFERED_BYTES {
            return Err(FilterError::TooLarge);
        }
        self.columns.clear();
        self.columns.extend_from_slice(columns.raw);
        Ok(())
    }

    fn put_kept_event(
        &mut self,
        out: &mut Vec<u8>,
        event: &[u8],
        event_type: &Value<'_>,
        new_type: Option<EventType>,
        columns: Option<&Value<'_>>,
        mut splices: Vec<Splice<'static>>,
    ) {
        splices.extend(new_type.map(|new_type| Splice {
            range: event_type.range.clone(),
            with: Cow::Owned(format!("\"{}\"", new_type.as_str()).into_bytes()),
        }));
        if let Some(columns) = columns {
            // The client has these or newer ones behind this event.
            let kept_columns = mem::take(&mut self.columns);
            if !kept_columns.is_empty() && is_empty_array(columns.raw) {
                splices.push(Splice {
                    range: columns.range.clone(),
                    with: Cow::Owned(kept_columns),
                });
            }
        }
        put_spliced(out, event, splices);
    }
}

/// The type of an event.
#[derive(Debug, Clone, Copy)]
enum KnownType {
    /// The type of an event that is decided on.
    Decided(EventType),
    Bookmark,
    Error,
}

impl KnownType {
    fn read(value: &Value<'_>) -> Result<Self, FilterError> {
        let text = decode_nullable(value.raw).map_err(|error| moved_error(error, value.range.start))?;
        match &*text {
            "BOOKMARK" => Ok(Self::Bookmark),
            "ERROR" => Ok(Self::Error),
            text => EventType::parse(text)
                .map(Self::Decided)
                .ok_or(FilterError::UnknownEvent),
        }
    }
}

/// Refuses metadata of a bookmark that belongs to an object.
fn check_unnamed(metadata: &ObjectMetadata<'_>) -> Result<(), FilterError> {
    if metadata.name.is_empty() {
        Ok(())
    } else {
        Err(malformed("a bookmark with the name of an object", 0))
    }
}

/// Refuses an error with another object than a `Status` of `v1`, which would pass without a decision.
fn check_error(object: &Members<'_, '_>) -> Result<(), FilterError> {
    let (kind, api_version) = (object.only_value("kind")?, object.only_value("apiVersion")?);
    let has_text = |value: Option<Value<'_>>, text: &str| value.is_some_and(|value| is_text(value.raw, text));
    if has_text(kind, "Status") && has_text(api_version, "v1") {
        Ok(())
    } else {
        Err(malformed("an error whose object is no Status", 0))
    }
}

/// A table of the API itself, and no custom resource of that kind.
struct Table<'a> {
    rows: Option<Value<'a>>,
    columns: Option<Value<'a>>,
}

impl<'a> Table<'a> {
    /// Reads an object; none if it is no table.
    fn read(object: &Members<'a, '_>) -> Result<Option<Self>, FilterError> {
        let (kind, api_version) = (object.only_value("kind")?, object.only_value("apiVersion")?);
        if !kind.is_some_and(|kind| is_text(kind.raw, "Table")) {
            return Ok(None);
        }
        let api_version = api_version.map(|value| decode_nullable(value.raw)).transpose()?;
        if !api_version.is_some_and(|version| version.starts_with("meta.k8s.io/")) {
            return Ok(None);
        }
        object.refuse_look_alikes()?;
        Ok(Some(Self {
            rows: object.only_value("rows")?,
            columns: object.only_value("columnDefinitions")?,
        }))
    }
}

fn is_empty_array(raw: &[u8]) -> bool {
    let inner = raw.strip_prefix(b"[").and_then(|raw| raw.strip_suffix(b"]"));
    raw == b"null" || inner.is_some_and(|inner| inner.trim_ascii().is_empty())
}

/// Appends a bookmark with the raw strings of the object. One without resource version would set a client back, so an
/// object that lacks a string gives none.
fn put_bookmark(out: &mut Vec<u8>, object: &Members<'_, '_>) -> Result<(), FilterError> {
    let metadata = object.only_member("metadata")?.map(|member| object.inside(member));
    let resource_version = match metadata {
        Some(metadata) => metadata.only_value("resourceVersion")?,
        None => None,
    };
    let strings = [
        object.only_value("kind")?,
        object.only_value("apiVersion")?,
        resource_version,
    ];
    let [Some(kind), Some(api_version), Some(resource_version)] = strings.map(|value| value.filter(is_full_string))
    else {
        return Ok(());
    };
    let parts: [&[u8]; 7] = [
        br#"{"type":"BOOKMARK","object":{"kind":"#,
        kind.raw,
        br#","apiVersion":"#,
        api_version.raw,
        br#","metadata":{"resourceVersion":"#,
        resource_version.raw,
        b"}}}\n",
    ];
    out.extend(parts.into_iter().flatten());
    Ok(())
}

/// Appends an event DELETED with the raw strings of the object that tell which one it is. A string that the object
/// lacks is left out; without a name there is no event.
fn put_tombstone(out: &mut Vec<u8>, object: &Members<'_, '_>) -> Result<(), FilterError> {
    let member = object.only_member("metadata")?.ok_or(FilterError::NoMetadata)?;
    // This also checks the strings, which may not have been read for the decision.
    if read_metadata(object, TOMBSTONE_FIELDS)?.name.is_empty() {
        return Ok(());
    }
    out.extend_from_slice(br#"{"type":"DELETED","object":{"#);
    for name in ["kind", "apiVersion"] {
        if let Some(value) = object.only_value(name)?.filter(is_full_string) {
            put_member(out, name, value.raw);
            out.push(b',');
        }
    }
    out.extend_from_slice(br#""metadata":{"#);
    let metadata = object.inside(member);
    let mut has_member = false;
    for name in ["name", "namespace", "uid", "resourceVersion"] {
        if let Some(value) = metadata.only_value(name)?.filter(is_full_string) {
            if has_member {
                out.push(b',');
            }
            put_member(out, name, value.raw);
            has_member = true;
        }
    }
    out.extend_from_slice(b"}}}\n");
    Ok(())
}

fn put_member(out: &mut Vec<u8>, name: &str, raw: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    out.extend_from_slice(raw);
}

/// Whether a value is a string, and not the empty one.
fn is_full_string(value: &Value<'_>) -> bool {
    value.raw.starts_with(b"\"") && value.raw != b"\"\""
}

#[cfg(test)]
mod tests;
