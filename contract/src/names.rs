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

/// ConfigMap with the CAs for containers that reach the sidecar over TLS: the namespace's mesh CA and the cluster's CA. In
/// each namespace that has such pods.
pub const CA_CONFIG_MAP: &str = "ctrlmesh-ca";

/// Secret with the certificate that the sidecar serves over TLS, and its key. In each namespace that has such pods.
pub const SERVING_SECRET: &str = "ctrlmesh-serving-cert";

/// Secret with the key that chains are signed with, in the manager's namespace.
pub const CHAIN_KEY_SECRET: &str = "ctrlmesh-chain-key";

/// Field of [`CHAIN_KEY_SECRET`]: the public key as sidecars get it in their environment.
pub const PUBLIC_KEY_FIELD: &str = "public";

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
    /// Name of the sidecar's container.
    pub const SIDECAR: &str = "ctrlmesh-proxy";
    /// The init container that sets up iptables.
    pub const INIT: &str = "ctrlmesh-init";
    /// The user that the sidecar runs as; iptables rules spare its traffic.
    pub const UID: u32 = 1359;
    /// The program in the sidecar's image, for what kubelet runs there besides the entry point.
    pub const PROGRAM: &str = "/ctrlmesh-proxy";
    /// The volume with the kubeconfig that leads to the sidecar.
    pub const KUBECONFIG_VOLUME: &str = "fake-kubeconfig";
    /// Where that volume is mounted in the containers of a controller.
    pub const KUBECONFIG_DIR: &str = "/etc/kubernetes/kubeconfig";
    /// Name of the kubeconfig file in that folder.
    pub const KUBECONFIG_FILE: &str = "fake-kubeconfig.yaml";
    /// The volume that containers share logs by, if none of them has one.
    pub const SHARED_LOGS_VOLUME: &str = "app-shared-logs";
}

/// Labels of namespaces, pods and managed objects.
pub mod labels {
    /// Hash bucket `0..31` of a namespace's name.
    pub const SHARD_HASH: &str = "ctrlmesh.kusionstack.io/shard-hash";
    /// Name of the namespace an object lies in.
    pub const NAMESPACE: &str = "ctrlmesh.kusionstack.io/namespace";
    /// `"true"`: the object is managed.
    pub const CONTROL: &str = "ctrlmesh.kusionstack.io/control";
    /// `"true"` on a pod: inject a sidecar.
    pub const ENABLE_PROXY: &str = "ctrlmesh.kusionstack.io/enable-proxy";
    /// `"true"` on a pod: redirect by iptables instead of a kubeconfig of our own.
    pub const ENABLE_IPTABLES: &str = "ctrlmesh.kusionstack.io/enable-iptables";
    /// `"true"` on a pod: `--kubeconfig` of its containers is left alone.
    pub const DISABLE_KUBECONFIG_ARG: &str = "ctrlmesh.kusionstack.io/disable-fake-kubeconfig-arg";
    /// `"true"` on a pod: `KUBECONFIG` of its containers is left alone.
    pub const DISABLE_KUBECONFIG_ENV: &str = "ctrlmesh.kusionstack.io/disable-fake-kubeconfig-env";
    /// On a pod: its volume with the kubeconfig of the API server that the sidecar goes to.
    pub const KUBECONFIG_VOLUME: &str = "ctrlmesh.kusionstack.io/kubeconfig-volume";
    /// `"true"` on pods and ConfigMaps: the manager caches the object.
    pub const WATCHING: &str = "ctrlmesh.kusionstack.io/watching";
    /// On a pod: the ShardingConfig that it was injected with.
    pub const SHARDING_CONFIG_INJECTED: &str = "ctrlmesh.kusionstack.io/sharding-config-injected";
    /// On a ShardingConfig: the root that it was made from.
    pub const AUTO_SHARDING_ROOT: &str = "ctrlmesh.kusionstack.io/auto-sharding-root";
    /// On a ctrlmesh object, with any value: it is not validated at admission.
    pub const IGNORE_VALIDATE: &str = "ctrlmesh.kusionstack.io/ignore-validate";
    /// On a CircuitBreaker, with any value: it has no effect.
    pub const CIRCUIT_BREAKER_DISABLE: &str = "circuitbreaker.ctrlmesh.kusionstack.io/disable";
    /// On a FaultInjection, with any value: it has no effect.
    pub const FAULT_INJECTION_DISABLE: &str = "faultinjection.ctrlmesh.kusionstack.io/disable";
    /// On no object: the key of selectors that select nothing, because no object can both have a label and not have it. The manager writes
    /// them for shards that show nothing, and the sidecar adds one where a controller may still lead by an earlier lock.
    pub const NO_OBJECT_KEY: &str = "ctrlmesh.kusionstack.io/nothing";
    /// On a pod, set by the manager: the pod keeps its current limits until it is replaced. The value identifies these limits.
    pub const KEEPS_LIMITS: &str = "ctrlmesh.kusionstack.io/keeps-limits";
    /// On a pod, by Kubernetes: its name, if a StatefulSet made it.
    pub const STATEFUL_SET_POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
}

/// Annotations of pods and objects.
pub mod annotations {
    /// On a ShardingConfig that was made from a root: a hash of what it was made as.
    pub const AUTO_SHARDING_HASH: &str = "ctrlmesh.kusionstack.io/auto-sharding-hash";
    /// On a pod, changed by the manager so that kubelet syncs the pod's volumes at once.
    pub const CHAIN_GENERATION: &str = "ctrlmesh.kusionstack.io/chain-generation";
    /// The generation and the number of repeated nudges: for a pod whose volumes kubelet synced from stale data.
    pub const CHAIN_BUMP: &str = "ctrlmesh.kusionstack.io/chain-bump";
    /// On a pod: a folder that all its containers share by a volume.
    pub const LOG_PATH: &str = "ctrlmesh.kusionstack.io/log-path";
    /// On a pod: environment of the sidecar, `NAME=value`, or `NAME` to copy it from a container; with commas between.
    pub const ENV_SYNC: &str = "ctrlmesh.kusionstack.io/env-sync";
    /// On a pod: environment of its containers, JSON `[{"name": "container", "env": [{"key": "NAME", "value": "x"}]}]`.
    pub const ENV_INJECT: &str = "ctrlmesh.kusionstack.io/env-inject";
    /// On a pod: resources of the sidecar, JSON of ResourceRequirements.
    pub const PROXY_RESOURCE: &str = "ctrlmesh.kusionstack.io/proxy-resource";
    /// On a pod: containers that get `--kubeconfig` although they have no such argument, with commas between.
    pub const KUBECONFIG_ARG: &str = "ctrlmesh.kusionstack.io/kubeconfig-arg";
    /// On a pod, `"true"` or `"false"`: whether the sidecar is a restartable init container, whatever the manager's flag says.
    pub const NATIVE_SIDECAR: &str = "ctrlmesh.kusionstack.io/native-sidecar";
    /// `"true"` on a pod: its containers speak TLS, and so HTTP/2, with the sidecar.
    pub const LOOPBACK_TLS: &str = "ctrlmesh.kusionstack.io/loopback-tls";
    /// On a pod, `"true"` or `"false"`: whether the sidecar takes calls to other services, whatever rules select the pod.
    pub const EXTERNAL_TRAFFIC: &str = "ctrlmesh.kusionstack.io/external-traffic";
    /// On a pod, by the manager: how its traffic comes to the sidecar, `kubeconfig` or `iptables`. Such a pod has a sidecar of ours.
    pub const INJECTED: &str = "ctrlmesh.kusionstack.io/injected";
    /// On a pod, by the manager: the kubeconfig that leads to the sidecar. Kubelet makes a file of it.
    pub const KUBECONFIG: &str = "ctrlmesh.kusionstack.io/kubeconfig";
    /// `"true"` on a FaultInjection or a CircuitBreaker that KusionStack's manager had: it acts here also where it did nothing there, for lack
    /// of a switch in pods.
    pub const ACTIVATE: &str = "ctrlmesh.kusionstack.io/activate";
    /// On a pod with [`super::labels::KEEPS_LIMITS`]: how many pods its shard has. While there are fewer, none is evicted; who takes it away
    /// from all pods of a shard says that those that are there are all.
    pub const SHARD_PODS: &str = "ctrlmesh.kusionstack.io/shard-pods";
}

/// Finalizers that the manager sets.
pub mod finalizers {
    /// On a ShardingConfig that is a shard, by the manager: held until its pods show nothing, and the last one of a controller until
    /// its rules are gone.
    pub const HAND_OVER: &str = "ctrlmesh.kusionstack.io/hand-over";
    /// On a root, by the manager: held until its shards are gone. KusionStack's manager put it onto all objects.
    pub const PROTECTED: &str = "finalizer.ctrlmesh.kusionstack.io/protected";
}

/// Environment variables of the sidecar.
pub mod env {
    /// Name of the sidecar's pod (downward API).
    pub const POD_NAME: &str = "POD_NAME";
    /// Namespace of the sidecar's pod (downward API). A chain for another namespace is refused.
    pub const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// Public keys that may sign a chain, in the text form of [`crate::signature::PublicKeys`].
    pub const PUBLIC_KEY: &str = "CTRLMESH_PUBLIC_KEY";
    /// Where a sidecar stores what its successor in the pod must know.
    pub const STATE_DIR: &str = "CTRLMESH_STATE_DIR";
    /// The entry of the chain without which a pod's first sidecar serves nothing: its shard's.
    pub const AWAIT_ENTRY: &str = "CTRLMESH_AWAIT_ENTRY";
    /// The log filter of the sidecar.
    pub const LOG: &str = "CTRLMESH_LOG";
    /// The log format of the sidecar: `text` or `json`.
    pub const LOG_FORMAT: &str = "CTRLMESH_LOG_FORMAT";
    /// Where the sidecar takes calls to other services.
    pub const EXTERNAL_ADDRESS: &str = "CTRLMESH_EXTERNAL_ADDRESS";
}

/// Names of the conditions that an unready sidecar does not meet, in `/readyz` and in its status.
pub mod readiness {
    /// Every name with its meaning. docs/operating.md has the same table.
    pub const MEANINGS: [(&str, &str); 4] = [
        (FIRST_CHAIN, "no chain loaded yet (ConfigMap ctrlmesh-chain)"),
        (AWAIT_ENTRY, "the chain has no shard entry for this pod's labels"),
        (LISTENER, "no traffic is served yet"),
        (DRAINING, "the sidecar is shutting down"),
    ];

    /// The meaning of a name. `None`: this release does not know the name.
    #[must_use]
    pub fn meaning(name: &str) -> Option<&'static str> {
        let mut meanings = MEANINGS.iter();
        meanings.find(|(known, _)| *known == name).map(|(_, meaning)| *meaning)
    }

    /// No chain is loaded yet.
    pub const FIRST_CHAIN: &str = "first chain";
    /// The entry of the chain that the pod's first sidecar waits for ([`super::env::AWAIT_ENTRY`]).
    pub const AWAIT_ENTRY: &str = "--await-entry";
    /// An open port: it is opened last.
    pub const LISTENER: &str = "listener";
    /// The sidecar is shutting down, and will not be ready again.
    pub const DRAINING: &str = "draining";
}

/// Names of header fields.
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
