//! `ctrlmesh lint --fix`: applies the mechanical fixes of the manager's rules to the text.
//!
//! Guarantees: the fixed text differs in meaning only by the change, and keeps all comments except those on removed lines; fixing it
//! again changes nothing.

use ctrlmesh_manager_planner::LabelKeys;
use ctrlmesh_manager_planner::validate::{Change, Fix, Step, next_fix_with};
use serde_json::Value;

use super::edit::edited_text;
use super::object::{objects, value_of};
use super::tree::{self, Document, Node};

/// Maximum of changes per document; more than any needs.
const MAX_CHANGES: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FixOutcome {
    pub(super) object: String,
    /// Description of the change.
    pub(super) change: String,
    /// Whether the change was made. If not, a person has to make it.
    pub(super) is_made: bool,
}

/// The text with everything mended that can be, and what was done. `keys`: of the manager that the objects are for.
pub(super) fn fix_text(text: &str, keys: &LabelKeys) -> (String, Vec<FixOutcome>) {
    let (mut new, mut done, mut at) = (String::new(), Vec::new(), 0);
    for document in tree::parse_documents(text)
        .iter()
        .filter(|document| document.root.is_ok())
    {
        let range = document.range.clone();
        let (Some(before), Some(written)) = (text.get(at..range.start), text.get(range.clone())) else {
            continue;
        };
        new.push_str(before);
        let (mended, changes) = fix_document(written, keys);
        new.push_str(&mended);
        done.extend(changes);
        at = range.end;
    }
    new.push_str(text.get(at..).unwrap_or_default());
    (new, done)
}

fn fix_document(written: &str, keys: &LabelKeys) -> (String, Vec<FixOutcome>) {
    let (mut text, mut done, mut given_up) = (written.to_owned(), Vec::new(), 0);
    for _ in 0..MAX_CHANGES {
        let Some((path, mend, object)) = next_change(&text, given_up, keys) else {
            break;
        };
        let mended = apply_change(&text, &path, &mend);
        done.push(FixOutcome {
            object,
            change: mended
                .as_ref()
                .map_or_else(|| unfixed_reason(&text, &path, &mend), |_| mend.to_string()),
            is_made: mended.is_some(),
        });
        match mended {
            Some(mended) => text = mended,
            // Later changes of this object depend on this one.
            None => given_up += 1,
        }
    }
    (text, done)
}

/// The next change of an object in a document, but for the first objects that can't be changed.
fn next_change(text: &str, given_up: usize, keys: &LabelKeys) -> Option<(Vec<Step>, Fix, String)> {
    let value = single_document(text)?.1;
    let all = objects(&value).into_iter();
    let mut mends = all.filter_map(|object| {
        Some((
            object.path.clone(),
            next_fix_with(object.value, keys)?,
            object.display_name(),
        ))
    });
    mends.nth(given_up)
}

/// The change with its path from the root of the document; `path` leads to the object.
fn from_root(path: &[Step], mend: &Fix) -> Fix {
    Fix {
        path: ctrlmesh_manager_planner::validate::Path(path.iter().chain(&mend.path.0).cloned().collect()),
        change: mend.change.clone(),
    }
}

/// Why a person has to make the change.
fn unfixed_reason(text: &str, path: &[Step], mend: &Fix) -> String {
    let document = single_document(text).map(|(document, _)| document);
    let root = document.as_ref().and_then(|document| document.root.as_ref().ok());
    match (
        &mend.change,
        root.map(|root| text_at(text, root, &from_root(path, mend))),
    ) {
        (Change::Text(read), Some(Some(written))) if !is_text(written) && written != read => {
            format!(
                "{}: {written} is read as {read}; write in quotes what it is meant to be",
                mend.path
            )
        }
        _ => format!("this change cannot be made automatically in this text; make it by hand: {mend}"),
    }
}

/// The text after a change, if it has the intended meaning.
fn apply_change(text: &str, path: &[Step], mend: &Fix) -> Option<String> {
    let (document, before) = single_document(text)?;
    let whole = from_root(path, mend);
    let expected = whole.apply(&before)?;
    let root = document.root.as_ref().ok()?;
    if !is_written_as_read(text, root, &whole) {
        return None;
    }
    let new = edited_text(text, root, &whole.path.0, &mend.change)?;
    let (after, value) = single_document(&new)?;
    let has_comments = after.comments == document.comments || matches!(mend.change, Change::Remove);
    (value == expected && has_comments).then_some(new)
}

/// Whether a text that replaces a number or a boolean is what the file says. `1.10`, `007` and `no` are read as something else, and
/// only the author knows what was meant.
fn is_written_as_read(text: &str, root: &Node, mend: &Fix) -> bool {
    let Change::Text(new) = &mend.change else { return true };
    text_at(text, root, mend).is_some_and(|written| written == new || is_text(written))
}

/// The source text at the position of a change.
fn text_at<'t>(text: &'t str, root: &Node, mend: &Fix) -> Option<&'t str> {
    root.node_at(&mend.path.0).and_then(|node| text.get(node.span.clone()))
}

fn is_text(written: &str) -> bool {
    serde_saphyr::from_str::<Value>(written).is_ok_and(|read| read.is_string())
}

/// The single document of a text, and its value.
fn single_document(text: &str) -> Option<(Document, Value)> {
    let mut documents = tree::parse_documents(text);
    let document = documents.pop().filter(|_| documents.is_empty())?;
    document.root.as_ref().ok()?;
    let value = value_of(text, &document).ok()?;
    Some((document, value))
}

#[cfg(test)]
mod tests;
