//! JSON to protobuf. Fields are written in the order of their numbers, map entries in the order of their keys; plain values are written
//! even if they are empty, like gogo's marshallers do.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ctrlmesh_wire::protobuf::Message;
use jiff::Timestamp;
use serde_json::Value;

use super::schema::{Element, FieldSchema, Form, Schema};
use super::{Object, ProtobufError};

type Encoded = Result<Message, ProtobufError>;

/// Encodes an object as a message, by the name of the message.
pub(super) fn encode_message(schema: &Schema, name: &str, object: &Object) -> Encoded {
    let mut fields = schema.fields(name).iter();
    fields.try_fold(Message::new(), |out, field| put_field(schema, out, field, object))
}

fn put_field(schema: &Schema, out: Message, field: &FieldSchema, object: &Object) -> Encoded {
    if let ("", Element::Message(name)) = (field.name.as_str(), &field.element) {
        return Ok(out.message(field.number, &encode_message(schema, name, object)?));
    }
    let put_one = |out, value: &Value| put_element(schema, out, field, value);
    let put = match (field.form, object.get(&field.name).unwrap_or(&Value::Null)) {
        (Form::Value, value) => put_one(out, value),
        (_, Value::Null) => Ok(out),
        (Form::Optional, value) => put_one(out, value),
        (Form::List, Value::Array(items)) => items.iter().enumerate().try_fold(out, |out, (at, item)| {
            put_one(out, item).map_err(|error| error.in_field(&format!("[{at}]")))
        }),
        (Form::Map, Value::Object(entries)) => put_entries(schema, out, field, entries),
        (Form::List, other) => Err(type_error("a list", other)),
        (Form::Map, other) => Err(type_error("an object", other)),
    };
    put.map_err(|error| error.in_field(&field.name))
}

fn put_entries(schema: &Schema, out: Message, field: &FieldSchema, entries: &Object) -> Encoded {
    let mut entries: Vec<_> = entries.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    // A map entry is a message of key and value.
    let value_field = FieldSchema {
        number: 2,
        ..field.clone()
    };
    entries.into_iter().try_fold(out, |out, (key, value)| {
        let entry = put_element(schema, Message::new().string(1, key), &value_field, value);
        let entry = entry.map_err(|error| error.in_field(&format!("[{key:?}]")))?;
        Ok(out.message(field.number, &entry))
    })
}

/// Encodes one value, list item or map value. `null` is Go's zero value.
fn put_element(schema: &Schema, out: Message, field: &FieldSchema, value: &Value) -> Encoded {
    let number = field.number;
    Ok(match &field.element {
        Element::String => out.string(number, as_text(value)?),
        Element::Bytes if value.is_null() => out,
        Element::Bytes => {
            let bytes = STANDARD.decode(as_text(value)?);
            out.bytes(number, &bytes.map_err(|_| type_error("base64", value))?)
        }
        Element::Bool => match value {
            Value::Null => out.varint(number, 0),
            value => out.varint(
                number,
                value.as_bool().ok_or_else(|| type_error("a boolean", value))?.into(),
            ),
        },
        Element::Int32 => out.varint(number, i64::from(as_int32(value)?).cast_unsigned()),
        Element::Int64 => out.varint(number, as_int64(value)?.cast_unsigned()),
        Element::Time => out.message(number, &encode_time(value, false)?),
        Element::MicroTime => out.message(number, &encode_time(value, true)?),
        Element::IntOrString => out.message(number, &int_or_string(value)?),
        Element::Quantity => out.message(number, &encode_quantity(value)?),
        Element::RawJson if value.is_null() => out.message(number, &Message::new()),
        Element::RawJson => out.message(number, &Message::new().string(1, &value.to_string())),
        Element::Message(name) => {
            let none = Object::new();
            let object = match value {
                Value::Null => &none,
                value => value.as_object().ok_or_else(|| type_error("an object", value))?,
            };
            out.message(number, &encode_message(schema, name, object)?)
        }
    })
}

fn type_error(what: &str, found: &Value) -> ProtobufError {
    let found: String = found.to_string().chars().take(64).collect();
    ProtobufError::new(format!("expected {what}, found {found}"))
}

fn as_text(value: &Value) -> Result<&str, ProtobufError> {
    match value {
        Value::Null => Ok(""),
        value => value.as_str().ok_or_else(|| type_error("a string", value)),
    }
}

fn as_int64(value: &Value) -> Result<i64, ProtobufError> {
    match value {
        Value::Null => Ok(0),
        value => value.as_i64().ok_or_else(|| type_error("an integer of 64 bits", value)),
    }
}

fn as_int32(value: &Value) -> Result<i32, ProtobufError> {
    i32::try_from(as_int64(value)?).map_err(|_| type_error("an integer of 32 bits", value))
}

/// `Timestamp` of seconds and nanoseconds since 1970; an unset time has no fields.
fn encode_time(value: &Value, with_micros: bool) -> Encoded {
    const NANOS: i128 = 1_000_000_000;
    if value.is_null() {
        return Ok(Message::new());
    }
    let time: Timestamp = as_text(value)?
        .parse()
        .map_err(|_| type_error("a time as of RFC 3339", value))?;
    // Rounded down, like Go does.
    let (seconds, nanos) = (
        time.as_nanosecond().div_euclid(NANOS),
        time.as_nanosecond().rem_euclid(NANOS),
    );
    let micros = if with_micros { nanos / 1000 * 1000 } else { 0 };
    let number = |number: i128| i64::try_from(number).unwrap_or_default().cast_unsigned();
    Ok(Message::new().varint(1, number(seconds)).varint(2, number(micros)))
}

fn int_or_string(value: &Value) -> Encoded {
    let (kind, number, text) = match value {
        Value::String(text) => (1, 0, text.as_str()),
        value => (
            0,
            as_int32(value).map_err(|_| type_error("a number or a string", value))?,
            "",
        ),
    };
    let number = i64::from(number).cast_unsigned();
    Ok(Message::new().varint(1, kind).varint(2, number).string(3, text))
}

fn encode_quantity(value: &Value) -> Encoded {
    let text = match value {
        Value::Null => "0".to_owned(),
        Value::Number(number) => number.to_string(),
        value => as_text(value)?.to_owned(),
    };
    Ok(Message::new().string(1, &text))
}
