//! The decision of a pass, and the outcome of its writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ctrlmesh_contract::Origin;
use ctrlmesh_manager_api::status::Reason;

use crate::next_chain::NextChain;
use crate::plugins::{ConfigMapWrites, NoRoom};
use crate::pod_actions::{PodNudge, RestartPlan, RestartResult};
use crate::pods::PodStates;

/// Everything that a pass does: writes, nudges, restarts and releases. Status is derived from it.
#[derive(Debug)]
pub struct Decision {
    pub next: NextChain,
    pub states: PodStates,
    pub writes: Result<ConfigMapWrites, NoRoom>,
    /// Hand-overs of the next chain that do not wait for unreachable pods.
    pub overtakings: Vec<Overtaking>,
    /// Pods to nudge once the chain is stored.
    pub nudges: Vec<PodNudge>,
    pub restarts: RestartPlan,
    /// Entries of deleted ShardingConfigs that may go now.
    pub released: BTreeSet<String>,
    /// Pods to poll more often. `None`: as before.
    pub awaited: Option<BTreeSet<String>>,
    /// Nothing is left to run, and no pod is left to wait for.
    pub is_finished: bool,
    /// When the next pass is due at the latest, if anything is in progress.
    pub requeue_after: Option<Duration>,
}

/// A shard that gets objects which unreachable pods may still show.
#[derive(Debug, PartialEq)]
pub struct Overtaking {
    pub entry: String,
    /// The ShardingConfig of the entry.
    pub origin: Option<Origin>,
    pub note: String,
}

impl Overtaking {
    /// The text of its Event. `holders`: the shards that may still show the objects; `pods`: their unreachable pods.
    #[must_use]
    pub fn note_text(holders: &[&str], pods: &[&str]) -> String {
        format!(
            "taking over from {}: pods {} are unreachable",
            holders.join(", "),
            pods.join(", ")
        )
    }
}

/// The outcome of a decision that was carried out.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Resource versions of the ConfigMaps that were written, also if a later one failed.
    pub written: Vec<(String, Option<String>)>,
    /// Why ConfigMaps could not be written.
    pub failure: Option<WriteFailure>,
    pub nudged: Vec<PodNudge>,
    /// Pods that could not be nudged.
    pub nudges_failed: usize,
    /// Steps of restarts, by the shard's entry.
    pub restarts: BTreeMap<String, RestartResult>,
}

/// Why ConfigMaps could not be written.
#[derive(Debug)]
pub enum WriteFailure {
    /// Another writer has changed a ConfigMap. The next pass reads it.
    Conflict,
    /// The reason is for conditions.
    Failed(Reason),
}
