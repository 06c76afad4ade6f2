//! What a person writes: the `limits` of a ShardingConfig (`ctrlmesh.kusionstack.io/v1alpha1`), field by field, the two
//! names for leader election, and how fresh lists are. Absent and `null` are the same, as they are to Go.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The settings of an entry.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// All limits that match a resource hold together.
    pub(crate) limits: Option<Vec<Limit>>,
    /// The name of the lock that the controller uses. Unset: leader election is left alone.
    pub(crate) leader_election_name: Option<String>,
    /// The shard's name, the second half of the lock's.
    pub(crate) shard: Option<String>,
    /// No list that a limit narrows is answered with a state older than itself.
    pub(crate) consistent_reads: Option<bool>,
}

/// One selector and the resources that it limits.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Limit {
    /// Unset or empty: every resource. The CRD spells it without the `d`; people write both.
    #[serde(alias = "relatedResources")]
    pub(crate) relate_resources: Option<Vec<ResourceRule>>,
    /// Unset or empty: no restriction.
    pub(crate) selector: Option<LabelSelector>,
}

/// Groups times resources.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ResourceRule {
    /// `""` is the core group; `*` alone is every group; empty matches nothing.
    pub(crate) api_groups: Option<Vec<String>>,
    /// Plural names; `*` alone is every resource; empty matches nothing.
    pub(crate) resources: Option<Vec<String>>,
}

/// `metav1.LabelSelector`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LabelSelector {
    pub(crate) match_labels: Option<BTreeMap<String, String>>,
    pub(crate) match_expressions: Option<Vec<Expression>>,
}

/// `metav1.LabelSelectorRequirement`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expression {
    pub(crate) key: String,
    /// A text and not an enum, so that the error can say what to write.
    pub(crate) operator: String,
    pub(crate) values: Option<Vec<String>>,
}
