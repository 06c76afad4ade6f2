//! Reads the parts of a CBOR data item that is complete. Callers know which parts they need, and skip the others.

use std::borrow::Cow;
use std::collections::HashSet;

use super::head::{ARRAY, BREAK, Head, MAP, TEXT, malformed, parse_head};
use super::scanner::ItemScanner;
use crate::objects::FilterError;

/// Keys of a map that are compared one by one. Larger maps are rare.
const FEW_KEYS: usize = 16;

const UNFINISHED: &str = "an item without end";
const INVALID_UTF8: &str = "a string that is not UTF-8";

/// A cursor in an item. It borrows a scanner for what is skipped, so that skipping allocates nothing.
pub(super) struct Reader<'a, 's> {
    item: &'a [u8],
    position: usize,
    skipper: &'s mut ItemScanner,
}

/// A map that is being read.
pub(super) struct Entries<'a> {
    left: Option<u64>,
    seen: SeenKeys<'a>,
}

impl Entries<'_> {
    /// Number of entries to come; `None` if the map has an indefinite length.
    pub(super) const fn remaining(&self) -> Option<u64> {
        self.left
    }
}

/// An array that is being read.
pub(super) struct Elements {
    left: Option<u64>,
}

impl<'a, 's> Reader<'a, 's> {
    pub(super) const fn new(item: &'a [u8], skipper: &'s mut ItemScanner) -> Self {
        Self::at(item, 0, skipper)
    }

    /// A cursor at a value within the item.
    pub(super) const fn at(item: &'a [u8], position: usize, skipper: &'s mut ItemScanner) -> Self {
        Self {
            item,
            position,
            skipper,
        }
    }

    /// Number of bytes before the cursor.
    pub(super) const fn position(&self) -> usize {
        self.position
    }

    pub(super) const fn malformed(&self, problem: &'static str) -> FilterError {
        malformed(problem, self.position)
    }

    /// Steps over the tags that mark CBOR as such; other tags change the meaning of an item, and stay.
    pub(super) fn skip_self_described_tags(&mut self) -> Result<(), FilterError> {
        loop {
            let (head, length) = self.peek_head()?;
            if !head.is_self_described_tag() {
                return Ok(());
            }
            self.position += length;
        }
    }

    /// Steps over any value.
    pub(super) fn skip_item(&mut self) -> Result<(), FilterError> {
        let rest = self.rest();
        match self.skipper.scan(rest)? {
            Some(length) => {
                self.position += length;
                Ok(())
            }
            None => Err(self.malformed(UNFINISHED)),
        }
    }

    /// Enters a map; another value is skipped.
    pub(super) fn enter_map(&mut self) -> Result<Option<Entries<'a>>, FilterError> {
        let head = self.enter(MAP)?;
        Ok(head.map(|head| Entries {
            left: head.count(),
            seen: SeenKeys::new(),
        }))
    }

    /// Enters an array; another value is skipped.
    pub(super) fn enter_array(&mut self) -> Result<Option<Elements>, FilterError> {
        let head = self.enter(ARRAY)?;
        Ok(head.map(|head| Elements { left: head.count() }))
    }

    /// The next key of a map; the caller must consume the value behind it. `None` at the end. Upstream's decoders
    /// refuse a key that occurs twice.
    pub(super) fn next_key(&mut self, entries: &mut Entries<'a>) -> Result<Option<Cow<'a, str>>, FilterError> {
        if !self.has_next(&mut entries.left) {
            return Ok(None);
        }
        let start = self.position;
        let key = self.string()?;
        if entries.seen.insert(key.clone()) {
            Ok(Some(key))
        } else {
            Err(malformed("a key that occurs twice", start))
        }
    }

    /// Whether an array has another element, which the caller must consume then.
    pub(super) fn has_next_element(&mut self, elements: &mut Elements) -> bool {
        self.has_next(&mut elements.left)
    }

    /// A string. A tagged one is none, because a tag can say that its text stands for other bytes.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, FilterError> {
        let start = self.position;
        let head = self.read_head()?;
        if !head.is_string() {
            return Err(malformed("something else than a string", start));
        }
        match head.count() {
            Some(length) => {
                let content = self.read_content(length)?;
                let text = std::str::from_utf8(content).map_err(|_| malformed(INVALID_UTF8, start))?;
                Ok(Cow::Borrowed(text))
            }
            None => self.read_chunks(head.major, start).map(Cow::Owned),
        }
    }

    /// A string, or the empty one for null, as in upstream's decoders.
    pub(super) fn string_or_null(&mut self) -> Result<Cow<'a, str>, FilterError> {
        if self.take_null()? {
            Ok(Cow::Borrowed(""))
        } else {
            self.string()
        }
    }

    /// A Boolean value; null is false, as in upstream's decoders.
    pub(super) fn boolean_or_null(&mut self) -> Result<bool, FilterError> {
        let start = self.position;
        let head = self.read_head()?;
        if head.is_true() || head.is_false() || head.is_null() {
            Ok(head.is_true())
        } else {
            Err(malformed("something else than a Boolean value", start))
        }
    }

    /// Steps over null. False if the value is another one.
    pub(super) fn take_null(&mut self) -> Result<bool, FilterError> {
        let (head, length) = self.peek_head()?;
        let is_null = head.is_null();
        if is_null {
            self.position += length;
        }
        Ok(is_null)
    }

    pub(super) fn peek_head(&self) -> Result<(Head, usize), FilterError> {
        match parse_head(self.rest()) {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(self.malformed(UNFINISHED)),
            Err(problem) => Err(self.malformed(problem)),
        }
    }

    fn read_head(&mut self) -> Result<Head, FilterError> {
        let (head, length) = self.peek_head()?;
        self.position += length;
        Ok(head)
    }

    /// Reads the head of an array or map; another value is skipped.
    fn enter(&mut self, major: u8) -> Result<Option<Head>, FilterError> {
        self.skip_self_described_tags()?;
        let (head, length) = self.peek_head()?;
        if head.major == major {
            self.position += length;
            Ok(Some(head))
        } else {
            self.skip_item()?;
            Ok(None)
        }
    }

    fn has_next(&mut self, left: &mut Option<u64>) -> bool {
        match left {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => {
                let is_end = self.rest().first() == Some(&BREAK);
                self.position += usize::from(is_end);
                !is_end
            }
        }
    }

    fn read_content(&mut self, length: u64) -> Result<&'a [u8], FilterError> {
        let length = usize::try_from(length).map_err(|_| self.malformed(UNFINISHED))?;
        let content = self.rest().get(..length).ok_or(self.malformed(UNFINISHED))?;
        self.position += length;
        Ok(content)
    }

    fn read_chunks(&mut self, major: u8, start: usize) -> Result<String, FilterError> {
        let mut joined = Vec::new();
        loop {
            let head = self.read_head()?;
            if head.is_break() {
                return String::from_utf8(joined).map_err(|_| malformed(INVALID_UTF8, start));
            }
            let length = match head.count() {
                Some(length) if head.major == major => length,
                _ => return Err(malformed("a chunk of another type than its string", start)),
            };
            let chunk = self.read_content(length)?;
            // RFC 8949 §3.2.3: no character is split between chunks of a text string.
            if major == TEXT && std::str::from_utf8(chunk).is_err() {
                return Err(malformed(INVALID_UTF8, start));
            }
            joined.extend_from_slice(chunk);
        }
    }

    fn rest(&self) -> &'a [u8] {
        self.item.get(self.position..).unwrap_or_default()
    }
}

/// The keys of a map that were read. Allocates nothing for a map of few keys.
struct SeenKeys<'a> {
    few: [Cow<'a, str>; FEW_KEYS],
    few_count: usize,
    others: HashSet<Cow<'a, str>>,
}

impl<'a> SeenKeys<'a> {
    fn new() -> Self {
        Self {
            few: std::array::from_fn(|_| Cow::Borrowed("")),
            few_count: 0,
            others: HashSet::new(),
        }
    }

    /// False if the key is known.
    fn insert(&mut self, key: Cow<'a, str>) -> bool {
        let is_among_few = self.few.iter().take(self.few_count).any(|known| *known == key);
        if is_among_few {
            return false;
        }
        match self.few.get_mut(self.few_count) {
            Some(slot) => {
                *slot = key;
                self.few_count += 1;
                true
            }
            None => self.others.insert(key),
        }
    }
}
