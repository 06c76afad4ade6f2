//! Exact sets of label maps: what a selector selects, the intersection of two selectors, and their difference.
//!
//! A set is a condition for each key, all of which hold. A condition is a finite set of values or its complement, where "the label
//! is not there" counts as a value. So the intersection of sets is a set, and a difference is a few disjoint sets.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::{LabelSelector, Operator, Requirement};

/// A label's value, or `None`: the label is not there.
type Value = Option<String>;

/// Label maps that some pods or objects may have. A set is never empty: operations whose result is empty return `None` or no set.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LabelSet {
    keys: BTreeMap<String, Values>,
}

/// The values that a key may have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Values {
    Only(BTreeSet<Value>),
    Except(BTreeSet<Value>),
}

/// A selector that selects nothing. The key says why.
pub(crate) fn no_object(key: &str) -> LabelSelector {
    LabelSelector::default()
        .with_requirement(key, Operator::Exists, Vec::new())
        .with_requirement(key, Operator::DoesNotExist, Vec::new())
}

impl LabelSet {
    /// The label maps that a selector selects. `None`: nothing, as `In [a]` and `In [b]` of one key do.
    pub fn from_selector(selector: &LabelSelector) -> Option<Self> {
        let mut set = Self::default();
        for (key, value) in &selector.match_labels {
            set = set.restrict_key(key, Values::Only([Some(value.clone())].into()))?;
        }
        for requirement in &selector.match_expressions {
            let values = || requirement.values.iter().cloned().map(Some).collect();
            let values = match requirement.operator {
                Operator::In => Values::Only(values()),
                Operator::NotIn => Values::Except(values()),
                Operator::Exists => Values::Except([None].into()),
                Operator::DoesNotExist => Values::Only([None].into()),
            };
            set = set.restrict_key(&requirement.key, values)?;
        }
        Some(set)
    }

    /// Whether the set has maps in which the key has this value.
    pub fn allows_value(&self, key: &str, value: &str) -> bool {
        self.keys.get(key).is_none_or(|values| values.contains(value))
    }

    /// The set without its condition for this key.
    pub fn without_key(mut self, key: &str) -> Self {
        self.keys.remove(key);
        self
    }

    /// The intersection. `None`: it is empty.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let mut set = self.clone();
        for (key, values) in &other.keys {
            set = set.restrict_key(key, values.clone())?;
        }
        Some(set)
    }

    /// The difference as disjoint sets; none if it is empty.
    pub fn difference(&self, other: &Self) -> Vec<Self> {
        let mut rest = Vec::new();
        let mut shared = self.clone();
        for (key, values) in &other.keys {
            rest.extend(shared.clone().restrict_key(key, values.complement()));
            match shared.restrict_key(key, values.clone()) {
                Some(set) => shared = set,
                None => return rest,
            }
        }
        rest
    }

    /// Whether the intersection has any map.
    pub fn intersects(&self, other: &Self) -> bool {
        let mut keys = self.keys.iter();
        keys.all(|(key, values)| other.keys.get(key).is_none_or(|others| values.intersects(others)))
    }

    /// Whether every map of this set is in the other one, too.
    pub fn is_within(&self, other: &Self) -> bool {
        let mut keys = other.keys.iter();
        keys.all(|(key, others)| self.keys.get(key).is_some_and(|values| values.is_within(others)))
    }

    /// Selectors for this set, one for each disjoint part: "one of these values, or not there" needs two.
    pub fn selectors(&self) -> Vec<LabelSelector> {
        let mut selectors = vec![LabelSelector::default()];
        for (key, values) in &self.keys {
            let alternatives = values.requirements(key);
            selectors = selectors
                .into_iter()
                .flat_map(|selector| {
                    alternatives.iter().map(move |requirements| {
                        let mut selector = selector.clone();
                        selector.match_expressions.extend(requirements.iter().cloned());
                        selector
                    })
                })
                .collect();
        }
        selectors
    }

    fn restrict_key(mut self, key: &str, values: Values) -> Option<Self> {
        let values = match self.keys.remove(key) {
            Some(present) => present.intersection(&values),
            None => values,
        };
        match &values {
            Values::Only(only) if only.is_empty() => return None,
            Values::Except(except) if except.is_empty() => {}
            _ => {
                self.keys.insert(key.to_owned(), values);
            }
        }
        Some(self)
    }
}

impl Values {
    fn contains(&self, value: &str) -> bool {
        let value = Some(value.to_owned());
        match self {
            Self::Only(values) => values.contains(&value),
            Self::Except(values) => !values.contains(&value),
        }
    }

    fn intersection(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Only(a), Self::Only(b)) => Self::Only(a & b),
            (Self::Except(a), Self::Except(b)) => Self::Except(a | b),
            (Self::Only(only), Self::Except(except)) | (Self::Except(except), Self::Only(only)) => {
                Self::Only(only - except)
            }
        }
    }

    fn intersects(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Only(a), Self::Only(b)) => !a.is_disjoint(b),
            // There are more values than any set has.
            (Self::Except(_), Self::Except(_)) => true,
            (Self::Only(only), Self::Except(except)) | (Self::Except(except), Self::Only(only)) => {
                !only.is_subset(except)
            }
        }
    }

    fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Only(values), Self::Only(others)) => values.is_subset(others),
            (Self::Only(values), Self::Except(others)) => values.is_disjoint(others),
            (Self::Except(values), Self::Except(others)) => others.is_subset(values),
            // There are more values than any set has.
            (Self::Except(_), Self::Only(_)) => false,
        }
    }

    fn complement(&self) -> Self {
        match self {
            Self::Only(values) => Self::Except(values.clone()),
            Self::Except(values) => Self::Only(values.clone()),
        }
    }

    /// Alternatives, each a list of requirements that hold together.
    fn requirements(&self, key: &str) -> Vec<Vec<Requirement>> {
        let requirement = |operator, values: &BTreeSet<Value>| Requirement {
            key: key.to_owned(),
            operator,
            values: values.iter().flatten().cloned().collect(),
        };
        let none = BTreeSet::new();
        let has_value = |values: &BTreeSet<Value>| values.iter().any(Option::is_some);
        let (values, absent, present) = match self {
            Self::Only(values) => (values, Operator::DoesNotExist, Operator::In),
            Self::Except(values) => (values, Operator::Exists, Operator::NotIn),
        };
        let absent = values.contains(&None).then(|| requirement(absent, &none));
        let present = has_value(values).then(|| requirement(present, values));
        let parts = [absent, present].into_iter().flatten();
        match self {
            Self::Only(_) => parts.map(|part| vec![part]).collect(),
            Self::Except(_) => vec![parts.collect()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn selector() -> impl Strategy<Value = LabelSelector> {
        let operator = prop_oneof![
            Just(Operator::In),
            Just(Operator::NotIn),
            Just(Operator::Exists),
            Just(Operator::DoesNotExist)
        ];
        let requirement =
            ("[ab]", operator, prop::collection::vec("[xyz]", 1..3)).prop_map(|(key, operator, values)| {
                let takes_values = matches!(operator, Operator::In | Operator::NotIn);
                let values = if takes_values { values } else { Vec::new() };
                Requirement { key, operator, values }
            });
        (
            prop::collection::btree_map("[ab]", "[xyz]", 0..2),
            prop::collection::vec(requirement, 0..3),
        )
            .prop_map(|(match_labels, match_expressions)| LabelSelector {
                match_labels,
                match_expressions,
            })
    }

    /// Every map of two keys with three values, one unknown value, or no label.
    fn all_maps() -> Vec<BTreeMap<String, String>> {
        let values = [None, Some("x"), Some("y"), Some("z"), Some("other")];
        let map = |a: &Option<&str>, b: &Option<&str>| {
            let pairs = [("a", *a), ("b", *b)];
            let pairs = pairs
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
            pairs.collect()
        };
        values
            .iter()
            .flat_map(|a| values.iter().map(move |b| map(a, b)))
            .collect()
    }

    /// The number of selectors that select the map.
    fn count(sets: &[LabelSet], labels: &BTreeMap<String, String>) -> usize {
        let selectors = sets.iter().flat_map(LabelSet::selectors);
        selectors.filter(|selector| selector.matches(labels)).count()
    }

    proptest! {
        #[test]
        fn sets_agree_with_selectors(left in selector(), right in selector()) {
            let (a, b) = (LabelSet::from_selector(&left), LabelSet::from_selector(&right));
            let both = a.as_ref().zip(b.as_ref()).and_then(|(a, b)| a.intersection(b));
            let rest = match (&a, &b) {
                (Some(a), Some(b)) => a.difference(b),
                (Some(a), None) => vec![a.clone()],
                (None, _) => vec![],
            };
            if let Some((a, b)) = a.as_ref().zip(b.as_ref()) {
                prop_assert_eq!(a.intersects(b), both.is_some());
                prop_assert_eq!(a.is_within(b), rest.is_empty());
            }
            for labels in all_maps() {
                let (is_left, is_right) = (left.matches(&labels), right.matches(&labels));
                prop_assert_eq!(count(a.as_slice(), &labels), usize::from(is_left));
                prop_assert_eq!(count(both.as_slice(), &labels), usize::from(is_left && is_right));
                prop_assert_eq!(count(&rest, &labels), usize::from(is_left && !is_right));
            }
        }
    }
}
