//! Makes one change in the text of a document and leaves the rest byte for byte as it is.
//!
//! Caveat: some texts do not allow a change in place, such as a block in braces, or aliases. The result is then `None`, or a text with
//! another meaning, so the caller must compare.

use std::ops::Range;

use ctrlmesh_manager_planner::validate::{Change, Step};
use serde_json::Value;
use serde_saphyr::granit_parser::ScalarStyle;

use super::tree::{Field, Kind, Node};

/// Indent of one level in block style.
const INDENT: usize = 2;

/// A range of the text, and its replacement.
type Edit = (Range<usize>, String);

/// The text after changing the node at `path`.
pub(super) fn edited_text(text: &str, root: &Node, path: &[Step], change: &Change) -> Option<String> {
    let (last, around) = path.split_last()?;
    let around = root.node_at(around)?;
    let edits = match (last, change) {
        (Step::Key(key), Change::Remove) => vec![(removed_field(text, around, around.field(key)?)?, String::new())],
        (Step::Index(index), Change::Remove) => {
            vec![(removed_item(text, around, around.items().get(*index)?)?, String::new())]
        }
        (Step::Key(key), Change::Rename(name)) => {
            let key = &around.field(key)?.key;
            vec![(key.span.clone(), in_style(name, key))]
        }
        (Step::Key(key), Change::Unwrap) => unwrap_value(text, around, around.field(key)?)?,
        (Step::Key(key), Change::MoveInto(into)) => move_field(text, around, around.field(key)?, around.field(into)?)?,
        (Step::Key(key), Change::Wrap(name)) => wrap_value(text, around.field(key)?, name)?,
        (_, Change::Text(new)) => {
            let value = around.node_at(std::slice::from_ref(last))?;
            vec![(value.span.clone(), in_style(new, value))]
        }
        _ => return None,
    };
    apply_edits(text, edits)
}

/// Applies edits that do not overlap, the last first. An insertion at the start of a removed range comes before it.
fn apply_edits(text: &str, mut edits: Vec<Edit>) -> Option<String> {
    let has_crlf = text.contains("\r\n");
    edits.sort_by_key(|(range, _)| std::cmp::Reverse((range.start, range.end)));
    let mut new = text.to_owned();
    for (range, insert) in edits {
        new.get(range.clone())?;
        let insert = if has_crlf {
            insert.replace("\r\n", "\n").replace('\n', "\r\n")
        } else {
            insert
        };
        new.replace_range(range, &insert);
    }
    Some(new)
}

fn line_start(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    before.rfind('\n').map_or(0, |newline| newline + 1)
}

/// End of the line of a position, including its line break.
fn line_end(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    rest.find('\n').map_or(text.len(), |newline| at + newline + 1)
}

fn column_of(text: &str, at: usize) -> usize {
    at - line_start(text, at)
}

/// Whether only blanks precede the position on its line.
fn is_first_on_line(text: &str, at: usize) -> bool {
    let before = text.get(line_start(text, at)..at).unwrap_or_default();
    before.bytes().all(|byte| byte == b' ')
}

/// The range, extended to whole lines.
fn lines_of(text: &str, range: &Range<usize>) -> Range<usize> {
    // In block style, the end may be the start of the next line.
    let written = text.get(range.clone()).unwrap_or_default().trim_end().len();
    line_start(text, range.start)..line_end(text, range.start + written)
}

/// `new` in the quoting style of the node before it.
fn in_style(new: &str, before: &Node) -> String {
    let json = || Value::from(new).to_string();
    let is_text = || serde_saphyr::from_str::<Value>(new).is_ok_and(|read| read == new);
    match before.kind {
        Kind::Scalar(ScalarStyle::SingleQuoted) => format!("'{}'", new.replace('\'', "''")),
        Kind::Scalar(ScalarStyle::Plain) if is_text() => new.to_owned(),
        _ => json(),
    }
}

fn field_range(field: &Field) -> Range<usize> {
    field.key.span.start..field.value.span.end
}

/// The range of a field with its lines or its comma.
fn removed_field(text: &str, around: &Node, field: &Field) -> Option<Range<usize>> {
    let range = field_range(field);
    if around.is_flow() {
        return Some(with_comma(text, range));
    }
    if is_first_on_line(text, range.start) {
        return Some(lines_of(text, &range));
    }
    // The field follows the dash of a list item: the next field takes its place.
    let mut fields = around.fields().iter();
    let next = fields.find(|next| next.key.span.start > range.start)?;
    Some(range.start..next.key.span.start)
}

/// The range of an item with its lines and its dash, or with its comma.
fn removed_item(text: &str, around: &Node, item: &Node) -> Option<Range<usize>> {
    if around.is_flow() {
        return Some(with_comma(text, item.span.clone()));
    }
    let dash = dash_of(text, item)?;
    Some(lines_of(text, &(dash..item.span.end)))
}

/// Position of the dash of an item, if it is the first on its line.
fn dash_of(text: &str, item: &Node) -> Option<usize> {
    let before = text.get(..item.span.start)?.trim_end();
    let dash = before.len().checked_sub(1)?;
    (before.ends_with('-') && is_first_on_line(text, dash)).then_some(dash)
}

/// In flow style: extends the range by the following comma, or the preceding one.
fn with_comma(text: &str, range: Range<usize>) -> Range<usize> {
    let (before, rest) = (text.get(..range.start), text.get(range.end..));
    let (before, rest) = (before.unwrap_or_default(), rest.unwrap_or_default());
    if let Some(after) = rest.trim_start().strip_prefix(',') {
        return range.start..text.len() - after.trim_start_matches(' ').len();
    }
    match before.trim_end().strip_suffix(',') {
        Some(before) => before.len()..range.end,
        None => range,
    }
}

/// Puts the value into a mapping with this single field.
fn wrap_value(text: &str, field: &Field, name: &str) -> Option<Vec<Edit>> {
    let value = &field.value;
    let name = in_style(name, &field.key);
    let first = match &value.kind {
        Kind::Sequence { is_flow: false, items } => dash_of(text, items.first()?)?,
        Kind::Mapping { is_flow: false, fields } => fields.first()?.key.span.start,
        _ => {
            let written = text.get(value.span.clone())?;
            return Some(vec![(value.span.clone(), format!("{{{name}: {written}}}"))]);
        }
    };
    if !is_first_on_line(text, first) {
        return None;
    }
    let (outer, inner) = (column_of(text, field.key.span.start), column_of(text, first));
    let lines = lines_of(text, &(first..value.span.end));
    let is_list = matches!(value.kind, Kind::Sequence { .. });
    let by = if is_list && inner > outer { 0 } else { INDENT };
    let indent = if inner > outer { inner } else { outer + INDENT };
    let block = shift_indent(text.get(lines.clone())?, by, 0);
    Some(vec![(lines, format!("{:indent$}{name}:\n{block}", ""))])
}

/// Replaces the field by the fields of its value.
fn unwrap_value(text: &str, around: &Node, field: &Field) -> Option<Vec<Edit>> {
    let (range, value) = (field_range(field), &field.value);
    let Kind::Mapping { is_flow, fields } = &value.kind else {
        return None;
    };
    let written = |range: Range<usize>| text.get(range);
    let column_of_key = column_of(text, range.start);
    if *is_flow {
        let between = if around.is_flow() {
            ", ".to_owned()
        } else {
            format!("\n{:column_of_key$}", "")
        };
        let fields: Option<Vec<&str>> = fields.iter().map(|field| written(field_range(field))).collect();
        return Some(vec![(range, fields?.join(&between))]);
    }
    let first = fields.first()?.key.span.start;
    if !is_first_on_line(text, first) || written(range.start..first)?.contains('#') {
        return None;
    }
    let less = column_of(text, first).checked_sub(column_of_key)?;
    let rest = line_end(text, first)..lines_of(text, &(first..value.span.end)).end;
    let mut edits = vec![(range.start..first, String::new())];
    if rest.start < rest.end {
        edits.push((rest.clone(), shift_indent(written(rest)?, 0, less)));
    }
    Some(edits)
}

/// Moves a field to the end of another field's value.
fn move_field(text: &str, around: &Node, field: &Field, into: &Field) -> Option<Vec<Edit>> {
    let target = &into.value;
    let last = target.fields().last()?;
    if target.is_flow() {
        let is_flat = field.value.is_flow() || matches!(field.value.kind, Kind::Scalar(_));
        let written = text.get(field_range(field)).filter(|_| is_flat)?;
        let end = field_range(last).end;
        let removed = removed_field(text, around, field)?;
        return Some(vec![(end..end, format!(", {written}")), (removed, String::new())]);
    }
    if around.is_flow() || !is_first_on_line(text, field.key.span.start) {
        return None;
    }
    let lines = lines_of(text, &field_range(field));
    let (from, to) = (
        column_of(text, field.key.span.start),
        column_of(text, target.fields().first()?.key.span.start),
    );
    let mut block = shift_indent(
        text.get(lines.clone())?,
        to.saturating_sub(from),
        from.saturating_sub(to),
    );
    if !block.ends_with('\n') {
        block.push('\n');
    }
    let end = lines_of(text, &target.span).end;
    if !text.get(..end)?.ends_with('\n') {
        block = format!("\n{block}");
    }
    Some(vec![(end..end, block), (lines, String::new())])
}

/// Changes the indent of the lines.
fn shift_indent(lines: &str, more: usize, less: usize) -> String {
    let shift = |line: &str| {
        let blanks = line.len() - line.trim_start_matches(' ').len();
        let kept = line.get(less.min(blanks)..).unwrap_or_default();
        if kept.trim().is_empty() {
            kept.to_owned()
        } else {
            format!("{:more$}{kept}", "")
        }
    };
    lines.split_inclusive('\n').map(shift).collect()
}
