//! Opens a connection. The host grants no sockets, so it must refuse to load this guest.

use std::net::TcpStream;

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};
use serde::Deserialize;

#[derive(Deserialize)]
struct Dialer {
    address: String,
}

impl Act for Dialer {
    fn act(&self, host: &dyn Host) {
        host.count("connected", "", u64::from(TcpStream::connect(&self.address).is_ok()));
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<Dialer>);
