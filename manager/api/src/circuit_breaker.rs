//! `CircuitBreaker`: rate limits and breakers for a controller's requests, and lists of external services that it may call.

use std::collections::BTreeMap;

use ctrlmesh_contract::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::{Key, NonResourceRule, ResourceRule};
use super::status::Rollout;

/// Rate limits, circuit breakers and allow or deny lists for requests of the selected pods.
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
    doc = "Rate limits, circuit breakers and allow or deny lists for requests of the selected pods.",
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
    /// Selects pods in the namespace of this object. `{}` selects all of them.
    pub selector: LabelSelector,
    /// Rate limits (triggerPolicy LimiterOnly) and circuit breakers. A request is sent only if every matching rule lets
    /// it through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 88),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub rate_limitings: Vec<RateLimiting>,
    /// Allow and deny lists for calls to services other than the API server. A call on a deny list is refused. If there
    /// is an allow list, every call that is on no allow list is refused, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub traffic_intercept_rules: Vec<TrafficInterceptRule>,
}

/// A rate limit or a circuit breaker.
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
    /// Unique name of the rule. It is shown to clients, in metrics and in the status. Used tokens and the state of the
    /// breaker are kept under this name.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Requests to the API server that the rule applies to, by resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_rules: Vec<ResourceRule>,
    /// Requests to the API server without a resource that the rule applies to, such as discovery and /healthz.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resource_rules: Vec<NonResourceRule>,
    /// Calls to services other than the API server that the rule applies to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub rest_rules: Vec<RestRule>,
    /// Token bucket. Without a token, a rate limit refuses the request, and a circuit breaker opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Bucket>,
    /// LimiterOnly: a rate limit. Normal: a circuit breaker. ForceOpened: refuses all matching requests. ForceClosed:
    /// lets all of them through.
    pub trigger_policy: TriggerPolicy,
    /// How an open circuit breaker closes. Default: Manual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover_policy: Option<RecoverPolicy>,
    /// Ignored; accepted for compatibility with KusionStack.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
    /// One limit or breaker for each value of this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// Rate limits only: maximum number of requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_in_flight: Option<u32>,
    /// Rate limits only: maximum time that a request waits for a token before it is refused, in Go's notation (5s). At
    /// most 60s; needs a bucket. Default: no waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Circuit breakers only: results of requests that open the breaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trip: Option<Trip>,
    /// Circuit breakers only: responses that count as failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// Circuit breakers only: number of requests let through at a time after the sleeping window, and number of them
    /// that must succeed to close the breaker. 1 to 1000. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub probes: Option<u32>,
    /// Circuit breakers only: a new value, such as a date, closes all breakers of the rule once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub recover: Option<String>,
}

/// Calls to services other than the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RestRule {
    /// URL, in which * stands for any characters: `https://api.cloud.example/*`
    pub url: String,
    /// HTTP method; * is every method.
    pub method: String,
}

/// A token bucket. It is ignored if triggerPolicy is ForceOpened or ForceClosed; zeros are allowed there, because
/// KusionStack stores its kill switches with zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// Maximum number of tokens in the bucket. At least 1, unless triggerPolicy is ForceOpened or ForceClosed.
    pub burst: u32,
    /// Interval in which `limit` tokens are added, in Go's notation (100ms, 1m30s): whole milliseconds.
    pub interval: String,
    /// Number of tokens added in each interval. At least 1, unless triggerPolicy is ForceOpened or ForceClosed.
    pub limit: u32,
}

/// Kind of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TriggerPolicy {
    /// A circuit breaker, which opens when its bucket is empty or by `trip`.
    Normal,
    /// A rate limit, which never opens.
    LimiterOnly,
    /// Refuses all matching requests.
    ForceOpened,
    /// Lets all matching requests through.
    ForceClosed,
}

/// How an open circuit breaker closes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.type != 'SleepingWindow' || has(self.sleepingWindowSize)",
    "message": "is missing; write how long the breaker stays open, such as 30s",
    "fieldPath": ".sleepingWindowSize",
}]))]
pub struct RecoverPolicy {
    /// Manual: a user changes `recover` of the rule. SleepingWindow: probes succeed after the sleeping window, or a
    /// user changes `recover`.
    #[serde(rename = "type")]
    pub kind: RecoverType,
    /// Time that the breaker stays open before it lets probes through, in Go's notation (30s). Required for
    /// SleepingWindow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeping_window_size: Option<String>,
    /// Maximum of the sleeping window, in Go's notation (5m): each failed probe doubles it up to this. Default: it
    /// stays the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sleeping_window_size: Option<String>,
}

/// Event that closes an open circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RecoverType {
    /// A user changes `recover` of the rule.
    Manual,
    /// Probes succeed after the sleeping window, or a user changes `recover`.
    SleepingWindow,
}

/// Results of requests that open a circuit breaker. Each part that is set opens it on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trip {
    /// Time that errorPercent and slowPercent cover, in Go's notation (30s). Default: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// Minimum number of requests in the window for errorPercent and slowPercent. Default: 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_requests: Option<u32>,
    /// Opens the breaker when this percentage of the requests in the window failed, 1 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub error_percent: Option<u32>,
    /// Opens the breaker when this percentage of the requests in the window took longer than slowerThan, 1 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub slow_percent: Option<u32>,
    /// Time to the response head after which a request counts as slow, in Go's notation (1s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than: Option<String>,
    /// Opens the breaker when this many requests failed in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub consecutive_failures: Option<u32>,
}

/// Responses that count as failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failures {
    /// Status codes that count as failures: "503", or "5xx" for all from 500 to 599. Default: 5xx and 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub status_codes: Option<Vec<String>>,
    /// Requests without a complete response that count as failures: unreachable, reset, timeout. Default: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "atomic"))]
    pub connection: Option<Vec<Connection>>,
}

/// How a request ended without a complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Connection {
    Unreachable,
    Reset,
    Timeout,
}

/// An allow or deny list of services other than the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrafficInterceptRule {
    /// Unique name of the list. It is shown to clients whose call is refused.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Whitelist: an allow list. Blacklist: a deny list.
    pub intercept_type: InterceptType,
    /// Normal: contents match exactly. Regexp: contents are regular expressions that match anywhere in host or
    /// host:port.
    pub content_type: ContentType,
    /// Services: host (with any port), host:port, or * for every host. With Regexp: regular expressions.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub contents: Vec<String>,
    /// HTTP methods; * is every method.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub methods: Vec<String>,
}

/// Kind of a list of services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InterceptType {
    /// An allow list.
    Whitelist,
    /// A deny list.
    Blacklist,
}

/// How the contents of a list are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContentType {
    /// Exact match.
    Normal,
    /// A regular expression that matches anywhere in the text.
    Regexp,
}

/// Observed state of the CircuitBreaker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CircuitBreakerStatus {
    /// Conditions, and one element for each sidecar.
    #[serde(flatten)]
    pub rollout: Rollout,
    /// Number of breakers that are not closed, over all sidecars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<i64>,
}
