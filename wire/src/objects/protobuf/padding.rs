//! Fields without meaning, which take the place of others in a list: its length was sent before.

use super::{PlacedField, placed_fields, wrong_wire_type};
use crate::objects::FilterError;
use crate::protobuf::put_head;

/// Field of the padding, which no list type and no `ListMeta` has.
pub(super) const PADDING_FIELD: u32 = 15;

/// Tags of the padding: length-delimited, and a number.
const PADDING_TAG: u8 = 15 << 3 | 2;
const PADDING_NUMBER_TAG: u8 = 15 << 3;

/// Tags in a `ListMeta`.
const REMAINING_ITEM_COUNT_TAG: u8 = 4 << 3;
const SHARD_INFO_TAG: u8 = 5 << 3 | 2;

/// Appends a length-delimited field of zeros that is as long as a field with a tag of one byte.
pub(super) fn put_padding(out: &mut Vec<u8>, whole: &[u8], head: usize) {
    out.push(PADDING_TAG);
    out.extend_from_slice(whole.get(1..head).unwrap_or_default());
    out.resize(out.len() + whole.len().saturating_sub(head), 0);
}

/// Appends length-delimited fields of zeros that take this many bytes together. One byte is too few for a field, and
/// gives none.
pub(super) fn put_gap(out: &mut Vec<u8>, length: usize) {
    let mut left = length;
    while left > 1 {
        // No field in its shortest form has some lengths, such as 130: the number before its content becomes longer at
        // 128 bytes. A field without content goes before one that is shorter then.
        let content = gap_content(left).unwrap_or(0);
        let start = out.len();
        put_head(out, PADDING_FIELD, content);
        out.resize(out.len() + content, 0);
        left = left.saturating_sub(out.len() - start);
    }
}

/// The length of the content of a padding field that takes this many bytes, if there is one.
fn gap_content(length: usize) -> Option<usize> {
    let mut contents = (2..=11).filter_map(|head| length.checked_sub(head));
    contents.find(|content| 1 + number_length(*content) + content == length)
}

/// Number of bytes that a number takes in its shortest form.
fn number_length(number: usize) -> usize {
    let bits = usize::BITS - (number | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Appends a `ListMeta` without what is wrong for a part of the list.
pub(super) fn put_list_meta(out: &mut Vec<u8>, whole: &[u8], head: usize) -> Result<(), FilterError> {
    let (before, list_meta) = whole.split_at_checked(head).unwrap_or((whole, &[]));
    out.extend_from_slice(before);
    for field in placed_fields(list_meta, 0) {
        let field = field?;
        match field.field.number {
            4 => put_blank_number(out, &field)?,
            5 => put_blank_message(out, &field)?,
            _ => out.extend_from_slice(field.field.whole),
        }
    }
    Ok(())
}

/// A zero of as many bytes as the number has: decoders of varints allow padding.
fn put_blank_number(out: &mut Vec<u8>, field: &PlacedField<'_>) -> Result<(), FilterError> {
    let Some((&REMAINING_ITEM_COUNT_TAG, [_, padding @ ..])) = field.field.whole.split_first() else {
        return Err(wrong_wire_type(field.start));
    };
    out.push(PADDING_NUMBER_TAG);
    out.resize(out.len() + padding.len(), 0x80);
    out.push(0);
    Ok(())
}

fn put_blank_message(out: &mut Vec<u8>, field: &PlacedField<'_>) -> Result<(), FilterError> {
    let whole = field.field.whole;
    if whole.first() != Some(&SHARD_INFO_TAG) {
        return Err(wrong_wire_type(field.start));
    }
    put_padding(out, whole, whole.len() - field.content()?.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::fields;

    #[test]
    fn gap_of_any_length_is_filled_by_padding_in_its_shortest_form() {
        // Around these lengths, the number before a content takes another byte.
        let lengths = (2..600).chain(16_200..16_600).chain(2_097_140..2_097_170);
        for length in [0].into_iter().chain(lengths) {
            let mut out = b"x".to_vec();
            put_gap(&mut out, length);
            assert_eq!(out.len(), 1 + length);
            let mut left = length;
            for field in fields(&out[1..]).map(Result::unwrap) {
                let content = field.payload.unwrap();
                let mut head = Vec::new();
                put_head(&mut head, PADDING_FIELD, content.len());
                assert!(field.whole.starts_with(&head) && content.iter().all(|byte| *byte == 0));
                assert_eq!(field.whole.len(), head.len() + content.len());
                left -= field.whole.len();
            }
            assert_eq!(left, 0, "{length}");
        }
    }
}
