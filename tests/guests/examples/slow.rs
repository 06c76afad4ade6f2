//! Takes `ms` milliseconds, then continues normally.

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};
use serde::Deserialize;

#[derive(Deserialize)]
struct Slow {
    ms: u64,
}

impl Act for Slow {
    fn act(&self, host: &dyn Host) {
        let end = host.monotonic_ns().saturating_add(self.ms.saturating_mul(1_000_000));
        while host.monotonic_ns() < end {}
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<Slow>);
