//! The server over real sockets, beside an API server.

mod client;
mod clients;
mod crowds;
mod floods;
mod frames;
mod injections;
mod manifests;
mod reviews;
mod stand;
mod transport;
mod warnings;

pub(crate) use client::Client;
pub(crate) use stand::configuration;
pub(super) use stand::{Stand, eventually};
