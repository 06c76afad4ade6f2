//! The chain: which plugins see which requests, and how a new chain comes into force without a request noticing.
//!
//! - `matcher.rs`, `index.rs`: which entries want a request; native code, so that a request that nobody wants costs nothing
//! - `health.rs`: quarantine of entries that keep failing
//! - `snapshot.rs`: an immutable chain, as a request keeps it to its end
//! - `handle.rs`: the chain in force, and what `/status` says of it; `tally.rs`: what is under way under earlier ones;
//!   `metrics.rs`: what is counted
//! - `directory.rs`, `packed.rs`, `labels.rs`: reading what kubelet mounts
//! - `retirement.rs`: when nobody holds an entry any more
//! - `past.rs`: what is known of sidecars that ran in this pod before
//! - `source.rs`, `build.rs`: from a directory to a snapshot; `compiling.rs`: how far that is; `watch.rs`, `directory_watch.rs`: when to do that
//!
//! Leaves running plugins to `wasm/`, and what follows from a verdict to others.

mod build;
mod compiling;
mod directory;
mod directory_watch;
mod error;
mod handle;
mod health;
mod index;
mod labels;
mod matcher;
mod metrics;
mod packed;
mod past;
mod retirement;
mod snapshot;
mod source;
pub(crate) mod tally;
#[cfg(test)]
pub(crate) mod tests;
pub mod watch;

pub use build::{Host, MakeRoom};
pub use compiling::CompileProgress;
pub use directory_watch::DirectoryWatch;
pub use error::Error;
pub use handle::{ChainHandle, Required};
pub use health::{Admission, Health, HealthState};
pub use index::Matched;
pub use matcher::{MatchQuery, Matcher};
pub(crate) use matcher::{VERBS, verb_index};
pub use metrics::Metrics;
pub use past::Past;
pub use retirement::Retirements;
pub use snapshot::{Entry, EntryId, Snapshot};
pub use source::{Labels, Place, Source};
pub(crate) use tally::{Counter, Kind, Ticket};
pub use watch::{Prepare, Timing};
