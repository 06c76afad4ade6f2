//! Calls one object by another name, everywhere a request or a response names it: path, field selector, body. This is
//! how a leader-election lock becomes one lock per shard while the controller knows a single name.
//!
//! | file | holds |
//! |---|---|
//! | `path` | the name in a path |
//! | `watch_renamer` | names in a watch, event by event |
//! | `yaml` | the name in an apply configuration |
//! | `json_patch` | names in a JSON patch |
//! | `json` | names in JSON: objects, lists, Tables, Status, Events and merge patches |
//! | `json_scanner` | walks through JSON without building it |
//! | `protobuf` | names in protobuf |
//!
//! Only the name changes: JSON and protobuf are spliced, never decoded and written again, so that every other byte and
//! every unknown field stays. A name is changed where it equals [`Rename::from`], and nowhere else.

mod json;
mod json_patch;
mod json_scanner;
mod path;
mod protobuf;
mod watch_renamer;
mod yaml;

pub use path::path;
pub use watch_renamer::{MAX_WATCH_EVENT_BYTES, WatchRenamer};

use crate::watch_event::media_type;
use crate::{FieldOperator, FieldSelector, Query, QueryEditor, SelectorError};

/// Renames from one name to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// The name that is there.
    pub from: String,
    /// The name to put in its place.
    pub to: String,
}

impl Rename {
    /// The way back, for responses.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self {
            from: self.to.clone(),
            to: self.from.clone(),
        }
    }
}

/// An error that prevents the change of a name. The request must not be sent on: it would be about another object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RenameError {
    /// The encoding can't be edited; a server answers 415 to a request in it.
    #[error("can't rename an object in {0:?}: send JSON, protobuf, or YAML for an apply")]
    Unsupported(String),
    /// The body breaks its own format.
    #[error("the body is no valid {format}: {problem} at byte {position}")]
    Malformed {
        /// Format that the content type names.
        format: &'static str,
        /// Message of the parser of that format.
        problem: &'static str,
        /// Position in bytes from the start of the body or of the watch event.
        position: usize,
    },
    /// The YAML is valid, but the name is written in a way that can't be replaced.
    #[error("metadata.name can't be renamed in this YAML: write it as a plain or quoted text, without anchor or tag")]
    YamlName,
    /// The YAML does not parse.
    #[error("the body is no valid YAML: {0}")]
    Yaml(String),
    /// The field selector does not parse.
    #[error(transparent)]
    FieldSelector(#[from] SelectorError),
    /// A watch event is larger than [`MAX_WATCH_EVENT_BYTES`].
    #[error("a watch event has more than {MAX_WATCH_EVENT_BYTES} bytes")]
    EventTooLarge,
}

/// Kinds that can be a leader-election lock. Only events about these are about a renamed object.
pub(crate) fn is_lock_kind(kind: &str) -> bool {
    matches!(kind, "Lease" | "ConfigMap" | "Endpoints")
}

/// Renames in the `fieldSelector` of a query: `metadata.name`, and for events the name of the object they are about.
/// Gives the whole new query, or `None` when nothing is to change.
///
/// # Errors
/// When the selector does not parse; the API server would refuse it too.
pub fn field_selector(raw_query: &str, rename: &Rename) -> Result<Option<String>, RenameError> {
    let Some(text) = Query::new(raw_query).get("fieldSelector") else {
        return Ok(None);
    };
    let mut selector = FieldSelector::parse(&text)?;
    let is_about_lock = |field: &str| selector.exact(field).is_none_or(|kind| is_lock_kind(&kind));
    let is_reference = is_about_lock("involvedObject.kind") && is_about_lock("regarding.kind");
    let mut is_changed = false;
    for requirement in &mut selector.requirements {
        let is_name = match requirement.field.as_str() {
            "metadata.name" => true,
            // `!=` on a reference may be about objects of other kinds, which have their own names.
            "involvedObject.name" | "regarding.name" => is_reference && requirement.operator == FieldOperator::Equals,
            _ => false,
        };
        if is_name && requirement.value == rename.from {
            requirement.value.clone_from(&rename.to);
            is_changed = true;
        }
    }
    let mut editor = QueryEditor::new(raw_query);
    if is_changed {
        editor.set("fieldSelector", &selector.to_string());
    }
    Ok(is_changed.then(|| editor.finish()))
}

/// Renames in the body of a request or a response; `None` when nothing is to change.
///
/// The body tells by its content type and its kind what it is: an object, a list, a Table, a Status, an Event, a merge
/// patch, a strategic merge patch, a JSON patch, an apply configuration. Renamed are `metadata.name` of the object, of
/// each item and of each row's object, the cells of a row that equal the name, a Status's `details.name` and the quoted
/// name in its messages, and the object that an Event is about if it can be a lock. Watches: see [`WatchRenamer`].
///
/// # Errors
/// When the content type is none of those, or the body is broken.
pub fn body(content_type: &str, body: &[u8], rename: &Rename) -> Result<Option<Vec<u8>>, RenameError> {
    if body.is_empty() {
        return Ok(None);
    }
    match media_type(content_type).as_str() {
        // The API server takes JSON when a body has no type.
        "" | "application/json" | "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
            json::rename(body, rename)
        }
        "application/json-patch+json" => json_patch::rename(body, rename),
        "application/apply-patch+yaml" | "application/yaml" => yaml::rename(body, rename),
        "application/vnd.kubernetes.protobuf" => protobuf::rename(body, rename),
        other => Err(RenameError::Unsupported(other.to_owned())),
    }
}

#[cfg(test)]
mod tests;
