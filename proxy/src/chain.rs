//! The chain: which plugins see which requests, and how a new chain comes into force without disturbing requests.
//!
//! | file | holds |
//! |---|---|
//! | `reload`, `directory_watch` | when to load; changes of a directory as kubelet makes them |
//! | `source` | loads a mounted directory: checks everything before it changes anything |
//! | `build` | from a document to a snapshot, with new plugins loaded and started |
//! | `predecessors` | the record of sidecars that ran in this pod before |
//! | `phases`, `touched` | calls plugins for one request; records what they did to it |
//! | `instances` | the live plugin instances of a worker thread |
//! | `handle`, `metrics` | the chain in force and its part of `/status`; counters |
//! | `compiling` | progress of loading a new chain |
//! | `snapshot` | an immutable chain, as a request keeps it to its end |
//! | `in_flight`, `retirement` | requests in flight under each chain; when nothing holds an entry any more |
//! | `index`, `matcher` | which entries want a request, in native code, so that other requests cost almost nothing |
//! | `quarantine` | quarantine of entries that keep failing |
//! | `reuse` | repeats verdicts on requests without a call |
//! | `directory`, `zstd`, `labels` | read the volumes that kubelet mounts |
//! | `error` | why a chain did not come into force |
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
pub(crate) mod phases;
mod predecessors;
mod quarantine;
pub mod reload;
mod retirement;
mod reuse;
mod snapshot;
mod source;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod touched;
mod zstd;

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
pub use reuse::{ReuseSettings, ReuseState};
pub use snapshot::{Entry, EntryId, Snapshot};
pub use source::{ChainLocation, Labels, Source};
