//! What became of a decision, as the manager reports it.

use std::collections::BTreeMap;

use crate::Reason;
use crate::pod_actions::{EvictionResult, PodNudge, RestartReasons};

/// What became of a decision.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Resource versions of the ConfigMaps that were written, also if a later one failed.
    pub written: Vec<(String, Option<String>)>,
    /// Why ConfigMaps could not be written.
    pub failure: Option<WriteFailure>,
    pub nudged: Vec<PodNudge>,
    /// Pods that could not be nudged.
    pub nudges_failed: usize,
    /// By the shard's entry.
    pub evictions: BTreeMap<String, EvictionResult>,
    /// Why restarts of shards are not done yet, by entry.
    pub restart_reasons: RestartReasons,
}

/// Why ConfigMaps could not be written.
#[derive(Debug)]
pub enum WriteFailure {
    /// Somebody else has written. The next pass sees what.
    Conflict,
    /// The reason is for conditions.
    Failed(Reason),
}
