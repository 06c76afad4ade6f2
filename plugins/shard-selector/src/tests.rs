//! Tests of all modules; here and not beside them, because `examples/shard_selector_next.rs` includes those files.

mod lock;
mod plugin;
mod properties;
mod selector;
mod view;
