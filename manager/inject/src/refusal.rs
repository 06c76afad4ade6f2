//! Why a pod is rejected instead of injected. Each reason names both sides of the conflict and what to do.

use ctrlmesh_contract::names::{annotations, labels, pod};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// What was sent is none.
    #[error("the object is not a pod: it needs metadata and spec.containers")]
    NoPod,
    /// The manager does not know what to run.
    #[error("the manager knows no image for the sidecar; start it with --proxy-image (CTRLMESH_PROXY_IMAGE)")]
    NoImage,
    /// Nothing is meant for the pod.
    #[error(
        "no ShardingConfig, CircuitBreaker or FaultInjection in namespace {namespace} selects this pod{unread}; apply one. (You \
         may remove the label {} instead if no controller in this namespace is sharded: a pod without a sidecar sees everything, and acts \
         beside shards)",
        labels::ENABLE_PROXY
    )]
    NotSelected {
        namespace: String,
        /// What can't be read and might.
        unread: String,
    },
    /// A pod is in one shard.
    #[error(
        "ShardingConfigs {first} and {second} both select this pod, which can be in one shard only; change one of their selectors"
    )]
    TwoShards { first: String, second: String },
    /// It would run unsharded.
    #[error(
        "ShardingConfig {root} makes the shards of this pod's StatefulSet, and none of them selects this pod: they are not made yet, or have \
         fewer pods than the StatefulSet has replicas (kubectl get shardingconfigs)"
    )]
    NoShardOfRoot { root: String },
    /// The ports of the sidecar would be the node's.
    #[error(
        "this pod has hostNetwork, where the sidecar's ports would be the node's; remove hostNetwork, or the label {}",
        labels::ENABLE_PROXY
    )]
    HostNetwork,
    /// There is no sidecar for it.
    #[error(
        "this pod is for {os}, and the sidecar runs on linux; remove the label {}",
        labels::ENABLE_PROXY
    )]
    NotLinux {
        /// What `spec.os.name` says.
        os: String,
    },
    /// Something of the pod has the name of something of ours.
    #[error("{kind} {name} of this pod has the same name as an element that ctrlmesh adds for the sidecar; rename it")]
    NameTaken {
        /// container, init container or volume.
        kind: &'static str,
        name: String,
    },
    /// A port of the pod is one of ours.
    #[error(
        "container {container} has port {port}, on which the sidecar {} listens in the same pod; choose another port",
        pod::SIDECAR
    )]
    PortTaken { container: String, port: u16 },
    /// A mount of the pod is where ours goes.
    #[error(
        "container {container} mounts volume {volume} at {path}, and ctrlmesh mounts volume {ours} at {at}; mount one of them elsewhere, or set both \
         {} and {} to \"true\"",
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
    /// Its traffic would pass by the sidecar.
    #[error(
        "container {container} runs as user {}, whose traffic goes past the sidecar because the sidecar runs as that user; choose another user",
        pod::UID
    )]
    SidecarUser { container: String },
    /// It starts before the sidecar, and goes on.
    #[error(
        "init container {container} keeps running beside the containers (restartPolicy: Always) and starts before the sidecar {}, so that its \
         connections could go past it; have the sidecar start first (annotation {}: \"true\"), or make it one of the \
         containers",
        pod::SIDECAR,
        annotations::NATIVE_SIDECAR
    )]
    StartsBefore { container: String },
    /// A flag that can't be rewritten.
    #[error(
        "container {container} has --kubeconfig inside a longer argument ({argument:?}), where it can't be led to the sidecar; write it as \
         an argument of its own, or set label {} to \"true\" and use $KUBECONFIG there",
        labels::DISABLE_KUBECONFIG_ARG
    )]
    HiddenFlag { container: String, argument: String },
    /// A variable that is set past ours.
    #[error(
        "container {container} sets KUBECONFIG in its arguments ({argument:?}), which would lead it past the file that ctrlmesh sets KUBECONFIG \
         to; leave that out, or set label {} to \"true\"",
        labels::DISABLE_KUBECONFIG_ENV
    )]
    HiddenVariable { container: String, argument: String },
    /// One sidecar, two API servers.
    #[error(
        "containers {first} and {second} have different values of {variable}, and share one sidecar, which goes to one API server; make \
         them equal (where traffic is redirected, a container without the variable goes to the Service kubernetes)"
    )]
    TwoServers {
        first: String,
        second: String,
        variable: &'static str,
    },
    /// A variable that would say something else in the sidecar.
    #[error(
        "container {container} has $({other}) in {variable}, of which the sidecar {} gets a copy, and the sidecar does not have the same {other} \
         before it; write {variable} without $({other})",
        pod::SIDECAR
    )]
    NotCopied {
        container: String,
        variable: String,
        /// What it refers to.
        other: String,
    },
    /// A label or annotation that makes no sense.
    #[error("{key}: {problem}")]
    Key {
        key: &'static str,
        /// What is wrong, and what to write.
        problem: String,
    },
}

/// Where to read names that are left out of a response.
const IN_THE_LOG: &str = "the manager's log names them";

impl Refusal {
    /// The message for clients that have not proved to be API servers: without names of objects that the request does not contain.
    #[must_use]
    pub fn to_anybody(&self) -> String {
        match self {
            Self::TwoShards { .. } => format!(
                "several ShardingConfigs select this pod, which can be in one shard only; change their selectors ({IN_THE_LOG})"
            ),
            Self::NoShardOfRoot { .. } => format!(
                "the shards of this pod's StatefulSet are not made yet, or have fewer pods than the StatefulSet has replicas (kubectl get \
                 shardingconfigs; {IN_THE_LOG})"
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
