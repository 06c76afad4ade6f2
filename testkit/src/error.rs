//! What can go wrong for the program that runs the server. What goes wrong for a client is a [`crate::refusal`].

use std::net::SocketAddr;
use std::time::Duration;

use ctrlmesh_wire::Status;

use crate::refusal::Refusal;

/// An error of the test kit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address could not be bound.
    #[error("cannot listen on {address}: is another process using the port?")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The test CA or certificate could not be made.
    #[error("cannot make the test certificates")]
    Certificate(#[from] rcgen::Error),
    /// The TLS settings were refused.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    /// A registered kind is unusable.
    #[error("resource {name} {problem}")]
    Resource {
        /// `plural.group`
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A condition did not come true in time.
    #[error("the condition did not hold within {after:?}; compare the store and the request log with what you expect")]
    Deadline {
        /// How long was waited.
        after: Duration,
    },
    /// A write through [`crate::Store`] was refused as a client's would have been.
    #[error("refused with {}: {}", .0.code, .0.message)]
    Refused(Box<Status>),
    /// The server is not in the state that the call needs.
    #[error("the server is {0}")]
    State(&'static str),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.0)
    }
}
