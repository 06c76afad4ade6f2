//! The control plane, so far its pure part: custom resources in, shards out.
//!
//! Flow: [`validate::read`] turns a document into an object or says what is wrong with it; [`auto_shard()`] makes the shards of a
//! root.
//!
//! Pure: no cluster, no files, no clock. Who watches and writes is not here yet.

pub mod api;
pub mod auto_shard;
pub mod built_in;
pub mod crds;
#[cfg(test)]
mod samples;
mod schema;
mod settings;
pub mod shard_hash;
pub mod validate;

pub use auto_shard::{LabelKeys, auto_shard};
pub use built_in::BuiltIn;
pub use shard_hash::shard_hash;
pub use validate::{Findings, validate};
