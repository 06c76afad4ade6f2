//! Bounds on the bytes of a component.

/// Maximum size of a plugin. A `ConfigMap` holds 1 MiB; a Rust plugin has some 100 KiB, one with a script engine some MiB.
pub const MAX_WASM_BYTES: usize = 16 * 1024 * 1024;
