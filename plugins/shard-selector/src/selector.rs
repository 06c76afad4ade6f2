//! Label selectors: from the structured form in settings to the text in a query. `view` decides which requests get it.

use std::collections::BTreeSet;

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_wire::{Operator, Requirement, SelectorError};

use crate::settings::{Expression, LabelSelector};

/// The requirements of a selector in canonical form: sorted, without duplicates, values sorted. Empty if it restricts nothing.
pub(crate) fn requirements_of(selector: &LabelSelector) -> Result<BTreeSet<String>, Invalid> {
    let mut requirements = BTreeSet::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        let requirement = Requirement::new(key, Operator::Equals, vec![value.clone()])
            .map_err(|error| Invalid::new(error.to_string()).field("matchLabels"))?;
        requirements.insert(requirement.to_string());
    }
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let requirement =
            build_requirement(expression).map_err(|error| error.index(index).field("matchExpressions"))?;
        requirements.insert(requirement.to_string());
    }
    Ok(requirements)
}

fn build_requirement(expression: &Expression) -> Result<Requirement, Invalid> {
    let operator = match expression.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => {
            let message = format!("unknown operator {other:?}, use In, NotIn, Exists or DoesNotExist");
            return Err(Invalid::new(message).field("operator"));
        }
    };
    let values = expression.values.as_deref().unwrap_or_default();
    let distinct = values.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    Requirement::new(&expression.key, operator, distinct).map_err(|error| {
        let invalid = Invalid::new(error.to_string());
        match error {
            SelectorError::Key(_) => invalid.field("key"),
            SelectorError::Value(wrong) => match values.iter().position(|value| *value == wrong) {
                Some(index) => invalid.index(index).field("values"),
                None => invalid.field("values"),
            },
            _ => invalid.field("values"),
        }
    })
}
