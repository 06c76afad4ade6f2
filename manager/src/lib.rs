//! The control plane, so far its custom resources.
//!
//! Pure: no cluster, no files, no clock. Who watches and writes is not here yet.

pub mod api;
pub mod crds;
mod schema;
