//! Judges and counts outcomes of requests. The source is the SDK's, which is published without other crates, so that native tests of
//! plugins count exactly as a sidecar does.

#[path = "../../../sdk/src/testing/tally.rs"]
mod shared;

pub(crate) use shared::{ConnectionFailures, CountingRule, Counts, Crossed, End, EndCause, Judged, Tally, WindowRule};
