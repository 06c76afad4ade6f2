//! What is known of a namespace besides what lies in the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::{Chain, Digest};

use super::restart::Restarts;
use super::unreachable::Silent;
use super::world::World;
use crate::hand_over::Claims;

/// A write that is not seen by then is no longer waited for.
const MAX_UNSEEN: Duration = Duration::from_secs(5);

/// Since when pods run the entries of their shards, and nothing before them: by UID, with what stands for those entries.
pub(super) type Quiet = BTreeMap<String, (Digest, Instant)>;

/// Whatever is lost with it is found out again.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// The chain that was written last, for a ConfigMap that somebody spoils.
    pub(super) last: Option<(Chain, Claims)>,
    /// Since when pods are quiet.
    pub(super) quiet: Quiet,
    /// Names of the entries that sidecars said last to run, by the pod's UID.
    pub(super) running: BTreeMap<String, BTreeSet<String>>,
    /// Highest generation that any sidecar has spoken of.
    pub(super) generation: u64,
    /// Versions that our last writes made, by ConfigMap, and when: what is watched comes later.
    written: BTreeMap<String, (u64, Instant)>,
    /// Pods that are waited for and do not answer.
    pub(super) silent: Silent,
    /// Pods that are made again.
    pub(super) restarts: Restarts,
}

impl Memory {
    /// Whether the watch has come as far as our last writes. Without that, they would be repeated.
    pub(super) fn has_seen_writes(&mut self, world: &World, namespace: &str) -> bool {
        self.written.retain(|name, (version, at)| {
            let map = world.config_map(namespace, name);
            let seen = map.and_then(|map| map.metadata.resource_version.as_deref()?.parse::<u64>().ok());
            // Somebody may have deleted it since.
            seen.is_none_or(|seen| seen < *version) && at.elapsed() < MAX_UNSEEN
        });
        self.written.is_empty()
    }

    /// Remembers a write.
    pub(super) fn note(&mut self, name: Option<String>, version: Option<String>) {
        let version = version.and_then(|version| version.parse().ok());
        if let (Some(name), Some(version)) = (name, version) {
            self.written.insert(name, (version, Instant::now()));
        }
    }
}
