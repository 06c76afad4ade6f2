//! The control plane, so far its pure part: custom resources in, chains out.
//!
//! Flow: [`validate::read`] turns a document into an object or says what is wrong with it; [`auto_shard()`] makes the shards of a
//! root; [`overlap()`] finds objects that two shards see, or none; [`compile()`] makes the chain of a namespace.
//!
//! Pure: no cluster, no files, no clock. Who watches and writes is not here yet.

pub mod api;
pub mod auto_shard;
pub mod built_in;
pub mod compile;
pub mod crds;
mod label_set;
pub mod overlap;
#[cfg(test)]
mod samples;
mod schema;
mod settings;
pub mod shard_hash;
pub mod validate;

pub use auto_shard::{LabelKeys, auto_shard};
pub use built_in::BuiltIn;
pub use compile::{Compiled, Objects, Resolved, compile};
pub use overlap::overlap;
pub use shard_hash::shard_hash;
pub use validate::{Findings, validate};
