//! The configuration with which an entry of the chain runs its plugin, and facts about the sidecar that the plugin can read.

use std::time::Duration;

/// Configuration with which an entry runs its plugin.
#[derive(Debug, Clone)]
pub struct EntryConfig {
    /// Name of the chain entry, stable over reloads.
    pub name: String,
    /// The entry's settings as JSON.
    pub settings_json: String,
    /// Time limit of a call.
    pub timeout: Duration,
    /// Maximum size of an instance's linear memory.
    pub memory_bytes: usize,
    /// Facts about the sidecar that the plugin can read.
    pub info: InstanceInfo,
}

/// The sidecar that a plugin runs in (WIT `instance-info`).
#[derive(Debug, Clone, Default)]
pub struct InstanceInfo {
    pub pod_namespace: String,
    pub pod_name: String,
    /// `major.minor.patch` of this sidecar.
    pub host_version: String,
}
