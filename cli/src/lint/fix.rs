//! `ctrlmesh lint --fix`: what the manager's rules can mend mechanically, written into the text.
//!
//! Guarantees: a text that was mended reads as the change says and not otherwise, and has all comments but those on lines that go;
//! mending it again changes nothing.

use ctrlmesh_manager::LabelKeys;
use ctrlmesh_manager::validate::{Change, Mend, Step, mend_with};
use serde_json::Value;

use super::edit::edited;
use super::object::{objects, value_of};
use super::tree::{self, Document, Node};

/// Changes of one document; more than any has.
const MAX_CHANGES: usize = 10_000;

/// What was done, or could not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Done {
    /// The object.
    pub(super) object: String,
    /// The change, in words.
    pub(super) change: String,
    /// Whether it was made. If not, somebody has to.
    pub(super) is_made: bool,
}

/// The text with everything mended that can be, and what was done. `keys`: of the manager that the objects are for.
pub(super) fn fix(text: &str, keys: &LabelKeys) -> (String, Vec<Done>) {
    let (mut new, mut done, mut at) = (String::new(), Vec::new(), 0);
    for document in tree::documents(text).iter().filter(|document| document.root.is_ok()) {
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

fn fix_document(written: &str, keys: &LabelKeys) -> (String, Vec<Done>) {
    let (mut text, mut done, mut given_up) = (written.to_owned(), Vec::new(), 0);
    for _ in 0..MAX_CHANGES {
        let Some((path, mend, object)) = next(&text, given_up, keys) else {
            break;
        };
        let mended = apply(&text, &path, &mend);
        done.push(Done {
            object,
            change: mended
                .as_ref()
                .map_or_else(|| left(&text, &path, &mend), |_| mend.to_string()),
            is_made: mended.is_some(),
        });
        match mended {
            Some(mended) => text = mended,
            // The rest of this object waits for it.
            None => given_up += 1,
        }
    }
    (text, done)
}

/// The next change of an object in a document, but for the first objects that can't be changed.
fn next(text: &str, given_up: usize, keys: &LabelKeys) -> Option<(Vec<Step>, Mend, String)> {
    let value = one(text)?.1;
    let all = objects(&value).into_iter();
    let mut mends = all.filter_map(|object| Some((object.path.clone(), mend_with(object.value, keys)?, object.name())));
    mends.nth(given_up)
}

/// A change of an object that `path` leads to, from the root of the document.
fn from_root(path: &[Step], mend: &Mend) -> Mend {
    Mend {
        path: ctrlmesh_manager::validate::Path(path.iter().chain(&mend.path.0).cloned().collect()),
        change: mend.change.clone(),
    }
}

/// Why somebody has to make a change, and which.
fn left(text: &str, path: &[Step], mend: &Mend) -> String {
    let document = one(text).map(|(document, _)| document);
    let root = document.as_ref().and_then(|document| document.root.as_ref().ok());
    match (
        &mend.change,
        root.map(|root| written(text, root, &from_root(path, mend))),
    ) {
        (Change::Text(read), Some(Some(written))) if !is_text(written) && written != read => {
            format!(
                "{}: {written} is read as {read}; write in quotes what it is meant to be",
                mend.path
            )
        }
        _ => format!("the text is written in a way that this change does not fit; please make it: {mend}"),
    }
}

/// The text after a change, if it reads as it should.
fn apply(text: &str, path: &[Step], mend: &Mend) -> Option<String> {
    let (document, before) = one(text)?;
    let whole = from_root(path, mend);
    let expected = whole.apply(&before)?;
    let root = document.root.as_ref().ok()?;
    if !is_written_as_read(text, root, &whole) {
        return None;
    }
    let new = edited(text, root, &whole.path.0, &mend.change)?;
    let (after, value) = one(&new)?;
    let has_comments = after.comments == document.comments || matches!(mend.change, Change::Remove);
    (value == expected && has_comments).then_some(new)
}

/// Whether a text that takes the place of a number or a truth value is what stands there. `1.10`, `007` and `no` are read as something
/// else, and only who wrote them knows what was meant.
fn is_written_as_read(text: &str, root: &Node, mend: &Mend) -> bool {
    let Change::Text(new) = &mend.change else { return true };
    written(text, root, mend).is_some_and(|written| written == new || is_text(written))
}

/// What stands where a change is made.
fn written<'t>(text: &'t str, root: &Node, mend: &Mend) -> Option<&'t str> {
    root.at(&mend.path.0).and_then(|node| text.get(node.span.clone()))
}

fn is_text(written: &str) -> bool {
    serde_saphyr::from_str::<Value>(written).is_ok_and(|read| read.is_string())
}

/// The only document of a text, and its value.
fn one(text: &str) -> Option<(Document, Value)> {
    let mut documents = tree::documents(text);
    let document = documents.pop().filter(|_| documents.is_empty())?;
    document.root.as_ref().ok()?;
    let value = value_of(text, &document).ok()?;
    Some((document, value))
}

#[cfg(test)]
mod tests;
