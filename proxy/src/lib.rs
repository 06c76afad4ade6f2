//! The sidecar: every request and response of a controller passes a chain of WebAssembly plugins.

pub mod chain;
pub mod exchange;
pub mod harness;
pub mod verdict;
pub mod wasm;
