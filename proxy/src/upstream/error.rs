//! Errors of connections to a server (the API server, or a target of external traffic), detailed enough for `respond` to choose a response
//! and for users to act.
//!
//! Leaves status codes and Retry-After to `respond`.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

/// An error of any kind, as body and layer traits want it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The API server's address or the credentials for it are unusable. Occurs at the start only.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is neither a kubeconfig nor a pod's service account.
    #[error(
        "the API server is unknown: not in a pod ({source}); run in a pod with a service account, or give --kubeconfig FILE"
    )]
    NotInCluster {
        /// The missing part of the pod's environment.
        #[source]
        source: kube::config::InClusterError,
    },
    /// A context was named, but no kubeconfig.
    #[error("context {context:?} is given without a kubeconfig; give the kubeconfig too")]
    ContextWithoutKubeconfig { context: String },
    /// The kubeconfig cannot be read or is incomplete.
    #[error("kubeconfig {}: {}", path.display(), kubeconfig_text(source))]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// The kubeconfig has no such context, or none is chosen.
    #[error("kubeconfig {}: {problem}", path.display())]
    KubeconfigContext { path: PathBuf, problem: String },
    /// The directory does not contain exactly one kubeconfig.
    #[error("kubeconfig {}: {problem}", path.display())]
    KubeconfigDirectory { path: PathBuf, problem: String },
    /// The kubeconfig requires a forward proxy.
    #[error("kubeconfig {}: proxy-url is not supported; point `server` at an address that is reached directly", path.display())]
    ProxyUrl { path: PathBuf },
    /// The server URL is invalid.
    #[error("server URL {url}: {problem}")]
    ServerUrl { url: String, problem: &'static str },
    /// The CA or the client certificate is unusable.
    #[error("TLS settings for {url}: {source}; check the certificate authority, client certificate and key")]
    Tls {
        url: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// Token, exec plugin or password cannot be used.
    #[error("credentials for {url}: {source}")]
    Credentials {
        url: String,
        #[source]
        source: BoxError,
    },
}

/// The library's text names the path again.
fn kubeconfig_text(source: &kube::config::KubeconfigError) -> String {
    match source {
        kube::config::KubeconfigError::ReadConfig(error, _) => {
            format!("{error}; write the path of a kubeconfig that the sidecar can read")
        }
        source => source.to_string(),
    }
}

/// No connection could be opened. Shared by all requests that waited for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name has no address.
    #[error("can't resolve {host}: {source}")]
    Resolve {
        host: String,
        /// Error of the resolver.
        #[source]
        source: io::Error,
    },
    /// The gate refuses the address (`dial.rs`).
    #[error("{host}: {why}")]
    Refused {
        host: String,
        /// The reason for the refusal, and what to do about it.
        why: String,
    },
    /// All sockets that the limit of file descriptors allows are open.
    #[error("no connection can be opened: the limit of file descriptors is reached; raise RLIMIT_NOFILE")]
    NoSocketLeft,
    /// No address answered; this is the error of the last one.
    #[error("can't connect to {address}: {source}")]
    Connect {
        /// The last address tried.
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// The configured CA does not vouch for the server's certificate, or the server refuses the sidecar's.
    #[error(
        "TLS with {authority} failed: {source}; check its certificate against the configured certificate authority"
    )]
    Tls {
        authority: String,
        #[source]
        source: io::Error,
    },
    /// The connection was not ready in time.
    #[error("no connection to {authority} within {} s", timeout.as_secs_f64())]
    Timeout { authority: String, timeout: Duration },
    /// The server does not speak the agreed protocol.
    #[error("{authority} accepted the connection and broke it off before it took a request: {source}")]
    Handshake {
        authority: String,
        #[source]
        source: BoxError,
    },
    /// The server announced SETTINGS_MAX_CONCURRENT_STREAMS 0.
    #[error("{authority} takes no requests: it allows 0 concurrent streams")]
    NoStreams { authority: String },
    /// The worker is shutting down.
    #[error("the sidecar is shutting down")]
    ShuttingDown,
}

/// A request got no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No connection could be opened and nothing was sent. Safe to repeat.
    #[error("{source}")]
    Unreachable {
        #[source]
        source: Arc<ConnectError>,
    },
    /// The server reported that it did not process the request (GOAWAY, REFUSED_STREAM), and the sidecar could not send it again: it was
    /// refused too often, or its body was too large to keep. Safe to repeat.
    #[error("the request was refused unprocessed: {source}")]
    NotProcessed {
        #[source]
        source: BoxError,
    },
    /// The connection or stream broke after the request was (perhaps partly) sent.
    #[error("the connection broke before the response: {source}")]
    Broken {
        /// Whether the server may have carried the request out.
        maybe_executed: bool,
        #[source]
        source: BoxError,
    },
    /// The response head did not arrive in time. The server may have carried the request out.
    #[error("no response within {} s", timeout.as_secs_f64())]
    HeadTimeout { timeout: Duration },
    /// All connections are in use and no more may be opened. Nothing was sent.
    #[error("all {limit} connections are in use")]
    TooManyConnections { limit: usize },
    /// The client's own body ended in an error. The server received a truncated request.
    #[error("request body failed: {source}")]
    RequestBody {
        #[source]
        source: BoxError,
    },
    /// The request cannot be written on the wire (a connection-specific header over HTTP/2, for instance).
    #[error("request can't be sent: {source}")]
    InvalidRequest {
        #[source]
        source: BoxError,
    },
}

impl SendError {
    /// Whether the server may have carried the request out.
    #[must_use]
    pub const fn maybe_executed(&self) -> bool {
        match self {
            Self::Broken { maybe_executed, .. } => *maybe_executed,
            Self::HeadTimeout { .. } | Self::RequestBody { .. } => true,
            Self::Unreachable { .. }
            | Self::NotProcessed { .. }
            | Self::TooManyConnections { .. }
            | Self::InvalidRequest { .. } => false,
        }
    }
}

/// Why a response body ended early; inside the [`BoxError`] of an [`UpstreamBody`](super::UpstreamBody).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The server reset the stream.
    #[error("the server reset the response: {source}")]
    Reset {
        /// HTTP/2 error code.
        code: u32,
        /// Error of the library.
        #[source]
        source: h2::Error,
    },
    /// The body was given up because it was not read, and unread bodies together took too much memory.
    #[error("the response was given up: it was not read for too long while others waited to be read")]
    Unread,
    #[error("the connection broke during the response: {source}")]
    Broken {
        #[source]
        source: BoxError,
    },
}

impl From<h2::Error> for BodyError {
    fn from(source: h2::Error) -> Self {
        match source.reason() {
            Some(reason) if source.is_reset() => Self::Reset {
                code: reason.into(),
                source,
            },
            _ => Self::Broken { source: source.into() },
        }
    }
}
