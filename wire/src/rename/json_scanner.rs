//! Walks through JSON without building it: callers descend where a name can be and skip the rest, and keep the byte
//! ranges of what they want to replace.

use std::borrow::Cow;
use std::ops::Range;

use super::RenameError;

/// Deepest nesting that is read. The API's own limit is 10,000; no type of Kubernetes comes near a hundred.
const MAX_DEPTH: usize = 1024;

/// A cursor in a JSON text.
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    position: usize,
}

/// A string in the text.
pub(super) struct JsonString<'a> {
    /// Byte range, with its quotes.
    pub(super) range: Range<usize>,
    /// Text, with its quotes.
    pub(super) raw: &'a [u8],
}

impl<'a> JsonString<'a> {
    /// The text, if it is one: lone surrogates and bytes that are not UTF-8 equal no name.
    pub(super) fn decode(&self) -> Option<Cow<'a, str>> {
        if self.raw.contains(&b'\\') {
            return serde_json::from_slice(self.raw).ok().map(Cow::Owned);
        }
        let inner = self.raw.get(1..self.raw.len().checked_sub(1)?)?;
        std::str::from_utf8(inner).ok().map(Cow::Borrowed)
    }
}

/// Replaces a range of a text.
pub(super) struct Splice {
    pub(super) range: Range<usize>,
    pub(super) with: Vec<u8>,
}

/// Applies the splices; `None` without any.
pub(super) fn apply_splices(text: &[u8], mut splices: Vec<Splice>) -> Option<Vec<u8>> {
    if splices.is_empty() {
        return None;
    }
    splices.sort_by_key(|splice| splice.range.start);
    let mut out = Vec::with_capacity(text.len() + splices.iter().map(|splice| splice.with.len()).sum::<usize>());
    let mut copied = 0;
    for splice in splices {
        out.extend_from_slice(text.get(copied..splice.range.start).unwrap_or_default());
        out.extend_from_slice(&splice.with);
        copied = splice.range.end;
    }
    out.extend_from_slice(text.get(copied..).unwrap_or_default());
    Some(out)
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, position: 0 }
    }

    /// Calls `visit` with each key of an object; it must consume the value. Another value is skipped.
    pub(super) fn visit_members(
        &mut self,
        mut visit: impl FnMut(&mut Self, &str) -> Result<(), RenameError>,
    ) -> Result<(), RenameError> {
        if self.peek() != Some(b'{') {
            return self.skip_value();
        }
        self.position += 1;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.read_string()?.decode();
            self.expect_byte(b':')?;
            match key {
                Some(key) => visit(self, &key)?,
                None => self.skip_value()?,
            }
            if self.take(b'}') {
                return Ok(());
            }
            self.expect_byte(b',')?;
        }
    }

    /// Calls `visit` for each element of an array; it must consume the element. Another value is skipped.
    pub(super) fn visit_elements(
        &mut self,
        mut visit: impl FnMut(&mut Self) -> Result<(), RenameError>,
    ) -> Result<(), RenameError> {
        if self.peek() != Some(b'[') {
            return self.skip_value();
        }
        self.position += 1;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            visit(self)?;
            if self.take(b']') {
                return Ok(());
            }
            self.expect_byte(b',')?;
        }
    }

    /// A string; `None`, and skipped, if the value is none.
    pub(super) fn string_value(&mut self) -> Result<Option<JsonString<'a>>, RenameError> {
        match self.peek() {
            Some(b'"') => self.read_string().map(Some),
            _ => self.skip_value().map(|()| None),
        }
    }

    /// Whether the next value is a string.
    pub(super) fn is_at_string(&mut self) -> bool {
        self.peek() == Some(b'"')
    }

    /// Succeeds when nothing but white space is left.
    pub(super) fn expect_end(&mut self) -> Result<(), RenameError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.malformed("more than one value")),
        }
    }

    /// Steps over any value, without recursion.
    pub(super) fn skip_value(&mut self) -> Result<(), RenameError> {
        let mut closers: Vec<u8> = Vec::new();
        loop {
            match self.peek() {
                Some(b'{') => {
                    self.position += 1;
                    if !self.take(b'}') {
                        self.open(&mut closers, b'}')?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.position += 1;
                    if !self.take(b']') {
                        self.open(&mut closers, b']')?;
                        continue;
                    }
                }
                Some(b'"') => {
                    self.read_string()?;
                }
                _ => self.skip_literal()?,
            }
            if self.close(&mut closers)? {
                return Ok(());
            }
        }
    }

    fn open(&mut self, closers: &mut Vec<u8>, closer: u8) -> Result<(), RenameError> {
        if closers.len() == MAX_DEPTH {
            return Err(self.malformed("nested too deeply"));
        }
        closers.push(closer);
        if closer == b'}' { self.key() } else { Ok(()) }
    }

    /// Behind a value: closes what ends here and steps over the comma. True when the outermost value is done.
    fn close(&mut self, closers: &mut Vec<u8>) -> Result<bool, RenameError> {
        while let Some(&closer) = closers.last() {
            if self.take(closer) {
                closers.pop();
                continue;
            }
            self.expect_byte(b',')?;
            if closer == b'}' {
                self.key()?;
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn key(&mut self) -> Result<(), RenameError> {
        self.read_string()?;
        self.expect_byte(b':')
    }

    fn skip_literal(&mut self) -> Result<(), RenameError> {
        let rest = self.text.get(self.position..).unwrap_or_default();
        let is_literal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let literal = rest
            .get(..rest.iter().take_while(|byte| is_literal(byte)).count())
            .unwrap_or_default();
        let is_number = serde_json::from_slice::<&serde_json::value::RawValue>(literal).is_ok();
        if !is_number {
            return Err(self.malformed("no value"));
        }
        self.position += literal.len();
        Ok(())
    }

    fn read_string(&mut self) -> Result<JsonString<'a>, RenameError> {
        self.expect_byte(b'"')?;
        let start = self.position - 1;
        loop {
            match self.text.get(self.position) {
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                Some(0x20..) => self.position += 1,
                Some(_) => return Err(self.malformed("a raw control character in a string")),
                None => return Err(self.malformed("a string without end")),
            }
        }
        self.position += 1;
        let range = start..self.position;
        let raw = self.text.get(range.clone()).unwrap_or_default();
        Ok(JsonString { range, raw })
    }

    fn escape(&mut self) -> Result<(), RenameError> {
        let rest = self.text.get(self.position + 1..).unwrap_or_default();
        let length = match rest {
            [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
            [b'u', digits @ ..] if digits.len() >= 4 && digits.iter().take(4).all(u8::is_ascii_hexdigit) => 6,
            _ => return Err(self.malformed("a bad escape in a string")),
        };
        self.position += length;
        Ok(())
    }

    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.text.get(self.position) {
            self.position += 1;
        }
        self.text.get(self.position).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.position += usize::from(is_there);
        is_there
    }

    fn expect_byte(&mut self, byte: u8) -> Result<(), RenameError> {
        if self.take(byte) {
            Ok(())
        } else {
            Err(self.malformed("a missing `\"`, `:`, `,` or closing bracket"))
        }
    }

    pub(super) fn malformed(&self, problem: &'static str) -> RenameError {
        RenameError::Malformed {
            format: "JSON",
            problem,
            position: self.position,
        }
    }
}
