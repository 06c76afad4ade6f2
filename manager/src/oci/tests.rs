//! Against a registry over real sockets.

mod lies;
mod login;
mod plugins;
mod stand;
mod tags;
mod trouble;
mod way;
