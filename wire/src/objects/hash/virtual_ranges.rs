//! Virtual ranges: the 2^64 hashes, divided into 1,024 ranges of equal size. Shards have whole ones.

use std::ops::RangeInclusive;

use super::HashRange;

/// Number of the virtual ranges. Range `i` has the hashes from `i << 54` to below `(i + 1) << 54`.
pub const VIRTUAL_RANGES: u16 = 1024;

/// Number of the last range.
const LAST_RANGE: u16 = VIRTUAL_RANGES - 1;

/// Bits of a hash that do not tell its virtual range.
const RANGE_BITS: u32 = 54;

/// The text names no virtual ranges.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no range: write numbers from 0 to {LAST_RANGE}, such as 7, or 0-340")]
pub struct VirtualRangesError(String);

/// Virtual ranges without a gap between them; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualRanges {
    first: u16,
    last: u16,
}

impl VirtualRanges {
    /// Parses the number of one range, or of the first and the last one: `7`, `0-340`.
    ///
    /// # Errors
    /// When the text has another form, names a range that does not exist, or ends before it begins.
    pub fn parse(text: &str) -> Result<Self, VirtualRangesError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (parse_number(first), parse_number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(VirtualRangesError(text.to_owned())),
        }
    }

    /// The numbers of the ranges.
    #[must_use]
    pub fn numbers(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    /// The hashes in the ranges.
    #[must_use]
    pub fn hashes(self) -> HashRange {
        HashRange {
            start: u64::from(self.first) << RANGE_BITS,
            end: (self.last < LAST_RANGE).then(|| (u64::from(self.last) + 1) << RANGE_BITS),
        }
    }
}

/// The number of a range, in digits alone.
fn parse_number(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u16>().ok().filter(|_| is_number);
    number.filter(|number| *number < VIRTUAL_RANGES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_number_and_first_and_last_are_read() {
        for (text, numbers) in [
            ("0", 0..=0),
            ("7", 7..=7),
            ("1023", 1023..=1023),
            ("3-3", 3..=3),
            ("0-340", 0..=340),
            ("007", 7..=7),
        ] {
            assert_eq!(VirtualRanges::parse(text).unwrap().numbers(), numbers, "{text:?}");
        }
    }

    #[test]
    fn texts_of_other_forms_are_refused() {
        for wrong in [
            "", "-", "1-", "-1", "+1", "1024", "0-1024", "2-1", "0x1", "1-2-3", " 1", "99999999",
        ] {
            let expected = format!("{wrong:?} is no range: write numbers from 0 to 1023, such as 7, or 0-340");
            assert_eq!(VirtualRanges::parse(wrong).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn hashes_reach_to_the_next_range_and_to_the_end_of_hashes() {
        let hashes = |text: &str| VirtualRanges::parse(text).unwrap().hashes();
        let range = |start, end| HashRange::new(start, end).unwrap();
        assert_eq!(hashes("0-1023"), HashRange::ALL);
        assert_eq!(hashes("0"), range(0, Some(1 << 54)));
        assert_eq!(hashes("256-511"), range(1 << 62, Some(1 << 63)));
        assert_eq!(hashes("1023"), range(1023 << 54, None));
    }

    proptest! {
        #[test]
        fn hash_is_in_the_range_of_its_upper_bits(first in 0..VIRTUAL_RANGES, more in 0..8_u16, hash in any::<u64>()) {
            let last = (first + more).min(LAST_RANGE);
            let ranges = VirtualRanges::parse(&format!("{first}-{last}")).unwrap();
            let number = u16::try_from(hash >> RANGE_BITS).unwrap();
            prop_assert_eq!(ranges.hashes().contains(hash), ranges.numbers().contains(&number));
            let inside = (u64::from(last) << RANGE_BITS) | (hash >> 10);
            prop_assert!(ranges.hashes().contains(inside));
        }
    }
}
