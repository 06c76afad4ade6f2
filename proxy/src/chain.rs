//! The chain: which plugins see which requests, and how a new chain comes into force without a request noticing.
//!
//! - `matcher.rs`: whether an entry wants a request; native code, so that nobody's request costs nothing
//! - `health.rs`: quarantine of entries that keep failing
//! - `snapshot.rs`: an immutable chain, as a request keeps it to its end
//! - `handle.rs`: the chain in force, and what `/status` says of it
//! - `directory.rs`, `labels.rs`, `packed.rs`: reading what kubelet mounts
//! - `source.rs`, `build.rs`: from a directory to a snapshot; `watch.rs`: when to do that
//!
//! Leaves running plugins to `wasm/`, and everything that is done with a verdict to others.

mod health;
mod matcher;

pub use health::{Admission, Health, HealthState};
pub use matcher::{MatchQuery, Matcher};
