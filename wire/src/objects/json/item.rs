//! Reads the metadata of one object whose members the scanner has noted.

use std::borrow::Cow;
use std::mem;
use std::ops::Range;

use super::malformed;
use super::scanner::{Level, Member, Noted, Path, Scanner};
use super::text::{decode, decode_nullable, is_text, key_bytes, without_quotes};
use crate::objects::keys::is_look_alike;
use crate::objects::limits::MAX_PAIRS;
use crate::objects::{Controller, FilterError, MetadataFields, ObjectMetadata, TextPairs};

/// The noted members of one object.
#[derive(Debug)]
pub(super) struct Members<'a, 'm> {
    text: &'a [u8],
    noted: &'m [Member],
    depth: usize,
    range: Range<usize>,
}

/// The value of a member.
#[derive(Debug)]
pub(super) struct Value<'a> {
    /// The value without white space around it.
    pub(super) raw: &'a [u8],
    /// Where the value is in the scanned text.
    pub(super) range: Range<usize>,
}

impl<'a, 'm> Members<'a, 'm> {
    /// The members of the scanned object itself.
    pub(super) fn of_text(text: &'a [u8], noted: &'m [Member]) -> Self {
        Self {
            text,
            noted,
            depth: 1,
            range: 0..text.len(),
        }
    }

    /// The members of the object that is the value of a member.
    pub(super) fn inside(&self, member: &Member) -> Self {
        Self {
            text: self.text,
            noted: self.noted,
            depth: self.depth + 1,
            range: member.tail.clone(),
        }
    }

    /// The scanned text.
    pub(super) const fn text(&self) -> &'a [u8] {
        self.text
    }

    /// The member with this key. Two are an error, because decoders differ in which of them counts, and in whether they
    /// merge their values.
    pub(super) fn only_member(&self, name: &str) -> Result<Option<&'m Member>, FilterError> {
        let mut found = None;
        for member in self.iter().filter(|member| is_text(self.raw_key(member), name)) {
            if found.replace(member).is_some() {
                return Err(malformed("a key that occurs twice", member.key.start));
            }
        }
        Ok(found)
    }

    /// The value of the only member with this key.
    pub(super) fn only_value(&self, name: &str) -> Result<Option<Value<'a>>, FilterError> {
        Ok(self.only_member(name)?.map(|member| self.value(member)))
    }

    /// Fails if a decoder could take a key for a known one that it does not equal.
    pub(super) fn refuse_look_alikes(&self) -> Result<(), FilterError> {
        let is_refused = |member: &&Member| is_look_alike(without_quotes(self.raw_key(member)).unwrap_or_default());
        match self.iter().find(is_refused) {
            Some(member) => Err(malformed("a key that looks like another one", member.key.start)),
            None => Ok(()),
        }
    }

    pub(super) fn value(&self, member: &Member) -> Value<'a> {
        let tail = self
            .text
            .get(member.tail.clone())
            .unwrap_or_default()
            .trim_ascii_start();
        let raw = tail.strip_prefix(b":").unwrap_or(tail).trim_ascii_start();
        Value {
            raw,
            range: member.tail.end.saturating_sub(raw.len())..member.tail.end,
        }
    }

    fn iter(&self) -> impl Iterator<Item = &'m Member> {
        let (depth, range) = (self.depth, self.range.clone());
        let is_here = move |member: &&Member| {
            member.depth == depth && range.start <= member.key.start && member.tail.end <= range.end
        };
        self.noted.iter().filter(is_here)
    }

    fn raw_key(&self, member: &Member) -> &'a [u8] {
        self.text.get(member.key.clone()).unwrap_or_default()
    }
}

/// The members that have to be noted for [`read_metadata`].
pub(super) const OBJECT_PATH: Path = &[Level {
    name: "metadata",
    noted: Noted::Names(&["metadata"]),
}];

/// The members that have to be noted for [`read_row`].
pub(super) const ROW_PATH: Path = &[
    Level {
        name: "object",
        noted: Noted::Names(&["object"]),
    },
    Level {
        name: "metadata",
        noted: Noted::Names(&["metadata"]),
    },
];

/// The metadata of an object.
pub(super) fn read_metadata<'a>(
    object: &Members<'a, '_>,
    fields: MetadataFields,
) -> Result<ObjectMetadata<'a>, FilterError> {
    let metadata = object.only_member("metadata")?.ok_or(FilterError::NoMetadata)?;
    if !object.value(metadata).raw.starts_with(b"{") {
        return Err(FilterError::NoMetadata);
    }
    let metadata = object.inside(metadata);
    let mut reader = MetadataReader {
        fields,
        seen: MetadataFields::default(),
        read: ObjectMetadata::default(),
    };
    for member in metadata.iter() {
        let value = metadata.value(member);
        let outcome = reader.read_member(metadata.raw_key(member), value.raw);
        outcome.map_err(|error| moved_error(error, value.range.start))?;
    }
    Ok(reader.read)
}

/// The metadata of the object in a row of a table.
pub(super) fn read_row<'a>(row: &Members<'a, '_>, fields: MetadataFields) -> Result<ObjectMetadata<'a>, FilterError> {
    let object = row.only_member("object")?.ok_or(FilterError::NoMetadata)?;
    read_metadata(&row.inside(object), fields)
}

struct MetadataReader<'a> {
    fields: MetadataFields,
    seen: MetadataFields,
    read: ObjectMetadata<'a>,
}

impl<'a> MetadataReader<'a> {
    /// Reads a member of metadata. One that occurs twice is an error: of two texts most decoders take the last one, and
    /// some the first one.
    fn read_member(&mut self, raw_key: &'a [u8], raw: &'a [u8]) -> Result<(), FilterError> {
        let (fields, seen, read) = (self.fields, &mut self.seen, &mut self.read);
        match &*key_bytes(raw_key) {
            b"namespace" if fields.namespace => read.namespace = read_text(raw, &mut seen.namespace)?,
            b"name" if fields.name => read.name = read_text(raw, &mut seen.name)?,
            b"uid" if fields.uid => read.uid = read_text(raw, &mut seen.uid)?,
            b"resourceVersion" if fields.resource_version => {
                read.resource_version = read_text(raw, &mut seen.resource_version)?;
            }
            b"labels" if fields.labels => read.labels = read_texts(raw, &mut seen.labels)?,
            b"annotations" if fields.annotations => read.annotations = read_texts(raw, &mut seen.annotations)?,
            b"ownerReferences" if fields.controller => read.controller = read_controller(raw, &mut seen.controller)?,
            _ => {}
        }
        Ok(())
    }
}

/// Marks a field as seen. Fails if it was seen before.
fn mark_seen(is_seen: &mut bool) -> Result<(), FilterError> {
    if mem::replace(is_seen, true) {
        return Err(malformed("a field of metadata that occurs twice", 0));
    }
    Ok(())
}

fn read_text<'a>(raw: &'a [u8], is_seen: &mut bool) -> Result<Cow<'a, str>, FilterError> {
    mark_seen(is_seen)?;
    decode_nullable(raw)
}

fn read_texts<'a>(raw: &'a [u8], is_seen: &mut bool) -> Result<TextPairs<'a>, FilterError> {
    let mut texts = Vec::new();
    mark_seen(is_seen)?;
    if raw != b"null" {
        visit_members(raw, |key, value| {
            if texts.len() == MAX_PAIRS {
                return Err(FilterError::TooLarge);
            }
            texts.push((decode(key)?, decode_nullable(value)?));
            Ok(())
        })?;
    }
    Ok(texts)
}

/// The first owner that controls the object.
fn read_controller<'a>(raw: &'a [u8], is_seen: &mut bool) -> Result<Option<Controller<'a>>, FilterError> {
    let mut controller = None;
    mark_seen(is_seen)?;
    if raw != b"null" {
        visit_elements(raw, |reference, _| {
            if controller.is_none() {
                controller = read_owner(reference)?;
            }
            Ok(())
        })?;
    }
    Ok(controller)
}

/// The owner, if it controls the object.
fn read_owner(reference: &[u8]) -> Result<Option<Controller<'_>>, FilterError> {
    let mut owner = Controller::default();
    let mut is_controller = false;
    let [mut api_version, mut kind, mut name, mut uid, mut controller] = [false; 5];
    visit_members(reference, |key, value| {
        match &*key_bytes(key) {
            b"apiVersion" => owner.api_version = read_text(value, &mut api_version)?,
            b"kind" => owner.kind = read_text(value, &mut kind)?,
            b"name" => owner.name = read_text(value, &mut name)?,
            b"uid" => owner.uid = read_text(value, &mut uid)?,
            b"controller" => {
                mark_seen(&mut controller)?;
                is_controller = value == b"true";
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(is_controller.then_some(owner))
}

/// Calls `visit` with the raw key and the raw value of each member.
fn visit_members<'a>(
    object: &'a [u8],
    mut visit: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    let mut cursor = Cursor::new(object);
    cursor.expect_byte(b'{')?;
    if cursor.take_byte(b'}') {
        return Ok(());
    }
    loop {
        let key = cursor.take_value()?;
        cursor.expect_byte(b':')?;
        let value = cursor.take_value()?;
        visit(key, value)?;
        if cursor.take_byte(b'}') {
            return Ok(());
        }
        cursor.expect_byte(b',')?;
    }
}

/// Calls `visit` with each raw element, and its position in the array.
pub(super) fn visit_elements<'a>(
    array: &'a [u8],
    mut visit: impl FnMut(&'a [u8], usize) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    let mut cursor = Cursor::new(array);
    cursor.expect_byte(b'[')?;
    if cursor.take_byte(b']') {
        return Ok(());
    }
    loop {
        let start = cursor.next_position();
        visit(cursor.take_value()?, start)?;
        if cursor.take_byte(b']') {
            return Ok(());
        }
        cursor.expect_byte(b',')?;
    }
}

/// A cursor in a value whose structure has been checked.
pub(super) struct Cursor<'a> {
    text: &'a [u8],
    position: usize,
    scanner: Scanner,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self::at(text, 0)
    }

    /// A cursor at a value within the text.
    pub(super) fn at(text: &'a [u8], position: usize) -> Self {
        Self {
            text,
            position,
            scanner: Scanner::default(),
        }
    }

    /// Number of bytes before the cursor.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// The position of the next byte that is no white space.
    pub(super) fn next_position(&mut self) -> usize {
        self.skip_space();
        self.position
    }

    /// The next byte that is no white space.
    pub(super) fn next_byte(&mut self) -> Option<u8> {
        self.skip_space();
        self.text.get(self.position).copied()
    }

    pub(super) fn take_value(&mut self) -> Result<&'a [u8], FilterError> {
        self.skip_space();
        let rest = self.text.get(self.position..).unwrap_or_default();
        self.scanner.restart(None);
        let end = self
            .scanner
            .scan(rest)
            .map_err(|error| moved_error(error, self.position))?;
        // Only a literal at the end of the text has no end of its own.
        let value = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        self.position += value.len();
        Ok(value)
    }

    pub(super) fn take_byte(&mut self, byte: u8) -> bool {
        let is_there = self.next_byte() == Some(byte);
        self.position += usize::from(is_there);
        is_there
    }

    pub(super) fn expect_byte(&mut self, byte: u8) -> Result<(), FilterError> {
        if self.take_byte(byte) {
            Ok(())
        } else {
            Err(malformed("a value of an unexpected type", self.position))
        }
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.text.get(self.position) {
            self.position += 1;
        }
    }
}

/// The error of a value that begins at `start`.
pub(super) fn moved_error(error: FilterError, start: usize) -> FilterError {
    match error {
        FilterError::Malformed { problem, position, .. } => malformed(problem, position.saturating_add(start)),
        other => other,
    }
}

#[cfg(test)]
mod tests;
