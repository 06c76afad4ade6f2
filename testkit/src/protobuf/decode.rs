//! Protobuf to JSON, as Go would marshal its types: `omitempty` leaves out empty values; unset fields without it are `null`, zero or an
//! empty object. Unknown fields are left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ctrlmesh_wire::protobuf::Field;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::schema::{Element, FieldSchema, Form, Schema};
use super::{Object, ProtobufError, parse_fields};

type Decoded = Result<Value, ProtobufError>;

/// Decodes a message by its name.
pub(super) fn decode_message(schema: &Schema, name: &str, bytes: &[u8]) -> Result<Object, ProtobufError> {
    let written = parse_fields(bytes)?;
    let mut object = Object::new();
    for field in schema.fields(name) {
        let found: Vec<_> = written.iter().filter(|found| found.number == field.number).collect();
        if let ("", Element::Message(name)) = (field.name.as_str(), &field.element) {
            object.extend(decode_message(schema, name, last_payload(&found))?);
            continue;
        }
        let value = read_field(schema, field, &found).map_err(|error| error.in_field(&field.name))?;
        if !(field.omit_empty && is_empty(field.form, &value)) {
            object.insert(field.name.clone(), value);
        }
    }
    Ok(object)
}

fn last_payload<'a>(found: &[&Field<'a>]) -> &'a [u8] {
    found.last().and_then(|field| field.payload).unwrap_or_default()
}

/// Whether `omitempty` leaves the value out. A pointer is left out only if it is nil.
fn is_empty(form: Form, value: &Value) -> bool {
    match value {
        Value::Null => true,
        _ if form == Form::Optional => false,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn read_field(schema: &Schema, field: &FieldSchema, found: &[&Field<'_>]) -> Decoded {
    match (field.form, found.last()) {
        (Form::Value, None) => zero_value(schema, &field.element),
        (_, None) => Ok(Value::Null),
        (Form::Value | Form::Optional, Some(last)) => read_element(schema, &field.element, last),
        (Form::List, _) => {
            let items = found.iter().enumerate();
            let items = items.map(|(at, item)| {
                read_element(schema, &field.element, item).map_err(|error| error.in_field(&format!("[{at}]")))
            });
            items.collect()
        }
        (Form::Map, _) => {
            let entries = found.iter().map(|entry| map_entry(schema, &field.element, entry));
            Ok(Value::Object(entries.collect::<Result<_, _>>()?))
        }
    }
}

/// Reads key and value, either of which may be left out if it is empty.
fn map_entry(schema: &Schema, of: &Element, entry: &Field<'_>) -> Result<(String, Value), ProtobufError> {
    let (mut key, mut value) = (String::new(), None);
    for field in parse_fields(read_payload(entry)?)? {
        match field.number {
            1 => key = read_text(&field)?,
            2 => value = Some(read_element(schema, of, &field)?),
            _ => {}
        }
    }
    let value = match (value, of) {
        (Some(value), _) => value,
        (None, Element::Bytes) => "".into(),
        (None, of) => zero_value(schema, of)?,
    };
    Ok((key, value))
}

/// Go's zero value of a type.
fn zero_value(schema: &Schema, of: &Element) -> Decoded {
    match of {
        Element::Bytes => Ok(Value::Null),
        Element::Bool => Ok(false.into()),
        Element::Int32 | Element::Int64 => Ok(0.into()),
        of => from_payload(schema, of, &[]),
    }
}

fn read_element(schema: &Schema, of: &Element, field: &Field<'_>) -> Decoded {
    let number = || field.varint().ok_or_else(|| ProtobufError::new("expected a number"));
    match of {
        Element::Bool => Ok((number()? != 0).into()),
        Element::Int32 => Ok(low_bits(number()?).into()),
        Element::Int64 => Ok(number()?.cast_signed().into()),
        of => from_payload(schema, of, read_payload(field)?),
    }
}

fn from_payload(schema: &Schema, of: &Element, payload: &[u8]) -> Decoded {
    match of {
        Element::Bytes => Ok(STANDARD.encode(payload).into()),
        Element::Time => read_time(payload, false),
        Element::MicroTime => read_time(payload, true),
        Element::IntOrString => int_or_string(payload),
        Element::Quantity => read_quantity(payload),
        Element::RawJson => raw_json(payload),
        Element::Message(name) => decode_message(schema, name, payload).map(Value::Object),
        // Numbers have no payload.
        Element::String | Element::Bool | Element::Int32 | Element::Int64 => parse_utf8(payload).map(Value::String),
    }
}

fn read_payload<'a>(field: &Field<'a>) -> Result<&'a [u8], ProtobufError> {
    field
        .payload
        .ok_or_else(|| ProtobufError::new("expected a length and as many bytes"))
}

fn parse_utf8(bytes: &[u8]) -> Result<String, ProtobufError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| ProtobufError::new("the text is not UTF-8"))
}

pub(super) fn read_text(field: &Field<'_>) -> Result<String, ProtobufError> {
    parse_utf8(read_payload(field)?)
}

/// An `int32`, of which upstream keeps the low 32 bits.
fn low_bits(number: u64) -> i32 {
    number as i32
}

/// The numeric fields of a message with these field numbers; zero for missing ones.
fn read_numbers(message: &[u8], requested: [u32; 2]) -> Result<[i64; 2], ProtobufError> {
    let written = parse_fields(message)?;
    Ok(requested.map(|requested| {
        let mut found = written.iter().filter(|field| field.number == requested);
        let number = found.next_back().and_then(Field::varint);
        number.unwrap_or_default().cast_signed()
    }))
}

fn read_time(payload: &[u8], with_micros: bool) -> Decoded {
    if payload.is_empty() {
        return Ok(Value::Null);
    }
    let [seconds, nanos] = read_numbers(payload, [1, 2])?;
    let nanos = if with_micros {
        low_bits(nanos.cast_unsigned())
    } else {
        0
    };
    let time = Timestamp::new(seconds, nanos);
    let time = time.map_err(|_| ProtobufError::new(format!("{seconds} s since 1970 is no time")))?;
    let text = if with_micros {
        format!("{time:.6}")
    } else {
        time.to_string()
    };
    Ok(text.into())
}

fn int_or_string(payload: &[u8]) -> Decoded {
    match read_numbers(payload, [1, 2])? {
        [0, number] => Ok(low_bits(number.cast_unsigned()).into()),
        [1, _] => string_within(payload, 3).map(|text| text.unwrap_or_default().into()),
        [kind, _] => Err(ProtobufError::new(format!(
            "{kind} is neither a number (0) nor a string (1)"
        ))),
    }
}

fn read_quantity(payload: &[u8]) -> Decoded {
    string_within(payload, 1).map(|text| text.map_or_else(|| json!("0"), Value::String))
}

fn raw_json(payload: &[u8]) -> Decoded {
    match string_within(payload, 1)? {
        None => Ok(Value::Null),
        Some(text) => {
            serde_json::from_str(&text).map_err(|error| ProtobufError::new(format!("it is not JSON: {error}")))
        }
    }
}

fn string_within(message: &[u8], number: u32) -> Result<Option<String>, ProtobufError> {
    let written = parse_fields(message)?;
    let last = written.iter().rfind(|field| field.number == number);
    last.map(read_text).transpose()
}
