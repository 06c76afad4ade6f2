//! Pulls from a registry over real sockets.

mod connections;
mod login;
mod messages;
mod plugins;
mod tags;
mod test_env;
mod unavailable_registry;
mod wrong_content;
