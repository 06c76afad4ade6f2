//! Recurses until the stack overflows.

use std::hint::black_box;

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};

#[derive(serde::Deserialize)]
struct Recurse {}

impl Act for Recurse {
    fn act(&self, _: &dyn Host) {
        black_box(recurse_deeper(black_box(0)));
    }
}

#[expect(unconditional_recursion, reason = "that is what this guest is for")]
fn recurse_deeper(depth: u64) -> u64 {
    let frame = black_box([depth; 16]);
    recurse_deeper(depth + 1).wrapping_add(frame.iter().sum())
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<Recurse>);
