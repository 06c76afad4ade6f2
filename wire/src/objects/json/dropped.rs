//! Finds the members that are left out of a kept object.

use super::item::{Cursor, Members};
use super::text::key_bytes;
use crate::objects::FilterError;
use crate::objects::dropped_fields::{DroppedFields, DroppedKeys, DroppedValue};
use crate::objects::splice::Splice;

/// Where [`find_dropped`] has to begin for an object whose value begins at `object_start`: at its metadata if no other
/// field is dropped, so that the others are not read again.
pub(super) fn search_start(
    object: &Members<'_, '_>,
    object_start: usize,
    dropped: &DroppedFields,
) -> Result<usize, FilterError> {
    if dropped.metadata_keys().is_none() {
        return Ok(object_start);
    }
    let metadata = object.only_member("metadata")?.ok_or(FilterError::NoMetadata)?;
    Ok(object.value(metadata).range.start)
}

/// [`search_start`] for the object in a row of a table.
pub(super) fn row_search_start(row: &Members<'_, '_>, dropped: &DroppedFields) -> Result<usize, FilterError> {
    let object = row.only_member("object")?.ok_or(FilterError::NoMetadata)?;
    search_start(&row.inside(object), row.value(object).range.start, dropped)
}

/// Adds the members that are left out, from where [`search_start`] says. Members with the same key leave together.
pub(super) fn find_dropped(
    text: &[u8],
    start: usize,
    dropped: &DroppedFields,
    splices: &mut Vec<Splice<'_>>,
) -> Result<(), FilterError> {
    let keys = dropped.metadata_keys().unwrap_or(dropped.object_keys());
    find_in_object(&mut Cursor::at(text, start), keys, splices)
}

/// Steps through an object. A comma leaves with each member: that before it, or that behind it if no member before it
/// stays. So does the white space in between.
fn find_in_object(
    cursor: &mut Cursor<'_>,
    dropped: &DroppedKeys,
    splices: &mut Vec<Splice<'_>>,
) -> Result<(), FilterError> {
    cursor.expect_byte(b'{')?;
    if cursor.take_byte(b'}') {
        return Ok(());
    }
    let mut has_kept = false;
    let mut end_before = 0;
    loop {
        let start = cursor.next_position();
        let is_dropped = find_in_member(cursor, dropped, splices)?;
        let end = cursor.position();
        let has_next = cursor.take_byte(b',');
        if is_dropped {
            splices.push(Splice::removal(match (has_kept, has_next) {
                (true, _) => end_before..end,
                (false, true) => start..cursor.next_position(),
                (false, false) => start..end,
            }));
        }
        if !has_next {
            return cursor.expect_byte(b'}');
        }
        has_kept |= !is_dropped;
        end_before = end;
    }
}

/// Steps over a member. True if it is left out.
fn find_in_member(
    cursor: &mut Cursor<'_>,
    dropped: &DroppedKeys,
    splices: &mut Vec<Splice<'_>>,
) -> Result<bool, FilterError> {
    let key = key_bytes(cursor.take_value()?);
    cursor.expect_byte(b':')?;
    match std::str::from_utf8(&key).ok().and_then(|key| dropped.get(key)) {
        Some(DroppedValue::Parts(parts)) if cursor.next_byte() == Some(b'{') => {
            find_in_object(cursor, parts, splices)?;
            Ok(false)
        }
        found => {
            cursor.take_value()?;
            Ok(matches!(found, Some(DroppedValue::Whole)))
        }
    }
}

#[cfg(test)]
mod tests;
