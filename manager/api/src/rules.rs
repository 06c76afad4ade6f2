//! The requests that a rule of a CircuitBreaker or a FaultInjection applies to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests to the API server, by resource. All lists must match, in each one element is enough. `*` is everything; in
/// groups, resources and namespaces, a `*` at an end of a text is any rest. An empty list matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRule {
    /// "" is the core group.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub api_groups: Vec<String>,
    /// pods is the resource itself, pods/status a subresource, */scale that subresource of everything.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<String>,
    /// Verbs of Kubernetes: get, list, watch, create, update, patch, delete, deletecollection, proxy.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Vec<String>,
    /// "" is cluster scope and lists over all namespaces.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub namespaces: Vec<String>,
    /// Names of objects. Absent or empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub names: Vec<String>,
}

/// The same where an absent or empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenResourceRule {
    /// "" is the core group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub api_groups: Vec<String>,
    /// pods is the resource itself, pods/status a subresource, */scale that subresource of everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<String>,
    /// Verbs of Kubernetes: get, list, watch, create, update, patch, delete, deletecollection, proxy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Vec<String>,
    /// "" is cluster scope and lists over all namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub namespaces: Vec<String>,
    /// Names of objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub names: Vec<String>,
}

/// Requests to the API server about no resource, in the words of RBAC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NonResourceRule {
    /// HTTP methods; * is every one.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Vec<String>,
    /// Paths: /healthz; a * at the end is any rest: /apis/*
    #[serde(rename = "nonResourceURLs")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resource_urls: Vec<String>,
}

/// By what a rule keeps its requests apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Key {
    /// Not at all.
    Sidecar,
    /// By namespace.
    Namespace,
    /// By group and resource; calls to other services by host and port.
    Resource,
    /// By host and port.
    Host,
    /// By what clients say of themselves.
    UserAgent,
}
