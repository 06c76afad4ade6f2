//! Sets of [virtual ranges](VirtualRanges). A shard has whole ranges, so a set of them is 1,024 bits.

use ctrlmesh_manager_api::sharding_config::HashRanges;
use ctrlmesh_wire::objects::{VIRTUAL_RANGES, VirtualRanges};

const WORD_BITS: u16 = 64;
const WORDS: usize = 16;

/// Some of the virtual ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeSet([u64; WORDS]);

impl RangeSet {
    /// All virtual ranges.
    pub const ALL: Self = Self([u64::MAX; WORDS]);

    /// The ranges that any of the texts names. `None`: one of them is not as [`VirtualRanges::parse`] reads it.
    #[must_use]
    pub fn parse(texts: &[String]) -> Option<Self> {
        let mut set = Self::default();
        for text in texts {
            let ranges = VirtualRanges::parse(text).ok()?;
            ranges.numbers().for_each(|range| set.insert(range));
        }
        Some(set)
    }

    /// The shortest texts from which [`RangeSet::parse`] makes this set, in order.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let mut runs: Vec<(u16, u16)> = Vec::new();
        for range in self.iter() {
            match runs.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(range) => *last = range,
                _ => runs.push((range, range)),
            }
        }
        let text = |(first, last): (u16, u16)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        };
        runs.into_iter().map(text).collect()
    }

    /// The ranges of this key's hashes, as limits have them.
    #[must_use]
    pub fn of_key(&self, key: &str) -> HashRanges {
        HashRanges {
            key: key.to_owned(),
            ranges: self.texts(),
        }
    }

    /// The numbers of the ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0..VIRTUAL_RANGES).filter(move |range| self.contains(*range))
    }

    /// Whether the range with this number is in the set.
    #[must_use]
    pub fn contains(&self, range: u16) -> bool {
        let word = self.0.get(usize::from(range / WORD_BITS));
        word.is_some_and(|word| (word >> (range % WORD_BITS)) & 1 == 1)
    }

    /// Number of ranges in the set.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |word, other| word & other)
    }

    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |word, other| word & !other)
    }

    fn combine(&self, other: &Self, operation: fn(u64, u64) -> u64) -> Self {
        let mut set = *self;
        for (word, other) in set.0.iter_mut().zip(other.0) {
            *word = operation(*word, other);
        }
        set
    }

    fn insert(&mut self, range: u16) {
        if let Some(word) = self.0.get_mut(usize::from(range / WORD_BITS)) {
            *word |= 1 << (range % WORD_BITS);
        }
    }
}

impl FromIterator<u16> for RangeSet {
    /// Numbers of ranges that do not exist are left out.
    fn from_iter<I: IntoIterator<Item = u16>>(ranges: I) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn parsed(texts: &[&str]) -> Option<RangeSet> {
        RangeSet::parse(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn texts_make_no_set_if_one_is_invalid() {
        assert_eq!(parsed(&["5", "1024"]), None);
        assert_eq!(parsed(&["0-1023"]), Some(RangeSet::ALL));
        assert_eq!(parsed(&[]), Some(RangeSet::default()));
    }

    #[test]
    fn neighbours_become_one_text() {
        let set = parsed(&["63", "64-70", "3", "1022-1023", "2", "66"]).unwrap();
        assert_eq!(set.texts(), ["2-3", "63-70", "1022-1023"]);
        assert_eq!(set.count(), 12);
        assert_eq!(RangeSet::ALL.texts(), ["0-1023"]);
    }

    proptest! {
        #[test]
        fn sets_agree_with_sets_of_numbers(
            left in prop::collection::btree_set(0..VIRTUAL_RANGES, 0..200),
            right in prop::collection::btree_set(0..VIRTUAL_RANGES, 0..200),
        ) {
            let numbers = |set: &RangeSet| set.iter().collect::<BTreeSet<_>>();
            let (a, b): (RangeSet, RangeSet) = (left.iter().copied().collect(), right.iter().copied().collect());
            prop_assert_eq!(numbers(&a), left.clone());
            prop_assert_eq!(numbers(&a.intersection(&b)), &left & &right);
            prop_assert_eq!(numbers(&a.difference(&b)), &left - &right);
            prop_assert_eq!(a.is_empty(), left.is_empty());
            prop_assert_eq!(RangeSet::parse(&a.texts()), Some(a));
        }
    }
}
