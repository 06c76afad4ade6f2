//! Label selectors as the custom resources have them (`metav1.LabelSelector`). What they select is the contract's.

use std::collections::BTreeMap;

use ctrlmesh_contract as contract;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which objects. All that is written must hold; empty: every one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Each of these labels has exactly this value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Each of these holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<Requirement>,
}

/// One expression of a label selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",
    "message": "In and NotIn need at least one value, Exists and DoesNotExist take none",
    "fieldPath": ".values",
}]))]
pub struct Requirement {
    /// Key of the label.
    pub key: String,
    /// What must hold.
    pub operator: Operator,
    /// For In and NotIn only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// What an expression asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl LabelSelector {
    /// Whether it says nothing, and so selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// The same with one expression more.
    #[must_use]
    pub fn and(mut self, key: &str, operator: Operator, values: Vec<String>) -> Self {
        self.match_expressions.push(Requirement {
            key: key.to_owned(),
            operator,
            values,
        });
        self
    }
}

impl From<&LabelSelector> for contract::LabelSelector {
    fn from(selector: &LabelSelector) -> Self {
        Self {
            match_labels: selector.match_labels.clone(),
            match_expressions: selector.match_expressions.iter().map(Into::into).collect(),
        }
    }
}

impl From<&contract::LabelSelector> for LabelSelector {
    fn from(selector: &contract::LabelSelector) -> Self {
        Self {
            match_labels: selector.match_labels.clone(),
            match_expressions: selector.match_expressions.iter().map(Into::into).collect(),
        }
    }
}

impl From<&contract::Requirement> for Requirement {
    fn from(requirement: &contract::Requirement) -> Self {
        Self {
            key: requirement.key.clone(),
            operator: match requirement.operator {
                contract::Operator::In => Operator::In,
                contract::Operator::NotIn => Operator::NotIn,
                contract::Operator::Exists => Operator::Exists,
                contract::Operator::DoesNotExist => Operator::DoesNotExist,
            },
            values: requirement.values.clone(),
        }
    }
}

impl From<&Requirement> for contract::Requirement {
    fn from(requirement: &Requirement) -> Self {
        Self {
            key: requirement.key.clone(),
            operator: match requirement.operator {
                Operator::In => contract::Operator::In,
                Operator::NotIn => contract::Operator::NotIn,
                Operator::Exists => contract::Operator::Exists,
                Operator::DoesNotExist => contract::Operator::DoesNotExist,
            },
            values: requirement.values.clone(),
        }
    }
}
