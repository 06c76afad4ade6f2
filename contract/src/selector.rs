//! A Kubernetes label selector (`metav1.LabelSelector`), evaluated against a pod's labels.
//!
//! Same results as `LabelSelectorAsSelector` of apimachinery (`pkg/apis/meta/v1/helpers.go`), with one difference that
//! its place in a chain asks for: no selector selects everything. Leaves selectors in queries to `ctrlmesh-wire`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::{Mistakes, quote};

/// Longest name part of a label key, and longest label value (apimachinery `validation.LabelValueMaxLength`).
const MAX_NAME: usize = 63;
/// Longest prefix of a label key (a DNS subdomain).
const MAX_PREFIX: usize = 253;
/// Values in one requirement. Kubernetes has no bound of its own here; this one only keeps evaluation cheap.
const MAX_VALUES: usize = 256;
/// Requirements in one selector.
const MAX_REQUIREMENTS: usize = 64;

/// Selects pods by their labels. An empty selector selects all pods.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Each of these labels has exactly this value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Each of these holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// One expression of a [`LabelSelector`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// Key of the label.
    pub key: String,
    /// How the label is compared.
    pub operator: Operator,
    /// For `In` and `NotIn` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The operator of a [`Requirement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Operator {
    /// The label is there and has one of the values.
    In,
    /// The label is not there, or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
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
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if !is_name(name) || prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        let key = quote(key);
        mistakes.add(
            path,
            format!("{key} is not a label key; write it as name or example.com/name"),
        );
    }
}

fn validate_value(path: &str, value: &str, mistakes: &mut Mistakes) {
    if !value.is_empty() && !is_name(value) {
        let value = quote(value);
        mistakes.add(
            path,
            format!("{value} is not a label value; use at most {MAX_NAME} letters, digits, '-', '_' and '.', with a letter or digit at both ends"),
        );
    }
}

/// A label value, or the name part of a label key (apimachinery `validation.IsQualifiedName`).
fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    ends_alphanumeric(text) && text.len() <= MAX_NAME && text.bytes().all(inner)
}

/// A DNS subdomain (RFC 1123 as Kubernetes reads it: lower case, dots between labels).
#[must_use]
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_PREFIX && text.split('.').all(is_dns_label)
}

/// One label of a DNS name, without the length check that `metadata.namespace` adds.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    ends_alphanumeric(text) && text.bytes().all(inner)
}

fn ends_alphanumeric(text: &str) -> bool {
    let bytes = text.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(a), Some(b)) if a.is_ascii_alphanumeric() && b.is_ascii_alphanumeric())
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
