//! Every name that two parts of the system, or the system and its users, must spell alike. Once.
//!
//! Names that KusionStack's controller-mesh gave its users are kept to the letter. Leaves meaning to the code that uses
//! a name.

/// Group and version of the chain document.
pub const CHAIN_API_VERSION: &str = "chain.ctrlmesh.kusionstack.io/v1";

/// ConfigMap that holds the chain document of a namespace.
pub const CHAIN_CONFIG_MAP: &str = "ctrlmesh-chain";

/// Start of the names of the ConfigMaps that hold plugin bytes.
pub const PLUGIN_CONFIG_MAP_PREFIX: &str = "ctrlmesh-plugins-";

/// How many ConfigMaps hold plugin bytes. A fixed number, because a pod's projected volume must name them all when the
/// pod is made.
pub const PLUGIN_CONFIG_MAPS: usize = 8;

/// Name of one of the ConfigMaps that hold plugin bytes: `ctrlmesh-plugins-0` to `ctrlmesh-plugins-7`.
///
/// `None` if there is no such slot.
#[must_use]
pub fn plugin_config_map(slot: usize) -> Option<String> {
    (slot < PLUGIN_CONFIG_MAPS).then(|| format!("{PLUGIN_CONFIG_MAP_PREFIX}{slot}"))
}

/// Names of files in the directory that a sidecar mounts.
pub mod files {
    /// The chain document, YAML or JSON.
    pub const CHAIN: &str = "chain.yaml";
    /// Signature over the exact bytes of [`CHAIN`], base64.
    pub const CHAIN_SIGNATURE: &str = "chain.yaml.sig";
    /// The pod's labels as the downward API writes them.
    pub const LABELS: &str = "labels";
    /// The symlink that kubelet swaps when the content of a volume changes (`pkg/volume/util/atomic_writer.go`).
    pub const KUBELET_DATA: &str = "..data";
}

/// TCP ports of the sidecar.
pub mod ports {
    /// `/metrics`, `/readyz`, `/livez`, `/status`.
    pub const ADMIN: u16 = 5441;
    /// Proxy for API traffic, loopback only.
    pub const API: u16 = 5443;
    /// Proxy for traffic to other services, loopback only.
    pub const EXTERNAL: u16 = 15002;
}

/// Names inside a pod.
pub mod pod {
    /// The sidecar's container.
    pub const SIDECAR: &str = "ctrlmesh-proxy";
    /// The init container that sets up iptables.
    pub const INIT: &str = "ctrlmesh-init";
    /// The user that the sidecar runs as; iptables rules spare its traffic.
    pub const UID: u32 = 1359;
}

/// Labels of namespaces, pods and managed objects.
pub mod labels {
    /// Bucket `0..31` of a namespace's name.
    pub const SHARD_HASH: &str = "ctrlmesh.kusionstack.io/shard-hash";
    /// Name of the namespace an object lies in.
    pub const NAMESPACE: &str = "ctrlmesh.kusionstack.io/namespace";
    /// `"true"`: the object is managed.
    pub const CONTROL: &str = "ctrlmesh.kusionstack.io/control";
    /// `"true"` on a pod: inject a sidecar.
    pub const ENABLE_PROXY: &str = "ctrlmesh.kusionstack.io/enable-proxy";
    /// `"true"` on a pod: redirect by iptables instead of a kubeconfig of our own.
    pub const ENABLE_IPTABLES: &str = "ctrlmesh.kusionstack.io/enable-iptables";
    /// `"true"` on pods and ConfigMaps: the manager caches the object.
    pub const WATCHING: &str = "ctrlmesh.kusionstack.io/watching";
    /// On a pod: the ShardingConfig that it was injected with.
    pub const SHARDING_CONFIG_INJECTED: &str = "ctrlmesh.kusionstack.io/sharding-config-injected";
    /// On a ShardingConfig: the root that it was made from.
    pub const AUTO_SHARDING_ROOT: &str = "ctrlmesh.kusionstack.io/auto-sharding-root";
    /// On a ShardingConfig, with any value: it is not validated at admission.
    pub const IGNORE_VALIDATE: &str = "ctrlmesh.kusionstack.io/ignore-validate";
    /// On a CircuitBreaker, with any value: it has no effect.
    pub const CIRCUIT_BREAKER_DISABLE: &str = "circuitbreaker.ctrlmesh.kusionstack.io/disable";
    /// On a FaultInjection, with any value: it has no effect.
    pub const FAULT_INJECTION_DISABLE: &str = "faultinjection.ctrlmesh.kusionstack.io/disable";
    /// On a pod, by the manager: it keeps what it sees until it is made again. The value stands for what that is.
    pub const KEEPS_LIMITS: &str = "ctrlmesh.kusionstack.io/keeps-limits";
    /// On a pod, by Kubernetes: its name, if a StatefulSet made it.
    pub const STATEFUL_SET_POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
}

/// Annotations of pods and objects.
pub mod annotations {
    /// On a ShardingConfig that was made from a root: a hash of what it was made as.
    pub const AUTO_SHARDING_HASH: &str = "ctrlmesh.kusionstack.io/auto-sharding-hash";
    /// Bumped by the manager so that kubelet syncs the pod's volumes at once.
    pub const CHAIN_GENERATION: &str = "ctrlmesh.kusionstack.io/chain-generation";
    /// With the same generation, and how often it was bumped again: a pod whose volumes kubelet had synced with what it knew before.
    pub const CHAIN_BUMP: &str = "ctrlmesh.kusionstack.io/chain-bump";
    /// On a pod with [`super::labels::KEEPS_LIMITS`]: how many pods its shard has. While there are fewer, none is evicted; who takes it away
    /// from all pods of a shard says that those that are there are all.
    pub const SHARD_PODS: &str = "ctrlmesh.kusionstack.io/shard-pods";
}

/// Environment variables of the sidecar.
pub mod env {
    /// Name of the sidecar's pod (downward API).
    pub const POD_NAME: &str = "POD_NAME";
    /// Namespace of the sidecar's pod (downward API). A chain for another namespace is refused.
    pub const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// Public keys that may sign a chain, in the text form of [`crate::signature::PublicKeys`].
    pub const PUBLIC_KEY: &str = "CTRLMESH_PUBLIC_KEY";
}

/// Header fields.
pub mod headers {
    /// On external traffic: where the request really goes.
    pub const REAL_ENDPOINT: &str = "mesh-real-endpoint";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_config_maps_are_numbered_from_0_to_7() {
        assert_eq!(plugin_config_map(0).as_deref(), Some("ctrlmesh-plugins-0"));
        assert_eq!(plugin_config_map(7).as_deref(), Some("ctrlmesh-plugins-7"));
        assert_eq!(plugin_config_map(8), None);
    }
}
