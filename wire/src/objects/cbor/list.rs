//! Leaves out objects of a list, and rows of a table, as the bytes come in.

use std::collections::HashSet;

use super::head::{ARRAY, BREAK, HeadReader, INDEFINITE_ARRAY, MAP, malformed};
use super::metadata::{read_continue_token, without_list_counts};
use super::reader::Reader;
use super::scanner::{ItemCollector, ItemScanner};
use crate::objects::dropped_fields::DroppedFields;
use crate::objects::keys::is_look_alike;
use crate::objects::limits::{MAX_BATCH, MAX_BUFFERED_BYTES, MAX_OBJECT_BYTES};
use crate::objects::splice::put_spliced;
use crate::objects::{DecideObjects, FilterError, MetadataFields, ObjectMetadata, STATUS_MEMBERS};

/// Leaves out objects of a list, or rows of a table, in CBOR. Takes the body in chunks of any size. Buffers at most
/// one unfinished object of [`MAX_OBJECT_BYTES`], and 64 KiB of the rest.
///
/// The array of objects gets an indefinite length, because its head is passed before the number of objects is known.
/// A `Status` of `v1` passes as it is, unless it has members that no `Status` has.
#[derive(Debug)]
pub struct CborListFilter {
    fields: MetadataFields,
    dropped: DroppedFields,
    stage: Stage,
    /// Entries of the outermost map that are still to come; `None` if it has an indefinite length.
    entries_left: Option<u64>,
    keys: HashSet<String>,
    key_bytes: usize,
    is_list: bool,
    /// The kind is `Status`, which custom resources can have too.
    is_status: bool,
    /// The API version is `v1`.
    is_core: bool,
    /// Everything before `items` or `rows`.
    buffered: Vec<u8>,
    /// Empty if the list's metadata have none, or have not come yet.
    continue_token: String,
    head: HeadReader,
    /// Finds the end of values that are passed.
    passing: ItemScanner,
    collector: ItemCollector,
    skipper: ItemScanner,
    failure: Option<FilterError>,
}

/// The part of the body that comes next.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Tags, and the head of the outermost map.
    Start,
    Key,
    /// A value that is passed.
    Value,
    Kind,
    ApiVersion,
    ListMetadata,
    ArrayHead(Element),
    Elements {
        element: Element,
        /// `None` if the array has an indefinite length.
        left: Option<u64>,
    },
    End,
}

#[derive(Debug, Clone, Copy)]
enum Element {
    Object,
    Row,
}

impl CborListFilter {
    /// `fields` are those that the decision reads.
    #[must_use]
    pub fn new(fields: MetadataFields) -> Self {
        Self {
            fields,
            dropped: DroppedFields::default(),
            stage: Stage::Start,
            entries_left: None,
            keys: HashSet::new(),
            key_bytes: 0,
            is_list: false,
            is_status: false,
            is_core: false,
            buffered: Vec::new(),
            continue_token: String::new(),
            head: HeadReader::default(),
            passing: ItemScanner::default(),
            collector: ItemCollector::default(),
            skipper: ItemScanner::default(),
            failure: None,
        }
    }

    /// Leaves these fields out of kept objects.
    #[must_use]
    pub fn with_dropped_fields(self, dropped: DroppedFields) -> Self {
        Self { dropped, ..self }
    }

    /// Takes a chunk, and appends to `out` what the client gets of it.
    ///
    /// # Errors
    /// When the body cannot be filtered. The response has to end then; every later call gives the same error.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideObjects<'_>) -> Result<(), FilterError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let result = self.filter(chunk, out, decide);
        self.failure = result.err();
        result
    }

    /// Ends the body.
    ///
    /// # Errors
    /// When the body is not complete, or could not be filtered.
    pub fn finish(&mut self) -> Result<(), FilterError> {
        match (self.failure, self.stage) {
            (Some(failure), _) => Err(failure),
            (None, Stage::End) => Ok(()),
            (None, _) => Err(FilterError::Unfinished),
        }
    }

    /// The token of the next page (`metadata.continue`); `None` if there is none, or it has not come yet.
    #[must_use]
    pub fn continue_token(&self) -> Option<&str> {
        Some(self.continue_token.as_str()).filter(|token| !token.is_empty())
    }

    fn filter(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideObjects<'_>) -> Result<(), FilterError> {
        let mut rest = chunk;
        while !rest.is_empty() {
            let used = match self.stage {
                Stage::Start => self.read_start(rest, out)?,
                Stage::Key => self.read_key(rest, out)?,
                Stage::Value => self.pass_value(rest, out)?,
                Stage::Kind | Stage::ApiVersion => self.read_type(rest, out)?,
                Stage::ListMetadata => self.edit_list_metadata(rest, out)?,
                Stage::ArrayHead(element) => self.replace_array_head(rest, element, out)?,
                Stage::Elements { element, left } => {
                    let (used, left) = self.filter_elements(rest, element, left, out, decide)?;
                    self.expect_elements(element, left, out)?;
                    used
                }
                Stage::End => return Err(malformed("bytes behind the list", 0)),
            };
            rest = rest.get(used..).unwrap_or_default();
        }
        Ok(())
    }

    fn read_start(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Result<usize, FilterError> {
        let (used, head) = self.head.read(rest).map_err(|problem| malformed(problem, 0))?;
        self.pass(rest.get(..used).unwrap_or_default(), out)?;
        match head {
            None => {}
            Some(head) if head.is_self_described_tag() => {}
            Some(head) if head.major == MAP => {
                self.entries_left = head.count();
                self.expect_key(out)?;
            }
            Some(_) => return Err(FilterError::NotList),
        }
        Ok(used)
    }

    fn read_key(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Result<usize, FilterError> {
        let is_end = self.entries_left.is_none() && !self.collector.is_mid_item() && rest.first() == Some(&BREAK);
        if is_end {
            self.pass(&[BREAK], out)?;
            self.end_map(out)?;
            return Ok(1);
        }
        let (used, key) = self.collect(rest)?;
        let Some(key) = key else {
            return Ok(used);
        };
        let name = Reader::new(&key, &mut self.skipper).string()?;
        if is_look_alike(name.as_bytes()) {
            return Err(malformed("a key that looks like another one", 0));
        }
        self.stage = match &*name {
            "items" => Stage::ArrayHead(Element::Object),
            "rows" => Stage::ArrayHead(Element::Row),
            "metadata" => Stage::ListMetadata,
            "kind" => Stage::Kind,
            "apiVersion" => Stage::ApiVersion,
            _ => Stage::Value,
        };
        self.key_bytes = self.key_bytes.saturating_add(name.len());
        if self.key_bytes > MAX_BUFFERED_BYTES {
            return Err(self.excess());
        }
        if !self.keys.insert(name.into_owned()) {
            return Err(malformed("a key that occurs twice", 0));
        }
        if let Some(left) = &mut self.entries_left {
            *left = left.saturating_sub(1);
        }
        self.pass(&key, out)?;
        Ok(used)
    }

    fn pass_value(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Result<usize, FilterError> {
        let end = self.passing.scan(rest)?;
        let used = end.unwrap_or(rest.len());
        self.pass(rest.get(..used).unwrap_or_default(), out)?;
        if end.is_some() {
            self.expect_key(out)?;
        }
        Ok(used)
    }

    fn read_type(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Result<usize, FilterError> {
        let (used, value) = self.collect(rest)?;
        if let Some(value) = value {
            let text = Reader::new(&value, &mut self.skipper).string_or_null()?;
            if matches!(self.stage, Stage::Kind) {
                self.is_status = text == "Status";
            } else {
                self.is_core = text == "v1";
            }
            self.pass(&value, out)?;
            self.expect_key(out)?;
        }
        Ok(used)
    }

    fn edit_list_metadata(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Result<usize, FilterError> {
        let (used, value) = self.collect(rest)?;
        if let Some(value) = value {
            let edited = without_list_counts(&value, &mut self.skipper)?;
            // A token that cannot be read is none: then the list ends here.
            self.continue_token = read_continue_token(&value, &mut self.skipper).unwrap_or_default();
            self.pass(edited.as_ref().unwrap_or(&value), out)?;
            self.expect_key(out)?;
        }
        Ok(used)
    }

    fn replace_array_head(&mut self, rest: &[u8], element: Element, out: &mut Vec<u8>) -> Result<usize, FilterError> {
        let (used, head) = self.head.read(rest).map_err(|problem| malformed(problem, 0))?;
        let Some(head) = head else {
            return Ok(used);
        };
        if head.major != ARRAY && !head.is_null() {
            return Err(FilterError::NotList);
        }
        self.is_list = true;
        out.append(&mut self.buffered);
        if head.is_null() {
            out.push(head.first_byte());
            self.expect_key(out)?;
        } else {
            out.push(INDEFINITE_ARRAY);
            self.expect_elements(element, head.count(), out)?;
        }
        Ok(used)
    }

    /// Takes elements up to the end of `rest` or of the array, and writes those that are kept. Gives the number of
    /// bytes that were taken, and of elements that are still to come, as in [`Stage::Elements`].
    fn filter_elements(
        &mut self,
        rest: &[u8],
        element: Element,
        mut left: Option<u64>,
        out: &mut Vec<u8>,
        decide: &mut DecideObjects<'_>,
    ) -> Result<(usize, Option<u64>), FilterError> {
        let mut used = 0;
        let is_mid_item = self.collector.is_mid_item();
        if is_mid_item {
            let (taken, item) = self.collector.take(rest, MAX_OBJECT_BYTES, FilterError::TooLarge)?;
            if item.is_none() {
                return Ok((taken, left));
            }
            used = taken;
        }
        let ItemCollector {
            scanner,
            pending,
            completed,
        } = &mut self.collector;
        let mut batch = Batch::new(self.fields, element, &self.dropped, &mut self.skipper);
        if is_mid_item {
            batch.add(completed)?;
            left = left.map(|left| left.saturating_sub(1));
        }
        while left != Some(0) {
            let behind = rest.get(used..).unwrap_or_default();
            match behind.first() {
                None => break,
                Some(&BREAK) if left.is_none() => {
                    used += 1;
                    left = Some(0);
                    break;
                }
                Some(_) => {}
            }
            let end = scanner.scan(behind)?;
            let item = behind.get(..end.unwrap_or(behind.len())).unwrap_or_default();
            if item.len() > MAX_OBJECT_BYTES {
                return Err(FilterError::TooLarge);
            }
            used += item.len();
            if end.is_none() {
                pending.extend_from_slice(item);
                break;
            }
            left = left.map(|left| left.saturating_sub(1));
            batch.add(item)?;
            if batch.items.len() == MAX_BATCH {
                batch.decide(out, decide)?;
            }
        }
        batch.decide(out, decide)?;
        Ok((used, left))
    }

    /// Goes on in the array, or behind it if no element is left.
    fn expect_elements(&mut self, element: Element, left: Option<u64>, out: &mut Vec<u8>) -> Result<(), FilterError> {
        self.stage = Stage::Elements { element, left };
        if left == Some(0) {
            out.push(BREAK);
            self.expect_key(out)?;
        }
        Ok(())
    }

    /// Goes on in the outermost map, or behind it if no entry is left.
    fn expect_key(&mut self, out: &mut Vec<u8>) -> Result<(), FilterError> {
        self.stage = Stage::Key;
        if self.entries_left == Some(0) {
            self.end_map(out)?;
        }
        Ok(())
    }

    fn end_map(&mut self, out: &mut Vec<u8>) -> Result<(), FilterError> {
        self.stage = Stage::End;
        // Other objects may claim to be a Status.
        let mut keys = self.keys.iter();
        let is_status = self.is_status && self.is_core && keys.all(|key| STATUS_MEMBERS.contains(&key.as_str()));
        if !self.is_list && !is_status {
            return Err(FilterError::NotList);
        }
        out.append(&mut self.buffered);
        Ok(())
    }

    /// Writes bytes, or buffers them until the body is known to be a list.
    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        if self.is_list {
            out.extend_from_slice(bytes);
            return Ok(());
        }
        if bytes.len() > MAX_BUFFERED_BYTES.saturating_sub(self.buffered.len()) {
            return Err(FilterError::NotList);
        }
        self.buffered.extend_from_slice(bytes);
        Ok(())
    }

    /// Collects a key or a value of the outermost map. They are few and small, so that copies of them cost nothing.
    fn collect(&mut self, rest: &[u8]) -> Result<(usize, Option<Vec<u8>>), FilterError> {
        let excess = self.excess();
        let (used, item) = self.collector.take(rest, MAX_BUFFERED_BYTES, excess)?;
        Ok((used, item.map(<[u8]>::to_vec)))
    }

    /// Why keys, a type or metadata of more than [`MAX_BUFFERED_BYTES`] end the response.
    const fn excess(&self) -> FilterError {
        if self.is_list {
            malformed("keys, a type or a list's metadata of more than 64 KiB", 0)
        } else {
            FilterError::NotList
        }
    }
}

/// Elements that became complete in one chunk.
struct Batch<'a, 's> {
    fields: MetadataFields,
    element: Element,
    dropped: &'s DroppedFields,
    skipper: &'s mut ItemScanner,
    items: Vec<&'a [u8]>,
    metadata: Vec<ObjectMetadata<'a>>,
    kept: Vec<bool>,
}

impl<'a, 's> Batch<'a, 's> {
    const fn new(
        fields: MetadataFields,
        element: Element,
        dropped: &'s DroppedFields,
        skipper: &'s mut ItemScanner,
    ) -> Self {
        Self {
            fields,
            element,
            dropped,
            skipper,
            items: Vec::new(),
            metadata: Vec::new(),
            kept: Vec::new(),
        }
    }

    fn add(&mut self, item: &'a [u8]) -> Result<(), FilterError> {
        let mut reader = Reader::new(item, self.skipper);
        let metadata = match self.element {
            Element::Object => reader.object_metadata(self.fields)?,
            Element::Row => reader.row_metadata(self.fields)?,
        };
        self.metadata.push(metadata.ok_or(FilterError::NoMetadata)?);
        self.items.push(item);
        Ok(())
    }

    /// Writes the elements that are kept, and empties the batch.
    fn decide(&mut self, out: &mut Vec<u8>, decide: &mut DecideObjects<'_>) -> Result<(), FilterError> {
        if self.items.is_empty() {
            return Ok(());
        }
        self.kept.clear();
        self.kept.resize(self.items.len(), true);
        decide(&self.metadata, &mut self.kept);
        for (item, _) in self.items.iter().zip(&self.kept).filter(|(_, is_kept)| **is_kept) {
            let mut splices = Vec::new();
            if !self.dropped.is_empty() {
                let (mut reader, keys) = (Reader::new(item, self.skipper), self.dropped.object_keys());
                match self.element {
                    Element::Object => reader.find_dropped(keys, &mut splices)?,
                    Element::Row => reader.find_dropped_in_row(keys, &mut splices)?,
                }
            }
            put_spliced(out, item, splices);
        }
        self.items.clear();
        self.metadata.clear();
        Ok(())
    }
}
