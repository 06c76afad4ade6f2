//! The head of a CBOR data item: its major type and a number (RFC 8949 §3).

use crate::objects::FilterError;
pub(super) use crate::watch_event::{SELF_DESCRIBED, put_head};

pub(super) const UNSIGNED: u8 = 0;
pub(super) const NEGATIVE: u8 = 1;
pub(super) const BYTES: u8 = 2;
pub(super) const TEXT: u8 = 3;
pub(super) const ARRAY: u8 = 4;
pub(super) const MAP: u8 = 5;
pub(super) const TAG: u8 = 6;

/// Head of an array of indefinite length.
pub(super) const INDEFINITE_ARRAY: u8 = 0x9f;
/// Head of a map of indefinite length.
pub(super) const INDEFINITE_MAP: u8 = 0xbf;
/// Ends an item of indefinite length.
pub(super) const BREAK: u8 = 0xff;

const SELF_DESCRIBED_TAG: u64 = 55_799;
const SIMPLE: u8 = 7;
const INDEFINITE: u8 = 31;
const MAX_HEAD_BYTES: usize = 9;

pub(super) const fn malformed(problem: &'static str, position: usize) -> FilterError {
    FilterError::Malformed {
        format: "CBOR",
        problem,
        position,
    }
}

/// The head of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) major: u8,
    /// The low five bits of the first byte.
    info: u8,
    /// Value, length or count; 0 at an indefinite length.
    argument: u64,
}

impl Head {
    pub(super) const fn is_indefinite(self) -> bool {
        self.info == INDEFINITE
    }

    pub(super) const fn is_break(self) -> bool {
        self.major == SIMPLE && self.is_indefinite()
    }

    pub(super) const fn is_string(self) -> bool {
        matches!(self.major, BYTES | TEXT)
    }

    pub(super) const fn is_false(self) -> bool {
        self.major == SIMPLE && self.info == 20
    }

    pub(super) const fn is_true(self) -> bool {
        self.major == SIMPLE && self.info == 21
    }

    pub(super) const fn is_null(self) -> bool {
        self.major == SIMPLE && self.info == 22
    }

    /// Whether the item is `undefined`, which upstream's decoders refuse.
    pub(super) const fn is_undefined(self) -> bool {
        self.major == SIMPLE && self.info == 23
    }

    pub(super) const fn is_self_described_tag(self) -> bool {
        self.major == TAG && self.argument == SELF_DESCRIBED_TAG
    }

    /// Whether a simple value below 32 stands in two bytes, which RFC 8949 §3.3 forbids.
    pub(super) const fn is_long_simple_value(self) -> bool {
        self.major == SIMPLE && self.info == 24 && self.argument < 32
    }

    /// Length of a string in bytes, or number of elements or entries; `None` at an indefinite length.
    pub(super) const fn count(self) -> Option<u64> {
        if self.is_indefinite() {
            None
        } else {
            Some(self.argument)
        }
    }

    /// The first byte of the head.
    pub(super) const fn first_byte(self) -> u8 {
        self.major << 5 | self.info
    }
}

/// The head at the start of `bytes`, and its length; `None` if it is unfinished.
#[inline]
pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, &'static str> {
    let Some((&first, behind)) = bytes.split_first() else {
        return Ok(None);
    };
    let (major, info) = (first >> 5, first & 0x1f);
    let number = match info {
        0..=23 => Some((u64::from(info), 1)),
        24 => behind.first().map(|&byte| (u64::from(byte), 2)),
        25 => behind
            .first_chunk::<2>()
            .map(|&number| (u64::from(u16::from_be_bytes(number)), 3)),
        26 => behind
            .first_chunk::<4>()
            .map(|&number| (u64::from(u32::from_be_bytes(number)), 5)),
        27 => behind.first_chunk::<8>().map(|&number| (u64::from_be_bytes(number), 9)),
        INDEFINITE if !matches!(major, UNSIGNED | NEGATIVE | TAG) => Some((0, 1)),
        _ => return Err("a reserved head of an item"),
    };
    Ok(number.map(|(argument, length)| (Head { major, info, argument }, length)))
}

/// Reads a head whose bytes come in chunks.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    bytes: [u8; MAX_HEAD_BYTES],
    length: usize,
}

impl HeadReader {
    /// The number of bytes that were taken from `rest`, and the head once it is complete.
    #[inline]
    pub(super) fn read(&mut self, rest: &[u8]) -> Result<(usize, Option<Head>), &'static str> {
        if self.length == 0
            && let Some((head, used)) = parse_head(rest)?
        {
            return Ok((used, Some(head)));
        }
        self.read_on(rest)
    }

    fn read_on(&mut self, rest: &[u8]) -> Result<(usize, Option<Head>), &'static str> {
        for (index, &byte) in rest.iter().enumerate() {
            if let Some(slot) = self.bytes.get_mut(self.length) {
                *slot = byte;
                self.length += 1;
            }
            if let Some((head, _)) = parse_head(self.bytes.get(..self.length).unwrap_or_default())? {
                self.length = 0;
                return Ok((index + 1, Some(head)));
            }
        }
        Ok((rest.len(), None))
    }
}

/// Writes a string of the major type `BYTES` or `TEXT`.
pub(super) fn put_string(out: &mut Vec<u8>, major: u8, text: &str) {
    put_head(out, major, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}
