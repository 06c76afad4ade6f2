//! Validates the keys and values of requirements (apimachinery `pkg/api/validate/content` and `labels.NewRequirement`).

use super::{Operator, SelectorError};

/// Longest name part of a key, and longest value, in bytes.
const MAX_NAME_BYTES: usize = 63;
/// Longest prefix of a key, in bytes (a DNS name, RFC 1123).
const MAX_PREFIX_BYTES: usize = 253;

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
        if !value.is_empty() && !is_name(value) {
            return Err(SelectorError::Value(value.to_owned()));
        }
    }
    Ok(())
}

/// `content.IsLabelKey`: `[dns-subdomain/]name`.
pub(super) fn check_key(key: &str) -> Result<(), SelectorError> {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    // A second slash fails as a character of the name.
    if prefix.is_none_or(is_dns_subdomain) && is_name(name) {
        Ok(())
    } else {
        Err(SelectorError::Key(key.to_owned()))
    }
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= MAX_NAME_BYTES
        && is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// `content.IsDNS1123Subdomain`; the single labels have no bound of their own there.
fn is_dns_subdomain(text: &str) -> bool {
    let is_alphanumeric = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(is_alphanumeric)
            && bytes.last().is_some_and(is_alphanumeric)
            && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
    };
    text.len() <= MAX_PREFIX_BYTES && text.split('.').all(is_label)
}
