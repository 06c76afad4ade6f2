//! Brings a chain to where sidecars find it: plugins, the document, and a word to kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, plugin_config_map};
use ctrlmesh_contract::{Chain, Digest};

use super::builtin_plugins::PackedPlugin;
use super::config_maps::StoredConfigMaps;
use super::fleet::Fleet;
use super::memory::Memory;
use super::nudges::{self, PodNudge};
use super::plugin_slots::{NoRoom, PluginSlots};
use super::reconcile::{Decision, Distributor};
use super::sidecar_support::Interfaces;
use super::{plugin_slots, unreachable_pods, write};
use crate::error::Error;
use crate::oci::Found;
use crate::plain::plain;

/// What a pass has done.
pub(super) struct Written {
    /// Something was written.
    pub(super) written: bool,
    /// Every pod that is behind was told.
    pub(super) all_nudged: bool,
    /// In how long one of them is told again.
    pub(super) again: Option<Duration>,
}

impl Distributor {
    /// Writes what is not as it should be: plugins first, then the chain, then pods are told.
    pub(super) async fn write(
        &self,
        stored: &StoredConfigMaps,
        next: &Decision,
        fleet: &Fleet,
        memory: &mut Memory,
    ) -> Result<Written, Error> {
        let (chain, namespace) = (&next.chain, &next.chain.namespace);
        let mut written = false;
        let is_there = stored.chain.as_ref() == Some(chain) && stored.claims == next.claims;
        if stored.is_watched && is_there {
            // What no sidecar runs any more is taken out once all of them run the chain.
            let is_everywhere = fleet
                .sidecars
                .iter()
                .all(|sidecar| fleet.runs_chain(sidecar, &chain.entries));
            written |= self.write_slots(stored, next, !is_everywhere, memory).await?;
        } else {
            self.write_slots(stored, next, true, memory).await?;
            let (client, read) = (&self.context.client, stored.version.as_deref());
            let version = write::chain(client, chain, &next.claims, &self.key, read).await?;
            memory.record_write(Some(CHAIN_CONFIG_MAP.to_owned()), version);
            self.context.metrics.distribution.written.inc();
            tracing::info!(%namespace, generation = chain.generation, entries = chain.entries.len(), "chain written");
            unreachable_pods::tell(self, next, fleet).await;
            written = true;
        }
        let (all_nudged, again) = self.nudge(next, fleet, memory).await;
        Ok(Written {
            written,
            all_nudged,
            again,
        })
    }

    /// Has kubelet sync the volumes of pods that are behind. Whether all of them were told, and in how long one is told again.
    async fn nudge(&self, next: &Decision, fleet: &Fleet, memory: &mut Memory) -> (bool, Option<Duration>) {
        let (namespace, generation) = (&next.chain.namespace, next.chain.generation);
        let (due, again) = nudges::due_nudges(
            &mut memory.nudges,
            fleet,
            &next.chain.entries,
            generation,
            Instant::now(),
        );
        let failed = write::nudge(&self.context.client, namespace, &due, generation).await;
        let now = Instant::now();
        let was_nudged = |nudge: &&PodNudge| failed.iter().all(|(pod, _)| *pod != nudge.pod);
        for nudge in due.iter().filter(was_nudged) {
            nudges::record_nudge(&mut memory.nudges, nudge, generation, now);
        }
        for (pod, error) in &failed {
            tracing::warn!(error = plain(error), %namespace, pod, "a pod was not told of the chain; it is told again, or kubelet finds it");
        }
        (failed.is_empty(), again)
    }

    /// Whether anything was written.
    async fn write_slots(
        &self,
        stored: &StoredConfigMaps,
        next: &Decision,
        keep: bool,
        memory: &mut Memory,
    ) -> Result<bool, Error> {
        let known = self.known(&next.found);
        let wanted = self
            .placed(stored, &next.chain, keep, &next.found)
            .map_err(Error::NoRoom)?;
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
            memory.record_write(plugin_config_map(number), version);
            is_written = true;
        }
        Ok(is_written)
    }

    /// Where the plugins of a chain lie, and with `keep` those that nobody needs any more.
    pub(super) fn placed(
        &self,
        stored: &StoredConfigMaps,
        chain: &Chain,
        keep: bool,
        found: &Found,
    ) -> Result<PluginSlots, NoRoom> {
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
        plugin_slots::place(&now, &needed.collect(), &in_use)
    }

    /// Every plugin whose bytes are here.
    fn known(&self, found: &Found) -> BTreeMap<Digest, PackedPlugin> {
        let own = found.artifacts().map(|artifact| PackedPlugin {
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
    pub(super) fn resolved(&self, found: &Found) -> crate::Resolved {
        let built_in = self.built_in.iter();
        crate::Resolved {
            built_in: built_in.map(|(plugin, packed)| (*plugin, packed.digest)).collect(),
            own: found.digests(),
        }
    }
}
