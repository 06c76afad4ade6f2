//! What a person writes: `rateLimitings` and `trafficInterceptRules` of a CircuitBreaker
//! (`ctrlmesh.kusionstack.io/v1alpha1`) as they are, and what is missing there.

use std::collections::BTreeMap;

use ctrlmesh_plugin_rules::{BucketRule, GoDuration, Key, NonResourceRule, ResourceRule, RestRule, TriggerPolicy};
use serde::Deserialize;

/// The settings of an entry.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// A request passes if every rule that matches lets it.
    #[serde(alias = "rules")]
    pub(crate) rate_limitings: Option<Vec<Rule>>,
    pub(crate) traffic_intercept_rules: Option<Vec<InterceptRule>>,
}

/// A breaker and what it is for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) resource_rules: Option<Vec<ResourceRule>>,
    pub(crate) non_resource_rules: Option<Vec<NonResourceRule>>,
    pub(crate) rest_rules: Option<Vec<RestRule>>,
    /// Opens when it is empty.
    pub(crate) bucket: Option<BucketRule>,
    pub(crate) trigger_policy: TriggerPolicy,
    /// Unset: `Manual`, as in the CRD.
    pub(crate) recover_policy: Option<RecoverPolicy>,
    /// Of the CRD; read by nobody.
    #[serde(rename = "properties")]
    pub(crate) _properties: Option<BTreeMap<String, String>>,
    /// A breaker for each of these.
    #[serde(default)]
    pub(crate) key: Key,
    /// Opens on failures.
    pub(crate) trip: Option<Trip>,
    pub(crate) failures: Option<Failures>,
    /// Requests let through after the sleeping window, at a time; so many must succeed. Unset: 1.
    pub(crate) probes: Option<u32>,
    /// Another value than before closes the rule's breakers, once.
    pub(crate) recover: Option<String>,
}

/// How a breaker closes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RecoverPolicy {
    #[serde(rename = "type")]
    pub(crate) kind: RecoverType,
    pub(crate) sleeping_window_size: Option<GoDuration>,
    /// Each failed probe doubles the window, up to this. Unset: it stays the same.
    pub(crate) max_sleeping_window_size: Option<GoDuration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum RecoverType {
    Manual,
    SleepingWindow,
}

/// When a breaker opens because of what comes back. What is set, each on its own.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Trip {
    /// How far percentages look back. Unset: 30s.
    pub(crate) window: Option<GoDuration>,
    /// Fewer requests than this in the window say nothing. Unset: 20.
    pub(crate) minimum_requests: Option<u32>,
    /// So many of a hundred requests failed.
    pub(crate) error_percent: Option<u32>,
    /// So many of a hundred requests took longer than `slowerThan`.
    pub(crate) slow_percent: Option<u32>,
    /// Time to the head of the answer.
    pub(crate) slower_than: Option<GoDuration>,
    /// So many failed one after another.
    pub(crate) consecutive_failures: Option<u32>,
}

/// What a failure is. 404 and 409 are none unless they are named here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Failures {
    /// `503`, `5xx`. Unset: `5xx` and `429`.
    pub(crate) status_codes: Option<Vec<String>>,
    /// Requests that ended without an answer. Unset: all.
    pub(crate) connection: Option<Vec<Connection>>,
}

/// How a request ended without a complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Connection {
    Unreachable,
    Reset,
    Timeout,
}

/// What a controller may call at all, outside of the API server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct InterceptRule {
    pub(crate) name: String,
    pub(crate) intercept_type: InterceptType,
    pub(crate) content_type: ContentType,
    /// `host[:port]`, or expressions for it.
    pub(crate) contents: Vec<String>,
    /// HTTP methods; `*` is every one.
    pub(crate) methods: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum InterceptType {
    Whitelist,
    Blacklist,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum ContentType {
    Normal,
    Regexp,
}
