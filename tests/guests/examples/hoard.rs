//! Allocates memory, writes to it and keeps it: `mib` MiB in all, or as much as it gets. If it `must`, getting less is a trap.

use std::cell::RefCell;
use std::hint::black_box;

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};

const MIB: usize = 1024 * 1024;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

#[derive(serde::Deserialize)]
struct Hoard {
    mib: usize,
    #[serde(default)]
    must: bool,
}

impl Act for Hoard {
    fn act(&self, _: &dyn Host) {
        KEPT.with_borrow_mut(|kept| {
            while kept.len() < self.mib {
                let mut more = Vec::new();
                if more.try_reserve_exact(MIB).is_err() {
                    assert!(!self.must, "{} of {} MiB are there", kept.len(), self.mib);
                    return;
                }
                more.resize(MIB, 1_u8);
                kept.push(black_box(more));
            }
        });
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<Hoard>);
