//! Parts of the status that several kinds share: conditions, and one element for each sidecar.

mod reason;

use k8s_openapi::jiff::Timestamp;
use kube_core::Status;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use reason::{ConditionDraft, Reason, stored_condition};

/// Types of [`Condition`]s, in the order in which they become true.
pub mod condition {
    /// The object is valid. `False`: the message names every invalid field.
    pub const ACCEPTED: &str = "Accepted";
    /// Every plugin of the object was fetched and is supported.
    pub const PLUGINS_RESOLVED: &str = "PluginsResolved";
    /// The object is in the chain that sidecars mount.
    pub const DISTRIBUTED: &str = "Distributed";
    /// Every sidecar concerned runs the object's entries. The message has the count: `12/12`.
    pub const ENFORCED: &str = "Enforced";
    /// For a root: its shards are as it specifies.
    pub const SHARDED: &str = "Sharded";
    /// Objects are in two shards of its controller, or in none. `False`: every object is in one.
    pub const OVERLAPPING: &str = "Overlapping";
    /// `True`: containers of the pods named run and send nothing to the API server through their sidecars.
    pub const BYPASSED: &str = "Bypassed";
}

/// How far an object has come (`metav1.Condition`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Accepted, PluginsResolved, Distributed, Enforced, Sharded, Overlapping or Bypassed.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, for machines: one word.
    pub reason: String,
    /// Why, for people.
    #[serde(default)]
    pub message: String,
    /// When its status last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// The generation of the object that it speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What every status begins with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The generation that the rest speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How far it has come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Sidecars that run this generation, of those that should: `12/12`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub enforced: String,
}

/// What CircuitBreakers and FaultInjections say of the sidecars that they concern, as KusionStack's do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// How far it has come.
    #[serde(flatten)]
    pub progress: Progress,
    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_updated_time: Option<String>,
    /// Hash of what sidecars shall run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current_spec_hash: String,
    /// Sidecars.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["podName"]))]
    pub target_status: Vec<TargetStatus>,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// A sidecar that an object concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// Its pod.
    pub pod_name: String,
    /// Address of its pod.
    #[serde(default, rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    /// Hash of the settings that it runs: what it has acknowledged.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub config_hash: String,
    /// Why it does not run them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Its breakers. Of a CircuitBreaker only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub limiting_snapshots: Vec<LimitingSnapshot>,
}

/// One breaker in one sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitingSnapshot {
    /// Name of the rule.
    pub name: String,
    /// The part of the rule's requests that it is for, if the rule has a key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Whether it lets requests through.
    pub state: BreakerState,
    /// Why it is in this state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: Option<String>,
    /// When it lets probes through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub recovers_at: Option<String>,
    /// Requests in its window.
    #[serde(default)]
    pub requests: u64,
    /// Those of them that failed.
    #[serde(default)]
    pub failures: u64,
}

/// Whether a breaker lets requests through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BreakerState {
    /// None.
    Opened,
    /// A few, to see how they fare.
    HalfOpened,
    /// All.
    Closed,
}

/// A time in the form of API servers: RFC 3339 in seconds, as `metav1.Time` marshals
/// (`staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/time.go`).
#[must_use]
pub fn timestamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The API server's error response, for people.
#[must_use]
pub fn response_text(status: &Status) -> String {
    match status.message.trim_end() {
        "" => format!("HTTP {}", status.code),
        message => format!("{message} (HTTP {})", status.code),
    }
}
