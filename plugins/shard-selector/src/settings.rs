//! The settings as a person writes them: the `limits` of a ShardingConfig (`ctrlmesh.kusionstack.io/v1alpha1`), the two names for leader
//! election, and the freshness of lists. Absent and `null` are the same, as in Go.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// All limits that match a resource are ANDed.
    pub(crate) limits: Option<Vec<Limit>>,
    /// The lock's name as the controller uses it. Unset: leader election is not changed.
    pub(crate) leader_election_name: Option<String>,
    /// The shard's name, the second part of the lock's.
    pub(crate) shard: Option<String>,
    /// Lists that a limit narrows are never answered with a state older than the request.
    pub(crate) consistent_reads: Option<bool>,
    /// Gets by name of objects that hash ranges leave out. Unset: `Pass`.
    pub(crate) named_gets: Option<NamedGets>,
}

/// What happens with a get by name of an object that hash ranges leave out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum NamedGets {
    #[default]
    Pass,
    /// 404, as if there were no such object.
    NotFound,
    /// 403.
    Forbidden,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Limit {
    /// Unset or empty: every resource. The CRD spells it without the `d`; people write both.
    #[serde(alias = "relatedResources")]
    pub(crate) relate_resources: Option<Vec<ResourceRule>>,
    /// Resources that the limit leaves out, although the field above has them.
    pub(crate) except_resources: Option<Vec<ResourceRule>>,
    /// Unset or empty: no restriction.
    pub(crate) selector: Option<LabelSelector>,
    /// Unset: no restriction.
    pub(crate) hash_ranges: Option<HashRanges>,
}

/// Ranges of the hash of a field.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HashRanges {
    /// `uid`, `namespace`, `owner` or `label(<key>)`.
    pub(crate) key: String,
    /// Numbers of ranges: `7`, or the first and the last one, `0-340`. Empty: no object.
    pub(crate) ranges: Vec<String>,
}

/// All pairs of a group and a resource.
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
    /// A text instead of an enum, so that the error can say what to write.
    pub(crate) operator: String,
    pub(crate) values: Option<Vec<String>>,
}
