//! Field selectors, with the grammar and the canonical form of `k8s.io/apimachinery/pkg/fields` v0.36.3. The API server
//! decides which fields a resource has.

use std::fmt;

use crate::{MAX_REQUIREMENTS, MAX_SELECTOR_BYTES, SelectorError};

/// The relation between a field and the value of its [`FieldRequirement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldOperator {
    /// `field=value` or `field==value`
    Equals,
    /// `field!=value`
    NotEquals,
}

/// One term of a [`FieldSelector`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRequirement {
    /// Field path, such as `metadata.name`.
    pub field: String,
    /// Whether the field must equal `value` or differ from it.
    pub operator: FieldOperator,
    /// Value without the backslashes that escape `\`, `,` and `=` in the text.
    pub value: String,
}

/// A field selector: the AND of its requirements, in the order of their sorted texts as upstream keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    /// Terms that an object's fields must all meet.
    pub requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    /// Parses what `fields.ParseSelector` parses.
    ///
    /// # Errors
    /// Where upstream has one, and above [`MAX_SELECTOR_BYTES`] and [`MAX_REQUIREMENTS`].
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_SELECTOR_BYTES {
            return Err(SelectorError::TooLong(text.len()));
        }
        let mut terms: Vec<&str> = split_terms(text).filter(|term| !term.is_empty()).collect();
        if terms.len() > MAX_REQUIREMENTS {
            return Err(SelectorError::TooManyRequirements);
        }
        terms.sort_unstable();
        let mut requirements = Vec::with_capacity(terms.len());
        for term in terms {
            let (field, operator, value) = split_term(term)?;
            let value = unescape(value)?;
            // Upstream drops a term that names neither field nor value.
            if !field.is_empty() || !value.is_empty() {
                requirements.push(FieldRequirement {
                    field: field.to_owned(),
                    operator,
                    value,
                });
            }
        }
        Ok(Self { requirements })
    }

    /// Narrows this selector to the objects that the other one takes too.
    pub fn narrow_by(&mut self, other: Self) {
        self.requirements.extend(other.requirements);
    }

    /// The value that a field must have, if a requirement says so (upstream's `RequiresExactMatch`).
    #[must_use]
    pub fn exact(&self, field: &str) -> Option<String> {
        let is_exact = |r: &&FieldRequirement| r.field == field && r.operator == FieldOperator::Equals;
        self.requirements
            .iter()
            .find(is_exact)
            .map(|requirement| requirement.value.clone())
    }

    /// Whether an object with these fields is taken. As upstream, a field that `fields` does not know is empty.
    pub fn matches<'f>(&self, fields: &impl Fn(&str) -> Option<&'f str>) -> bool {
        self.requirements.iter().all(|requirement| {
            let is_equal = fields(&requirement.field).unwrap_or("") == requirement.value;
            is_equal == (requirement.operator == FieldOperator::Equals)
        })
    }

    /// Whether the selector matches every object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let operator = match requirement.operator {
                FieldOperator::Equals => "=",
                FieldOperator::NotEquals => "!=",
            };
            write!(f, "{separator}{}{operator}", requirement.field)?;
            for char in requirement.value.chars() {
                if matches!(char, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{char}")?;
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for FieldSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

/// Splits at each comma that no backslash escapes; the backslashes stay.
fn split_terms(text: &str) -> impl Iterator<Item = &str> {
    let mut is_escaped = false;
    text.split(move |char| {
        let is_separator = char == ',' && !is_escaped;
        is_escaped = char == '\\' && !is_escaped;
        is_separator
    })
}

/// Splits at the first operator. The field is taken as it stands: nothing is escaped there.
fn split_term(term: &str) -> Result<(&str, FieldOperator, &str), SelectorError> {
    let unequal = term.find("!=");
    let (position, operator, length) = match (unequal, term.find('=')) {
        (Some(position), Some(equal)) if position < equal => (position, FieldOperator::NotEquals, 2),
        (_, Some(position)) => {
            let is_double = term.get(position..).is_some_and(|rest| rest.starts_with("=="));
            (position, FieldOperator::Equals, if is_double { 2 } else { 1 })
        }
        (_, None) => {
            return Err(SelectorError::Syntax {
                found: term.to_owned(),
                expected: "`field=value` or `field!=value`",
            });
        }
    };
    let (field, rest) = term.split_at_checked(position).unwrap_or((term, ""));
    Ok((field, operator, rest.get(length..).unwrap_or("")))
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(char) = chars.next() {
        plain.push(match char {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => escaped,
                _ => return Err(SelectorError::Escape(value.to_owned())),
            },
            ',' | '=' => return Err(SelectorError::Escape(value.to_owned())),
            other => other,
        });
    }
    Ok(plain)
}

#[cfg(test)]
mod tests;
