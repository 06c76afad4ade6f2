//! Computes for ever without calling the host.

use std::hint::black_box;

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};

#[derive(serde::Deserialize)]
struct Spin {}

impl Act for Spin {
    fn act(&self, _: &dyn Host) {
        let mut turns = 0_u64;
        loop {
            turns = black_box(turns.wrapping_add(1));
        }
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<Spin>);
