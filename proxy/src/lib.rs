//! The sidecar: every request and response of a controller passes a chain of WebAssembly plugins.

pub mod exchange;
pub mod upstream;
pub mod verdict;
