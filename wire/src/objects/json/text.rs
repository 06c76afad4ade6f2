//! Texts and keys in JSON, with their quotes and escapes.

use std::borrow::Cow;

use super::malformed;
use crate::objects::FilterError;

/// Whether a raw string has this text.
pub(super) fn is_text(raw: &[u8], text: &str) -> bool {
    *key_bytes(raw) == *text.as_bytes()
}

/// The text of a key, as bytes. A key that is no text equals none that is looked for, and becomes empty.
pub(super) fn key_bytes(raw: &[u8]) -> Cow<'_, [u8]> {
    if raw.contains(&b'\\') {
        let text = serde_json::from_slice::<String>(raw);
        return Cow::Owned(text.map(String::into_bytes).unwrap_or_default());
    }
    Cow::Borrowed(without_quotes(raw).unwrap_or_default())
}

/// A text; `null` is an empty one, as in Go.
pub(super) fn decode_nullable(raw: &[u8]) -> Result<Cow<'_, str>, FilterError> {
    if raw == b"null" {
        return Ok(Cow::Borrowed(""));
    }
    decode(raw)
}

pub(super) fn decode(raw: &[u8]) -> Result<Cow<'_, str>, FilterError> {
    let inner = without_quotes(raw).ok_or(malformed("a value of an unexpected type", 0))?;
    let text: Option<Cow<'_, str>> = if inner.contains(&b'\\') {
        serde_json::from_slice::<String>(raw).ok().map(Cow::Owned)
    } else {
        std::str::from_utf8(inner).ok().map(Cow::Borrowed)
    };
    text.ok_or(malformed("a string that is no text", 0))
}

pub(super) fn without_quotes(raw: &[u8]) -> Option<&[u8]> {
    raw.strip_prefix(b"\"")?.strip_suffix(b"\"")
}
