//! Looks labels of one object up, so that a large predicate and an object with many labels take little time together.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};

/// Objects with up to this many labels are searched from the end. Most objects have fewer.
const FEW_LABELS: usize = 16;

/// This many searches cost less than sorting.
const FEW_SEARCHES: u32 = 8;

/// The labels of an object. They are sorted, which allocates, for the ninth search in more than 16 labels. A predicate
/// may have 1,024 requirements and as many hashes of labels, and an object 65,536 labels.
pub(super) struct LabelSearch<'o> {
    labels: &'o [(Cow<'o, str>, Cow<'o, str>)],
    /// Searches so far in more than a few labels.
    searches: Cell<u32>,
    /// Stable, so that the last label is the last of its key.
    sorted: OnceCell<Vec<(&'o str, &'o str)>>,
}

impl<'o> LabelSearch<'o> {
    pub(super) const fn new(labels: &'o [(Cow<'o, str>, Cow<'o, str>)]) -> Self {
        Self {
            labels,
            searches: Cell::new(0),
            sorted: OnceCell::new(),
        }
    }

    /// The value of a label; the last one if the key occurs twice, as in
    /// [`ObjectMetadata::label`](crate::objects::ObjectMetadata::label).
    pub(super) fn value(&self, key: &str) -> Option<&'o str> {
        if self.labels.len() > FEW_LABELS {
            if self.searches.get() == FEW_SEARCHES {
                return self.value_of_sorted(key);
            }
            self.searches.set(self.searches.get() + 1);
        }
        let mut labels = self.labels.iter().rev();
        labels.find(|(known, _)| known == key).map(|(_, value)| value.as_ref())
    }

    fn value_of_sorted(&self, key: &str) -> Option<&'o str> {
        let sorted = self.sorted.get_or_init(|| {
            let labels = self.labels.iter();
            let mut sorted: Vec<(&str, &str)> = labels.map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
            sorted.sort_by_key(|(key, _)| *key);
            sorted
        });
        let end = sorted.partition_point(|(known, _)| *known <= key);
        let (known, value) = sorted.get(end.checked_sub(1)?)?;
        (*known == key).then_some(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{ObjectMetadata, TextPairs};

    /// Labels `k0`, `k1` and so on. The first half occurs twice, with other values.
    fn labels(count: usize) -> TextPairs<'static> {
        let pair = |index: usize, value: &str| -> (Cow<'static, str>, Cow<'static, str>) {
            (format!("k{index}").into(), format!("{value}{index}").into())
        };
        let mut labels: TextPairs<'static> = (0..count / 2).map(|index| pair(index, "early")).collect();
        labels.extend((0..count - count / 2).map(|index| pair(index, "late")));
        labels
    }

    #[test]
    fn labels_are_found_as_in_the_object() {
        for count in [0, 1, FEW_LABELS, FEW_LABELS + 1, 1000] {
            let object = ObjectMetadata {
                labels: labels(count),
                ..ObjectMetadata::default()
            };
            let search = LabelSearch::new(&object.labels);
            for index in 0..count + 5 {
                for key in [format!("k{index}"), format!("k{index}x"), String::new(), "z".to_owned()] {
                    assert_eq!(search.value(&key), object.label(&key), "{key} of {count}");
                }
            }
        }
    }

    #[test]
    fn many_labels_are_sorted_once_if_there_are_many_searches() {
        for (count, searches, is_sorted) in [
            (FEW_LABELS, 1000, false),
            (FEW_LABELS + 1, 8, false),
            (FEW_LABELS + 1, 9, true),
            (60_000, 2048, true),
        ] {
            let labels = labels(count);
            let search = LabelSearch::new(&labels);
            for _ in 0..searches {
                search.value("absent");
            }
            assert_eq!(
                search.sorted.get().is_some(),
                is_sorted,
                "{count} labels, {searches} searches"
            );
            assert!(
                search.searches.get() <= FEW_SEARCHES,
                "each of these steps through all labels"
            );
        }
    }
}
