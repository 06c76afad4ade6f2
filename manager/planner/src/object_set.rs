//! Exact sets of objects by what limits read of them: their labels, and the virtual ranges of their hashes.
//!
//! Labels and the hashes of each key count as independent of each other. Where they are not (a namespace decides both its hash and
//! its label), a set has objects that cannot exist, so that two shards are at most compared too carefully.

use std::collections::BTreeMap;

use ctrlmesh_manager_api::LabelSelector;
use ctrlmesh_manager_api::sharding_config::{HashRanges, Limit};

use crate::label_set::LabelSet;
use crate::range_set::RangeSet;

/// Objects with some labels, and with hashes in some ranges. A set is never empty: operations whose result is empty return `None` or
/// no set.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ObjectSet {
    labels: LabelSet,
    /// By the key that is hashed. Keys of which all ranges are in the set are left out.
    ranges: BTreeMap<String, RangeSet>,
}

impl ObjectSet {
    /// The objects of a limit, whatever their resource. Ranges that cannot be read count as if they hid nothing. `None`: it shows
    /// nothing.
    pub fn from_limit(limit: &Limit) -> Option<Self> {
        let labels = match &limit.selector {
            Some(selector) => LabelSet::from_selector(selector)?,
            None => LabelSet::default(),
        };
        let set = Self {
            labels,
            ranges: BTreeMap::new(),
        };
        match limit.hash_ranges.as_ref().and_then(read_ranges) {
            Some((key, ranges)) => set.with_ranges(key, ranges),
            None => Some(set),
        }
    }

    /// Whether the set has objects with this value of a label.
    pub fn allows_value(&self, key: &str, value: &str) -> bool {
        self.labels.allows_value(key, value)
    }

    /// Whether the set has objects whose hash of this key is in a range.
    #[cfg(test)]
    pub fn allows_range(&self, key: &str, range: u16) -> bool {
        self.ranges_of(key).contains(range)
    }

    /// The set without its condition for this label.
    pub fn without_key(mut self, key: &str) -> Self {
        self.labels = self.labels.without_key(key);
        self
    }

    /// The intersection. `None`: it is empty.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let mut set = self.clone();
        set.labels = set.labels.intersection(&other.labels)?;
        for (key, ranges) in &other.ranges {
            let both = set.ranges_of(key).intersection(ranges);
            set = set.with_ranges(key, both)?;
        }
        Some(set)
    }

    /// The difference as disjoint sets; none if it is empty.
    pub fn difference(&self, other: &Self) -> Vec<Self> {
        let mut rest = Vec::new();
        let mut shared = self.clone();
        for (key, ranges) in &other.ranges {
            let own = shared.ranges_of(key);
            rest.extend(shared.clone().with_ranges(key, own.difference(ranges)));
            match shared.with_ranges(key, own.intersection(ranges)) {
                Some(set) => shared = set,
                None => return rest,
            }
        }
        let labels = shared.labels.difference(&other.labels).into_iter();
        rest.extend(labels.map(|labels| Self {
            labels,
            ranges: shared.ranges.clone(),
        }));
        rest
    }

    /// Whether the intersection has any object.
    pub fn intersects(&self, other: &Self) -> bool {
        let mut keys = self.ranges.iter();
        let share_ranges = keys.all(|(key, ranges)| !other.ranges_of(key).intersection(ranges).is_empty());
        share_ranges && self.labels.intersects(&other.labels)
    }

    /// A selector and hash ranges for exactly this set. `None`: it takes several selectors, or ranges of several keys.
    pub fn selection(&self) -> Option<(LabelSelector, Option<HashRanges>)> {
        let selectors = self.labels.selectors();
        let ([selector], 0..=1) = (selectors.as_slice(), self.ranges.len()) else {
            return None;
        };
        let ranges = self.ranges.iter().next().map(|(key, ranges)| ranges.of_key(key));
        Some((selector.clone(), ranges))
    }

    fn ranges_of(&self, key: &str) -> RangeSet {
        self.ranges.get(key).copied().unwrap_or(RangeSet::ALL)
    }

    fn with_ranges(mut self, key: &str, ranges: RangeSet) -> Option<Self> {
        if ranges.is_empty() {
            return None;
        }
        if ranges == RangeSet::ALL {
            self.ranges.remove(key);
        } else {
            self.ranges.insert(key.to_owned(), ranges);
        }
        Some(self)
    }
}

/// `None`: they have another form, which no sidecar accepts either.
pub(crate) fn read_ranges(ranges: &HashRanges) -> Option<(&str, RangeSet)> {
    Some((ranges.key.as_str(), RangeSet::parse(&ranges.ranges)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Limits with one label of two values, and few ranges of two keys.
    fn limit() -> impl Strategy<Value = Limit> {
        let selector = prop_oneof![
            Just(json!(null)),
            Just(json!({"matchLabels": {"a": "x"}})),
            Just(json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]})),
        ];
        let ranges = prop_oneof![
            Just(vec![]),
            Just(vec!["0-1023"]),
            Just(vec!["0-511"]),
            Just(vec!["0-255", "512-767"]),
        ];
        let hash = prop_oneof![
            Just(json!(null)),
            (prop_oneof![Just("uid"), Just("owner")], ranges)
                .prop_map(|(key, ranges)| json!({"key": key, "ranges": ranges})),
        ];
        (selector, hash).prop_map(|(selector, hash)| {
            serde_json::from_value(json!({"selector": selector, "hashRanges": hash})).unwrap()
        })
    }

    /// Objects with each combination of the label and of one range of each quarter.
    fn all_objects() -> Vec<(&'static str, u16, u16)> {
        let quarters = [0_u16, 256, 512, 768];
        let objects = ["x", "y"].into_iter().flat_map(move |label| {
            quarters
                .into_iter()
                .flat_map(move |uid| quarters.into_iter().map(move |owner| (label, uid, owner)))
        });
        objects.collect()
    }

    fn has(set: &ObjectSet, (label, uid, owner): (&str, u16, u16)) -> bool {
        set.allows_value("a", label) && set.allows_range("uid", uid) && set.allows_range("owner", owner)
    }

    proptest! {
        #[test]
        fn operations_agree_with_objects(left in limit(), right in limit(), third in limit()) {
            let (a, b) = (ObjectSet::from_limit(&left), ObjectSet::from_limit(&right));
            // With conditions for both keys.
            let third = ObjectSet::from_limit(&third);
            let a = a.zip(third).and_then(|(a, third)| a.intersection(&third));
            let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
            let both = a.intersection(&b);
            let rest = a.difference(&b);
            prop_assert_eq!(a.intersects(&b), both.is_some());
            for object in all_objects() {
                let (is_left, is_right) = (has(&a, object), has(&b, object));
                prop_assert_eq!(both.as_ref().is_some_and(|both| has(both, object)), is_left && is_right);
                let count = rest.iter().filter(|part| has(part, object)).count();
                prop_assert_eq!(count, usize::from(is_left && !is_right));
            }
        }
    }

    #[test]
    fn selection_makes_the_same_set() {
        let limit = |json| serde_json::from_value::<Limit>(json).unwrap();
        let half =
            limit(json!({"selector": {"matchLabels": {"a": "x"}}, "hashRanges": {"key": "uid", "ranges": ["0-511"]}}));
        let set = ObjectSet::from_limit(&half).unwrap();
        let (selector, hash_ranges) = set.selection().unwrap();
        let again = Limit {
            selector: Some(selector),
            hash_ranges,
            ..Limit::default()
        };
        assert_eq!(ObjectSet::from_limit(&again), Some(set.clone()));
        let other = limit(json!({"hashRanges": {"key": "owner", "ranges": ["0-511"]}}));
        let both = set.intersection(&ObjectSet::from_limit(&other).unwrap()).unwrap();
        assert_eq!(both.selection(), None, "ranges of two keys are two limits");
        let all = limit(json!({"hashRanges": {"key": "uid", "ranges": ["0-1023"]}}));
        assert_eq!(ObjectSet::from_limit(&all), Some(ObjectSet::default()));
        assert_eq!(ObjectSet::default().selection(), Some((LabelSelector::default(), None)));
    }

    #[test]
    fn unreadable_ranges_hide_nothing() {
        let limit = serde_json::from_value(json!({"hashRanges": {"key": "uid", "ranges": ["5000"]}})).unwrap();
        assert_eq!(ObjectSet::from_limit(&limit), Some(ObjectSet::default()));
    }
}
