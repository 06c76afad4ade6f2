//! Finds the end of a CBOR data item whose bytes come in chunks. Looks at each byte once however the chunks are cut.

use super::head::{ARRAY, BYTES, Head, HeadReader, MAP, NEGATIVE, TAG, TEXT, UNSIGNED, malformed};
use crate::objects::FilterError;
use crate::objects::limits::MAX_IDLE_BYTES;

/// Deepest nesting that is read, as in JSON: a custom resource can come near it. A level takes 16 bytes.
const MAX_DEPTH: usize = 10_000;

const BEYOND_END: &str = "a length beyond any end";

/// An item that is not complete yet.
#[derive(Debug)]
enum Open {
    /// An array or map with this many items to come, keys and values counted alike; at least one.
    Counted(u64),
    /// An array of indefinite length.
    Array,
    /// A map of indefinite length.
    Map { is_at_value: bool },
    /// A string of indefinite length, and the major type of its chunks.
    Chunks { major: u8 },
}

/// Scans one item after the other. It must not be used any more after an error.
#[derive(Debug, Default)]
pub(super) struct ItemScanner {
    open: Vec<Open>,
    head: HeadReader,
    /// Bytes to come of the string that was begun.
    content_left: usize,
    /// Whether a tag was read, and not yet the item that it tags.
    is_tagged: bool,
    /// Bytes of the item that earlier calls scanned.
    scanned: usize,
}

impl ItemScanner {
    /// Scans the item on. Gives the number of bytes up to its end; `None` if all of `bytes` belongs to it and its end
    /// is still to come.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, FilterError> {
        let mut rest = bytes;
        let end = self.scan_rest(&mut rest);
        let used = bytes.len() - rest.len();
        match end {
            Ok(true) => {
                self.scanned = 0;
                Ok(Some(used))
            }
            Ok(false) => {
                self.scanned = self.scanned.saturating_add(bytes.len());
                Ok(None)
            }
            Err(problem) => Err(malformed(problem, self.scanned.saturating_add(used))),
        }
    }

    /// True at the end of the item; `rest` is what lies behind.
    fn scan_rest(&mut self, rest: &mut &[u8]) -> Result<bool, &'static str> {
        if self.content_left > 0 {
            if !self.skip_content(rest, self.content_left) {
                return Ok(false);
            }
            self.content_left = 0;
            if self.end_item() {
                return Ok(true);
            }
        }
        loop {
            let (used, head) = self.head.read(rest)?;
            let Some(head) = head else {
                return Ok(false);
            };
            if let Some(Open::Chunks { major }) = self.open.last()
                && !head.is_break()
                && (head.major != *major || head.is_indefinite())
            {
                return Err("a chunk of another type than its string");
            }
            *rest = rest.get(used..).unwrap_or_default();
            let is_complete = match head.count() {
                Some(length) if head.is_string() => {
                    self.is_tagged = false;
                    let length = usize::try_from(length).map_err(|_| BEYOND_END)?;
                    if !self.skip_content(rest, length) {
                        return Ok(false);
                    }
                    true
                }
                _ => self.take_head(head)?,
            };
            if is_complete && self.end_item() {
                return Ok(true);
            }
        }
    }

    /// Skips a string's content. False if it does not end in `rest`.
    fn skip_content(&mut self, rest: &mut &[u8], length: usize) -> bool {
        if let Some(behind) = rest.get(length..) {
            *rest = behind;
            true
        } else {
            self.content_left = length.saturating_sub(rest.len());
            *rest = &[];
            false
        }
    }

    /// Takes a head that no content follows. True if its item is complete with it.
    fn take_head(&mut self, head: Head) -> Result<bool, &'static str> {
        let is_tagged = std::mem::take(&mut self.is_tagged);
        match head.major {
            UNSIGNED | NEGATIVE => Ok(true),
            BYTES | TEXT => self.open(Open::Chunks { major: head.major }),
            ARRAY => match head.count() {
                Some(count) => self.open_counted(count),
                None => self.open(Open::Array),
            },
            MAP => match head.count() {
                Some(count) => self.open_counted(count.checked_mul(2).ok_or(BEYOND_END)?),
                None => self.open(Open::Map { is_at_value: false }),
            },
            TAG => {
                self.is_tagged = true;
                Ok(false)
            }
            _ if head.is_break() => self.close(is_tagged),
            _ if head.is_undefined() => Err("an undefined value"),
            _ if head.is_long_simple_value() => Err("a simple value in two bytes that takes one"),
            _ => Ok(true),
        }
    }

    fn open_counted(&mut self, count: u64) -> Result<bool, &'static str> {
        if count == 0 {
            Ok(true)
        } else {
            self.open(Open::Counted(count))
        }
    }

    fn open(&mut self, item: Open) -> Result<bool, &'static str> {
        if self.open.len() == MAX_DEPTH {
            return Err("nested too deeply");
        }
        self.open.push(item);
        Ok(false)
    }

    /// Takes a break, which completes an item of indefinite length.
    fn close(&mut self, is_tagged: bool) -> Result<bool, &'static str> {
        match self.open.last() {
            Some(Open::Array | Open::Chunks { .. } | Open::Map { is_at_value: false }) if !is_tagged => {
                self.open.pop();
                Ok(true)
            }
            _ => Err("a break in the wrong place"),
        }
    }

    /// Counts an item that is complete, and those that it completes. True if the outermost one is.
    fn end_item(&mut self) -> bool {
        loop {
            match self.open.last_mut() {
                None => return true,
                Some(Open::Counted(left)) => {
                    *left = left.saturating_sub(1);
                    if *left > 0 {
                        return false;
                    }
                    self.open.pop();
                }
                Some(Open::Map { is_at_value }) => {
                    *is_at_value = !*is_at_value;
                    return false;
                }
                Some(Open::Array | Open::Chunks { .. }) => return false,
            }
        }
    }
}

/// Collects items whose bytes come in chunks. Copies none that is complete within a chunk.
#[derive(Debug, Default)]
pub(super) struct ItemCollector {
    pub(super) scanner: ItemScanner,
    /// The item that is not complete yet.
    pub(super) pending: Vec<u8>,
    /// The item that was completed last, if it did not lie within one chunk.
    pub(super) completed: Vec<u8>,
}

impl ItemCollector {
    /// Releases the item that was completed last, and its memory if it was large.
    pub(super) fn release_completed(&mut self) {
        self.completed.clear();
        self.completed.shrink_to(MAX_IDLE_BYTES);
    }

    /// Whether an item has begun and not ended.
    pub(super) fn is_mid_item(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes bytes of an item: gives their number, and the item once it is complete. Fails with `excess` if it is
    /// larger than `limit`.
    pub(super) fn take<'c>(
        &'c mut self,
        rest: &'c [u8],
        limit: usize,
        excess: FilterError,
    ) -> Result<(usize, Option<&'c [u8]>), FilterError> {
        let end = self.scanner.scan(rest)?;
        let used = end.unwrap_or(rest.len());
        let taken = rest.get(..used).unwrap_or_default();
        if taken.len() > limit.saturating_sub(self.pending.len()) {
            return Err(excess);
        }
        if end.is_some() && self.pending.is_empty() {
            return Ok((used, Some(taken)));
        }
        self.pending.extend_from_slice(taken);
        if end.is_none() {
            return Ok((used, None));
        }
        self.release_completed();
        std::mem::swap(&mut self.pending, &mut self.completed);
        Ok((used, Some(self.completed.as_slice())))
    }
}
