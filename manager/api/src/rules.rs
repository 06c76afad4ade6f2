//! The requests that a rule of a CircuitBreaker or a FaultInjection applies to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests to the API server, by resource. All fields must match; within a field, one value is enough. `*` alone is
/// any value; in groups, resources and namespaces, a `*` at the beginning or end stands for any text. An empty list
/// matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRule {
    /// API groups. "" is the core group.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub api_groups: Vec<String>,
    /// Resources: pods is the resource itself, pods/status a subresource, */scale this subresource of every resource.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<String>,
    /// Kubernetes verbs: get, list, watch, create, update, patch, delete, deletecollection, proxy.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Vec<String>,
    /// Namespaces. "" is cluster scope, and lists over all namespaces.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub namespaces: Vec<String>,
    /// Names of objects. Absent or empty: any name. A create request never matches a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub names: Vec<String>,
}

/// Requests to the API server, by resource. All fields must match; within a field, one value is enough. An absent or
/// empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenResourceRule {
    /// API groups. "" is the core group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub api_groups: Vec<String>,
    /// Resources: pods is the resource itself, pods/status a subresource, */scale this subresource of every resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<String>,
    /// Kubernetes verbs: get, list, watch, create, update, patch, delete, deletecollection, proxy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Vec<String>,
    /// Namespaces. "" is cluster scope, and lists over all namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub namespaces: Vec<String>,
    /// Names of objects. A create request never matches a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub names: Vec<String>,
}

/// Requests to the API server without a resource, in the terms of RBAC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NonResourceRule {
    /// HTTP methods; * is every method.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Vec<String>,
    /// Paths, such as /healthz. A * at the end stands for any text: /apis/*
    #[serde(rename = "nonResourceURLs")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resource_urls: Vec<String>,
}

/// One limit or breaker for each value of this key: sidecar (one for all requests), namespace, resource (calls to other
/// services: host and port), host (with port), or userAgent (as clients send it). Default: sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Key {
    /// One for all requests of a sidecar.
    Sidecar,
    /// By namespace.
    Namespace,
    /// By group and resource; calls to other services by host and port.
    Resource,
    /// By host and port.
    Host,
    /// By the `User-Agent` header, which clients choose themselves.
    UserAgent,
}
