//! Bytes to a JSON value: JSON or YAML, bounded, without what makes a document mean something else to another reader
//! (duplicate keys) or grow when it is read (aliases).
//!
//! Leaves the meaning of the value to `decode.rs`.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::MAX_DOCUMENT_BYTES;
use crate::error::{Error, quote};
use crate::yaml::error_text;

/// Deepest nesting. Settings of real plugins nest some six levels; every reader and printer of values recurses.
const MAX_DEPTH: usize = 64;

/// At most so many characters of what a parser says.
const MAX_PROBLEM: usize = 512;

/// Added to the error of a document that is YAML in braces.
const READ_AS_JSON: &str =
    "; a document that begins with a brace is read as JSON: quote its keys, or write YAML without the outer braces";

/// Reads a document. See [`super::Chain::parse`].
pub(super) fn parse_document(document: &[u8]) -> Result<Value, Error> {
    if document.len() > MAX_DOCUMENT_BYTES {
        return Err(Error::TooLarge {
            bytes: document.len(),
            limit: MAX_DOCUMENT_BYTES,
        });
    }
    let text = std::str::from_utf8(document).map_err(|_| Error::NotText)?;
    if text.trim().is_empty() {
        return Err(Error::Empty);
    }
    let Some(fields) = text.trim_start().strip_prefix('{') else {
        return parse_yaml(text);
    };
    let (json, rest) = split_at_marker(text);
    let value = parse_json(json).map_err(|mut problem| {
        if is_yaml_mapping(fields) {
            problem.push_str(READ_AS_JSON);
        }
        syntax_error("JSON", problem)
    })?;
    match yaml_documents(rest)?.len() {
        0 => Ok(value),
        more => Err(Error::SeveralDocuments { count: 1 + more }),
    }
}

/// JSON, and the YAML documents after it, from the line that ends the first document: `---` or `...`. No line of JSON begins like that.
fn split_at_marker(text: &str) -> (&str, &str) {
    let is_marker = |start: &usize| {
        let line = text.get(*start..).unwrap_or_default();
        line.starts_with("---") || line.starts_with("...")
    };
    let mut starts = text.match_indices('\n').map(|(newline, _)| newline + 1);
    let split = starts.find(is_marker).and_then(|start| text.split_at_checked(start));
    let (json, rest) = split.unwrap_or((text, ""));
    (json, rest.strip_prefix("...").unwrap_or(rest))
}

/// Whether the text after `{` begins with a key that YAML allows and JSON does not.
fn is_yaml_mapping(fields: &str) -> bool {
    fields.trim_start().starts_with(char::is_alphabetic)
}

/// Parsers quote what they did not understand, however long it is.
fn syntax_error(format: &'static str, mut problem: String) -> Error {
    if let Some((end, _)) = problem.char_indices().nth(MAX_PROBLEM) {
        problem.truncate(end);
        problem.push('…');
    }
    Error::Syntax { format, problem }
}

/// The one document of the text.
fn parse_yaml(text: &str) -> Result<Value, Error> {
    let mut documents = yaml_documents(text)?;
    match documents.len() {
        0 | 1 => Ok(documents.pop().unwrap_or_default()),
        count => Err(Error::SeveralDocuments { count }),
    }
}

/// The documents of the text. Empty ones do not count, such as the one after a `---` at the end.
fn yaml_documents(text: &str) -> Result<Vec<Value>, Error> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let options = serde_saphyr::options! {
        // No alias, no bomb; and a reader of the document sees what is in force where it stands.
        budget: serde_saphyr::budget! { max_aliases: 0, max_anchors: 0, max_depth: MAX_DEPTH },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
        // JSON has no words for them, and `serde_json` would make them null.
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::Reject,
        // `no` is the country, not false.
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| syntax_error("YAML", error_text(&error)))
}

fn parse_json(text: &str) -> Result<Value, String> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| error.to_string())?;
    convert_value(raw, 0)
}

/// Like `serde_json::Value`'s own reader, but it refuses duplicate keys (that one takes the last) and reads floating-point
/// numbers exactly (that one is off by a bit at times, and what is printed must read back the same).
fn convert_value(raw: &RawValue, depth: usize) -> Result<Value, String> {
    if depth > MAX_DEPTH {
        return Err(format!("nested more than {MAX_DEPTH} levels deep; write it flatter"));
    }
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let Fields(fields) = read_json(text)?;
            let mut map = Map::new();
            for (key, field) in fields {
                map.insert(key, convert_value(field, depth + 1)?);
            }
            Ok(Value::Object(map))
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = read_json(text)?;
            items
                .into_iter()
                .map(|item| convert_value(item, depth + 1))
                .collect::<Result<_, _>>()
                .map(Value::Array)
        }
        Some(b'-' | b'0'..=b'9') => parse_number(text),
        _ => read_json(text),
    }
}

/// `text` is a number as JSON writes them; Rust reads all of those.
fn parse_number(text: &str) -> Result<Value, String> {
    if let Ok(number) = text.parse::<u64>() {
        return Ok(number.into());
    }
    if let Ok(number) = text.parse::<i64>() {
        return Ok(number.into());
    }
    let float = text.parse::<f64>().ok().and_then(Number::from_f64);
    float
        .map(Value::Number)
        .ok_or_else(|| format!("{} is too large a number", quote(text)))
}

fn read_json<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The fields of a mapping, each key once.
struct Fields<'de>(Vec<(String, &'de RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Fields<'de>, A::Error> {
                let mut list: Vec<(String, &'de RawValue)> = Vec::new();
                let mut seen = HashSet::new();
                while let Some((key, value)) = fields.next_entry::<String, _>()? {
                    if !seen.insert(key.clone()) {
                        let key = quote(&key);
                        return Err(serde::de::Error::custom(format_args!(
                            "duplicate key {key}; write each key once"
                        )));
                    }
                    list.push((key, value));
                }
                Ok(Fields(list))
            }
        }
        deserializer.deserialize_map(Each)
    }
}
