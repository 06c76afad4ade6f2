//! Finds the end of a JSON value in chunks of any size, looking at each byte once, and notes where members of objects
//! are. It checks structure and strings; it does not check numbers, the digits of escapes, and UTF-8.

use std::ops::Range;

use super::malformed;
use super::text::is_text;
use crate::objects::FilterError;

/// Deepest nesting that is read, as in Go's decoder: a custom resource can come near it. A level takes one byte.
const MAX_DEPTH: usize = 10_000;

/// Most members that are noted in a value. Objects of Kubernetes have below twenty members, as has their metadata.
const MAX_MEMBERS: usize = 1024;

/// Longest raw key that is compared with a name, in bytes. Names on a path have up to 8 letters, of six bytes each if
/// they are escaped.
const MAX_KEY_BYTES: usize = 64;

/// Objects within each other, from the scanned value itself. Members are noted in these objects, and in the one at the
/// end of the path.
pub(super) type Path = &'static [Level];

/// An object on a path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    /// The key of the next object on the path.
    pub(super) name: &'static str,
    pub(super) noted: Noted,
}

/// The members of an object that are noted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Noted {
    All,
    /// Those whose keys could be taken for one of these names: keys that have an escape or a byte beyond ASCII, or are
    /// as long as a name.
    Names(&'static [&'static str]),
}

/// Where a member of an object is, in bytes from the start of the scanned value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// 1 for members of the scanned value itself.
    pub(super) depth: usize,
    /// The key with its quotes.
    pub(super) key: Range<usize>,
    /// From behind the key to the end of the value.
    pub(super) tail: Range<usize>,
}

/// Steps through one JSON value. [`Self::restart`] precedes each value.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    path: Option<Path>,
    closers: Vec<u8>,
    expected: Expected,
    inside: Inside,
    /// The chunk ended between a backslash and the byte that it escapes.
    is_escaped: bool,
    has_escape: bool,
    /// The start of the key that was read last, where members are noted.
    key: Vec<u8>,
    /// The key before is the next one of the path.
    is_on_path: bool,
    token_start: usize,
    /// The depth of the object whose members are noted; 0 if none are.
    noted_depth: usize,
    /// Number of bytes of the value in earlier chunks.
    offset: usize,
    members: Vec<Member>,
}

/// The token that has to follow.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Expected {
    #[default]
    Value,
    /// A value, or the end of the array.
    FirstElement,
    Key,
    /// A key, or the end of the object.
    FirstKey,
    Colon,
    /// A comma, or the end of the array or object.
    Separator,
}

/// The token that is unfinished.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Inside {
    #[default]
    Nothing,
    Key,
    Text,
    Literal,
}

impl Scanner {
    /// Prepares for another value. Members are noted if there is a path, which may be empty.
    pub(super) fn restart(&mut self, path: Option<Path>) {
        self.path = path;
        self.closers.clear();
        self.expected = Expected::Value;
        self.inside = Inside::Nothing;
        self.is_escaped = false;
        self.has_escape = false;
        self.key.clear();
        self.is_on_path = false;
        self.token_start = 0;
        self.noted_depth = usize::from(path.is_some());
        self.offset = 0;
        self.members.clear();
    }

    /// The members that were noted, in the order of their keys.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Steps through the next bytes of the value. Gives the number of bytes up to its end; none if it goes on.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, FilterError> {
        let mut position = 0;
        loop {
            if self.inside != Inside::Nothing {
                let end = self.token_end(bytes, position)?;
                self.copy_key(bytes.get(position..end.unwrap_or(bytes.len())).unwrap_or_default());
                let Some(end) = end else {
                    break;
                };
                position = end;
                if self.end_token(position)? {
                    return Ok(Some(position));
                }
            }
            let Some(&byte) = bytes.get(position) else {
                break;
            };
            let is_complete = self.read_byte(byte, position)?;
            position += 1;
            if is_complete {
                return Ok(Some(position));
            }
        }
        self.offset += bytes.len();
        Ok(None)
    }

    /// Reads a byte that is in no string or literal. True if the value ends with it.
    fn read_byte(&mut self, byte: u8, position: usize) -> Result<bool, FilterError> {
        use Expected::{Colon, FirstElement, FirstKey, Key, Separator, Value};
        match (byte, self.expected) {
            (b' ' | b'\t' | b'\r' | b'\n', _) => {}
            (b'"', Key | FirstKey) => self.begin_token(Inside::Key, position),
            (b'"', Value | FirstElement) => self.begin_token(Inside::Text, position),
            (b':', Colon) => self.expected = Value,
            (b',', Separator) => {
                let is_in_object = self.closers.last() == Some(&b'}');
                self.expected = if is_in_object { Key } else { Value };
            }
            (b'{', Value | FirstElement) => self.open(b'}', FirstKey, position)?,
            (b'[', Value | FirstElement) => self.open(b']', FirstElement, position)?,
            (b'}', FirstKey | Separator) | (b']', FirstElement | Separator) => return self.close(byte, position),
            (b'-' | b'0'..=b'9' | b't' | b'f' | b'n', Value | FirstElement) => {
                self.begin_token(Inside::Literal, position);
            }
            (_, Value | FirstElement) => return Err(self.violation("no value", position)),
            (_, Key | FirstKey) => return Err(self.violation("no key", position)),
            (_, Colon) => return Err(self.violation("a missing colon", position)),
            (_, Separator) => return Err(self.violation("a missing comma or closing bracket", position)),
        }
        Ok(false)
    }

    fn begin_token(&mut self, inside: Inside, position: usize) {
        self.inside = inside;
        self.has_escape = false;
        self.token_start = self.offset + position;
        self.key.clear();
        self.copy_key(b"\"");
    }

    /// Copies a part of the key, because the rest may be in another chunk.
    fn copy_key(&mut self, part: &[u8]) {
        if self.inside == Inside::Key && self.closers.len() == self.noted_depth {
            let free = MAX_KEY_BYTES.saturating_sub(self.key.len());
            self.key.extend(part.iter().take(free));
        }
    }

    fn open(&mut self, closer: u8, expected: Expected, position: usize) -> Result<(), FilterError> {
        let depth = self.closers.len();
        if depth == MAX_DEPTH {
            return Err(self.violation("values nested too deeply", position));
        }
        if closer == b'}' && self.is_on_path && depth == self.noted_depth {
            self.noted_depth += 1;
        }
        self.closers.push(closer);
        self.expected = expected;
        Ok(())
    }

    fn close(&mut self, closer: u8, position: usize) -> Result<bool, FilterError> {
        if self.closers.last() != Some(&closer) {
            return Err(self.violation("a closing bracket of the other kind", position));
        }
        if self.noted_depth > 1 && self.closers.len() == self.noted_depth {
            self.noted_depth -= 1;
        }
        self.closers.pop();
        Ok(self.end_value(position + 1))
    }

    /// The position behind the unfinished string or literal; none if it goes on.
    fn token_end(&mut self, bytes: &[u8], position: usize) -> Result<Option<usize>, FilterError> {
        if self.inside != Inside::Literal {
            return self.string_end(bytes, position);
        }
        let rest = bytes.get(position..).unwrap_or_default();
        let length = rest.iter().position(|byte| !is_in_literals(*byte));
        Ok(length.map(|length| position + length))
    }

    fn string_end(&mut self, bytes: &[u8], mut position: usize) -> Result<Option<usize>, FilterError> {
        loop {
            if self.is_escaped {
                match bytes.get(position) {
                    None => return Ok(None),
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' | b'u') => position += 1,
                    Some(_) => return Err(self.violation("a bad escape in a string", position)),
                }
                self.is_escaped = false;
            }
            position = special_position(bytes, position);
            match bytes.get(position) {
                None => return Ok(None),
                Some(b'"') => return Ok(Some(position + 1)),
                Some(b'\\') => {
                    position += 1;
                    self.is_escaped = true;
                    self.has_escape = true;
                }
                Some(_) => return Err(self.violation("a raw control character in a string", position)),
            }
        }
    }

    /// Ends the string or literal before `position`. True if the value ends with it.
    fn end_token(&mut self, position: usize) -> Result<bool, FilterError> {
        if std::mem::take(&mut self.inside) != Inside::Key {
            return Ok(self.end_value(position));
        }
        self.expected = Expected::Colon;
        if self.closers.len() == self.noted_depth {
            self.note_key(position)?;
        }
        Ok(false)
    }

    fn note_key(&mut self, position: usize) -> Result<(), FilterError> {
        let key = self.token_start..self.offset + position;
        let level = self.path.and_then(|path| path.get(self.noted_depth.saturating_sub(1)));
        // A longer key was not copied whole, and has another name.
        self.is_on_path = key.len() <= MAX_KEY_BYTES && level.is_some_and(|level| is_text(&self.key, level.name));
        if let Some(Noted::Names(names)) = level.map(|level| level.noted)
            && !self.has_escape
            && self.key.is_ascii()
            && !names.iter().any(|name| key.len() == name.len() + 2)
        {
            return Ok(());
        }
        if self.members.len() == MAX_MEMBERS {
            return Err(self.violation("too many members", position));
        }
        self.members.push(Member {
            depth: self.noted_depth,
            tail: key.end..key.end,
            key,
        });
        Ok(())
    }

    /// Ends a value before `position`. True if it is the outermost one.
    fn end_value(&mut self, position: usize) -> bool {
        let depth = self.closers.len();
        if depth == self.noted_depth {
            let end = self.offset + position;
            // The value of a member that is not noted follows one that has ended.
            if let Some(member) = self.members.iter_mut().rev().find(|member| member.depth == depth)
                && member.tail.is_empty()
            {
                member.tail.end = end;
            }
        }
        self.expected = Expected::Separator;
        depth == 0
    }

    fn violation(&self, problem: &'static str, position: usize) -> FilterError {
        malformed(problem, self.offset.saturating_add(position))
    }
}

fn is_in_literals(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

/// The position of the first quote, backslash or control character at or behind `from`; the length if there is none.
fn special_position(bytes: &[u8], from: usize) -> usize {
    let (words, tail) = bytes.get(from..).unwrap_or_default().as_chunks::<8>();
    let mut position = from;
    for word in words {
        let marks = special_marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return position + (marks.trailing_zeros() / 8) as usize;
        }
        position += word.len();
    }
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    position + tail.iter().position(is_special).unwrap_or(tail.len())
}

/// Sets the highest bit of each byte that is a quote, a backslash or a control character. Only the lowest mark is
/// exact: subtracting may borrow from the bytes above a marked one.
fn special_marks(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHEST_BITS: u64 = 0x8080_8080_8080_8080;
    const QUOTES: u64 = 0x2222_2222_2222_2222;
    const BACKSLASHES: u64 = 0x5c5c_5c5c_5c5c_5c5c;
    const SPACES: u64 = 0x2020_2020_2020_2020;
    let (quotes, backslashes) = (word ^ QUOTES, word ^ BACKSLASHES);
    let marks = (quotes.wrapping_sub(ONES) & !quotes)
        | (backslashes.wrapping_sub(ONES) & !backslashes)
        | (word.wrapping_sub(SPACES) & !word);
    marks & HIGHEST_BITS
}

#[cfg(test)]
mod tests;
