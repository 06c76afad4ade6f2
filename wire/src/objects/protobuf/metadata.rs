//! The metadata of an object: its field 1, which is an `ObjectMeta` in all types of the API (apimachinery
//! `pkg/apis/meta/v1/generated.proto`).

use std::borrow::Cow;

use super::{PlacedField, malformed, placed_fields};
use crate::objects::limits::MAX_PAIRS;
use crate::objects::{Controller, FilterError, MetadataFields, ObjectMetadata, TextPairs};

/// A key and its value in a map.
type Entry<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Reads the requested fields of an object that begins at `start`.
///
/// The last occurrence of a field counts for upstream's decoders, so the message is read to its end. They merge an
/// `ObjectMeta` that occurs twice, which is refused here.
pub(super) fn read_metadata(
    object: &[u8],
    start: usize,
    requested: MetadataFields,
) -> Result<ObjectMetadata<'_>, FilterError> {
    let mut found: Option<PlacedField<'_>> = None;
    for field in placed_fields(object, start) {
        let field = field?;
        if field.field.number != 1 {
            continue;
        }
        let position = field.start;
        if found.replace(field).is_some() {
            return Err(malformed("an object with two metadata", position));
        }
    }
    let metadata = found.ok_or(FilterError::NoMetadata)?;
    read_object_meta(metadata.content()?, metadata.content_start(), requested)
}

fn read_object_meta(
    message: &[u8],
    start: usize,
    requested: MetadataFields,
) -> Result<ObjectMetadata<'_>, FilterError> {
    let mut read = ObjectMetadata::default();
    for field in placed_fields(message, start) {
        let field = field?;
        match field.field.number {
            1 if requested.name => read.name = field.lossy_text()?,
            3 if requested.namespace => read.namespace = field.lossy_text()?,
            5 if requested.uid => read.uid = field.lossy_text()?,
            6 if requested.resource_version => read.resource_version = field.lossy_text()?,
            11 if requested.labels => push_entry(&mut read.labels, &field)?,
            12 if requested.annotations => push_entry(&mut read.annotations, &field)?,
            13 if requested.controller && read.controller.is_none() => read.controller = read_controller(&field)?,
            1 | 3 | 5 | 6 | 11 | 12 | 13 => {
                field.content()?;
            }
            _ => {}
        }
    }
    Ok(read)
}

fn push_entry<'a>(pairs: &mut TextPairs<'a>, entry: &PlacedField<'a>) -> Result<(), FilterError> {
    if pairs.len() == MAX_PAIRS {
        return Err(FilterError::TooLarge);
    }
    pairs.push(read_entry(entry)?);
    Ok(())
}

pub(super) fn read_entry<'a>(entry: &PlacedField<'a>) -> Result<Entry<'a>, FilterError> {
    let (mut key, mut value) = (Cow::Borrowed(""), Cow::Borrowed(""));
    for field in placed_fields(entry.content()?, entry.content_start()) {
        let field = field?;
        match field.field.number {
            1 => key = field.lossy_text()?,
            2 => value = field.lossy_text()?,
            _ => {}
        }
    }
    Ok((key, value))
}

/// The owner in an `OwnerReference`, if it is the controller.
fn read_controller<'a>(reference: &PlacedField<'a>) -> Result<Option<Controller<'a>>, FilterError> {
    let mut owner = Controller::default();
    let mut is_controller = false;
    for field in placed_fields(reference.content()?, reference.content_start()) {
        let field = field?;
        match field.field.number {
            1 => owner.kind = field.lossy_text()?,
            3 => owner.name = field.lossy_text()?,
            4 => owner.uid = field.lossy_text()?,
            5 => owner.api_version = field.lossy_text()?,
            6 => is_controller = field.flag()?,
            _ => {}
        }
    }
    Ok(is_controller.then_some(owner))
}

#[cfg(test)]
mod tests;
