//! The objects in a document: itself, or those of a `List`, as kubectl prints it.

use ctrlmesh_contract::Mistake;
use ctrlmesh_contract::yaml::problem;
use ctrlmesh_manager_planner::validate::Step;
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::tree::{Document, Node};

/// An object, and where in its document it stands.
#[derive(Debug, Clone)]
pub(super) struct Object<'v> {
    pub(super) path: Vec<Step>,
    pub(super) value: &'v Value,
}

/// The value of a document; or why there is none, and on which line of the whole text.
pub(super) fn value_of(text: &str, document: &Document) -> Result<Value, (usize, String)> {
    parsed(text, document, DuplicateKeyPolicy::Error).map_err(|error| {
        let line = error
            .location()
            .and_then(|location| usize::try_from(location.line()).ok());
        (line.unwrap_or(document.line), problem(&error))
    })
}

/// The value of a document in which fields are written twice: the last of each counts. These are told with it.
pub(super) fn value_of_last(text: &str, document: &Document, root: &Node) -> Option<(Value, Vec<Mistake>)> {
    let twice = root.fields_written_twice();
    let value = parsed(text, document, DuplicateKeyPolicy::LastWins).ok()?;
    (!twice.is_empty() && !is_list(&value)).then_some((value, twice))
}

fn parsed(text: &str, document: &Document, duplicate_keys: DuplicateKeyPolicy) -> Result<Value, serde_saphyr::Error> {
    let written = text.get(document.range.clone()).unwrap_or_default();
    // So that lines are those of the file.
    let written = format!("{}{written}", "\n".repeat(document.line.saturating_sub(1)));
    let options = serde_saphyr::options! { with_snippet: false, duplicate_keys: duplicate_keys };
    serde_saphyr::from_str_with_options(&written, options)
}

/// The objects of a document.
pub(super) fn objects(document: &Value) -> Vec<Object<'_>> {
    match document.get("items") {
        Some(Value::Array(items)) if is_list(document) => {
            let path = |index| vec![Step::Key("items".to_owned()), Step::Index(index)];
            let items = items.iter().enumerate();
            items
                .map(|(index, value)| Object {
                    path: path(index),
                    value,
                })
                .collect()
        }
        _ => vec![Object {
            path: Vec::new(),
            value: document,
        }],
    }
}

/// Whether it is a `List`, as kubectl prints it.
fn is_list(document: &Value) -> bool {
    text(document, "apiVersion") == "v1" && text(document, "kind") == "List"
}

/// A field of a document that is a text; empty if it is none.
pub(super) fn text<'d>(document: &'d Value, field: &str) -> &'d str {
    document.get(field).and_then(Value::as_str).unwrap_or_default()
}

impl Object<'_> {
    /// Kind, and namespace and name, as far as it has them.
    pub(super) fn name(&self) -> String {
        let text = |pointer: &str| self.value.pointer(pointer).and_then(Value::as_str);
        let (kind, name) = (text("/kind").unwrap_or("?"), text("/metadata/name").unwrap_or("?"));
        match text("/metadata/namespace") {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        }
    }
}
