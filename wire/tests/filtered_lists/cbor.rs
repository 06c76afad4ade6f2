//! Reads CBOR into JSON values. Bodies can then be compared that differ only in the order of keys, in lengths that are
//! definite or not, and in tags.

use serde_json::{Map, Value};

/// The values of a sequence: one in a list, and one for each event in a watch.
pub(crate) fn cbor_values(body: &[u8]) -> Vec<Value> {
    let mut reader = Reader { rest: body };
    let mut values = Vec::new();
    while !reader.rest.is_empty() {
        values.push(reader.read_value().unwrap());
    }
    values
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    /// `None` is the end of an item of indefinite length.
    fn read_value(&mut self) -> Option<Value> {
        let head = *self.take(1).first().unwrap();
        let (major, info) = (head >> 5, head & 0x1f);
        if major == 7 {
            return self.read_simple(info);
        }
        let argument = self.read_argument(info);
        Some(match major {
            0 => Value::from(argument.unwrap()),
            1 => Value::from(-1 - i64::try_from(argument.unwrap()).unwrap()),
            2 | 3 => Value::String(self.read_text(argument)),
            4 => Value::Array(self.read_values(argument)),
            5 => Value::Object(object(self.read_values(argument.map(|pairs| pairs * 2)))),
            // A tag.
            _ => self.read_value().unwrap(),
        })
    }

    /// The number in a head; `None` is an indefinite length.
    fn read_argument(&mut self, info: u8) -> Option<u64> {
        match info {
            0..24 => Some(info.into()),
            24..28 => {
                let bytes = self.take(1_usize << (info - 24));
                Some(
                    bytes
                        .iter()
                        .fold(0_u64, |number, byte| (number << 8) | u64::from(*byte)),
                )
            }
            31 => None,
            _ => panic!("reserved information {info}"),
        }
    }

    fn read_values(&mut self, count: Option<u64>) -> Vec<Value> {
        match count {
            Some(count) => (0..count).map(|_| self.read_value().unwrap()).collect(),
            None => std::iter::from_fn(|| self.read_value()).collect(),
        }
    }

    fn read_text(&mut self, length: Option<u64>) -> String {
        let Some(length) = length else {
            let parts = self.read_values(None);
            return parts.iter().map(|part| part.as_str().unwrap()).collect();
        };
        let bytes = self.take(usize::try_from(length).unwrap());
        String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| format!("bytes {}", bytes.escape_ascii()))
    }

    fn read_simple(&mut self, info: u8) -> Option<Value> {
        Some(match info {
            20 => Value::Bool(false),
            21 => Value::Bool(true),
            22 => Value::Null,
            25 => Value::from(half(u16::from_be_bytes(self.take(2).try_into().unwrap()))),
            26 => Value::from(f64::from(f32::from_be_bytes(self.take(4).try_into().unwrap()))),
            27 => Value::from(f64::from_be_bytes(self.take(8).try_into().unwrap())),
            31 => return None,
            _ => panic!("simple value {info}"),
        })
    }
}

fn object(items: Vec<Value>) -> Map<String, Value> {
    let mut object = Map::new();
    let mut items = items.into_iter();
    while let Some(key) = items.next() {
        let key = key.as_str().unwrap().to_owned();
        let replaced = object.insert(key, items.next().unwrap());
        assert_eq!(replaced, None, "a key occurs twice");
    }
    object
}

/// A number of 16 bits (IEEE 754 binary16) that is finite.
fn half(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3ff);
    let magnitude = match i32::from((bits >> 10) & 0x1f) {
        0 => fraction * 2_f64.powi(-24),
        exponent => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    if (bits >> 15) == 0 { magnitude } else { -magnitude }
}
