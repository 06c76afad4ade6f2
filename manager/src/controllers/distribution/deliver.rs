//! Brings a chain to where sidecars find it: plugins, the document, and a word to kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, plugin_config_map};
use ctrlmesh_contract::{Chain, Digest};
use ctrlmesh_manager_oci::Found;

use super::carried::Packed;
use super::fleet::Fleet;
use super::memory::Memory;
use super::reconcile::{Distributor, Next};
use super::slots::{NoRoom, Slots};
use super::stored::Stored;
use super::support::Interfaces;
use super::told::{self, Bump};
use super::{slots, unreachable, write};
use crate::cluster::{Error, error_text};

/// What a pass has done.
pub(super) struct Done {
    /// Something was written.
    pub(super) written: bool,
    /// Every pod that is behind was told.
    pub(super) told: bool,
    /// In how long one of them is told again.
    pub(super) again: Option<Duration>,
}

impl Distributor {
    /// Writes what is not as it should be: plugins first, then the chain, then pods are told.
    pub(super) async fn write(
        &self,
        stored: &Stored,
        next: &Next,
        fleet: &Fleet,
        memory: &mut Memory,
    ) -> Result<Done, Error> {
        let (chain, namespace) = (&next.chain, &next.chain.namespace);
        let mut written = false;
        let is_there = stored.chain.as_ref() == Some(chain) && stored.claims == next.claims;
        if stored.is_watched && is_there {
            // What no sidecar runs any more is taken out once all of them run the chain.
            let is_everywhere = fleet
                .sidecars
                .iter()
                .all(|sidecar| fleet.is_at(sidecar, &chain.entries));
            written |= self.write_slots(stored, next, !is_everywhere, memory).await?;
        } else {
            self.write_slots(stored, next, true, memory).await?;
            let (client, read) = (&self.context.client, stored.version.as_deref());
            let version = write::chain(client, chain, &next.claims, &self.key, read).await?;
            memory.note(Some(CHAIN_CONFIG_MAP.to_owned()), version);
            self.context.metrics.distribution.written.inc();
            tracing::info!(%namespace, generation = chain.generation, entries = chain.entries.len(), "chain written");
            unreachable::tell(self, next, fleet).await;
            written = true;
        }
        let (told, again) = self.tell(next, fleet, memory).await;
        Ok(Done { written, told, again })
    }

    /// Has kubelet sync the volumes of pods that are behind. Whether all of them were told, and in how long one is told again.
    async fn tell(&self, next: &Next, fleet: &Fleet, memory: &mut Memory) -> (bool, Option<Duration>) {
        let (namespace, generation) = (&next.chain.namespace, next.chain.generation);
        let (due, again) = told::due(&mut memory.told, fleet, &next.chain.entries, generation, Instant::now());
        let failed = write::bump(&self.context.client, namespace, &due, generation).await;
        let now = Instant::now();
        let was_told = |bump: &&Bump| failed.iter().all(|(pod, _)| *pod != bump.pod);
        for bump in due.iter().filter(was_told) {
            told::note(&mut memory.told, bump, generation, now);
        }
        for (pod, error) in &failed {
            tracing::warn!(error = error_text(error), %namespace, pod, "a pod was not told of the chain; it is told again, or kubelet finds it");
        }
        (failed.is_empty(), again)
    }

    /// Whether anything was written.
    async fn write_slots(&self, stored: &Stored, next: &Next, keep: bool, memory: &mut Memory) -> Result<bool, Error> {
        let known = self.known(&next.found);
        let wanted = self
            .placed(stored, &next.chain, keep, &next.found)
            .map_err(|error| Error::NoRoom(error.into()))?;
        let mut is_written = false;
        for (number, plugins) in wanted.iter().enumerate() {
            let digests: BTreeSet<Digest> = plugins.keys().copied().collect();
            if stored.is_slot(number, &digests, &known) {
                continue;
            }
            let bytes = |digest: &Digest| known.get(digest).map(|packed| packed.bytes.clone());
            let plugins = digests.iter().map(|digest| (*digest, bytes(digest))).collect();
            let (client, there) = (&self.context.client, stored.slot(number));
            let version = write::slot(client, &next.chain.namespace, number, &plugins, there).await?;
            memory.note(plugin_config_map(number), version);
            is_written = true;
        }
        Ok(is_written)
    }

    /// Where the plugins of a chain lie, and with `keep` those that nobody needs any more.
    pub(super) fn placed(&self, stored: &Stored, chain: &Chain, keep: bool, found: &Found) -> Result<Slots, NoRoom> {
        let known = self.known(found).into_iter();
        let sizes: BTreeMap<Digest, usize> = known.map(|(digest, packed)| (digest, packed.bytes.len())).collect();
        let now = stored.slots(&sizes);
        let lying: BTreeSet<Digest> = now.iter().flat_map(|slot| slot.keys().copied()).collect();
        let digests = chain.entries.iter().map(|entry| entry.plugin);
        let needed = digests.filter_map(|digest| {
            let size = sizes.get(&digest).copied();
            Some((digest, size.or_else(|| lying.contains(&digest).then_some(0))?))
        });
        let in_use = if keep { lying.clone() } else { BTreeSet::new() };
        slots::place(&now, &needed.collect(), &in_use)
    }

    /// Every plugin whose bytes are here.
    fn known(&self, found: &Found) -> BTreeMap<Digest, Packed> {
        let own = found.artifacts().map(|artifact| Packed {
            digest: artifact.digest,
            bytes: artifact.packed.clone(),
            interface: Some(artifact.interface),
        });
        let all = self.built_in.values().cloned().chain(own);
        all.map(|packed| (packed.digest, packed)).collect()
    }

    /// The versions of the plugin interface that plugins need.
    pub(super) fn interfaces(&self, found: &Found) -> Interfaces {
        let known = self.known(found).into_values();
        known
            .filter_map(|packed| Some((packed.digest, packed.interface?)))
            .collect()
    }

    /// What plugins are.
    pub(super) fn resolved(&self, found: &Found) -> ctrlmesh_manager_planner::Resolved {
        let built_in = self.built_in.iter();
        ctrlmesh_manager_planner::Resolved {
            built_in: built_in.map(|(plugin, packed)| (*plugin, packed.digest)).collect(),
            own: found.digests(),
        }
    }
}
