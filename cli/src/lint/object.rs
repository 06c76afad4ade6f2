//! The objects of a document: the document itself, or the items of a `List`, as kubectl prints it.

use ctrlmesh_contract::Mistake;
use ctrlmesh_contract::yaml::error_text;
use ctrlmesh_manager_planner::validate::Step;
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::tree::{Document, Node};

/// Values that a document may have, however short it is: aliases repeat some. A longer document may have as many as can be written in it.
const MIN_VALUES: usize = 250_000;

/// An object and its path in the document.
#[derive(Debug, Clone)]
pub(super) struct Object<'v> {
    pub(super) path: Vec<Step>,
    pub(super) value: &'v Value,
}

/// The value of a document. The error has the message, and the line in the whole text.
pub(super) fn value_of(text: &str, document: &Document) -> Result<Value, (usize, String)> {
    parse_value(text, document, DuplicateKeyPolicy::Error).map_err(|error| {
        let line = error
            .location()
            .and_then(|location| usize::try_from(location.line()).ok());
        // An error in an alias has the places of both in its text, and the limit that is exceeded in its cause.
        let mut cause = &error;
        while let serde_saphyr::Error::AliasError { error, .. } = cause {
            cause = error;
        }
        let is_limit = matches!(cause, serde_saphyr::Error::Budget { .. });
        (
            line.unwrap_or(document.line),
            error_text(if is_limit { cause } else { &error }),
        )
    })
}

/// The value of a document with duplicate fields, of which the last counts. The mistakes name the duplicates.
pub(super) fn value_of_last(text: &str, document: &Document, root: &Node) -> Option<(Value, Vec<Mistake>)> {
    let twice = root.fields_written_twice();
    let value = parse_value(text, document, DuplicateKeyPolicy::LastWins).ok()?;
    (!twice.is_empty() && !is_list(&value)).then_some((value, twice))
}

fn parse_value(
    text: &str,
    document: &Document,
    duplicate_keys: DuplicateKeyPolicy,
) -> Result<Value, serde_saphyr::Error> {
    let written = text.get(document.range.clone()).unwrap_or_default();
    // A value takes two bytes at least, as in `[1,2]`. Only aliases can make more of them.
    let max_nodes = (written.len() / 2).max(MIN_VALUES);
    let budget = serde_saphyr::budget! { max_nodes: max_nodes, max_events: 2 * max_nodes };
    let options = serde_saphyr::options! { with_snippet: false, duplicate_keys: duplicate_keys, budget: budget };
    serde_saphyr::from_str_with_options(written, options.clone()).or_else(|_| {
        // The padding makes lines those of the file.
        let padded = format!("{}{written}", "\n".repeat(document.line.saturating_sub(1)));
        serde_saphyr::from_str_with_options(&padded, options)
    })
}

pub(super) fn objects_in(document: &Value) -> Vec<Object<'_>> {
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

pub(super) fn is_list(document: &Value) -> bool {
    text_field(document, "apiVersion") == "v1" && text_field(document, "kind") == "List"
}

/// The group of an `apiVersion`; empty if it has none, as that of the core group.
pub(super) fn api_group(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

/// A text field of a document; empty if it is missing or no text.
pub(super) fn text_field<'d>(document: &'d Value, field: &str) -> &'d str {
    document.get(field).and_then(Value::as_str).unwrap_or_default()
}

impl Object<'_> {
    /// Kind, namespace and name, as far as the object has them.
    pub(super) fn display_name(&self) -> String {
        let text = |pointer: &str| self.value.pointer(pointer).and_then(Value::as_str);
        let (kind, name) = match (text("/kind"), text("/metadata/name")) {
            (None, None) => return "document".to_owned(),
            (kind, name) => (kind.unwrap_or("?"), name.unwrap_or("?")),
        };
        match text("/metadata/namespace") {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        }
    }
}
