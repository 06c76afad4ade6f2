//! Prints a JSON value in one way only: keys sorted by their bytes, no white space, numbers as Rust prints them.
//!
//! Own code, because a hash must not change with a feature of a library (`serde_json`'s map keeps insertion order as soon
//! as any crate of a build asks for that). Leaves the meaning of values to others.

use serde_json::{Map, Number, Value};

pub(super) fn canonical_json(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

/// Recursion is bounded by the parsers, which refuse deeper documents (`syntax.rs`).
fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => write_object(map, out),
    }
}

fn write_object(map: &Map<String, Value>, out: &mut String) {
    let mut fields: Vec<_> = map.iter().collect();
    fields.sort_unstable_by_key(|(key, _)| *key);
    out.push('{');
    for (at, (key, value)) in fields.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write_string(key, out);
        out.push(':');
        write_value(value, out);
    }
    out.push('}');
}

fn write_number(number: &Number, out: &mut String) {
    match number.as_f64() {
        // `Debug` of f64 is the shortest text that reads back to the same number, and keeps the `.0` that tells it from
        // an integer.
        Some(float) if number.is_f64() => out.push_str(&format!("{float:?}")),
        _ => out.push_str(&number.to_string()),
    }
}

/// RFC 8259 §7, escaping what must be escaped and nothing else.
fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}
