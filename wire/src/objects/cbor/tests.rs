//! Encodes and decodes CBOR for the tests, apart from the code that they test.

use proptest::prelude::*;
use serde_json::{Map, Value};

mod dropped;
mod list;
mod malformed;
mod watch;

const CHUNK_SIZES: [usize; 5] = [1, 2, 3, 7, usize::MAX];
const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// How items are encoded. The default is what API servers write.
#[derive(Debug, Clone, Copy, Default)]
struct Style {
    /// Text strings instead of byte strings.
    has_text_strings: bool,
    /// Indefinite lengths of strings, arrays and maps.
    is_indefinite: bool,
    /// Longest keys first.
    is_reversed: bool,
}

fn all_styles() -> Vec<Style> {
    let flags = [false, true];
    let mut styles = Vec::new();
    for has_text_strings in flags {
        for is_indefinite in flags {
            for is_reversed in flags {
                styles.push(Style {
                    has_text_strings,
                    is_indefinite,
                    is_reversed,
                });
            }
        }
    }
    styles
}

fn document(value: &Value, style: Style) -> Vec<u8> {
    [&SELF_DESCRIBED[..], &encode(value, style)].concat()
}

fn encode(value: &Value, style: Style) -> Vec<u8> {
    match value {
        Value::Null => vec![0xf6],
        Value::Bool(flag) => vec![if *flag { 0xf5 } else { 0xf4 }],
        Value::Number(number) => match number.as_u64() {
            Some(number) => head(0, number),
            None => head(1, u64::try_from(-1 - number.as_i64().unwrap()).unwrap()),
        },
        Value::String(text) => encode_string(text, style),
        Value::Array(elements) => {
            let content = elements.iter().flat_map(|element| encode(element, style)).collect();
            framed(4, elements.len(), content, style)
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| (key.len(), (*key).clone()));
            if style.is_reversed {
                entries.reverse();
            }
            let mut content = Vec::new();
            for (key, value) in entries {
                content.extend(encode_string(key, style));
                content.extend(encode(value, style));
            }
            framed(5, map.len(), content, style)
        }
    }
}

fn framed(major: u8, count: usize, content: Vec<u8>, style: Style) -> Vec<u8> {
    if style.is_indefinite {
        [vec![major << 5 | 31], content, vec![0xff]].concat()
    } else {
        [head(major, count as u64), content].concat()
    }
}

fn encode_string(text: &str, style: Style) -> Vec<u8> {
    let major = if style.has_text_strings { 3 } else { 2 };
    let whole = |part: &str| [head(major, part.len() as u64), part.as_bytes().to_vec()].concat();
    if !style.is_indefinite {
        return whole(text);
    }
    let first_length = text.chars().next().map_or(0, char::len_utf8);
    let (first, others) = text.split_at(first_length);
    [vec![major << 5 | 31], whole(first), whole(others), vec![0xff]].concat()
}

fn head(major: u8, number: u64) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let (info, skipped) = match number {
        0..=23 => (bytes[7], 8),
        24..=0xff => (24, 7),
        0x100..=0xffff => (25, 6),
        0x1_0000..=0xffff_ffff => (26, 4),
        _ => (27, 0),
    };
    [&[major << 5 | info][..], &bytes[skipped..]].concat()
}

/// The documents of a CBOR sequence.
fn decode_all(mut rest: &[u8]) -> Vec<Value> {
    let mut values = Vec::new();
    while !rest.is_empty() {
        values.push(decode(&mut rest));
    }
    values
}

fn decode(rest: &mut &[u8]) -> Value {
    let (major, mut count) = decode_head(rest);
    match major {
        0 => Value::from(count.unwrap()),
        1 => Value::from(-1 - i64::try_from(count.unwrap()).unwrap()),
        2 | 3 => Value::String(String::from_utf8(decode_string(rest, count)).unwrap()),
        4 => {
            let mut elements = Vec::new();
            while has_next(rest, &mut count) {
                elements.push(decode(rest));
            }
            Value::Array(elements)
        }
        5 => {
            let mut map = Map::new();
            while has_next(rest, &mut count) {
                let key = decode(rest).as_str().unwrap().to_owned();
                let value = decode(rest);
                assert!(map.insert(key, value).is_none(), "a key occurs twice");
            }
            Value::Object(map)
        }
        6 => decode(rest),
        _ => match count {
            Some(20) => Value::Bool(false),
            Some(21) => Value::Bool(true),
            Some(22 | 23) => Value::Null,
            other => panic!("simple value {other:?}"),
        },
    }
}

fn decode_string(rest: &mut &[u8], count: Option<u64>) -> Vec<u8> {
    match count {
        Some(length) => {
            let bytes = *rest;
            let (content, behind) = bytes.split_at(usize::try_from(length).unwrap());
            *rest = behind;
            content.to_vec()
        }
        None => {
            let mut joined = Vec::new();
            while has_next(rest, &mut None) {
                let (_, length) = decode_head(rest);
                joined.extend(decode_string(rest, length));
            }
            joined
        }
    }
}

fn has_next(rest: &mut &[u8], left: &mut Option<u64>) -> bool {
    match left {
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
        None => {
            let is_end = rest[0] == 0xff;
            if is_end {
                *rest = &rest[1..];
            }
            !is_end
        }
    }
}

fn decode_head(rest: &mut &[u8]) -> (u8, Option<u64>) {
    let bytes = *rest;
    let (major, info) = (bytes[0] >> 5, bytes[0] & 0x1f);
    let length = match info {
        0..=23 | 31 => 0,
        24 => 1,
        25 => 2,
        26 => 4,
        27 => 8,
        _ => panic!("reserved head {info}"),
    };
    let (number, behind) = bytes[1..].split_at(length);
    *rest = behind;
    let argument = number.iter().fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
    match info {
        31 => (major, None),
        0..=23 => (major, Some(u64::from(info))),
        _ => (major, Some(argument)),
    }
}

/// Any value without floating-point numbers.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zé]{0,30}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let entries = proptest::collection::vec(("[a-z]{1,8}", inner.clone()), 0..5);
        prop_oneof![
            proptest::collection::vec(inner, 0..5).prop_map(Value::from),
            entries.prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

/// Any metadata, whose name begins with `k` or `d`.
fn any_metadata() -> impl Strategy<Value = Value> {
    let labels = proptest::collection::vec(("[a-z]{1,30}", "[a-z]{0,3}".prop_map(Value::from)), 0..24);
    ("[kd][a-z]{0,30}", labels, any_value()).prop_map(|(name, labels, other)| {
        let labels: Map<String, Value> = labels.into_iter().collect();
        serde_json::json!({"name": name, "labels": labels, "managedFields": other, "creationTimestamp": null})
    })
}

fn any_style() -> impl Strategy<Value = Style> {
    any::<[bool; 3]>().prop_map(|[has_text_strings, is_indefinite, is_reversed]| Style {
        has_text_strings,
        is_indefinite,
        is_reversed,
    })
}
