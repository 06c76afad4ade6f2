//! The server over real sockets, beside an API server.

mod certificate;
mod client;
mod clients;
mod floods;
mod frames;
mod injections;
mod manifests;
mod reviews;
mod starvation;
mod test_env;
mod transport;
mod warnings;

pub(crate) use client::Client;
pub(crate) use test_env::configuration;
use test_env::{TestEnv, wait_for};
