//! Leaves out events of a watch, as the bytes come in.

use std::borrow::Cow;
use std::ops::Range;

use super::head::{ARRAY, BREAK, BYTES, MAP, SELF_DESCRIBED, malformed, put_head, put_string};
use super::reader::Reader;
use super::scanner::{ItemCollector, ItemScanner};
use crate::objects::dropped_fields::DroppedFields;
use crate::objects::keys::is_look_alike;
use crate::objects::limits::{MAX_BUFFERED_BYTES, MAX_OBJECT_BYTES};
use crate::objects::rows::RowsDecision;
use crate::objects::splice::{Splice, put_spliced};
use crate::objects::{
    DecideEvent, EventDecision, EventType, FilterError, MetadataFields, NAME_FIELD, TOMBSTONE_FIELDS,
};

const LOOK_ALIKE: &str = "a key that looks like another one";

/// Leaves out events of a watch in CBOR, which come as a sequence of items (RFC 8742). Takes the body in chunks of any
/// size. Buffers at most one unfinished event of [`MAX_OBJECT_BYTES`]; a finished one is never delayed. Bookmarks
/// and errors pass if they hold no whole object.
#[derive(Debug)]
pub struct CborWatchFilter {
    pub(super) collector: ItemCollector,
    events: EventFilter,
    failure: Option<FilterError>,
}

impl CborWatchFilter {
    /// `fields` are those that the decision reads.
    #[must_use]
    pub fn new(fields: MetadataFields) -> Self {
        Self {
            collector: ItemCollector::default(),
            events: EventFilter {
                fields,
                dropped: DroppedFields::default(),
                skipper: ItemScanner::default(),
                columns: None,
            },
            failure: None,
        }
    }

    /// Leaves these fields out of the objects of kept events.
    #[must_use]
    pub fn with_dropped_fields(mut self, dropped: DroppedFields) -> Self {
        self.events.dropped = dropped;
        self
    }

    /// Takes a chunk, and appends to `out` what the client gets of the events that it completes.
    ///
    /// # Errors
    /// When an event cannot be filtered. The watch has to end then; every later call gives the same error.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideEvent<'_>) -> Result<(), FilterError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let result = self.filter(chunk, out, decide);
        self.failure = result.err();
        result
    }

    /// Whether an event is unfinished: the stream must not end here.
    #[must_use]
    pub fn is_mid_event(&self) -> bool {
        self.collector.is_mid_item()
    }

    fn filter(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideEvent<'_>) -> Result<(), FilterError> {
        let mut rest = chunk;
        while !rest.is_empty() {
            let (used, event) = self.collector.take(rest, MAX_OBJECT_BYTES, FilterError::TooLarge)?;
            if let Some(event) = event {
                self.events.filter(event, out, decide)?;
                self.collector.release_completed();
            }
            rest = rest.get(used..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Filters events that are complete.
#[derive(Debug)]
struct EventFilter {
    fields: MetadataFields,
    dropped: DroppedFields,
    skipper: ItemScanner,
    /// The column definitions of a table that was dropped: a server sends them in the first event only.
    columns: Option<Vec<u8>>,
}

/// The parts of an event.
#[derive(Default)]
struct Event<'a> {
    type_name: Cow<'a, str>,
    /// Where the value of `type` is.
    type_range: Range<usize>,
    /// Where the value of `object` starts.
    object: Option<usize>,
}

/// The parts of an event's object, by where their values start.
#[derive(Default)]
struct Object<'a> {
    kind: Cow<'a, str>,
    api_version: Cow<'a, str>,
    metadata: Option<usize>,
    rows: Option<usize>,
    columns: Option<Range<usize>>,
}

impl Object<'_> {
    /// Whether the object is a table, whose objects are in its rows. Custom resources can have the same kind.
    fn is_table(&self) -> bool {
        self.kind == "Table" && self.api_version.starts_with("meta.k8s.io/")
    }
}

impl EventFilter {
    fn filter(&mut self, item: &[u8], out: &mut Vec<u8>, decide: &mut DecideEvent<'_>) -> Result<(), FilterError> {
        let event = self.read_event(item)?;
        let event_type = match &*event.type_name {
            "BOOKMARK" => return self.pass_bookmark(item, &event, out),
            "ERROR" => return self.pass_error(item, &event, out),
            text => EventType::parse(text).ok_or(FilterError::UnknownEvent)?,
        };
        let start = event.object.ok_or(FilterError::NoMetadata)?;
        let object = self.read_object(item, start)?.ok_or(FilterError::NoMetadata)?;
        let decision = if object.is_table() {
            self.decide_rows(item, &object, event_type, decide)?
        } else {
            self.decide_object(item, &object, event_type, decide)?
        };
        match decision {
            EventDecision::Keep => {
                let splices = self.find_dropped(item, start, &object)?;
                self.pass(item, &object, splices, out)
            }
            EventDecision::KeepAs(changed_type) => {
                let mut splices = self.find_dropped(item, start, &object)?;
                let type_value = self.encode_type(item, &event, changed_type)?;
                splices.push(Splice {
                    range: event.type_range,
                    with: Cow::Owned(type_value),
                });
                self.pass(item, &object, splices, out)
            }
            EventDecision::Drop => self.keep_columns(item, &object),
            EventDecision::Bookmark => self.put_bookmark(item, &object, out),
            EventDecision::Tombstone => self.put_tombstone(item, &object, out),
        }
    }

    fn read_event<'a>(&mut self, item: &'a [u8]) -> Result<Event<'a>, FilterError> {
        let mut reader = Reader::new(item, &mut self.skipper);
        let Some(mut entries) = reader.enter_map()? else {
            return Err(malformed("an event that is no map", 0));
        };
        let mut event = Event::default();
        while let Some(key) = reader.next_key(&mut entries)? {
            if is_look_alike(key.as_bytes()) {
                return Err(reader.malformed(LOOK_ALIKE));
            }
            let start = reader.position();
            match &*key {
                "type" => {
                    event.type_name = reader.string()?;
                    event.type_range = start..reader.position();
                }
                "object" => {
                    reader.skip_item()?;
                    event.object = Some(start);
                }
                _ => reader.skip_item()?,
            }
        }
        Ok(event)
    }

    /// The object that starts at `start`; `None` if the value is no map.
    fn read_object<'a>(&mut self, item: &'a [u8], start: usize) -> Result<Option<Object<'a>>, FilterError> {
        let mut reader = Reader::at(item, start, &mut self.skipper);
        let Some(mut entries) = reader.enter_map()? else {
            return Ok(None);
        };
        let mut object = Object::default();
        let mut has_look_alike = false;
        while let Some(key) = reader.next_key(&mut entries)? {
            has_look_alike |= is_look_alike(key.as_bytes());
            let start = reader.position();
            match &*key {
                "kind" => object.kind = reader.string_or_null()?,
                "apiVersion" => object.api_version = reader.string_or_null()?,
                "metadata" => {
                    reader.skip_item()?;
                    object.metadata = Some(start);
                }
                "rows" => {
                    reader.skip_item()?;
                    object.rows = Some(start);
                }
                "columnDefinitions" => {
                    reader.skip_item()?;
                    object.columns = Some(start..reader.position());
                }
                _ => reader.skip_item()?,
            }
        }
        if has_look_alike && object.is_table() {
            return Err(malformed(LOOK_ALIKE, start));
        }
        Ok(Some(object))
    }

    fn decide_object(
        &mut self,
        item: &[u8],
        object: &Object<'_>,
        event_type: EventType,
        decide: &mut DecideEvent<'_>,
    ) -> Result<EventDecision, FilterError> {
        let start = object.metadata.ok_or(FilterError::NoMetadata)?;
        let metadata = Reader::at(item, start, &mut self.skipper).metadata(self.fields)?;
        let metadata = metadata.ok_or(FilterError::NoMetadata)?;
        Ok(decide(event_type, &metadata))
    }

    /// The decision on a table, which must be the same for all its rows. Servers send one row.
    fn decide_rows(
        &mut self,
        item: &[u8],
        table: &Object<'_>,
        event_type: EventType,
        decide: &mut DecideEvent<'_>,
    ) -> Result<EventDecision, FilterError> {
        let start = table.rows.ok_or(FilterError::NoMetadata)?;
        let mut reader = Reader::at(item, start, &mut self.skipper);
        let mut rows = reader.enter_array()?.ok_or(FilterError::NoMetadata)?;
        let mut common = RowsDecision::new(event_type);
        while reader.has_next_element(&mut rows) {
            let metadata = reader.row_metadata(self.fields)?;
            if !common.add(decide(event_type, &metadata.ok_or(FilterError::NoMetadata)?)) {
                return Err(reader.malformed("a table whose rows are not kept alike"));
            }
        }
        common.finish()
    }

    /// Refuses a bookmark with an object in it, which would pass without a decision. Those of API servers have a
    /// resource version and annotations, in a table in its row.
    fn pass_bookmark(&mut self, item: &[u8], event: &Event<'_>, out: &mut Vec<u8>) -> Result<(), FilterError> {
        let mut object = Object::default();
        if let Some(start) = event.object {
            object = self.read_object(item, start)?.ok_or(FilterError::NoMetadata)?;
            let has_name = match object.rows.filter(|_| object.is_table()) {
                Some(rows) => self.has_named_row(item, rows)?,
                None => {
                    let start = object.metadata.ok_or(FilterError::NoMetadata)?;
                    let metadata = Reader::at(item, start, &mut self.skipper).metadata(NAME_FIELD)?;
                    !metadata.ok_or(FilterError::NoMetadata)?.name.is_empty()
                }
            };
            if has_name {
                return Err(malformed("a bookmark with the name of an object", start));
            }
        }
        self.pass(item, &object, Vec::new(), out)
    }

    /// Whether an object in a row of the array at `start` has a name.
    fn has_named_row(&mut self, item: &[u8], start: usize) -> Result<bool, FilterError> {
        let mut reader = Reader::at(item, start, &mut self.skipper);
        if reader.take_null()? {
            return Ok(false);
        }
        let mut rows = reader.enter_array()?.ok_or(FilterError::NoMetadata)?;
        while reader.has_next_element(&mut rows) {
            let metadata = reader.row_metadata(NAME_FIELD)?;
            if !metadata.ok_or(FilterError::NoMetadata)?.name.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Refuses an error with another object than a `Status` of `v1`, which would pass without a decision.
    fn pass_error(&mut self, item: &[u8], event: &Event<'_>, out: &mut Vec<u8>) -> Result<(), FilterError> {
        if let Some(start) = event.object {
            let object = self.read_object(item, start)?;
            if object.is_none_or(|object| object.kind != "Status" || object.api_version != "v1") {
                return Err(malformed("an error whose object is no Status", start));
            }
        }
        out.extend_from_slice(item);
        Ok(())
    }

    /// Writes an event, with the column definitions that the client has not got yet if it is a table without any.
    fn pass(
        &mut self,
        item: &[u8],
        object: &Object<'_>,
        mut splices: Vec<Splice<'static>>,
        out: &mut Vec<u8>,
    ) -> Result<(), FilterError> {
        if object.is_table()
            && let Some(range) = object.columns.clone()
            && let Some(columns) = self.columns.take()
            && self.is_empty_array(item, range.start)?
        {
            splices.push(Splice {
                range,
                with: Cow::Owned(columns),
            });
        }
        put_spliced(out, item, splices);
        Ok(())
    }

    /// The entries that are left out of the object that starts at `start`, or of the objects in the rows of a table.
    fn find_dropped(
        &mut self,
        item: &[u8],
        start: usize,
        object: &Object<'_>,
    ) -> Result<Vec<Splice<'static>>, FilterError> {
        let mut splices = Vec::new();
        if self.dropped.is_empty() {
            return Ok(splices);
        }
        let keys = self.dropped.object_keys();
        let Some(rows) = object.rows.filter(|_| object.is_table()) else {
            Reader::at(item, start, &mut self.skipper).find_dropped(keys, &mut splices)?;
            return Ok(splices);
        };
        let mut reader = Reader::at(item, rows, &mut self.skipper);
        if let Some(mut elements) = reader.enter_array()? {
            while reader.has_next_element(&mut elements) {
                reader.find_dropped_in_row(keys, &mut splices)?;
            }
        }
        Ok(splices)
    }

    /// Keeps the column definitions of a table that is dropped for the next one that passes.
    fn keep_columns(&mut self, item: &[u8], object: &Object<'_>) -> Result<(), FilterError> {
        let Some(range) = object.columns.clone().filter(|_| object.is_table()) else {
            return Ok(());
        };
        if self.is_empty_array(item, range.start)? {
            return Ok(());
        }
        let columns = item.get(range).unwrap_or_default();
        if columns.len() > MAX_BUFFERED_BYTES {
            return Err(malformed("column definitions of more than 64 KiB", 0));
        }
        self.columns = Some(columns.to_vec());
        Ok(())
    }

    /// Whether the value at `start` is null or an array without elements.
    fn is_empty_array(&mut self, item: &[u8], start: usize) -> Result<bool, FilterError> {
        let (head, length) = Reader::at(item, start, &mut self.skipper).peek_head()?;
        let next_byte = item.get(start.saturating_add(length));
        let is_empty = match head.count() {
            Some(count) => count == 0,
            None => next_byte == Some(&BREAK),
        };
        Ok(head.is_null() || head.major == ARRAY && is_empty)
    }

    /// The value of `type` for another type, as the kind of string that the event has.
    fn encode_type(&mut self, item: &[u8], event: &Event<'_>, changed_type: EventType) -> Result<Vec<u8>, FilterError> {
        let (head, _) = Reader::at(item, event.type_range.start, &mut self.skipper).peek_head()?;
        let mut value = Vec::new();
        put_string(&mut value, head.major, changed_type.as_str());
        Ok(value)
    }

    /// Writes a bookmark at the resource version of the object, with keys in the order of upstream's encoder. Writes
    /// nothing if the object lacks what a client reads of a bookmark.
    fn put_bookmark(&mut self, item: &[u8], object: &Object<'_>, out: &mut Vec<u8>) -> Result<(), FilterError> {
        let start = object.metadata.ok_or(FilterError::NoMetadata)?;
        let fields = MetadataFields {
            resource_version: true,
            ..MetadataFields::default()
        };
        let metadata = Reader::at(item, start, &mut self.skipper).metadata(fields)?;
        let resource_version = metadata.ok_or(FilterError::NoMetadata)?.resource_version;
        if resource_version.is_empty() || object.kind.is_empty() || object.api_version.is_empty() {
            return Ok(());
        }
        put_event(out, "BOOKMARK", object, &[("resourceVersion", &*resource_version)]);
        Ok(())
    }

    /// Writes a DELETED event with what tells which object it was. Writes nothing if the object has no name.
    fn put_tombstone(&mut self, item: &[u8], object: &Object<'_>, out: &mut Vec<u8>) -> Result<(), FilterError> {
        let start = object.metadata.ok_or(FilterError::NoMetadata)?;
        let metadata = Reader::at(item, start, &mut self.skipper).metadata(TOMBSTONE_FIELDS)?;
        let metadata = metadata.ok_or(FilterError::NoMetadata)?;
        if metadata.name.is_empty() {
            return Ok(());
        }
        let texts = [
            ("uid", &*metadata.uid),
            ("name", &*metadata.name),
            ("namespace", &*metadata.namespace),
            ("resourceVersion", &*metadata.resource_version),
        ];
        put_event(out, EventType::Deleted.as_str(), object, &texts);
        Ok(())
    }
}

/// Writes an event with the object's kind and API version, and with these texts as its metadata. All keys are in the
/// order of upstream's encoder, as are those of `metadata` already. Empty texts are left out.
fn put_event(out: &mut Vec<u8>, type_name: &str, object: &Object<'_>, metadata: &[(&str, &str)]) {
    let kind = [("kind", &*object.kind)];
    let api_version = [("apiVersion", &*object.api_version)];
    out.extend_from_slice(SELF_DESCRIBED);
    put_head(out, MAP, 2);
    put_texts(out, &[("type", type_name)]);
    put_string(out, BYTES, "object");
    out.extend_from_slice(SELF_DESCRIBED);
    put_head(out, MAP, 1 + count_texts(&kind) + count_texts(&api_version));
    put_texts(out, &kind);
    put_string(out, BYTES, "metadata");
    put_head(out, MAP, count_texts(metadata));
    put_texts(out, metadata);
    put_texts(out, &api_version);
}

/// Number of entries that [`put_texts`] writes.
fn count_texts(texts: &[(&str, &str)]) -> u64 {
    texts.iter().filter(|(_, text)| !text.is_empty()).count() as u64
}

/// Writes entries of a map. Empty texts are left out.
fn put_texts(out: &mut Vec<u8>, texts: &[(&str, &str)]) {
    for (key, text) in texts.iter().filter(|(_, text)| !text.is_empty()) {
        put_string(out, BYTES, key);
        put_string(out, BYTES, text);
    }
}
