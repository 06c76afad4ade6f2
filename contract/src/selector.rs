//! A Kubernetes label selector (`metav1.LabelSelector`), in chains as in custom resources, evaluated against labels.
//!
//! Same results as `LabelSelectorAsSelector` of apimachinery (`pkg/apis/meta/v1/helpers.go`), with one difference that
//! its place in a chain asks for: no selector selects everything. Leaves selectors in queries to `ctrlmesh-wire`.

use std::collections::BTreeMap;

use ctrlmesh_wire::{is_label_key, is_label_value};
use serde::{Deserialize, Serialize};

use crate::error::{Mistakes, quote};

/// Values in one requirement. Kubernetes has no bound of its own here; this one only keeps evaluation cheap.
const MAX_VALUES: usize = 256;
/// Requirements in one selector.
const MAX_REQUIREMENTS: usize = 64;

/// Selects objects by their labels. An object must meet matchLabels and matchExpressions; an empty selector selects all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LabelSelector {
    /// Labels that an object must have, with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements for the labels of an object. It must meet all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic")))]
    pub match_expressions: Vec<Requirement>,
}

/// Key, operator and values that together select objects by one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",
    "message": "In and NotIn need at least one value, Exists and DoesNotExist take none",
    "fieldPath": ".values",
}])))]
pub struct Requirement {
    /// Key of the label that the requirement is about.
    pub key: String,
    /// In and NotIn compare the label's value with values. Exists and DoesNotExist ask whether the label exists.
    /// An object without the label also meets NotIn.
    pub operator: Operator,
    /// Values for In and NotIn, at least one. Exists and DoesNotExist take none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic")))]
    pub values: Vec<String>,
}

/// How a requirement relates a label to values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(
    missing_docs,
    reason = "the words are those of metav1.LabelSelectorOperator; their docs would be in schemas"
)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Operator {
    /// From its name in a document.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            _ => return None,
        })
    }
}

impl LabelSelector {
    /// Whether the selector has no condition, and so selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// The selector with one more expression.
    #[must_use]
    pub fn with_requirement(mut self, key: &str, operator: Operator, values: Vec<String>) -> Self {
        self.match_expressions.push(Requirement {
            key: key.to_owned(),
            operator,
            values,
        });
        self
    }

    /// Whether these labels are selected.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.matches(labels))
    }

    /// Adds what an API server would refuse in it, and what is beyond our own bounds.
    pub fn validate(&self, path: &str, mistakes: &mut Mistakes) {
        if self.match_labels.len() + self.match_expressions.len() > MAX_REQUIREMENTS {
            mistakes.add(
                path,
                format!("has more than {MAX_REQUIREMENTS} requirements; write fewer"),
            );
        }
        for (key, value) in &self.match_labels {
            let path = format!("{path}.matchLabels");
            validate_key(&path, key, mistakes);
            validate_value(&path, value, mistakes);
        }
        for (at, requirement) in self.match_expressions.iter().enumerate() {
            requirement.validate(&format!("{path}.matchExpressions[{at}]"), mistakes);
        }
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }

    fn validate(&self, path: &str, mistakes: &mut Mistakes) {
        validate_key(&format!("{path}.key"), &self.key, mistakes);
        let values = format!("{path}.values");
        match (self.operator, self.values.is_empty()) {
            (Operator::In | Operator::NotIn, true) => {
                mistakes.add(&values, "is empty; In and NotIn need at least one value");
            }
            (Operator::Exists | Operator::DoesNotExist, false) => {
                mistakes.add(&values, "must be left out with Exists and DoesNotExist");
            }
            _ => {}
        }
        if self.values.len() > MAX_VALUES {
            mistakes.add(&values, format!("has more than {MAX_VALUES} values; write fewer"));
        }
        for value in self.values.iter().take(MAX_VALUES) {
            validate_value(&values, value, mistakes);
        }
    }
}

fn validate_key(path: &str, key: &str, mistakes: &mut Mistakes) {
    if !is_label_key(key) {
        let key = quote(key);
        mistakes.add(
            path,
            format!("{key} is not a label key; write it as name or example.com/name"),
        );
    }
}

fn validate_value(path: &str, value: &str, mistakes: &mut Mistakes) {
    if !is_label_value(value) {
        let value = quote(value);
        mistakes.add(
            path,
            format!("{value} is not a label value; use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn requirement(key: &str, operator: Operator, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        LabelSelector {
            match_expressions: vec![Requirement {
                key: key.to_owned(),
                operator,
                values,
            }],
            ..LabelSelector::default()
        }
    }

    #[test]
    fn empty_selector_selects_everything() {
        assert!(LabelSelector::default().matches(&labels(&[])));
        assert!(LabelSelector::default().matches(&labels(&[("a", "b")])));
    }

    #[test]
    fn operators_follow_apimachinery() {
        let pod = labels(&[("app", "x"), ("empty", "")]);
        let cases = [
            ("app", Operator::In, vec!["x", "y"], true),
            ("app", Operator::In, vec!["y"], false),
            ("gone", Operator::In, vec!["x"], false),
            ("gone", Operator::In, vec![""], false),
            ("app", Operator::NotIn, vec!["x"], false),
            ("app", Operator::NotIn, vec!["y"], true),
            ("gone", Operator::NotIn, vec!["x"], true),
            ("empty", Operator::Exists, vec![], true),
            ("gone", Operator::Exists, vec![], false),
            ("empty", Operator::DoesNotExist, vec![], false),
            ("gone", Operator::DoesNotExist, vec![], true),
        ];
        for (key, operator, values, expected) in cases {
            assert_eq!(
                requirement(key, operator, &values).matches(&pod),
                expected,
                "{key} {operator:?} {values:?}"
            );
        }
    }

    #[test]
    fn all_parts_must_hold() {
        let mut selector = requirement("app", Operator::Exists, &[]);
        selector.match_labels = labels(&[("shard", "0")]);
        assert!(selector.matches(&labels(&[("app", "x"), ("shard", "0")])));
        assert!(!selector.matches(&labels(&[("app", "x"), ("shard", "1")])));
        assert!(!selector.matches(&labels(&[("shard", "0")])));
    }

    #[test]
    fn invalid_labels_are_refused() {
        let long = "a".repeat(64);
        for key in [
            "",
            "-a",
            "a-",
            "a b",
            "a/b/c",
            "/a",
            "Upper.example/a",
            &long,
            "exa_mple.com/a",
        ] {
            let mut mistakes = Mistakes::default();
            requirement(key, Operator::Exists, &[]).validate("podSelector", &mut mistakes);
            assert_eq!(mistakes.list().len(), 1, "{key:?}");
        }
        for selector in [
            requirement("a", Operator::In, &[]),
            requirement("a", Operator::Exists, &["x"]),
            requirement("a", Operator::In, &["x y"]),
        ] {
            let mut mistakes = Mistakes::default();
            selector.validate("podSelector", &mut mistakes);
            assert_eq!(mistakes.list().len(), 1, "{selector:?}");
        }
        let mut mistakes = Mistakes::default();
        requirement("example.com/A_b.c", Operator::In, &["", "v-1"]).validate("podSelector", &mut mistakes);
        assert_eq!(mistakes.list(), []);
    }
}
