//! What can stop the manager or one of its steps, each with what a person can do about it.

use std::net::SocketAddr;

/// Why the manager does not start, stops, or could not do a step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log filter.
    #[error("--log (CTRLMESH_LOG): {0}; write a level such as info, or target=level")]
    Log(String),
    /// Another flag, by name, and what is wrong with its value.
    #[error("{0}: {1}")]
    Flag(&'static str, String),
    /// There is no way to the API server.
    #[error("no Kubernetes configuration: {0}; run in a pod, or set KUBECONFIG")]
    Config(#[source] kube::config::InferConfigError),
    /// The API server, or the way to it.
    #[error("the API server: {}", crate::plain::plain(.0))]
    Api(#[from] kube::Error),
    /// The lock of the leader.
    #[error("leader election: {0}; may the manager write leases in its namespace?")]
    Lease(#[from] kube_lease_manager::LeaseManagerError),
    /// A port is taken.
    #[error("{setting}: can't listen on {address}: {source}; is another manager running? choose another port")]
    Bind {
        /// The flag.
        setting: &'static str,
        /// Its value.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// A task of the manager is gone.
    #[error("a part of the manager has failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The Secret with the key for chains holds none.
    #[error(
        "Secret ctrlmesh-chain-key holds no key; restore it from a backup, or delete it and restart the operators' pods, whose \
         sidecars trust the old one"
    )]
    NoKey,
    /// No manager led yet, or somebody deleted the Secret.
    #[error("Secret ctrlmesh-chain-key holds no public key; the manager that leads makes it when it starts")]
    NoKeyYet,
    /// Plugins find no room in a namespace's ConfigMaps.
    #[error(transparent)]
    NoRoom(crate::distribution::NoRoom),
    /// There is no client for sidecars.
    #[error("no HTTP client for sidecars: {0}")]
    Http(#[source] reqwest::Error),
    /// A certificate of ours.
    #[error("certificate: {0}")]
    Certificate(#[from] crate::certificate::Error),
    /// ShardingConfigs that were deleted and are not gone.
    #[error("these ShardingConfigs wait still: {0}; kubectl describe says for what, and how to release them by force")]
    Waiting(String),
    /// Objects that are left, and whose deletion never ends without a manager.
    #[error(
        "{cluster}: managers are needed, for only they release {held}. Delete these objects, then run this again: `{command}`. {advice}"
    )]
    ManagerNeeded {
        /// Its names.
        cluster: String,
        /// Objects, by kind.
        held: String,
        /// What deletes them.
        command: String,
        /// What else can be done.
        advice: &'static str,
    },
    /// A chain, a key or a plugin.
    #[error(transparent)]
    Contract(#[from] ctrlmesh_contract::Error),
}

impl Error {
    /// Somebody else wrote what was to be written.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 409)
    }
}
