//! `ctrlmesh lint --fix`: applies the mechanical fixes of the manager's rules to the text.
//!
//! Guarantees: the fixed text differs in meaning only by the change, and keeps all comments except those on removed lines; fixing it
//! again changes nothing.

use ctrlmesh_manager_planner::LabelKeys;
use ctrlmesh_manager_planner::validate::{Change, Fix, Step, next_fix_with};
use serde_json::Value;

use super::edit::edited_text;
use super::object::{objects_in, value_of};
use super::tree::{self, Document, Node};

/// Maximum of changes per document; more than any needs.
const MAX_CHANGES: usize = 10_000;

/// Maximum of changes among which those of aliases are searched.
const MAX_ALIASES: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FixOutcome {
    pub(super) object: String,
    /// Description of the change.
    pub(super) change: String,
    /// Whether the change was made. If not, a person has to make it.
    pub(super) is_made: bool,
}

/// The text after all changes that can be made automatically, and the outcome of each change. `keys`: of the manager that the
/// objects are for.
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
        let (fixed, changes) = fix_document(written, keys);
        new.push_str(&fixed);
        done.extend(changes);
        at = range.end;
    }
    new.push_str(text.get(at..).unwrap_or_default());
    (new, done)
}

/// A change that a person has to make.
struct SkippedFix {
    /// With its path from the root of the document.
    fix: Fix,
    outcome: FixOutcome,
}

fn fix_document(written: &str, keys: &LabelKeys) -> (String, Vec<FixOutcome>) {
    let (mut text, mut done, mut skipped) = (written.to_owned(), Vec::new(), Vec::<SkippedFix>::new());
    for _ in 0..MAX_CHANGES {
        let Some((_, value)) = single_document(&text) else {
            break;
        };
        let without = skipped.iter().map(|skipped| &skipped.fix);
        let without = without.fold(value.clone(), pass_over);
        let Some((path, fix, object)) = next_change(&without, keys) else {
            break;
        };
        let whole = from_root(&path, &fix);
        let fixed = apply_change(&text, &whole, keys);
        let change = fixed
            .as_ref()
            .map_or_else(|| unfixed_reason(&text, &fix, &whole), |_| fix.to_string());
        let outcome = FixOutcome {
            object,
            change,
            is_made: fixed.is_some(),
        };
        let Some(fixed) = fixed else {
            // A change that cannot even be passed over would be found for ever.
            if skipped.iter().any(|skipped| skipped.fix == whole) {
                break;
            }
            skipped.push(SkippedFix { fix: whole, outcome });
            continue;
        };
        done.push(outcome);
        text = fixed;
        match &fix.change {
            // An alias of the changed scalar is changed, too.
            Change::Text(_) => {
                let value = single_document(&text).map(|(_, value)| value);
                skipped.retain(|skipped| value.as_ref().is_some_and(|value| !is_done(&skipped.fix, value)));
            }
            // Paths of skipped changes may be others now. The next search finds these changes again.
            _ => skipped.clear(),
        }
    }
    // A part that only a skipped change would make is not in the text.
    let value = single_document(&text).map(|(_, value)| value);
    let is_there = |skipped: &SkippedFix| {
        value
            .as_ref()
            .is_some_and(|value| skipped.fix.path.find(value).is_some())
    };
    done.extend(skipped.into_iter().filter(is_there).map(|skipped| skipped.outcome));
    (text, done)
}

/// The first change of an object in a document.
fn next_change(document: &Value, keys: &LabelKeys) -> Option<(Vec<Step>, Fix, String)> {
    let mut all = objects_in(document).into_iter();
    all.find_map(|object| {
        let fix = next_fix_with(object.value, keys)?;
        let name = object.display_name();
        Some((object.path, fix, name))
    })
}

fn is_done(fix: &Fix, document: &Value) -> bool {
    matches!(&fix.change, Change::Text(text) if fix.path.find(document).is_some_and(|value| value == text))
}

/// The document as if a change had been made, so that the next one is found. The paths of all other parts stay.
fn pass_over(mut document: Value, fix: &Fix) -> Value {
    if let (Change::Remove, Some(Step::Index(_))) = (&fix.change, fix.path.0.last()) {
        if let Some(item) = fix.path.find_mut(&mut document) {
            *item = Value::Null;
        }
        return document;
    }
    fix.apply(&document).unwrap_or(document)
}

/// The change with its path from the root of the document; `path` leads to the object.
fn from_root(path: &[Step], fix: &Fix) -> Fix {
    Fix {
        path: ctrlmesh_manager_planner::validate::Path(path.iter().chain(&fix.path.0).cloned().collect()),
        change: fix.change.clone(),
    }
}

/// Why a person has to make the change. `whole`: the change with its path from the root.
fn unfixed_reason(text: &str, fix: &Fix, whole: &Fix) -> String {
    let document = single_document(text).map(|(document, _)| document);
    let root = document.as_ref().and_then(|document| document.root.as_ref().ok());
    match (&fix.change, root.map(|root| text_at(text, root, whole))) {
        (Change::Text(read), Some(Some(written))) if !is_text(written) && written != read => {
            format!(
                "{}: {written} is read as {read}; write in quotes what it is meant to be",
                fix.path
            )
        }
        _ => format!("this change cannot be made automatically in this text; make it by hand: {fix}"),
    }
}

/// The text after a change, if it has the intended meaning.
fn apply_change(text: &str, whole: &Fix, keys: &LabelKeys) -> Option<String> {
    let (document, before) = single_document(text)?;
    let expected = whole.apply(&before)?;
    let root = document.root.as_ref().ok()?;
    if !is_written_as_read(text, root, whole) {
        return None;
    }
    let new = edited_text(text, root, &whole.path.0, &whole.change)?;
    let (after, value) = single_document(&new)?;
    let has_comments = after.comments == document.comments || matches!(whole.change, Change::Remove);
    let is_meant = value == expected || is_fixed_in_aliases(expected, &value, &whole.change, keys);
    (is_meant && has_comments).then_some(new)
}

/// Whether a document differs from the expected one only by the same change of other scalars: those that are aliases of the changed
/// one. Each of them must be a change that is due anyway.
fn is_fixed_in_aliases(expected: Value, document: &Value, change: &Change, keys: &LabelKeys) -> bool {
    if !matches!(change, Change::Text(_)) {
        return false;
    }
    let (mut reached, mut without) = (expected.clone(), expected);
    for _ in 0..MAX_ALIASES {
        if reached == *document {
            return true;
        }
        let Some((path, fix, _)) = next_change(&without, keys) else {
            return false;
        };
        let fix = from_root(&path, &fix);
        if fix.change == *change && is_done(&fix, document) {
            reached = fix.apply(&reached).unwrap_or(reached);
        }
        without = pass_over(without, &fix);
    }
    false
}

/// Whether a text that replaces a number or a boolean is what the file says. `1.10`, `007` and `no` are read as something else, and
/// only the author knows what was meant.
fn is_written_as_read(text: &str, root: &Node, fix: &Fix) -> bool {
    let Change::Text(new) = &fix.change else { return true };
    text_at(text, root, fix).is_some_and(|written| written == new || is_text(written))
}

/// The source text at the position of a change.
fn text_at<'t>(text: &'t str, root: &Node, fix: &Fix) -> Option<&'t str> {
    root.node_at(&fix.path.0).and_then(|node| text.get(node.span.clone()))
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
