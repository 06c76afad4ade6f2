//! Errors that stop the manager or one of its steps. Each says what a user can do about it.

use std::net::SocketAddr;

use kube_lease_manager::LeaseManagerError;

use super::error_text;
use crate::args::FlagError;

/// An error of a room above.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why the manager does not start, stops, or could not do a step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--log (CTRLMESH_LOG): {0}; write a level such as info, or target=level")]
    Log(String),
    #[error(transparent)]
    Flag(#[from] FlagError),
    /// There is no way to the API server.
    #[error("{}", ctrlmesh_manager_uninstall::configuration_text(.0))]
    Config(#[source] kube::config::InferConfigError),
    /// The API server, or the way to it.
    #[error("the API server: {}", error_text(.0))]
    Api(#[from] kube::Error),
    /// The lock of the leader.
    #[error("leader election: {}; {}", lease_problem(.0), lease_advice(.0))]
    Lease(#[from] LeaseManagerError),
    /// A port is taken.
    #[error("{setting}: can't listen on {address}: {source}; is another manager running? choose another port")]
    Bind {
        setting: &'static str,
        address: SocketAddr,
        source: std::io::Error,
    },
    /// A task of the manager is gone.
    #[error("a task of the manager failed: {0}")]
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
    NoRoom(Cause),
    /// There is no client for sidecars.
    #[error("no HTTP client for sidecars: {0}")]
    Http(#[source] reqwest::Error),
    /// A certificate of ours.
    #[error("certificate: {0}")]
    Certificate(#[source] Cause),
    #[error(transparent)]
    Uninstall(#[from] ctrlmesh_manager_uninstall::Error),
    /// A chain, a key or a plugin.
    #[error(transparent)]
    Contract(#[from] ctrlmesh_contract::Error),
}

fn lease_problem(error: &LeaseManagerError) -> String {
    match error {
        LeaseManagerError::KubeError(error) => error_text(error),
        error => error.to_string(),
    }
}

const fn lease_advice(error: &LeaseManagerError) -> &'static str {
    match error {
        // The manager makes the Lease, so its namespace is missing.
        LeaseManagerError::KubeError(kube::Error::Api(status)) if status.code == 404 => {
            "create the manager's namespace, or name it with --namespace (POD_NAMESPACE)"
        }
        _ => "check that the manager may write leases in its namespace",
    }
}

impl Error {
    /// Somebody else wrote what was to be written.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 409)
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn lease_error_says_in_words_what_is_missing() {
        let refused = |message: &str, reason: &str, code: u16| {
            let status = Status::failure(message, reason).with_code(code);
            Error::from(LeaseManagerError::from(kube::Error::Api(Box::new(status)))).to_string()
        };
        assert_eq!(
            refused("namespaces \"ctrlmesh\" not found", "NotFound", 404),
            "leader election: namespaces \"ctrlmesh\" not found (HTTP 404); create the manager's namespace, or name it with --namespace \
             (POD_NAMESPACE)"
        );
        assert_eq!(
            refused("leases is forbidden", "Forbidden", 403),
            "leader election: leases is forbidden (HTTP 403); check that the manager may write leases in its namespace"
        );
    }
}
