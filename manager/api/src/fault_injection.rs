//! `FaultInjection`: injected faults in a controller's requests. KusionStack has two forms of it, which differ in `httpMatch`:
//! host, path and method, or lists of `url` and `method`. Both are accepted.

use ctrlmesh_contract::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rules::{NonResourceRule, OpenResourceRule};
use super::status::Rollout;

/// Faults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "ctrlmesh.kusionstack.io",
    version = "v1alpha1",
    kind = "FaultInjection",
    plural = "faultinjections",
    shortname = "fj",
    namespaced,
    derive = "PartialEq",
    status = "FaultInjectionStatus",
    doc = "Faults for what the controllers of some pods call: delays, refusals, lost answers, broken watches.",
    printcolumn(name = "Disabled", type_ = "boolean", json_path = ".spec.disabled"),
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
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.selector)",
    "message": "is missing, so no pod is meant; say which (`{}` is all of the namespace)",
    "fieldPath": ".selector",
}]))]
pub struct FaultInjectionSpec {
    /// Pods, in the namespace of this object. `{}` is all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Nothing happens.
    #[serde(default)]
    #[schemars(extend("default" = false))]
    pub disabled: bool,
    /// Random choices follow from it, so that a run can be repeated. Absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// The farthest from a healthy server that a fault may be. Absent: legal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// Rules, asked in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub http_fault: Vec<Fault>,
}

/// How far from a healthy server a fault may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// What a real API server or network does.
    Legal,
    /// What an older or reduced server does.
    Server,
    /// What none ever does.
    Illegal,
}

/// One rule: which requests, when, how many of them, and what happens to them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// Unique; counts and limits go by it. Absent: its place, `httpFault[0]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub name: Option<String>,
    /// This rule does nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
    /// Which requests. One element of one list is enough.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<Match>,
    /// When. Absent: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_time: Option<EffectiveTime>,
    /// Waits before the request goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
    /// Refuses the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort: Option<Abort>,
    /// A fault of the catalogue, instead of delay and abort: its name (conflict), or its name with what it takes ({lose: {how: retry}}).
    /// plugins/fault-inject/README.md lists all of them.
    #[serde(default, rename = "do", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schemas::fault_schema")]
    pub fault: Option<Value>,
    /// For do: how many of the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schemas::percent_schema")]
    pub percent: Option<Percent>,
    /// The third (3) of the requests that match, and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub nth: Option<u32>,
    /// Every fifth (5) of the requests that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub every: Option<u32>,
    /// The first two (2) of the requests that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub first: Option<u32>,
    /// Fires no more often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_count: Option<u32>,
    /// Fires no longer (Go's notation), from the first match on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<String>,
    /// Has no more requests in hand at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_active: Option<u32>,
}

/// Which requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Requests to the API server, by resource. An absent or empty list matches everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<OpenResourceRule>,
    /// Requests to the API server about no resource: discovery, /healthz.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resources: Vec<NonResourceRule>,
    /// Calls to other services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub http_match: Vec<HttpMatch>,
}

/// Calls to other services. All that is written must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HttpMatch {
    /// URLs with * for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schemas::text_or_list")]
    pub url: Option<OneOrMany>,
    /// host, or host:port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Text>,
    /// The decoded path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Text>,
    /// HTTP methods; * is every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schemas::text_or_list")]
    pub method: Option<OneOrMany>,
    /// Header fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub headers: Vec<Header>,
}

/// A text or a list of texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "write a text or a list of texts")]
pub enum OneOrMany {
    /// A text.
    One(String),
    /// Texts of which one must match.
    Many(Vec<String>),
}

/// A text that is equal, or matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Text {
    /// The whole text. If both are written, this counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// A regular expression that matches anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
}

/// A header field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    /// In any case.
    pub name: String,
    /// The whole first value. Absent, empty or *: it is enough that the field is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.fixedDelay) ? !has(self.min) && !has(self.max) && !has(self.mean) : has(self.max) && has(self.min) != has(self.mean)",
    "message": "write fixedDelay, or min and max, or mean and max (exponential)",
}]))]
pub struct Delay {
    /// Go's notation: 300ms, 1m30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_delay: Option<String>,
    /// With max: evenly spread between both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<String>,
    /// With max: exponentially spread around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<String>,
    /// The longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
    /// How many of the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schemas::percent_schema")]
    pub percent: Option<Percent>,
}

/// A refusal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Abort {
    /// Its status code.
    #[schemars(range(min = 400, max = 599))]
    pub http_status: i32,
    /// How many of the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schemas::percent_schema")]
    pub percent: Option<Percent>,
    /// Reason of the Status. Absent: that of the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Message of the Status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Seconds, for Retry-After.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
}

/// How many of a hundred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "write a whole number, or a number as a text")]
pub enum Percent {
    /// A whole number.
    Number(i64),
    /// Any number.
    Text(String),
}

/// When a rule is in force. Each part that is written must hold, on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveTime {
    /// HH:MM:SS each day, or one moment in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// In the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
    /// UTC, or an offset such as +02:00. Absent: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// 0 is Sunday. Absent or empty: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 0, max = 6)), length(max = 7), extend("x-kubernetes-list-type" = "atomic"))]
    pub days_of_week: Vec<i32>,
    /// 1 to 31. Absent or empty: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 1, max = 31)), length(max = 31), extend("x-kubernetes-list-type" = "atomic"))]
    pub days_of_month: Vec<i32>,
    /// 1 to 12. Absent or empty: every month.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 1, max = 12)), length(max = 12), extend("x-kubernetes-list-type" = "atomic"))]
    pub months: Vec<i32>,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultInjectionStatus {
    /// The sidecars, and how far it has come.
    #[serde(flatten)]
    pub rollout: Rollout,
}
