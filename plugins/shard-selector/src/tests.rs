//! Tests of all modules; here and not beside them, because `examples/shard_selector_next.rs` includes those files.

use crate::settings::Settings;

/// Settings from JSON, as the plugin gets them.
fn settings(json: &str) -> Settings {
    ctrlmesh_sdk::settings::parse(json).unwrap()
}
