//! What can stop the sidecar, each with what a person can do about it. Errors of one request are `respond`'s.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Why the sidecar does not start, or stops.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Settings that make no sense together.
    #[error("settings:\n{0}")]
    Settings(String),
    /// A port is taken, or the address is not this pod's.
    #[error("{setting}: can't listen on {address}: {source}; is another sidecar running? choose another port")]
    Bind {
        /// The flag.
        setting: &'static str,
        /// Its value.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The certificate for TLS clients.
    #[error("{}: {why}; it must be PEM, as in a Secret of type kubernetes.io/tls", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The certificate authorities for external traffic.
    #[error("--external-ca-file (CTRLMESH_EXTERNAL_CA_FILE): {}: {why}; it must hold CA certificates as PEM", path.display())]
    ExternalCa {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The way to the API server.
    #[error(transparent)]
    Upstream(#[from] crate::upstream::Error),
    /// The plugin host.
    #[error(transparent)]
    Wasm(#[from] crate::wasm::Error),
    /// The chain's source.
    #[error(transparent)]
    Chain(#[from] crate::chain::Error),
    /// What the sidecar before has noted.
    #[error("--state-dir (CTRLMESH_STATE_DIR): {}: {source}; it must be a directory that the sidecar may write to, as an emptyDir is", directory.display())]
    State {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The public key that chains must be signed with.
    #[error("--public-key (CTRLMESH_PUBLIC_KEY): {0}")]
    PublicKey(#[source] ctrlmesh_contract::Error),
    /// A thread could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
    /// Draining took longer than allowed.
    #[error("requests were still in flight after {seconds} s and were cut off")]
    Forced {
        /// The deadline.
        seconds: u64,
    },
}
