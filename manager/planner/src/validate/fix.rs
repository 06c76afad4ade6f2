//! Finds mistakes in a document that can be corrected mechanically without a change of meaning: the table in docs/migration.md,
//! misspelt fields, numbers in place of texts, and names of resources. Which pods are selected, how long a breaker stays open or
//! what a shard limits is up to people.
//!
//! Guarantees: pure; one change at a time ([`next_fix`]), each of which leaves fewer to make, so that calling it repeatedly ends.
//! `ctrlmesh lint` reads and writes files and finds the positions of fields in them.

mod kusion;
mod names;
mod schema;
#[cfg(test)]
mod tests;

use std::fmt;

use ctrlmesh_contract::error::quote;
use ctrlmesh_manager_api::API_VERSION;
use serde_json::{Map, Value};

use crate::LabelKeys;

/// A field of a mapping, or an element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Key(String),
    /// Position, from 0.
    Index(usize),
}

/// The path from a document to a part of it. Displayed as `spec.limits[0].selector`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

/// A change of the field or element at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Remove,
    Rename(String),
    /// Replaces the value, a scalar, by this text.
    Text(String),
    /// Replaces the value by a mapping with this field, which has the old value.
    Wrap(String),
    /// Replaces the field by the fields of its value.
    Unwrap,
    /// Moves the field into its sibling of this name, a mapping.
    MoveInto(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    pub path: Path,
    pub change: Change,
}

/// The next change of one of our objects, with the default keys of labels; `None`: nothing can be corrected.
#[must_use]
pub fn next_fix(document: &Value) -> Option<Fix> {
    next_fix_with(document, &LabelKeys::default())
}

/// The next change of one of our objects, for a cluster whose manager has these keys.
#[must_use]
pub fn next_fix_with(document: &Value, keys: &LabelKeys) -> Option<Fix> {
    let text = |field: &str| document.get(field).and_then(Value::as_str);
    let kind = text("kind").filter(|_| text("apiVersion") == Some(API_VERSION))?;
    kusion::fix_kusionstack(document, kind)
        .or_else(|| schema::fix_schema(document, kind))
        .or_else(|| names::fix_names(document, kind))
        .or_else(|| names::fix_labels(document, kind, keys))
}

impl Fix {
    fn new(path: Path, change: Change) -> Self {
        Self { path, change }
    }

    /// The document after the change; `None`: it has no such part.
    #[must_use]
    pub fn apply(&self, document: &Value) -> Option<Value> {
        let mut document = document.clone();
        let (last, around) = self.path.0.split_last()?;
        let around = at_mut(&mut document, around)?;
        match (&self.change, last) {
            (Change::Remove, Step::Index(index)) => {
                let items = around.as_array_mut()?;
                (*index < items.len()).then(|| items.remove(*index))?;
            }
            (Change::Remove, Step::Key(key)) => {
                around.as_object_mut()?.remove(key)?;
            }
            (Change::Rename(name), Step::Key(key)) => {
                let fields = around.as_object_mut()?;
                let value = fields.remove(key)?;
                put_field(fields, name, value)?;
            }
            (Change::Unwrap, Step::Key(key)) => {
                let fields = around.as_object_mut()?;
                let Some(Value::Object(inner)) = fields.remove(key) else {
                    return None;
                };
                for (name, value) in inner {
                    put_field(fields, &name, value)?;
                }
            }
            (Change::MoveInto(into), Step::Key(key)) => {
                let fields = around.as_object_mut()?;
                let value = fields.remove(key)?;
                put_field(fields.get_mut(into)?.as_object_mut()?, key, value)?;
            }
            (Change::Text(text), step) => *step_mut(around, step)? = Value::from(text.as_str()),
            (Change::Wrap(name), step) => {
                let value = step_mut(around, step)?;
                let inner = value.take();
                *value = Value::Object(Map::from_iter([(name.clone(), inner)]));
            }
            (_, Step::Index(_)) => return None,
        }
        Some(document)
    }
}

/// `None`: the field exists already.
fn put_field(fields: &mut Map<String, Value>, name: &str, value: Value) -> Option<()> {
    fields.insert(name.to_owned(), value).is_none().then_some(())
}

fn at_mut<'v>(value: &'v mut Value, path: &[Step]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, step_mut)
}

fn step_mut<'v>(value: &'v mut Value, step: &Step) -> Option<&'v mut Value> {
    match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    }
}

impl Path {
    /// Parses names of fields with dots between them.
    fn from_fields(fields: &str) -> Self {
        Self(fields.split('.').map(|field| Step::Key(field.to_owned())).collect())
    }

    fn key(&self, key: &str) -> Self {
        self.with_step(Step::Key(key.to_owned()))
    }

    fn with_index(&self, index: usize) -> Self {
        self.with_step(Step::Index(index))
    }

    fn with_step(&self, step: Step) -> Self {
        let mut path = self.clone();
        path.0.push(step);
        path
    }

    /// The value at this path.
    #[must_use]
    pub fn find<'v>(&self, document: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(document, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => value.get(index),
        })
    }

    /// The value at this path.
    pub fn find_mut<'v>(&self, document: &'v mut Value) -> Option<&'v mut Value> {
        at_mut(document, &self.0)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    let is_plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric());
                    let key = if is_plain { key.clone() } else { quote(key) };
                    write!(f, "{}{key}", if at == 0 { "" } else { "." })?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match &self.change {
            Change::Remove => write!(f, "{path}: removed"),
            Change::Rename(name) => write!(f, "{path}: renamed to {name}"),
            Change::Text(text) => write!(f, "{path}: is {text:?} now"),
            Change::Wrap(name) => write!(f, "{path}: put below {name}"),
            Change::Unwrap => write!(f, "{path}: removed, and its fields put in its place"),
            Change::MoveInto(name) => write!(f, "{path}: moved into {name} beside it"),
        }
    }
}

/// The elements of the list at a path, with their paths.
fn list_elements<'v>(document: &'v Value, path: &Path) -> Vec<(Path, &'v Value)> {
    let list = path.find(document).and_then(Value::as_array).into_iter().flatten();
    list.enumerate()
        .map(|(index, item)| (path.with_index(index), item))
        .collect()
}

/// Limits of a shard and of a root, wherever people write them.
fn limits_with_paths(document: &Value) -> Vec<(Path, &Value)> {
    let lists = ["spec.limits", "spec.root.resourceSelector", "spec.resourceSelector"];
    lists
        .into_iter()
        .flat_map(|path| list_elements(document, &Path::from_fields(path)))
        .collect()
}
