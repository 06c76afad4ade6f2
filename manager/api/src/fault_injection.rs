//! `FaultInjection`: injected faults in a controller's requests. KusionStack has two forms of it, which differ in `httpMatch`:
//! host, path and method, or lists of `url` and `method`. Both are accepted.

use ctrlmesh_contract::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rules::{NonResourceRule, OpenResourceRule};
use super::status::Rollout;

/// Faults to inject into requests of the selected pods.
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
    doc = "Injects faults into requests of the selected pods: delays, errors, lost responses, broken watches.",
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
    /// Selects pods in the namespace of this object. `{}` selects all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Disables all rules. Default: false.
    #[serde(default)]
    #[schemars(extend("default" = false))]
    pub disabled: bool,
    /// Seed of random choices: the same seed repeats a run. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// Most severe class of faults that may be injected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// Rules, evaluated in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub http_fault: Vec<Fault>,
}

/// Most severe class of faults that may be injected: legal (a real API server or network behaves like this), server (an
/// older or reduced server does), illegal (no server does). Default: legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// Behaviour of a real API server or network.
    Legal,
    /// Behaviour of an older or reduced server.
    Server,
    /// Behaviour of no server.
    Illegal,
}

/// A rule: the requests that it applies to, when and how often it fires, and the fault that it injects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// Unique name of the rule. Its counts and limits are kept under this name. Default: its position, such as
    /// `httpFault[0]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub name: Option<String>,
    /// Disables this rule. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
    /// Requests that the rule applies to. It is enough that one element of one of the lists matches.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<Match>,
    /// Time in which the rule is in force. Default: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_time: Option<EffectiveTime>,
    /// Delays the request. May be combined with abort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
    /// Answers the request with an error instead of sending it. May be combined with delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort: Option<Abort>,
    /// Fault of the catalogue, instead of delay and abort: its name (conflict), or its name with parameters
    /// ({lose: {how: retry}}). All faults are listed in plugins/fault-inject/README.md.
    #[serde(default, rename = "do", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::fault_schema")]
    pub fault: Option<Value>,
    /// With `do` only: percentage of the requests that the fault is injected into. 0 is never, 100 always; a fraction
    /// is written as text ("0.5"). Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::percent_schema")]
    pub percent: Option<Percent>,
    /// Injects into the n-th matching request only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub nth: Option<u32>,
    /// Injects into every n-th matching request only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub every: Option<u32>,
    /// Injects into the first n matching requests only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub first: Option<u32>,
    /// Maximum number of injections in each sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_count: Option<u32>,
    /// Time from the first match after which the rule injects nothing more, in Go's notation (10m).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<String>,
    /// Maximum number of requests at a time into which the rule injects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_active: Option<u32>,
}

/// Requests that a rule applies to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Requests to the API server, by resource. An absent or empty list in an element matches everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<OpenResourceRule>,
    /// Requests to the API server without a resource, such as discovery and /healthz.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resources: Vec<NonResourceRule>,
    /// Calls to services other than the API server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub http_match: Vec<HttpMatch>,
}

/// Calls to services other than the API server. All fields that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HttpMatch {
    /// URL or list of URLs, in which * stands for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::text_or_list")]
    pub url: Option<OneOrMany>,
    /// Host of the service: host (with any port) or host:port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Text>,
    /// Decoded path of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Text>,
    /// HTTP method or list of methods; * is every method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::text_or_list")]
    pub method: Option<OneOrMany>,
    /// Headers, all of which must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub headers: Vec<Header>,
}

/// A string or a list of strings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "write a text or a list of texts")]
pub enum OneOrMany {
    /// A string.
    One(String),
    /// Strings of which one must match.
    Many(Vec<String>),
}

/// An exact value or a regular expression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Text {
    /// Exact value. If both are set, regex is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// Regular expression that matches anywhere in the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
}

/// A header of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    /// Name of the header, case-insensitive.
    pub name: String,
    /// Exact value of the first header with this name. Absent, empty or *: any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A delay: fixed, uniformly distributed (min and max) or exponentially distributed (mean and max).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.fixedDelay) ? !has(self.min) && !has(self.max) && !has(self.mean) : has(self.max) && has(self.min) != has(self.mean)",
    "message": "write fixedDelay, or min and max, or mean and max (exponential)",
}]))]
pub struct Delay {
    /// Fixed delay, in Go's notation: 300ms, 1m30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_delay: Option<String>,
    /// Minimum of a delay that is uniformly distributed up to max.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<String>,
    /// Mean of a delay that is exponentially distributed up to max.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<String>,
    /// Maximum of a delay with min or mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
    /// Percentage of the requests that are delayed. 0 is never, 100 always; a fraction is written as text ("0.5").
    /// Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::percent_schema")]
    pub percent: Option<Percent>,
}

/// An error response.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Abort {
    /// HTTP status code of the response, 400 to 599.
    #[schemars(range(min = 400, max = 599))]
    pub http_status: i32,
    /// Percentage of the requests that are answered with the error. 0 is never, 100 always; a fraction is written as
    /// text ("0.5"). Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::percent_schema")]
    pub percent: Option<Percent>,
    /// Reason of the Status in the body. Default: the reason that belongs to the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Message of the Status in the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Seconds in the Retry-After header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "write a whole number, or a number as a text")]
pub enum Percent {
    /// A whole number.
    Number(i64),
    /// Any number, as text.
    Text(String),
}

/// Time in which a rule is in force. Each part that is set must hold, independently of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveTime {
    /// Start: HH:MM:SS each day, or a moment in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// End, inclusive, in the format of startTime. Each day, an end before the start is on the next day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
    /// UTC, or an offset such as +02:00. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Days of the week, 0 (Sunday) to 6. Absent or empty: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 0, max = 6)), length(max = 7), extend("x-kubernetes-list-type" = "atomic"))]
    pub days_of_week: Vec<i32>,
    /// Days of the month, 1 to 31. Absent or empty: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 1, max = 31)), length(max = 31), extend("x-kubernetes-list-type" = "atomic"))]
    pub days_of_month: Vec<i32>,
    /// Months, 1 to 12. Absent or empty: every month.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 1, max = 12)), length(max = 12), extend("x-kubernetes-list-type" = "atomic"))]
    pub months: Vec<i32>,
}

/// Observed state of the FaultInjection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultInjectionStatus {
    /// Conditions, and one element for each sidecar.
    #[serde(flatten)]
    pub rollout: Rollout,
}
