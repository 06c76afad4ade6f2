//! `spec.plugins[]` of a ShardingConfig: the user's own plugins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A plugin that the sidecars of this shard run. The plugin itself subscribes to requests when it is configured, so
/// there are no match rules here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.image) || self.name == 'trim-objects'",
    "message": "is missing; write oci://host/repository:tag (trim-objects alone needs none)",
    "fieldPath": ".image",
}]))]
pub struct PluginRef {
    /// Unique name of the plugin in this object. The name of a built-in plugin (fault-inject, rate-limit,
    /// circuit-breaker, shard-selector) replaces the built-in one in the pods of this shard; the replacement gets the
    /// settings of the built-in one. The built-in plugin trim-objects runs only if it is named here.
    #[schemars(length(min = 1, max = 63), extend("pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Reference of the component in an OCI registry: oci://host/repository:tag or oci://host/repository@sha256:...
    /// Required, except for trim-objects: without an image it is the one that is built in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512), extend("pattern" = "^oci://.+"))]
    pub image: String,
    /// When a tag is resolved again. IfNotPresent: when the reference in the object changes. Always: periodically, too.
    /// A digest is never resolved again. Default: IfNotPresent.
    #[serde(default)]
    #[schemars(extend("default" = "IfNotPresent"))]
    pub pull_policy: PullPolicy,
    /// Name of a Secret in the namespace of this object with the credentials of the registry
    /// (kubernetes.io/dockerconfigjson).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pull_secret: Option<String>,
    /// Public key (PEM) of the cosign signature that the image must have. Absent: no signature is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub verification_key: Option<String>,
    /// Settings that are passed to the plugin.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "super::schema::free_object")]
    pub settings: Map<String, Value>,
    /// Position among the plugins of this list: lower numbers run first, equal ones in the order of their names. The
    /// list runs after the built-in plugins and before shard-selector. 0 to 999. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 999), extend("default" = 0))]
    pub order: i32,
    /// Handling of a request when the plugin fails. Closed: the request is refused. Open: the request goes on without
    /// the plugin. Default: Closed.
    #[serde(default)]
    #[schemars(extend("default" = "Closed"))]
    pub on_failure: OnFailure,
    /// Deadline of one call of the plugin, in milliseconds: 1 to 1000. Default: 10.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 1000), extend("default" = 10))]
    pub timeout_ms: u32,
    /// Maximum memory of one instance of the plugin, in MiB: 1 to 256. Default: 16. Each worker thread of a sidecar has
    /// its own instance.
    #[serde(default = "default_memory", rename = "memoryMiB")]
    #[schemars(range(min = 1, max = 256), extend("default" = 16))]
    pub memory_mib: u32,
}

/// When a tag is resolved again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// When the reference in the object changes.
    #[default]
    IfNotPresent,
    /// When the reference changes, and periodically.
    Always,
}

/// Handling of a request when a plugin fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// The request is refused.
    #[default]
    Closed,
    /// The request goes on without the plugin.
    Open,
}

/// Result of resolving the reference of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// Name of the plugin in spec.plugins.
    pub name: String,
    /// Reference that was resolved.
    pub image: String,
    /// Reference of the resolved manifest, with its digest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub manifest: String,
    /// Digest of the component that sidecars run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Error, if the reference could not be resolved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

const fn default_timeout() -> u32 {
    ctrlmesh_contract::chain::DEFAULT_TIMEOUT_MS
}

const fn default_memory() -> u32 {
    ctrlmesh_contract::chain::DEFAULT_MEMORY_MIB
}
