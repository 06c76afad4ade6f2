//! What of a document can be mended mechanically, so that it says what its author wrote: the table in docs/migration.md, misspelt fields,
//! numbers where texts belong, and names of resources. Which pods are meant, how long a breaker stays open or what a shard limits is up
//! to people.
//!
//! Guarantees: pure; one change at a time ([`mend`]), each of which leaves fewer to make, so that calling it until there is none ends.
//! Leaves files, and where in them a field stands, to `ctrlmesh lint`.

mod kusion;
mod labels;
mod names;
mod schema;
#[cfg(test)]
mod tests;

use std::fmt;

use ctrlmesh_contract::error::quote;
use serde_json::{Map, Value};

use crate::LabelKeys;
use crate::api::API_VERSION;

/// A field of a mapping, or an element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// By its name.
    Key(String),
    /// By its place, from 0.
    Index(usize),
}

/// From a document to a part of it. Shown as `spec.limits[0].selector`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

/// What is done to the field or element that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It goes.
    Remove,
    /// The field gets another name.
    Rename(String),
    /// Its value, a scalar, becomes this text.
    Text(String),
    /// Its value becomes that of the only field of a mapping.
    Wrap(String),
    /// The fields of its value take its place.
    Unwrap,
    /// It goes into the mapping beside it that has this name.
    MoveInto(String),
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mend {
    /// What is changed.
    pub path: Path,
    /// How.
    pub change: Change,
}

/// The next change of an object of ours, where labels have their usual keys; `None`: nothing can be mended.
#[must_use]
pub fn mend(document: &Value) -> Option<Mend> {
    mend_with(document, &LabelKeys::default())
}

/// The next change of an object of ours that is for a cluster whose manager has these keys.
#[must_use]
pub fn mend_with(document: &Value, keys: &LabelKeys) -> Option<Mend> {
    let text = |field: &str| document.get(field).and_then(Value::as_str);
    let kind = text("kind").filter(|_| text("apiVersion") == Some(API_VERSION))?;
    kusion::mend(document, kind)
        .or_else(|| schema::mend(document, kind))
        .or_else(|| names::mend(document, kind))
        .or_else(|| labels::mend(document, kind, keys))
}

impl Mend {
    fn new(path: Path, change: Change) -> Self {
        Self { path, change }
    }

    /// The document after the change; `None`: there is no such part of it.
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
                put(fields, name, value)?;
            }
            (Change::Unwrap, Step::Key(key)) => {
                let fields = around.as_object_mut()?;
                let Some(Value::Object(inner)) = fields.remove(key) else {
                    return None;
                };
                for (name, value) in inner {
                    put(fields, &name, value)?;
                }
            }
            (Change::MoveInto(into), Step::Key(key)) => {
                let fields = around.as_object_mut()?;
                let value = fields.remove(key)?;
                put(fields.get_mut(into)?.as_object_mut()?, key, value)?;
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

/// `None`: there is one already.
fn put(fields: &mut Map<String, Value>, name: &str, value: Value) -> Option<()> {
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
    /// From names of fields with dots between.
    fn of(fields: &str) -> Self {
        Self(fields.split('.').map(|field| Step::Key(field.to_owned())).collect())
    }

    fn key(&self, key: &str) -> Self {
        self.and(Step::Key(key.to_owned()))
    }

    fn index(&self, index: usize) -> Self {
        self.and(Step::Index(index))
    }

    fn and(&self, step: Step) -> Self {
        let mut path = self.clone();
        path.0.push(step);
        path
    }

    /// What it leads to.
    #[must_use]
    pub fn find<'v>(&self, document: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(document, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => value.get(index),
        })
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

impl fmt::Display for Mend {
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

/// A list that a path leads to, with the paths of its elements.
fn elements<'v>(document: &'v Value, path: &Path) -> Vec<(Path, &'v Value)> {
    let list = path.find(document).and_then(Value::as_array).into_iter().flatten();
    list.enumerate()
        .map(|(index, item)| (path.index(index), item))
        .collect()
}

/// Limits of a shard and of a root, wherever people write them.
fn limits(document: &Value) -> Vec<(Path, &Value)> {
    let lists = ["spec.limits", "spec.root.resourceSelector", "spec.resourceSelector"];
    lists
        .into_iter()
        .flat_map(|path| elements(document, &Path::of(path)))
        .collect()
}
