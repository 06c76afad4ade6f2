//! What a pass does.

use std::collections::BTreeSet;
use std::time::Duration;

use ctrlmesh_contract::Origin;

use crate::next_chain::NextChain;
use crate::plugins::{ConfigMapWrites, NoRoom};
use crate::pod_actions::{PodNudge, RestartPlan};
use crate::pods::PodStates;

/// What a pass does, and what objects' status says about it.
#[derive(Debug)]
pub struct Decision {
    pub next: NextChain,
    pub states: PodStates,
    /// ConfigMaps to write.
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
    /// The ShardingConfig.
    pub origin: Option<Origin>,
    pub note: String,
}
