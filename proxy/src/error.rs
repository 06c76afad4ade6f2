//! Errors that keep the sidecar from starting, or stop it. Each message says what to do. Errors of one request are in `respond`.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Why the sidecar does not start, or stops.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Settings contradict each other.
    #[error("settings:\n{0}")]
    Settings(String),
    /// A port is taken, or the address is not this pod's.
    #[error("{setting}: can't listen on {address}: {source}; is another sidecar running? choose another port")]
    Bind {
        setting: &'static str,
        address: SocketAddr,
        source: std::io::Error,
    },
    /// The certificate for TLS clients is unusable.
    #[error("{}: {why}; it must be PEM, as in a Secret of type kubernetes.io/tls", path.display())]
    Tls { path: PathBuf, why: String },
    /// The certificate authorities for external traffic are unusable.
    #[error("--external-ca-file (CTRLMESH_EXTERNAL_CA_FILE): {}: {why}; it must hold CA certificates as PEM", path.display())]
    ExternalCa { path: PathBuf, why: String },
    /// The connection to the API server cannot be configured.
    #[error(transparent)]
    Upstream(#[from] crate::upstream::Error),
    #[error(transparent)]
    Wasm(#[from] crate::wasm::Error),
    #[error(transparent)]
    Chain(#[from] crate::chain::Error),
    /// The state that an earlier sidecar left cannot be read or written.
    #[error("--state-dir (CTRLMESH_STATE_DIR): {}: {source}; it must be a directory that the sidecar may write to, as an emptyDir is", directory.display())]
    State { directory: PathBuf, source: std::io::Error },
    /// The public key for chains is invalid.
    #[error("--public-key (CTRLMESH_PUBLIC_KEY): {0}")]
    PublicKey(#[source] ctrlmesh_contract::Error),
    /// A thread could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
    /// Draining took longer than allowed.
    #[error("requests were still in flight after {seconds} s and were cut off")]
    Forced { seconds: u64 },
}
