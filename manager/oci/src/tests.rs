//! Pulls from a registry over real sockets.

mod lies;
mod login;
mod plugins;
mod tags;
mod test_env;
mod trouble;
mod way;
