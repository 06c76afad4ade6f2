//! Label selectors, with the grammar and the canonical form of `k8s.io/apimachinery/pkg/labels` v0.36.3. The grammar is
//! in `parser`, the rules for keys and values in `validation`.

mod parser;
mod validation;

use std::fmt;

/// Longest selector that is parsed, in bytes; a query can't hold a longer one.
pub const MAX_SELECTOR_BYTES: usize = crate::MAX_QUERY_BYTES;

/// Most requirements of a selector. Upstream has no bound; real selectors have fewer than twenty.
pub const MAX_REQUIREMENTS: usize = 1024;

/// Why a label or field selector was refused. The API server answers it with 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text breaks the grammar.
    #[error("unable to parse the selector at {found:?}: expected {expected}")]
    Syntax {
        /// The text at which the parser gave up; empty at the end.
        found: String,
        /// The tokens that would have been valid there.
        expected: &'static str,
    },
    /// An invalid label key.
    #[error(
        "invalid label key {0:?}: write it as name or example.com/name; the name has 1 to 63 letters, digits, '-', '_' or '.', with a \
         letter or digit at both ends, and before a slash stands a DNS name in lower case"
    )]
    Key(String),
    /// An invalid label value.
    #[error(
        "invalid label value {0:?}: at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
    )]
    Value(String),
    /// A `>` or `<` with something else than a 64-bit integer.
    #[error("{0:?} is no integer, which `>` and `<` need")]
    Integer(String),
    /// An operator with a number of values that it does not take.
    #[error("operator {operator:?} {}, not {count}", values_of(*operator))]
    ValueCount {
        /// The operator as the requirement has it.
        operator: Operator,
        /// Number of values in the requirement.
        count: usize,
    },
    /// A bad backslash sequence, or a raw `,` or `=`, in the value of a field selector.
    #[error("invalid field selector value {0:?}: escape `\\`, `,` and `=` with a backslash, and nothing else")]
    Escape(String),
    /// The text has this many bytes, more than [`MAX_SELECTOR_BYTES`].
    #[error("the selector has {0} bytes; at most {MAX_SELECTOR_BYTES} are read")]
    TooLong(usize),
    /// The selector has more terms than [`MAX_REQUIREMENTS`].
    #[error("the selector has more than {MAX_REQUIREMENTS} requirements")]
    TooManyRequirements,
}

/// The relation between a label and the values of its [`Requirement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `key=value`
    Equals,
    /// `key==value`
    DoubleEquals,
    /// `key!=value`; also matches an absent label.
    NotEquals,
    /// `key in (a,b)`
    In,
    /// `key notin (a,b)`; also matches an absent label.
    NotIn,
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key>1`
    GreaterThan,
    /// `key<1`
    LessThan,
}

/// The number of values of an operator, in words of an error.
const fn values_of(operator: Operator) -> &'static str {
    match operator {
        Operator::In | Operator::NotIn => "needs at least one value",
        Operator::Exists | Operator::DoesNotExist => "takes no values",
        _ => "takes one value",
    }
}

/// One term of a [`LabelSelector`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Key of the label, with its prefix, such as `app.kubernetes.io/name`.
    pub key: String,
    /// Relation between the label's value and `values`.
    pub operator: Operator,
    /// Values; sorted and without repetitions when parsed.
    pub values: Vec<String>,
}

impl Requirement {
    /// A requirement that upstream would accept (`labels.NewRequirement`).
    ///
    /// # Errors
    /// When the key or a value is invalid, or the operator takes another number of values.
    pub fn new(key: impl Into<String>, operator: Operator, values: Vec<String>) -> Result<Self, SelectorError> {
        let requirement = Self {
            key: key.into(),
            operator,
            values,
        };
        validation::check(
            &requirement.key,
            operator,
            requirement.values.iter().map(String::as_str),
        )?;
        Ok(requirement)
    }

    /// Whether an object with these labels meets the requirement; `labels` gives the value of a key.
    pub fn matches<'l>(&self, labels: &impl Fn(&str) -> Option<&'l str>) -> bool {
        let label = labels(&self.key);
        let is_listed = |label: &str| self.values.iter().any(|value| value == label);
        match self.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => label.is_some_and(is_listed),
            Operator::NotEquals | Operator::NotIn => !label.is_some_and(is_listed),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => self.compares_numbers(label, |label, bound| label > bound),
            Operator::LessThan => self.compares_numbers(label, |label, bound| label < bound),
        }
    }

    fn compares_numbers(&self, label: Option<&str>, holds: impl Fn(i64, i64) -> bool) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        match (
            label.and_then(number),
            self.values.first().and_then(|bound| number(bound)),
        ) {
            (Some(label), Some(bound)) => holds(label, bound),
            _ => false,
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let (before, after) = match self.operator {
            Operator::Exists => return f.write_str(key),
            Operator::DoesNotExist => return write!(f, "!{key}"),
            Operator::Equals => ("=", ""),
            Operator::DoubleEquals => ("==", ""),
            Operator::NotEquals => ("!=", ""),
            Operator::GreaterThan => (">", ""),
            Operator::LessThan => ("<", ""),
            Operator::In => (" in (", ")"),
            Operator::NotIn => (" notin (", ")"),
        };
        write!(f, "{key}{before}")?;
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        for (index, value) in values.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{value}")?;
        }
        f.write_str(after)
    }
}

/// A label selector: the AND of its requirements, sorted by key. Without requirements it takes everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// Terms that an object's labels must all meet.
    pub requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// Parses what `labels.Parse` parses.
    ///
    /// # Errors
    /// Where upstream has one, and above [`MAX_SELECTOR_BYTES`] and [`MAX_REQUIREMENTS`].
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        parser::parse(text, |key, operator, values| {
            let mut values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
            values.sort_unstable();
            values.dedup();
            requirements.push(Requirement {
                key: key.to_owned(),
                operator,
                values,
            });
        })?;
        let mut selector = Self { requirements };
        selector.sort();
        Ok(selector)
    }

    /// Tells whether [`LabelSelector::parse`] would succeed, and allocates nothing for a selector without lists.
    ///
    /// # Errors
    /// As [`LabelSelector::parse`].
    pub fn validate(text: &str) -> Result<(), SelectorError> {
        parser::parse(text, |_, _, _| ())
    }

    /// Narrows this selector to the objects that the other one takes too.
    pub fn narrow_by(&mut self, other: Self) {
        self.requirements.extend(other.requirements);
        self.sort();
    }

    /// Whether an object with these labels is taken; `labels` gives the value of a key.
    pub fn matches<'l>(&self, labels: &impl Fn(&str) -> Option<&'l str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }

    /// Whether the selector matches every object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Stable, so that requirements on one key keep the order in which they came.
    fn sort(&mut self) {
        self.requirements.sort_by(|a, b| a.key.cmp(&b.key));
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{requirement}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests;
