//! The settings as a person writes them: `rateLimitings` of a CircuitBreaker (`ctrlmesh.kusionstack.io/v1alpha1`), plus fields that are
//! missing there.

use std::collections::BTreeMap;

use ctrlmesh_plugin_rules::{BucketRule, GoDuration, Key, NonResourceRule, ResourceRule, RestRule, TriggerPolicy};
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Every matching rule must grant.
    #[serde(alias = "rules")]
    pub(crate) rate_limitings: Option<Vec<Rule>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Rule {
    /// Shown to the client and in metrics; used tokens are kept by this name.
    pub(crate) name: String,
    pub(crate) resource_rules: Option<Vec<ResourceRule>>,
    pub(crate) non_resource_rules: Option<Vec<NonResourceRule>>,
    pub(crate) rest_rules: Option<Vec<RestRule>>,
    pub(crate) bucket: Option<BucketRule>,
    /// Maximum of requests in flight.
    pub(crate) max_in_flight: Option<u32>,
    #[serde(default)]
    pub(crate) key: Key,
    /// Longest wait for a token, instead of a refusal.
    pub(crate) queue: Option<GoDuration>,
    /// Default: `LimiterOnly`.
    pub(crate) trigger_policy: Option<TriggerPolicy>,
    /// For circuit-breaker; a limiter has nothing to recover from.
    #[serde(rename = "recoverPolicy")]
    pub(crate) _recover_policy: Option<serde::de::IgnoredAny>,
    /// From the CRD; unused.
    #[serde(rename = "properties")]
    pub(crate) _properties: Option<BTreeMap<String, String>>,
}
