//! Against a registry over real sockets.

mod distributed;
mod lies;
mod login;
mod plugins;
mod stand;
mod tags;
mod trouble;
mod way;
