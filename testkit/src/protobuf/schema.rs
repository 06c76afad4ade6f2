//! The schema: kinds, messages and their fields, as `tests/golden/protobuf_schema.go` writes them.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// Each line is a kind or a message; see `schemaLine` in the generator.
const LINES: &str = include_str!("schema.jsonl");

static SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::read);

/// The schema of the kinds that are served in protobuf.
pub(super) fn schema() -> &'static Schema {
    &SCHEMA
}

/// Messages and the kinds that are written as such.
#[derive(Debug, Default)]
pub(super) struct Schema {
    /// By `apiVersion` and `kind`.
    kinds: HashMap<(String, String), String>,
    messages: HashMap<String, Vec<FieldSchema>>,
}

/// A field, and how it is written in JSON.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FieldSchema {
    pub(super) number: u32,
    /// In JSON; empty if the fields of this message stand in its place there.
    #[serde(default)]
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) element: Element,
    #[serde(default)]
    pub(super) form: Form,
    /// Whether JSON leaves it out when it is empty.
    #[serde(default)]
    pub(super) omit_empty: bool,
}

/// The type of a field, or of its items.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(super) enum Element {
    String,
    Bytes,
    Bool,
    Int32,
    Int64,
    /// RFC 3339 in JSON, whole seconds.
    Time,
    /// RFC 3339 in JSON, with six digits after the second.
    MicroTime,
    IntOrString,
    Quantity,
    /// JSON as text, within a message.
    RawJson,
    /// A message of the schema.
    Message(String),
}

impl From<String> for Element {
    fn from(name: String) -> Self {
        match name.as_str() {
            "string" => Self::String,
            "bytes" => Self::Bytes,
            "bool" => Self::Bool,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "time" => Self::Time,
            "microTime" => Self::MicroTime,
            "intOrString" => Self::IntOrString,
            "quantity" => Self::Quantity,
            "rawJSON" => Self::RawJson,
            _ => Self::Message(name),
        }
    }
}

/// How often a field occurs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    /// Once, also when it is empty: Go's plain values.
    #[default]
    Value,
    /// Once if it is set: Go's pointers.
    Optional,
    List,
    /// From strings.
    Map,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Line {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    message: String,
    #[serde(default)]
    fields: Vec<FieldSchema>,
}

impl Schema {
    #[expect(
        clippy::expect_used,
        reason = "a generated file that is compiled in; any test that uses protobuf reads it"
    )]
    fn read() -> Self {
        let mut schema = Self::default();
        for line in LINES.lines() {
            let line: Line = serde_json::from_str(line).expect("a line of the schema");
            if line.kind.is_empty() {
                schema.messages.insert(line.message, line.fields);
            } else {
                schema.kinds.insert((line.api_version, line.kind), line.message);
            }
        }
        schema
    }

    /// The message that a kind is written as.
    pub(super) fn message_of(&self, api_version: &str, kind: &str) -> Option<&str> {
        let message = self.kinds.get(&(api_version.to_owned(), kind.to_owned()))?;
        Some(message)
    }

    /// The fields of a message in the order of their numbers; none for a message without fields.
    pub(super) fn fields(&self, message: &str) -> &[FieldSchema] {
        self.messages.get(message).map(Vec::as_slice).unwrap_or_default()
    }

    /// All messages with their fields.
    #[cfg(test)]
    pub(super) fn messages(&self) -> impl Iterator<Item = (&str, &[FieldSchema])> {
        let messages = self.messages.iter();
        messages.map(|(name, fields)| (name.as_str(), fields.as_slice()))
    }

    /// The messages of all kinds.
    #[cfg(test)]
    pub(super) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.kinds.values().map(String::as_str)
    }
}
