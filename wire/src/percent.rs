//! Percent-encoding as Go's net/url reads and writes it. A bad escape is an error here, never passed through.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// RFC 3986 "unreserved" stays as it is; all else is escaped, which every server reads alike in a path and in a query.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A `%` without two hexadecimal digits behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadEscape;

/// Decodes a query key or value, in which `+` is a space.
pub(crate) fn decode_query(text: &str) -> Result<Cow<'_, str>, BadEscape> {
    decode(text, b' ')
}

pub(crate) fn decode_path(text: &str) -> Result<Cow<'_, str>, BadEscape> {
    decode(text, b'+')
}

/// Encodes one path segment or one query value.
pub(crate) fn encode(text: &str) -> percent_encoding::PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

/// Go keeps bytes that are not UTF-8; we replace them. No name, key or selector of Kubernetes holds such bytes, so a
/// replaced one equals nothing, and the text that goes upstream is not touched by this.
fn decode(text: &str, plus: u8) -> Result<Cow<'_, str>, BadEscape> {
    let is_plain = |byte: &u8| *byte != b'%' && (*byte != b'+' || plus == b'+');
    if text.as_bytes().iter().all(is_plain) {
        return Ok(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex_value(bytes.next())? << 4 | hex_value(bytes.next())?,
            b'+' => plus,
            other => other,
        });
    }
    let text = String::from_utf8(decoded).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
    Ok(Cow::Owned(text))
}

fn hex_value(byte: Option<u8>) -> Result<u8, BadEscape> {
    match byte {
        Some(digit @ b'0'..=b'9') => Ok(digit - b'0'),
        Some(digit @ b'a'..=b'f') => Ok(digit - b'a' + 10),
        Some(digit @ b'A'..=b'F') => Ok(digit - b'A' + 10),
        _ => Err(BadEscape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_borrowed() {
        assert!(matches!(decode_path("/api/v1/a+b"), Ok(Cow::Borrowed("/api/v1/a+b"))));
        assert!(matches!(decode_query("metadata.name=x"), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn plus_is_a_space_in_a_query_only() {
        assert_eq!(decode_query("a+b%2B").unwrap(), "a b+");
        assert_eq!(decode_path("a+b%2B").unwrap(), "a+b+");
    }

    #[test]
    fn invalid_escape_is_an_error() {
        for text in ["%", "%4", "%zz", "%4g", "a%", "%%30"] {
            assert_eq!(decode_query(text), Err(BadEscape), "{text}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        assert_eq!(decode_path("a%ff%2Fb").unwrap(), "a\u{fffd}/b");
    }

    #[test]
    fn encoded_text_decodes_to_itself() {
        let text = "a b/c%d=e&f;g+h\u{e4}\0";
        assert_eq!(decode_query(&encode(text).to_string()).unwrap(), text);
        assert_eq!(decode_path(&encode(text).to_string()).unwrap(), text);
        assert_eq!(encode("a-b.c_d~e").to_string(), "a-b.c_d~e");
    }
}
