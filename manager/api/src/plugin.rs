//! `spec.plugins[]` of a ShardingConfig: the user's own plugins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A plugin that the sidecars of this shard run. Which requests it sees it says itself when it is configured: there is no match.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginRef {
    /// Unique in this object. The name of a built-in plugin (fault-inject, rate-limit, circuit-breaker, shard-selector) puts
    /// this one in its place, for the pods of this shard, with the settings that the built-in one would get.
    #[schemars(length(min = 1, max = 63), extend("pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The component in an OCI registry: oci://host/repository:tag or oci://host/repository@sha256:...
    #[schemars(length(max = 512), extend("pattern" = "^oci://.+"))]
    pub image: String,
    /// When a tag is looked up again. A digest never is.
    #[serde(default)]
    #[schemars(extend("default" = "IfNotPresent"))]
    pub pull_policy: PullPolicy,
    /// Secret of this namespace with the registry's credentials (kubernetes.io/dockerconfigjson).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pull_secret: Option<String>,
    /// Public key (PEM) that must have signed the image (cosign).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub verification_key: Option<String>,
    /// The plugin's own.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "super::schemas::free_object")]
    pub settings: Map<String, Value>,
    /// Place among the plugins of this list: low first, then by name. They come after the built-in ones, before shard-selector.
    #[serde(default)]
    #[schemars(range(min = 0, max = 999), extend("default" = 0))]
    pub order: i32,
    /// What becomes of a request when the plugin fails: refused (Closed), or passed on without it (Open).
    #[serde(default)]
    #[schemars(extend("default" = "Closed"))]
    pub on_failure: OnFailure,
    /// Deadline of one call, milliseconds.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 1000), extend("default" = 10))]
    pub timeout_ms: u32,
    /// Memory of one instance, MiB. There is one instance for each worker thread.
    #[serde(default = "default_memory", rename = "memoryMiB")]
    #[schemars(range(min = 1, max = 256), extend("default" = 16))]
    pub memory_mib: u32,
}

/// When a tag is looked up again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// When the reference in the object changes.
    #[default]
    IfNotPresent,
    /// From time to time, too.
    Always,
}

/// What becomes of a request when a plugin fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// It is refused.
    #[default]
    Closed,
    /// It passes without the plugin.
    Open,
}

/// What became of a plugin's reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// Its name in spec.plugins.
    pub name: String,
    /// The reference that was looked up.
    pub image: String,
    /// The manifest that it led to, pinned.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub manifest: String,
    /// Digest of the component's bytes: what sidecars run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

const fn default_timeout() -> u32 {
    ctrlmesh_contract::chain::DEFAULT_TIMEOUT_MS
}

const fn default_memory() -> u32 {
    ctrlmesh_contract::chain::DEFAULT_MEMORY_MIB
}
