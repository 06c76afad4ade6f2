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

/// One aspect of the current state of an object (`metav1.Condition`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition: Accepted, PluginsResolved, Distributed, Enforced, Sharded, Overlapping or Bypassed.
    #[serde(rename = "type")]
    pub kind: String,
    /// Status of the condition: True, False or Unknown.
    pub status: ConditionStatus,
    /// Reason of the current status, as one word in CamelCase for programs.
    pub reason: String,
    /// Details of the current status, for people.
    #[serde(default)]
    pub message: String,
    /// Time at which the status of the condition last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Generation of the object (metadata.generation) that the condition is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Beginning of the status of every kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Generation of the object (metadata.generation) that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Number of sidecars that run this generation, and number of all that should: `12/12`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub enforced: String,
}

/// Status of a CircuitBreaker or FaultInjection in its sidecars, with the fields of KusionStack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Conditions, and the count of sidecars.
    #[serde(flatten)]
    pub progress: Progress,
    /// Time at which the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_updated_time: Option<String>,
    /// Hash of the settings that sidecars should run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current_spec_hash: String,
    /// State of each sidecar that the object applies to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["podName"]))]
    pub target_status: Vec<TargetStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// State of a sidecar that the object applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// Name of the sidecar's pod.
    pub pod_name: String,
    /// IP address of the sidecar's pod.
    #[serde(default, rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    /// Hash of the settings that the sidecar runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub config_hash: String,
    /// Reason why the sidecar does not run the current settings.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// States of the circuit breakers in the sidecar. Only in the status of a CircuitBreaker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub limiting_snapshots: Vec<LimitingSnapshot>,
}

/// State of one circuit breaker in one sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitingSnapshot {
    /// Name of the rule.
    pub name: String,
    /// Value of the rule's key that the breaker is for. Empty if the rule has no key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Opened: rejects all requests. HalfOpened: lets probes through. Closed: lets all requests through.
    pub state: BreakerState,
    /// Reason of the current state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time at which the state last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: Option<String>,
    /// Time at which the breaker lets probes through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub recovers_at: Option<String>,
    /// Number of requests in the window of the breaker.
    #[serde(default)]
    pub requests: u64,
    /// Number of requests in the window that failed.
    #[serde(default)]
    pub failures: u64,
}

/// State of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BreakerState {
    /// Rejects all requests.
    Opened,
    /// Lets probes through.
    HalfOpened,
    /// Lets all requests through.
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
