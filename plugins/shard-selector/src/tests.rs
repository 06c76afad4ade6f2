//! Tests of all modules; not beside the modules, because `examples/shard_selector_next.rs` includes those files.

mod freshness;
mod hash_ranges;
mod lock;
mod plugin;
mod properties;
mod selector;
mod view;
