//! What can go wrong towards a server (the API server, or a target of external traffic), told so that `respond` can choose an answer and a person knows what to do.
//!
//! Leaves status codes and Retry-After to `respond`.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

/// An error of any kind, as body and layer traits want it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The API server's address or the credentials for it can't be made out. Only at start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither a kubeconfig nor a pod's service account.
    #[error(
        "no way to the API server: not in a pod ({source}); run in a pod with a service account, or give a kubeconfig"
    )]
    NotInCluster {
        /// What is missing of the pod's environment.
        #[source]
        source: kube::config::InClusterError,
    },
    /// A context was named, but no file to find it in.
    #[error("context {context:?} is given without a kubeconfig; give the kubeconfig too")]
    ContextWithoutKubeconfig {
        /// The context.
        context: String,
    },
    /// The kubeconfig can't be read or lacks something.
    #[error("kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// A directory that should have one kubeconfig.
    #[error("kubeconfig {}: {problem}", path.display())]
    KubeconfigDirectory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The kubeconfig wants a forward proxy.
    #[error("kubeconfig {}: proxy-url is not supported; point `server` at an address that is reached directly", path.display())]
    ProxyUrl {
        /// The file.
        path: PathBuf,
    },
    /// The server URL is of no use.
    #[error("server URL {url}: {problem}")]
    ServerUrl {
        /// The URL.
        url: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// CA or client certificate can't be used.
    #[error("TLS settings for {url}: {source}; check the certificate authority, client certificate and key")]
    Tls {
        /// The server URL.
        url: String,
        /// What is wrong with them.
        #[source]
        source: Box<kube::Error>,
    },
    /// Token, exec plugin or password can't be had.
    #[error("credentials for {url}: {source}")]
    Credentials {
        /// The server URL.
        url: String,
        /// Why not.
        #[source]
        source: BoxError,
    },
}

/// No connection. Shared by all requests that waited for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name has no address.
    #[error("can't resolve {host}: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver says.
        #[source]
        source: io::Error,
    },
    /// It may not be connected to (`dial.rs`).
    #[error("{host}: {why}")]
    Refused {
        /// The name.
        host: String,
        /// Why not, and what to do about it.
        why: String,
    },
    /// All sockets that the limit of file descriptors leaves are open.
    #[error("no connection can be opened: the limit of file descriptors is reached; raise RLIMIT_NOFILE")]
    NoSocketLeft,
    /// No address answered; the last one said this.
    #[error("can't connect to {address}: {source}")]
    Connect {
        /// The last address tried.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The server's certificate is not one that the configured CA vouches for, or the server refuses ours.
    #[error(
        "TLS with {authority} failed: {source}; check its certificate against the configured certificate authority"
    )]
    Tls {
        /// Host and port.
        authority: String,
        /// What rustls says.
        #[source]
        source: io::Error,
    },
    /// Not done in time.
    #[error("no connection to {authority} within {} s", timeout.as_secs_f64())]
    Timeout {
        /// Host and port.
        authority: String,
        /// The limit.
        timeout: Duration,
    },
    /// The other side doesn't speak the protocol agreed on.
    #[error("{authority} accepted the connection and broke it off before it took a request: {source}")]
    Handshake {
        /// Host and port.
        authority: String,
        /// What went wrong.
        #[source]
        source: BoxError,
    },
    /// The server announced SETTINGS_MAX_CONCURRENT_STREAMS 0.
    #[error("{authority} takes no requests: it allows 0 concurrent streams")]
    NoStreams {
        /// Host and port.
        authority: String,
    },
    /// The worker is going down.
    #[error("the sidecar is shutting down")]
    ShuttingDown,
}

/// A request got no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Nothing was sent: no connection could be had. Safe to repeat.
    #[error("{source}")]
    Unreachable {
        /// Why not.
        #[source]
        source: Arc<ConnectError>,
    },
    /// The server said that it did not look at it (GOAWAY, REFUSED_STREAM), and it could not be sent again here:
    /// refused too often, or its body was too large to keep. Safe to repeat.
    #[error("the request was refused unprocessed: {source}")]
    NotProcessed {
        /// What it said.
        #[source]
        source: BoxError,
    },
    /// The connection or stream broke after the request was (perhaps partly) sent.
    #[error("the connection broke before the response: {source}")]
    Broken {
        /// Whether the server may have carried it out.
        maybe_executed: bool,
        /// How it broke.
        #[source]
        source: BoxError,
    },
    /// No response head in time. The server may have carried the request out.
    #[error("no response within {} s", timeout.as_secs_f64())]
    HeadTimeout {
        /// The limit.
        timeout: Duration,
    },
    /// All connections are in use and no more may be opened. Nothing was sent.
    #[error("all {limit} connections are in use")]
    TooManyConnections {
        /// The limit.
        limit: usize,
    },
    /// The client's own body ended in an error. The server saw a truncated request.
    #[error("request body failed: {source}")]
    RequestBody {
        /// What the client did.
        #[source]
        source: BoxError,
    },
    /// The request can't be written on the wire (a connection-specific header over HTTP/2, for instance).
    #[error("request can't be sent: {source}")]
    InvalidRequest {
        /// What is wrong with it.
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

/// Why a response body ended before its end; inside the [`BoxError`] of an [`UpstreamBody`](super::UpstreamBody).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The server reset the stream.
    #[error("the server reset the response: {source}")]
    Reset {
        /// HTTP/2 error code.
        code: u32,
        /// As the library tells it.
        #[source]
        source: h2::Error,
    },
    /// Nobody read it, and others were not read either.
    #[error("the response was given up: it was not read for too long while others waited to be read")]
    Unread,
    /// The connection broke.
    #[error("the connection broke during the response: {source}")]
    Broken {
        /// How.
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
