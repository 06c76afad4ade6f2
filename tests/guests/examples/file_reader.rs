//! Reads a file. The host grants no file system, so it must refuse to load this guest.

use std::fs;

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};
use serde::Deserialize;

#[derive(Deserialize)]
struct FileReader {
    path: String,
}

impl Act for FileReader {
    fn act(&self, host: &dyn Host) {
        let bytes = fs::read(&self.path).map_or(0, |content| content.len() as u64);
        host.count("bytes_read", "", bytes);
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<FileReader>);
