//! One change of a document, made in its text: what it does not concern stays byte for byte as it is.
//!
//! Caveats: a text may be written in ways that a change in place does not fit, such as a block in braces, or references. Then there is no
//! new text, or one that reads otherwise: the caller compares.

use std::ops::Range;

use ctrlmesh_manager_planner::validate::{Change, Step};
use serde_json::Value;
use serde_saphyr::granit_parser::ScalarStyle;

use super::tree::{Field, Kind, Node};

/// What one level of block style is indented by.
const INDENT: usize = 2;

/// A part of a text, and what stands there instead.
type Edit = (Range<usize>, String);

/// The text after a change of the part of `root` that `path` leads to.
pub(super) fn edited(text: &str, root: &Node, path: &[Step], change: &Change) -> Option<String> {
    let (last, around) = path.split_last()?;
    let around = root.at(around)?;
    let edits = match (last, change) {
        (Step::Key(key), Change::Remove) => vec![(removed_field(text, around, around.field(key)?)?, String::new())],
        (Step::Index(index), Change::Remove) => {
            vec![(removed_item(text, around, around.items().get(*index)?)?, String::new())]
        }
        (Step::Key(key), Change::Rename(name)) => {
            let key = &around.field(key)?.key;
            vec![(key.span.clone(), in_style(name, key))]
        }
        (Step::Key(key), Change::Unwrap) => unwrapped(text, around, around.field(key)?)?,
        (Step::Key(key), Change::MoveInto(into)) => moved(text, around, around.field(key)?, around.field(into)?)?,
        (Step::Key(key), Change::Wrap(name)) => wrapped(text, around.field(key)?, name)?,
        (_, Change::Text(new)) => {
            let value = around.at(std::slice::from_ref(last))?;
            vec![(value.span.clone(), in_style(new, value))]
        }
        _ => return None,
    };
    applied(text, edits)
}

/// Makes edits that do not overlap, the last first. Where one begins with what another removes, its text comes before that.
fn applied(text: &str, mut edits: Vec<Edit>) -> Option<String> {
    edits.sort_by_key(|(range, _)| std::cmp::Reverse((range.start, range.end)));
    let mut new = text.to_owned();
    for (range, insert) in edits {
        new.get(range.clone())?;
        new.replace_range(range, &insert);
    }
    Some(new)
}

/// Start of the line that a place is on.
fn line_start(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    before.rfind('\n').map_or(0, |newline| newline + 1)
}

/// End of the line that a place is on, its line break included.
fn line_end(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    rest.find('\n').map_or(text.len(), |newline| at + newline + 1)
}

fn column(text: &str, at: usize) -> usize {
    at - line_start(text, at)
}

/// Whether nothing but blanks stands before a place on its line.
fn is_first(text: &str, at: usize) -> bool {
    let before = text.get(line_start(text, at)..at).unwrap_or_default();
    before.bytes().all(|byte| byte == b' ')
}

/// The lines of a range, whole.
fn lines_of(text: &str, range: &Range<usize>) -> Range<usize> {
    // The end may be the start of the next line already: of a text in block style.
    let written = text.get(range.clone()).unwrap_or_default().trim_end().len();
    line_start(text, range.start)..line_end(text, range.start + written)
}

/// A name or a text, written as the one before it.
fn in_style(new: &str, before: &Node) -> String {
    let json = || Value::from(new).to_string();
    let is_text = || serde_saphyr::from_str::<Value>(new).is_ok_and(|read| read == new);
    match before.kind {
        Kind::Scalar(ScalarStyle::SingleQuoted) => format!("'{}'", new.replace('\'', "''")),
        Kind::Scalar(ScalarStyle::Plain) if is_text() => new.to_owned(),
        _ => json(),
    }
}

fn whole(field: &Field) -> Range<usize> {
    field.key.span.start..field.value.span.end
}

/// A field, with its lines or its comma.
fn removed_field(text: &str, around: &Node, field: &Field) -> Option<Range<usize>> {
    let range = whole(field);
    if around.is_flow() {
        return Some(with_comma(text, range));
    }
    if is_first(text, range.start) {
        return Some(lines_of(text, &range));
    }
    // It stands behind the dash of a list: the next field comes in its place.
    let mut fields = around.fields().iter();
    let next = fields.find(|next| next.key.span.start > range.start)?;
    Some(range.start..next.key.span.start)
}

/// An element, with its lines and its dash, or with its comma.
fn removed_item(text: &str, around: &Node, item: &Node) -> Option<Range<usize>> {
    if around.is_flow() {
        return Some(with_comma(text, item.span.clone()));
    }
    let dash = dash_of(text, item)?;
    Some(lines_of(text, &(dash..item.span.end)))
}

/// Where the dash of an element stands, if it is the first on its line.
fn dash_of(text: &str, item: &Node) -> Option<usize> {
    let before = text.get(..item.span.start)?.trim_end();
    let dash = before.len().checked_sub(1)?;
    (before.ends_with('-') && is_first(text, dash)).then_some(dash)
}

/// In braces or brackets: with the comma that follows, or the one before.
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

/// Its value, as that of the only field of a mapping.
fn wrapped(text: &str, field: &Field, name: &str) -> Option<Vec<Edit>> {
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
    if !is_first(text, first) {
        return None;
    }
    let (outer, inner) = (column(text, field.key.span.start), column(text, first));
    let lines = lines_of(text, &(first..value.span.end));
    let is_list = matches!(value.kind, Kind::Sequence { .. });
    let by = if is_list && inner > outer { 0 } else { INDENT };
    let indent = if inner > outer { inner } else { outer + INDENT };
    let block = shifted(text.get(lines.clone())?, by, 0);
    Some(vec![(lines, format!("{:indent$}{name}:\n{block}", ""))])
}

/// The fields of its value, in its place.
fn unwrapped(text: &str, around: &Node, field: &Field) -> Option<Vec<Edit>> {
    let (range, value) = (whole(field), &field.value);
    let Kind::Mapping { is_flow, fields } = &value.kind else {
        return None;
    };
    let written = |range: Range<usize>| text.get(range);
    let column_of_key = column(text, range.start);
    if *is_flow {
        let between = if around.is_flow() {
            ", ".to_owned()
        } else {
            format!("\n{:column_of_key$}", "")
        };
        let fields: Option<Vec<&str>> = fields.iter().map(|field| written(whole(field))).collect();
        return Some(vec![(range, fields?.join(&between))]);
    }
    let first = fields.first()?.key.span.start;
    if !is_first(text, first) || written(range.start..first)?.contains('#') {
        return None;
    }
    let less = column(text, first).checked_sub(column_of_key)?;
    let rest = line_end(text, first)..lines_of(text, &(first..value.span.end)).end;
    let mut edits = vec![(range.start..first, String::new())];
    if rest.start < rest.end {
        edits.push((rest.clone(), shifted(written(rest)?, 0, less)));
    }
    Some(edits)
}

/// A field of a mapping, as the last one of another field's value.
fn moved(text: &str, around: &Node, field: &Field, into: &Field) -> Option<Vec<Edit>> {
    let target = &into.value;
    let last = target.fields().last()?;
    if target.is_flow() {
        let is_flat = field.value.is_flow() || matches!(field.value.kind, Kind::Scalar(_));
        let written = text.get(whole(field)).filter(|_| is_flat)?;
        let end = whole(last).end;
        let removed = removed_field(text, around, field)?;
        return Some(vec![(end..end, format!(", {written}")), (removed, String::new())]);
    }
    if around.is_flow() || !is_first(text, field.key.span.start) {
        return None;
    }
    let lines = lines_of(text, &whole(field));
    let (from, to) = (
        column(text, field.key.span.start),
        column(text, target.fields().first()?.key.span.start),
    );
    let mut block = shifted(
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

/// Lines with so many blanks more or less before them.
fn shifted(lines: &str, more: usize, less: usize) -> String {
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
