//! Accepts the same requirements as upstream's `labels.NewRequirement`.

use super::{Operator, SelectorError};
use crate::names::{is_label_key, is_label_value};

/// Checks a whole requirement.
pub(super) fn check<'v>(
    key: &str,
    operator: Operator,
    values: impl ExactSizeIterator<Item = &'v str>,
) -> Result<(), SelectorError> {
    check_key(key)?;
    let count = values.len();
    let is_count_right = match operator {
        Operator::In | Operator::NotIn => count > 0,
        Operator::Exists | Operator::DoesNotExist => count == 0,
        _ => count == 1,
    };
    if !is_count_right {
        return Err(SelectorError::ValueCount { operator, count });
    }
    for value in values {
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) && value.parse::<i64>().is_err() {
            return Err(SelectorError::Integer(value.to_owned()));
        }
        if !is_label_value(value) {
            return Err(SelectorError::Value(value.to_owned()));
        }
    }
    Ok(())
}

/// Checks a key alone.
pub(super) fn check_key(key: &str) -> Result<(), SelectorError> {
    if is_label_key(key) {
        Ok(())
    } else {
        Err(SelectorError::Key(key.to_owned()))
    }
}
