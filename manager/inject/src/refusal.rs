//! Why a pod is rejected instead of injected. Each reason names both sides of the conflict and what to do.

use ctrlmesh_contract::names::{annotations, labels, pod};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The object in the review is not a pod.
    #[error("the object is not a pod: it needs metadata and spec.containers")]
    NoPod,
    /// The manager has no image for the sidecar.
    #[error("the manager has no image for the sidecar; start the manager with --proxy-image (CTRLMESH_PROXY_IMAGE)")]
    NoImage,
    /// No ctrlmesh object selects the pod.
    #[error(
        "no ShardingConfig, CircuitBreaker or FaultInjection in namespace {namespace} selects this pod{unread}; apply one that does. If no \
         controller in this namespace is sharded, you may remove the label {} instead: a pod without a sidecar sees everything, also the \
         objects of shards",
        labels::ENABLE_PROXY
    )]
    NotSelected {
        namespace: String,
        /// In parentheses: objects that can't be read and may select the pod. Empty if there are none.
        unread: String,
    },
    /// Two shards select the pod, which can be in one only.
    #[error(
        "ShardingConfigs {first} and {second} both select this pod, but a pod can be in one shard only; change one of their selectors"
    )]
    TwoShards { first: String, second: String },
    /// No shard of a root selects a pod of the root's StatefulSet. Without a shard the pod would see all objects.
    #[error(
        "no shard of ShardingConfig {root} selects this pod of its StatefulSet: the shards do not exist yet, or have fewer pods than the \
         StatefulSet has replicas; look at kubectl get shardingconfigs"
    )]
    NoShardOfRoot { root: String },
    /// The pod uses the network of its node, where ports of the sidecar would conflict with others.
    #[error(
        "this pod has hostNetwork, where the sidecar's ports would be ports of the node; remove hostNetwork, or the label {}",
        labels::ENABLE_PROXY
    )]
    HostNetwork,
    /// The sidecar's image does not run on the pod's operating system.
    #[error(
        "this pod is for {os}, but the sidecar runs on Linux only; remove the label {}",
        labels::ENABLE_PROXY
    )]
    NotLinux {
        /// `spec.os.name` of the pod.
        os: String,
    },
    /// A container or volume of the pod has a name that injection needs.
    #[error("{kind} {name} of this pod has the same name as an element that ctrlmesh adds for the sidecar; rename it")]
    NameTaken {
        /// `container`, `init container` or `volume`.
        kind: &'static str,
        name: String,
    },
    /// A container of the pod declares a port of the sidecar.
    #[error(
        "container {container} has port {port}, on which the sidecar {} listens in the same pod; choose another port",
        pod::SIDECAR
    )]
    PortTaken { container: String, port: u16 },
    /// A container of the pod has a mount at the path of the injected kubeconfig, above it or below it.
    #[error(
        "container {container} mounts volume {volume} at {path}, and ctrlmesh mounts volume {ours} at {at}; mount {volume} elsewhere, or set \
         both labels {} and {} to \"true\"",
        labels::DISABLE_KUBECONFIG_ARG,
        labels::DISABLE_KUBECONFIG_ENV
    )]
    MountTaken {
        container: String,
        volume: String,
        path: String,
        ours: &'static str,
        at: &'static str,
    },
    /// A container runs as the sidecar's user, whose traffic is not redirected.
    #[error(
        "container {container} runs as user {}, as the sidecar does, and traffic of this user is not redirected to the sidecar; choose \
         another user",
        pod::UID
    )]
    SidecarUser { container: String },
    /// A restartable init container starts before a classic sidecar and keeps running.
    #[error(
        "init container {container} keeps running beside the containers (restartPolicy: Always) and starts before the sidecar {}, so that its \
         connections could bypass the sidecar; start the sidecar first (annotation {}: \"true\"), or make {container} an ordinary container",
        pod::SIDECAR,
        annotations::NATIVE_SIDECAR
    )]
    StartsBefore { container: String },
    /// `--kubeconfig` is part of a longer argument, such as a shell line, and is not rewritten there.
    #[error(
        "container {container} has --kubeconfig inside a longer argument ({argument:?}), where it can't be rewritten; pass it as an argument \
         of its own, or set label {} to \"true\" and use $KUBECONFIG there",
        labels::DISABLE_KUBECONFIG_ARG
    )]
    HiddenFlag { container: String, argument: String },
    /// Arguments set `KUBECONFIG` to another file than injection does.
    #[error(
        "container {container} sets KUBECONFIG in its arguments ({argument:?}), which overrides the file that ctrlmesh sets and bypasses the \
         sidecar; remove it there, or set label {} to \"true\"",
        labels::DISABLE_KUBECONFIG_ENV
    )]
    HiddenVariable { container: String, argument: String },
    /// Containers use different API servers, but share one sidecar.
    #[error(
        "containers {first} and {second} have different values of {variable}, but share one sidecar, which connects to one API server; set the \
         same value in both (if traffic is redirected, a container without the variable connects to the Service kubernetes)"
    )]
    TwoServers {
        first: String,
        second: String,
        variable: &'static str,
    },
    /// A copied variable refers to another one, so that it would have another value in the sidecar.
    #[error(
        "container {container} refers to $({other}) in {variable}, which is copied to the sidecar {}, and the sidecar has no earlier {other} \
         with the same value; write {variable} without $({other})",
        pod::SIDECAR
    )]
    NotCopied {
        container: String,
        variable: String,
        /// Name in `$(…)`.
        other: String,
    },
    /// A label or annotation of the pod is invalid, or conflicts with another one or with settings of the manager.
    #[error("{key}: {problem}")]
    Key {
        key: &'static str,
        /// The mistake, and what to write instead.
        problem: String,
    },
}

/// Ends messages that leave out names.
const IN_THE_LOG: &str = "the manager's log names them";

impl Refusal {
    /// The message for clients that have not proved to be API servers. It has no names of objects that the request does not contain.
    #[must_use]
    pub fn to_anybody(&self) -> String {
        match self {
            Self::TwoShards { .. } => format!(
                "several ShardingConfigs select this pod, but a pod can be in one shard only; change their selectors ({IN_THE_LOG})"
            ),
            Self::NoShardOfRoot { .. } => format!(
                "no shard selects this pod of a StatefulSet with shards: the shards do not exist yet, or have fewer pods than the StatefulSet \
                 has replicas; look at kubectl get shardingconfigs ({IN_THE_LOG})"
            ),
            Self::NotSelected { namespace, unread } if !unread.is_empty() => Self::NotSelected {
                namespace: namespace.clone(),
                unread: format!(" (some can't be read; {IN_THE_LOG})"),
            }
            .to_string(),
            refusal => refusal.to_string(),
        }
    }

    pub(super) fn key(key: &'static str, problem: impl Into<String>) -> Self {
        Self::Key {
            key,
            problem: problem.into(),
        }
    }
}
