//! Errors, in words for people who know Kubernetes and not its Rust client.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};
use std::time::Duration;

use ctrlmesh_manager_api::status::response_text;
use kube::config::{InferConfigError, KubeconfigError};

/// Deadline of a response. A list of some thousand objects takes about a second.
pub(crate) const RESPONSE_DEADLINE: Duration = Duration::from_secs(10);

/// Why not all ShardingConfigs are gone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no way to the API server. No source, because its text has all that the message leaves out.
    #[error("{}", configuration_text(.0))]
    Config(InferConfigError),
    /// The API server, or the way to it.
    #[error("the API server: {}", response_or_text(.0))]
    Api(#[from] kube::Error),
    /// There was no response in time.
    #[error("the API server did not answer within {} s", RESPONSE_DEADLINE.as_secs())]
    NoResponse,
    /// The same as [`Error::Api`], with the names of the cluster.
    #[error("{}", request_text(.error, server, context))]
    Request {
        server: String,
        context: String,
        error: Box<kube::Error>,
    },
    /// The same as [`Error::NoResponse`], with the names of the cluster.
    #[error("the API server at {server} ({context}) did not answer within {} s", RESPONSE_DEADLINE.as_secs())]
    Silent { server: String, context: String },
    /// ShardingConfigs that were deleted and are not gone.
    #[error(
        "these ShardingConfigs are not released yet: {0}; kubectl describe shows why, and how to release them by force"
    )]
    Waiting(String),
    /// Objects that are left, and whose deletion never ends without a manager.
    #[error(
        "{cluster}: no manager runs, and only a manager can remove the finalizers of {held}. Delete these objects, then run this again: `{command}`. {advice}"
    )]
    ManagerNeeded {
        cluster: String,
        /// Objects, by kind.
        held: String,
        /// Deletes these objects.
        command: String,
        /// Another way to go on.
        advice: &'static str,
    },
}

/// Why there is no configuration of a cluster, and what to do. The client's own text names every place that it tried.
#[must_use]
pub fn configuration_text(error: &InferConfigError) -> String {
    match error.source().and_then(|source| source.downcast_ref()) {
        Some(KubeconfigError::ReadConfig(source, path)) => {
            let problem = match source.kind() {
                ErrorKind::NotFound => "it does not exist".to_owned(),
                ErrorKind::PermissionDenied => "permission denied".to_owned(),
                _ => source.to_string(),
            };
            format!(
                "not in a pod, and cannot read the kubeconfig {}: {problem}; set KUBECONFIG to the kubeconfig of a cluster",
                path.display()
            )
        }
        Some(error) => format!("not in a pod, and the kubeconfig is wrong: {error}"),
        None => error.to_string(),
    }
}

/// Why there is no connection to a server, if that is the error.
#[must_use]
pub fn connection_text(error: &kube::Error) -> Option<String> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let text = match error.kind() {
                ErrorKind::ConnectionRefused => "nothing listens there".to_owned(),
                ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => {
                    "the connection was closed by the other side".to_owned()
                }
                ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                    "the address is not reachable from here".to_owned()
                }
                _ => error.to_string(),
            };
            return Some(text);
        }
        cause = error.source();
    }
    None
}

fn response_or_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => response_text(status),
        other => other.to_string(),
    }
}

fn request_text(error: &kube::Error, server: &str, context: &str) -> String {
    let problem = match error {
        kube::Error::Api(status) => format!("answered {}", response_text(status)),
        kube::Error::SerdeError(_) => "gave a response that no API server gives; is the address right?".to_owned(),
        error => match connection_text(error) {
            Some(problem) => return format!("cannot reach the API server at {server} ({context}): {problem}"),
            None => format!("failed: {error}"),
        },
    };
    format!("the API server at {server} ({context}) {problem}")
}
