//! Errors that keep the sidecar from starting, or stop it. Each message says what to do. Errors of one request are in `respond`.

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
        setting: &'static str,
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The certificate for TLS clients.
    #[error("{}: {why}; it must be PEM, as in a Secret of type kubernetes.io/tls", path.display())]
    Tls {
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The certificate authorities for external traffic.
    #[error("--external-ca-file (CTRLMESH_EXTERNAL_CA_FILE): {}: {why}; it must hold CA certificates as PEM", path.display())]
    ExternalCa {
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The way to the API server.
    #[error(transparent)]
    Upstream(#[from] crate::upstream::Error),
    #[error(transparent)]
    Wasm(#[from] crate::wasm::Error),
    #[error(transparent)]
    Chain(#[from] crate::chain::Error),
    /// What the sidecar before has noted.
    #[error("--state-dir (CTRLMESH_STATE_DIR): {}: {source}; it must be a directory that the sidecar may write to, as an emptyDir is", directory.display())]
    State {
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
    Forced { seconds: u64 },
}
