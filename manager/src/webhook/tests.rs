//! The server over real sockets, beside an API server.

mod client;
mod manifests;
mod reviews;
mod stand;
mod transport;

pub(super) use client::Client;
pub(super) use stand::{Stand, configuration, eventually};
