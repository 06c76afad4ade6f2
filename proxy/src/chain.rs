//! The chain: which plugins see which requests, and how a new chain comes into force without disturbing requests.
//!
//! - `matcher.rs`, `index.rs`: find the entries that want a request, in native code, so that a request that no entry wants costs almost
//!   nothing
//! - `quarantine.rs`: quarantine of entries that keep failing
//! - `snapshot.rs`: an immutable chain, as a request keeps it to its end
//! - `handle.rs`: the chain in force and its part of `/status`; `in_flight.rs`: requests in flight under earlier chains;
//!   `metrics.rs`: counters
//! - `directory.rs`, `packed.rs`, `labels.rs`: read the volumes that kubelet mounts
//! - `retirement.rs`: notifies when an entry has no holder any more
//! - `predecessors.rs`: the record of sidecars that ran in this pod before
//! - `source.rs`, `build.rs`: load a directory into a snapshot; `compiling.rs`: progress of that; `reload.rs`, `directory_watch.rs`: when to
//!   load
//!
//! Leaves running plugins to `wasm`, and acting on verdicts to `request` and `external`.

mod build;
mod compiling;
mod directory;
mod directory_watch;
mod error;
mod handle;
pub(crate) mod in_flight;
mod index;
pub(crate) mod instances;
mod labels;
mod matcher;
mod metrics;
mod packed;
pub(crate) mod phases;
mod predecessors;
mod quarantine;
pub mod reload;
mod retirement;
mod snapshot;
mod source;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod touched;

pub use build::{Host, MakeRoom};
pub use compiling::CompileProgress;
pub use directory_watch::DirectoryWatch;
pub use error::Error;
pub use handle::{ChainHandle, Required};
pub(crate) use in_flight::{Counter, InFlightGuard, Kind};
pub use index::Matched;
pub use matcher::{MatchQuery, Matcher};
pub(crate) use matcher::{VERBS, verb_index};
pub use metrics::Metrics;
pub use predecessors::PredecessorRecord;
pub use quarantine::{Admission, Quarantine, QuarantineState};
pub use reload::{Prepare, Timing};
pub use retirement::Retirements;
pub use snapshot::{Entry, EntryId, Snapshot};
pub use source::{ChainLocation, Labels, Source};
