//! The hash by which API servers shard lists (KEP-5866, apimachinery `pkg/sharding`), and ranges of it.

mod virtual_ranges;

pub use virtual_ranges::{VIRTUAL_RANGES, VirtualRanges, VirtualRangesError};

use std::fmt;

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// The end of the last range, 2^64, as the API server writes it.
const END_OF_HASHES: &str = "0x10000000000000000";

/// FNV-1a with 64 bits over the bytes of a text, as in apimachinery `pkg/sharding/hash.go`.
#[must_use]
pub const fn fnv1a_64(text: &str) -> u64 {
    let mut hash = OFFSET_BASIS;
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        hash = (hash ^ *byte as u64).wrapping_mul(PRIME);
        rest = tail;
    }
    hash
}

/// Mixes a hash, so that each bit of the result depends on all of its bits: the finalizer of SplitMix64 (Steele, Lea, Flood: Fast
/// Splittable Pseudorandom Number Generators, 2014).
pub(super) const fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Why a range of hashes was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HashRangeError {
    /// A start or an end that the API server would not read.
    #[error(
        "invalid bound {0:?} of a hash range: write `0x` and 16 digits of 0-9 and a-f, or {END_OF_HASHES} as the end"
    )]
    Bound(String),
    /// The end is not above the start.
    #[error("the hash range from {start:#018x} to {end:#018x} is empty: the end must be above the start")]
    Empty {
        /// First hash of the range.
        start: u64,
        /// First hash behind the range.
        end: u64,
    },
}

/// A range of hashes that is not empty: its start is in it, its end is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashRange {
    start: u64,
    end: Option<u64>,
}

impl HashRange {
    /// The range from 0 to 2^64, which contains all hashes.
    pub const ALL: Self = Self { start: 0, end: None };

    /// The range of `start <= hash < end`; without an end it reaches to 2^64.
    ///
    /// # Errors
    /// When the end is not above the start.
    pub const fn new(start: u64, end: Option<u64>) -> Result<Self, HashRangeError> {
        match end {
            Some(end) if end <= start => Err(HashRangeError::Empty { start, end }),
            _ => Ok(Self { start, end }),
        }
    }

    /// Parses both bounds as the API server does, without their quotes: `0x` and exactly 16 digits in lower case. The
    /// end may be `0x10000000000000000`.
    ///
    /// # Errors
    /// When a bound has another form, or the end is not above the start.
    pub fn parse(start: &str, end: &str) -> Result<Self, HashRangeError> {
        let start = parse_bound(start)?;
        let end = if end == END_OF_HASHES {
            None
        } else {
            Some(parse_bound(end)?)
        };
        Self::new(start, end)
    }

    /// First hash of the range.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// First hash behind the range; `None` is 2^64.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.end
    }

    /// Whether a hash is in the range.
    #[must_use]
    pub fn contains(self, hash: u64) -> bool {
        self.start <= hash && self.end.is_none_or(|end| hash < end)
    }

    /// The same hashes in as few ranges as possible, sorted: joins ranges that overlap or touch.
    #[must_use]
    pub fn merge(mut ranges: Vec<Self>) -> Vec<Self> {
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|range, earlier| {
            let is_joined = earlier.end.is_none_or(|end| range.start <= end);
            if is_joined {
                earlier.end = match (earlier.end, range.end) {
                    (Some(end), Some(other)) => Some(end.max(other)),
                    _ => None,
                };
            }
            is_joined
        });
        ranges
    }

    /// Whether each hash is in exactly one of the ranges. No order of the ranges is assumed.
    #[must_use]
    pub fn covers_once(ranges: &[Self]) -> bool {
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable_by_key(|range| range.start);
        // The first hash that no range has covered so far; `None` once 2^64 is reached.
        let mut covered_to = Some(0);
        for range in sorted {
            if covered_to != Some(range.start) {
                return false;
            }
            covered_to = range.end;
        }
        covered_to.is_none()
    }

    /// The `shardSelector` parameter for ranges of the field at `path`, such as `object.metadata.uid`. Without ranges
    /// it is empty, which an API server takes for no selector: a request for no objects cannot be narrowed by it.
    #[must_use]
    pub fn selector_text(path: &str, ranges: &[Self]) -> String {
        let terms: Vec<String> = ranges
            .iter()
            .map(|range| format!("shardRange({path}, {range})"))
            .collect();
        terms.join(" || ")
    }

    /// Whether the ranges are as [`HashRange::merge`] leaves them.
    pub(super) fn are_merged(ranges: &[Self]) -> bool {
        ranges
            .windows(2)
            .all(|pair| matches!(pair, [earlier, later] if earlier.end.is_some_and(|end| end < later.start)))
    }

    /// Whether a hash is in one of the ranges, which are as [`HashRange::merge`] leaves them.
    pub(super) fn merged_contain(ranges: &[Self], hash: u64) -> bool {
        let started = ranges.partition_point(|range| range.start <= hash);
        let last_started = started.checked_sub(1).and_then(|index| ranges.get(index));
        last_started.is_some_and(|range| range.contains(hash))
    }
}

/// The last two arguments of `shardRange`: `'0x4000000000000000', '0x8000000000000000'`.
impl fmt::Display for HashRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{:#018x}', ", self.start)?;
        match self.end {
            Some(end) => write!(f, "'{end:#018x}'"),
            None => write!(f, "'{END_OF_HASHES}'"),
        }
    }
}

fn parse_bound(text: &str) -> Result<u64, HashRangeError> {
    let is_hex_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.strip_prefix("0x")
        .filter(|digits| digits.len() == 16 && digits.bytes().all(is_hex_digit))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| HashRangeError::Bound(text.to_owned()))
}

#[cfg(test)]
mod tests;
