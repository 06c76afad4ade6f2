//! Tests of all modules; here and not beside them, because `examples/shard_selector_next.rs` includes those files.

mod freshness;
mod lock;
mod plugin;
mod properties;
mod selector;
mod view;
