//! Reads the fields of one mapping, notes every mistake with its path, and knows which fields nobody asked for.
//!
//! Leaves which fields there are to `decode.rs`.

use serde_json::{Map, Value};

use crate::error::{Mistakes, field_path, quote};
use crate::suggest::did_you_mean;

/// The type of a field: its description for messages, and the conversion.
pub(super) struct Kind<T> {
    /// Completes the sentence "write …".
    pub(super) expected: &'static str,
    /// `None` if the value is something else.
    pub(super) convert: fn(Value) -> Option<T>,
}

pub(super) const TEXT: Kind<String> = Kind {
    expected: "a string",
    convert: |value| match value {
        Value::String(text) => Some(text),
        _ => None,
    },
};

pub(super) const LIST: Kind<Vec<Value>> = Kind {
    expected: "a list",
    convert: |value| match value {
        Value::Array(items) => Some(items),
        _ => None,
    },
};

pub(super) const MAPPING: Kind<Map<String, Value>> = Kind {
    expected: "a mapping",
    convert: |value| match value {
        Value::Object(map) => Some(map),
        _ => None,
    },
};

pub(super) const U64: Kind<u64> = Kind {
    expected: "a whole number from 0 to 18446744073709551615",
    convert: |value| value.as_u64(),
};

pub(super) const U32: Kind<u32> = Kind {
    expected: "a whole number from 0 to 4294967295",
    convert: |value| value.as_u64().and_then(|n| n.try_into().ok()),
};

pub(super) const I32: Kind<i32> = Kind {
    expected: "a whole number from -2147483648 to 2147483647",
    convert: |value| value.as_i64().and_then(|n| n.try_into().ok()),
};

/// The fields of one mapping.
pub(super) struct Fields<'m> {
    path: &'m str,
    map: Map<String, Value>,
    known: Vec<&'static str>,
    mistakes: &'m mut Mistakes,
}

impl<'m> Fields<'m> {
    /// `None`, and a mistake, if the value is no mapping. `path` is empty for the document itself.
    pub(super) fn from_value(value: Value, path: &'m str, mistakes: &'m mut Mistakes) -> Option<Self> {
        let map = convert_field(
            value,
            if path.is_empty() { "document" } else { path },
            &MAPPING,
            mistakes,
        )?;
        Some(Self {
            path,
            map,
            known: Vec::new(),
            mistakes,
        })
    }

    /// A field that may be left out.
    pub(super) fn optional<T>(&mut self, name: &'static str, kind: &Kind<T>) -> Option<T> {
        self.known.push(name);
        let value = self.map.remove(name)?;
        convert_field(value, &field_path(self.path, name), kind, self.mistakes)
    }

    /// A field that must be there.
    pub(super) fn required<T>(&mut self, name: &'static str, kind: &Kind<T>) -> Option<T> {
        if !self.map.contains_key(name) {
            self.add_mistake(name, &format!("is missing; write {}", kind.expected));
        }
        self.optional(name, kind)
    }

    /// Notes a mistake in a field.
    pub(super) fn add_mistake(&mut self, name: &str, problem: &str) {
        self.mistakes.add(field_path(self.path, name), problem);
    }

    /// The collected mistakes, for decoders of nested values.
    pub(super) const fn mistakes(&mut self) -> &mut Mistakes {
        self.mistakes
    }

    /// Path of a field.
    pub(super) fn path(&self, name: &str) -> String {
        field_path(self.path, name)
    }

    /// Refuses what nobody asked for.
    pub(super) fn finish(self) {
        for name in self.map.keys() {
            let path = field_path(self.path, &quote(name));
            let meant = did_you_mean(name, self.known.iter().copied());
            self.mistakes.add(
                path,
                format!("is not a field here; known are {}{meant}", self.known.join(", ")),
            );
        }
    }
}

/// Converts one value, noting a mistake.
pub(super) fn convert_field<T>(value: Value, path: &str, kind: &Kind<T>, mistakes: &mut Mistakes) -> Option<T> {
    let found = describe_value(&value);
    let converted = (kind.convert)(value);
    if converted.is_none() {
        mistakes.add(path, format!("is {found}; write {}", kind.expected));
    }
    converted
}

fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "empty".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => quote(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}
