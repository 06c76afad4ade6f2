//! Label selectors: from the structured form to the text in a query, validated by the rules of `k8s.io/apimachinery/pkg/labels`
//! (`NewRequirement`) and `pkg/util/validation`. `view` decides which requests get it.

use std::collections::BTreeSet;

use ctrlmesh_sdk::settings::Invalid;

use crate::settings::{Expression, LabelSelector};

/// Longest name part of a label key, and longest label value (`validation.LabelValueMaxLength`).
const MAX_NAME: usize = 63;
/// Longest prefix of a label key (`validation.DNS1123SubdomainMaxLength`).
const MAX_SUBDOMAIN: usize = 253;

/// The requirements of a selector in canonical form: sorted, without duplicates, values sorted. Empty if it restricts nothing.
pub(crate) fn requirements_of(selector: &LabelSelector) -> Result<BTreeSet<String>, Invalid> {
    let mut requirements = BTreeSet::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        let checked = check_key(key).and_then(|()| check_value(value));
        checked.map_err(|error| Invalid::new(error).field("matchLabels"))?;
        requirements.insert(format!("{key}={value}"));
    }
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let requirement =
            build_requirement(expression).map_err(|error| error.index(index).field("matchExpressions"))?;
        requirements.insert(requirement);
    }
    Ok(requirements)
}

fn build_requirement(expression: &Expression) -> Result<String, Invalid> {
    let Expression { key, operator, values } = expression;
    check_key(key).map_err(|error| Invalid::new(error).field("key"))?;
    let values = values.as_deref().unwrap_or_default();
    match operator.as_str() {
        "In" => Ok(format!("{key} in ({})", set_requirement(operator, values)?)),
        "NotIn" => Ok(format!("{key} notin ({})", set_requirement(operator, values)?)),
        "Exists" => require_no_values(operator, values).map(|()| key.clone()),
        "DoesNotExist" => require_no_values(operator, values).map(|()| format!("!{key}")),
        other => {
            let message = format!("unknown operator {other:?}, use In, NotIn, Exists or DoesNotExist");
            Err(Invalid::new(message).field("operator"))
        }
    }
}

fn set_requirement(operator: &str, values: &[String]) -> Result<String, Invalid> {
    if values.is_empty() {
        return Err(Invalid::new(format!("operator {operator} needs at least one value")).field("values"));
    }
    for (index, value) in values.iter().enumerate() {
        check_value(value).map_err(|error| Invalid::new(error).index(index).field("values"))?;
    }
    Ok(values
        .iter()
        .map(String::as_str)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join(","))
}

fn require_no_values(operator: &str, values: &[String]) -> Result<(), Invalid> {
    if values.is_empty() {
        return Ok(());
    }
    Err(Invalid::new(format!("operator {operator} takes no values; remove them")).field("values"))
}

/// `validation.IsQualifiedName`: a name, or a DNS subdomain, a slash and a name.
fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        return Err(format!(
            "invalid label key {key:?}: before the slash stands a DNS name (lower-case letters, digits, '-' and '.', at \
             most {MAX_SUBDOMAIN} characters)"
        ));
    }
    if name.is_empty() || !is_label_text(name) {
        return Err(format!(
            "invalid label key {key:?}: the name has 1 to {MAX_NAME} letters, digits, '-', '_' or '.', with a letter or \
             digit at both ends"
        ));
    }
    Ok(())
}

/// `validation.IsValidLabelValue`: empty, or like the name of a key.
fn check_value(value: &str) -> Result<(), String> {
    if is_label_text(value) {
        return Ok(());
    }
    Err(format!(
        "invalid label value {value:?}: at most {MAX_NAME} letters, digits, '-', '_' or '.', with a letter or digit at \
         both ends"
    ))
}

fn is_label_text(text: &str) -> bool {
    let outer = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && outer(bytes.first().copied())
        && outer(bytes.last().copied())
}

/// `validation.IsDNS1123Subdomain`; also the rule for the names of most objects.
pub(crate) fn is_subdomain(text: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(is_alphanumeric)
            && bytes.last().is_some_and(is_alphanumeric)
            && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
    };
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_label)
}
