//! Allocates memory and writes to it until it gets no more.

use std::hint::black_box;

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};

#[derive(serde::Deserialize)]
struct Greedy {}

impl Act for Greedy {
    fn act(&self, _: &dyn Host) {
        const MIB: usize = 1024 * 1024;
        let mut hoard = Vec::new();
        loop {
            hoard.push(black_box(vec![1_u8; MIB]));
        }
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<Greedy>);
