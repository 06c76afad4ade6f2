//! Errors for the program that runs the server. Errors for clients are in [`crate::refusal`].

use std::net::SocketAddr;
use std::time::Duration;

use ctrlmesh_wire::Status;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot listen on {address}: is another process using the port?")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot make the test certificates")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    /// A registered kind is invalid.
    #[error("resource {name} {problem}")]
    Resource {
        /// `plural.group`
        name: String,
        problem: &'static str,
    },
    /// A condition was not met in time.
    #[error("the condition did not hold within {after:?}; compare the store and the request log with what you expect")]
    Deadline { after: Duration },
    /// A write through [`crate::Store`] was rejected like a client's.
    #[error("refused with {}: {}", .0.code, .0.message)]
    Refused(Box<Status>),
    /// The server is in the wrong state for this call.
    #[error("the server is {0}")]
    State(&'static str),
}
