//! `CircuitBreaker`: rate limits and breakers for a controller's requests, and lists of external services that it may call.

use std::collections::BTreeMap;

use ctrlmesh_contract::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::{Key, NonResourceRule, ResourceRule};
use super::status::Rollout;

/// Limits, breakers and lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "ctrlmesh.kusionstack.io",
    version = "v1alpha1",
    kind = "CircuitBreaker",
    plural = "circuitbreakers",
    shortname = "cbk",
    namespaced,
    derive = "PartialEq",
    status = "CircuitBreakerStatus",
    doc = "Limits and breakers for what the controllers of some pods call, and lists of what they may call at all.",
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Accepted\")].status"
    ),
    printcolumn(
        name = "Distributed",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Distributed\")].reason"
    ),
    printcolumn(name = "Enforced", type_ = "string", json_path = ".status.enforced"),
    printcolumn(name = "Opened", type_ = "integer", json_path = ".status.opened"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct CircuitBreakerSpec {
    /// Pods, in the namespace of this object. `{}` is all of them.
    pub selector: LabelSelector,
    /// Limits (LimiterOnly) and breakers. A request passes if every one that matches lets it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 88),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub rate_limitings: Vec<RateLimiting>,
    /// Which other services may be called. What is on a deny list is refused; as soon as there is an allow list, what is on
    /// none is refused, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub traffic_intercept_rules: Vec<TrafficInterceptRule>,
}

/// A limit or a breaker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "self.triggerPolicy != 'LimiterOnly' || has(self.bucket) || has(self.maxInFlight)",
        "message": "is missing; a limit is a bucket, maxInFlight, or both",
        "fieldPath": ".bucket",
    },
    {
        "rule": "self.triggerPolicy != 'Normal' || has(self.bucket) || has(self.trip)",
        "message": "is missing; nothing opens this breaker: write a bucket, trip, or both",
        "fieldPath": ".bucket",
    },
    {
        "rule": "self.triggerPolicy == 'LimiterOnly' || !(has(self.maxInFlight) || has(self.queue))",
        "message": "maxInFlight and queue have an effect with triggerPolicy LimiterOnly alone",
    },
    {
        "rule": "self.triggerPolicy != 'LimiterOnly' || !(has(self.trip) || has(self.failures) || has(self.probes) || has(self.recover))",
        "message": "trip, failures, probes and recover have no effect with triggerPolicy LimiterOnly",
    },
    {
        "rule": "!(self.triggerPolicy in ['LimiterOnly', 'Normal']) || !has(self.bucket) || self.bucket.limit >= 1",
        "message": "0 brings no token back, ever; write 1 with a long interval, or triggerPolicy ForceOpened",
        "fieldPath": ".bucket.limit",
    },
    {
        "rule": "!(self.triggerPolicy in ['LimiterOnly', 'Normal']) || !has(self.bucket) || self.bucket.burst >= 1",
        "message": "0 would refuse everything; write at least 1",
        "fieldPath": ".bucket.burst",
    },
]))]
pub struct RateLimiting {
    /// Shown to the client, in metrics and in status; what was used up, and the breaker's state, go by it.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Requests to the API server, by resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_rules: Vec<ResourceRule>,
    /// Requests to the API server about no resource: discovery, /healthz.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resource_rules: Vec<NonResourceRule>,
    /// Calls to other services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub rest_rules: Vec<RestRule>,
    /// Tokens: a limit refuses when there are none, a breaker opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Bucket>,
    /// What the rule does.
    pub trigger_policy: TriggerPolicy,
    /// How a breaker closes. Absent: Manual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover_policy: Option<RecoverPolicy>,
    /// Without effect.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
    /// A limit or breaker for each of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// A limit: most requests at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_in_flight: Option<u32>,
    /// A limit: wait so long for a token instead of being refused (Go's notation, at most 60s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// A breaker: opens because of what comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trip: Option<Trip>,
    /// A breaker: what a failure is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// A breaker: so many requests are let through at a time after the sleeping window, and so many must succeed. Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub probes: Option<u32>,
    /// A breaker: another value than before closes it, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub recover: Option<String>,
}

/// Calls to other services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RestRule {
    /// With * for any characters: `https://api.cloud.example/*`
    pub url: String,
    /// HTTP method; * is every one.
    pub method: String,
}

/// A token bucket. One of a rule that is forced says nothing: kill switches of KusionStack are stored with zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// Most tokens that are kept. At least 1, unless the rule is forced.
    pub burst: u32,
    /// Go's notation, whole milliseconds: 100ms, 1m30s.
    pub interval: String,
    /// Tokens that come back every interval. At least 1, unless the rule is forced.
    pub limit: u32,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TriggerPolicy {
    /// Opens when its bucket is empty, or as trip says.
    Normal,
    /// Limits, and never opens.
    LimiterOnly,
    /// Refuses everything.
    ForceOpened,
    /// Lets everything through.
    ForceClosed,
}

/// How a breaker closes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.type != 'SleepingWindow' || has(self.sleepingWindowSize)",
    "message": "is missing; write how long the breaker stays open, such as 30s",
    "fieldPath": ".sleepingWindowSize",
}]))]
pub struct RecoverPolicy {
    /// By itself, or when a person changes recover.
    #[serde(rename = "type")]
    pub kind: RecoverType,
    /// How long it stays open (Go's notation).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeping_window_size: Option<String>,
    /// Each failed probe doubles the window, up to this (Go's notation). Absent: it stays the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sleeping_window_size: Option<String>,
}

/// Who closes a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RecoverType {
    /// A person.
    Manual,
    /// Time, and probes that succeed.
    SleepingWindow,
}

/// When a breaker opens because of what comes back. Each that is written, on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trip {
    /// How far percentages look back (Go's notation). Absent: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// Fewer requests than this in the window say nothing. Absent: 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_requests: Option<u32>,
    /// So many of a hundred requests failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub error_percent: Option<u32>,
    /// So many of a hundred requests took longer than slowerThan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub slow_percent: Option<u32>,
    /// Time to the head of the answer (Go's notation).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than: Option<String>,
    /// So many failed one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub consecutive_failures: Option<u32>,
}

/// What a failure is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failures {
    /// "503", or "5xx" for all of them. Absent: 5xx and 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub status_codes: Option<Vec<String>>,
    /// Requests that ended without an answer. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "atomic"))]
    pub connection: Option<Vec<Connection>>,
}

/// How a request ended without a complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Connection {
    Unreachable,
    Reset,
    Timeout,
}

/// A list of other services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrafficInterceptRule {
    /// Shown to the client that is refused.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Whether these may be called, or may not.
    pub intercept_type: InterceptType,
    /// How contents are compared.
    pub content_type: ContentType,
    /// host, host:port, or expressions for it.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub contents: Vec<String>,
    /// HTTP methods; * is every one.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub methods: Vec<String>,
}

/// What a list is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InterceptType {
    /// What may be called.
    Whitelist,
    /// What may not.
    Blacklist,
}

/// How the contents of a list are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContentType {
    /// The whole text.
    Normal,
    /// A regular expression that matches anywhere.
    Regexp,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CircuitBreakerStatus {
    /// The sidecars, and how far it has come.
    #[serde(flatten)]
    pub rollout: Rollout,
    /// Breakers that are open, over all sidecars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<i64>,
}
