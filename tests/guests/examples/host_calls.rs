//! Calls the host for ever: most of the time passes outside the guest, where no deadline of the engine applies.

use std::hint::black_box;

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};

#[derive(serde::Deserialize)]
struct HostCalls {}

impl Act for HostCalls {
    fn act(&self, host: &dyn Host) {
        loop {
            black_box(host.monotonic_ns());
        }
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<HostCalls>);
