//! The chain: which plugins see which requests, and how a new chain comes into force without disturbing requests.
//!
//! - `matcher.rs`, `index.rs`: find the entries that want a request, in native code, so that a request that no entry wants costs almost
//!   nothing
//! - `health.rs`: quarantine of entries that keep failing
//! - `snapshot.rs`: an immutable chain, as a request keeps it to its end
//! - `handle.rs`: the chain in force and its part of `/status`; `tally.rs`: requests in flight under earlier chains;
//!   `metrics.rs`: counters
//! - `directory.rs`, `packed.rs`, `labels.rs`: read the volumes that kubelet mounts
//! - `retirement.rs`: notifies when an entry has no holder any more
//! - `past.rs`: the note of sidecars that ran in this pod before
//! - `source.rs`, `build.rs`: load a directory into a snapshot; `compiling.rs`: progress of that; `watch.rs`, `directory_watch.rs`: when to
//!   load
//!
//! Leaves running plugins to `wasm`, and acting on verdicts to `request` and `external`.

mod build;
mod compiling;
mod directory;
mod directory_watch;
mod error;
mod handle;
mod health;
mod index;
pub(crate) mod instances;
mod labels;
mod matcher;
mod metrics;
mod packed;
mod past;
pub(crate) mod phases;
mod retirement;
mod snapshot;
mod source;
pub(crate) mod tally;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod touched;
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
