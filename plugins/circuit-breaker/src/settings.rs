//! The settings as a person writes them: `rateLimitings` and `trafficInterceptRules` of a CircuitBreaker
//! (`ctrlmesh.kusionstack.io/v1alpha1`) unchanged, plus fields that are missing there.

use std::collections::BTreeMap;

use ctrlmesh_plugin_rules::{BucketRule, GoDuration, Key, NonResourceRule, ResourceRule, RestRule, TriggerPolicy};
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// A request passes if every matching rule admits it.
    #[serde(alias = "rules")]
    pub(crate) rate_limitings: Option<Vec<Rule>>,
    pub(crate) traffic_intercept_rules: Option<Vec<InterceptRule>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) resource_rules: Option<Vec<ResourceRule>>,
    pub(crate) non_resource_rules: Option<Vec<NonResourceRule>>,
    pub(crate) rest_rules: Option<Vec<RestRule>>,
    /// Opens the breaker when it is empty.
    pub(crate) bucket: Option<BucketRule>,
    pub(crate) trigger_policy: TriggerPolicy,
    /// Default: `Manual`, as in the CRD.
    pub(crate) recover_policy: Option<RecoverPolicy>,
    /// From the CRD; unused.
    #[serde(rename = "properties")]
    pub(crate) _properties: Option<BTreeMap<String, String>>,
    /// One breaker for each value.
    #[serde(default)]
    pub(crate) key: Key,
    /// Opens the breaker on failures.
    pub(crate) trip: Option<Trip>,
    pub(crate) failures: Option<Failures>,
    /// Concurrent probes after the sleeping window; that many must succeed. Default: 1.
    pub(crate) probes: Option<u32>,
    /// A changed value closes the rule's breakers once.
    pub(crate) recover: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RecoverPolicy {
    #[serde(rename = "type")]
    pub(crate) kind: RecoverType,
    pub(crate) sleeping_window_size: Option<GoDuration>,
    /// Each failed probe doubles the sleeping window up to this. Default: it stays the same.
    pub(crate) max_sleeping_window_size: Option<GoDuration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum RecoverType {
    Manual,
    SleepingWindow,
}

/// Triggers that open a breaker, each independent of the others.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Trip {
    /// Time that percentages cover. Default: 30s.
    pub(crate) window: Option<GoDuration>,
    /// Minimum of requests in the window for percentages. Default: 20.
    pub(crate) minimum_requests: Option<u32>,
    /// Percentage of failed requests.
    pub(crate) error_percent: Option<u32>,
    /// Percentage of requests slower than `slowerThan`.
    pub(crate) slow_percent: Option<u32>,
    /// Time until the head of the response.
    pub(crate) slower_than: Option<GoDuration>,
    /// Number of failures in a row.
    pub(crate) consecutive_failures: Option<u32>,
}

/// Criteria for failures. 404 and 409 are no failures unless listed here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Failures {
    /// `503`, `5xx`. Default: `5xx` and `429`.
    pub(crate) status_codes: Option<Vec<String>>,
    /// Requests that ended without a response. Default: all.
    pub(crate) connection: Option<Vec<Connection>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Connection {
    Unreachable,
    Reset,
    Timeout,
}

/// Calls to external services that a controller may make.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct InterceptRule {
    pub(crate) name: String,
    pub(crate) intercept_type: InterceptType,
    pub(crate) content_type: ContentType,
    /// `host[:port]`, or regular expressions for it.
    pub(crate) contents: Vec<String>,
    /// HTTP methods; `*` matches every one.
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
