//! Plugins of a chain: which entries are held back because sidecars can't run them, and which ConfigMap holds which plugin. Pure.
//!
//! An entry that needs more than a sidecar of its pods supports is held back. Its object keeps the entries that it had, which that
//! sidecar runs, and the condition names the pods. The chain is one document for a namespace, so an entry is held back for all of
//! its pods; entries of other objects go on. The shards of one lock are held back together: otherwise one of them would be given
//! what another, held back, still shows.
//!
//! Only reports count. A sidecar that has never answered holds back nothing, and refuses by itself what it can't run. Until it was
//! polled for the first time, which takes a moment, it is treated as one of the oldest.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ctrlmesh_contract::names::{CHAIN_API_VERSION, PLUGIN_CONFIG_MAPS};
use ctrlmesh_contract::support::Support;
use ctrlmesh_contract::world::Interface;
use ctrlmesh_contract::{Chain, Digest, Entry, Origin};
use ctrlmesh_manager_api::status::Reason;
use ctrlmesh_manager_planner::built_in::BuiltIn;
use ctrlmesh_manager_planner::hand_over::{Claims, is_of_shard, lock_of};

use crate::config_maps::{MAX_SLOT_BYTES, PluginSlots, StoredConfigMaps};
use crate::fleet::{Report, Sidecar, join_first};
use crate::observation::{AvailablePlugins, Interfaces, Observation};
use crate::pods::Pods;

/// Kind and name of an object.
type Object = (String, String);

/// Objects that are held back, each with the message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsupported(BTreeMap<Object, String>);

/// The interface that an entry needs, and the pods whose sidecars do not support it.
struct MissingSupport {
    needed: Interface,
    is_built_in: bool,
    pods: BTreeMap<String, String>,
}

impl Unsupported {
    /// Holds back objects that sidecars can't run. Returns the entries as they may be now, too. `intended`: the entries that the last
    /// chain leads to.
    pub fn hold_back(
        desired: Vec<Entry>,
        intended: &[Entry],
        interfaces: &Interfaces,
        pods: Pods<'_>,
    ) -> (Self, Vec<Entry>) {
        let mut lacks = BTreeMap::new();
        for entry in desired.iter().filter(|entry| !intended.contains(entry)) {
            let Some(object) = object_of(entry) else { continue };
            if let Some(lack) = MissingSupport::find(entry, interfaces, pods) {
                lacks.entry(object).or_insert(lack);
            }
        }
        if lacks.is_empty() {
            return (Self::default(), desired);
        }
        let mut held = BTreeMap::new();
        for (object, lack) in &lacks {
            let siblings = objects_sharing_lock(object, &desired, intended).into_iter();
            for sibling in siblings.filter(|sibling| is_changed(sibling, &desired, intended)) {
                held.insert(sibling, lack.message());
            }
        }
        held.extend(lacks.into_iter().map(|(object, lack)| (object, lack.message())));
        let is_held = |entry: &&Entry| object_of(entry).is_some_and(|object| held.contains_key(&object));
        let mut entries: Vec<Entry> = desired.iter().filter(|entry| !is_held(entry)).cloned().collect();
        let kept = intended
            .iter()
            .filter(is_held)
            .filter(|entry| still_exists(entry, &desired));
        entries.extend(kept.cloned());
        entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
        (Self(held), entries)
    }

    /// Why an object is held back, if it is.
    pub fn message_of(&self, origin: &Origin) -> Option<&str> {
        self.0
            .get(&(origin.kind.clone(), origin.name.clone()))
            .map(String::as_str)
    }
}

impl MissingSupport {
    /// `None` if every sidecar that the entry selects and that answers supports it.
    fn find(entry: &Entry, interfaces: &Interfaces, pods: Pods<'_>) -> Option<Self> {
        let needed = *interfaces.get(&entry.plugin)?;
        let selected = pods.selected(&entry.pod_selector);
        let lacking = selected.filter_map(|sidecar| {
            let support = reported_support(sidecar, pods)?;
            (!support.supports_interface(needed)).then(|| (sidecar.pod.clone(), support.plugins.join(", ")))
        });
        let lacking: BTreeMap<String, String> = lacking.collect();
        (!lacking.is_empty()).then(|| Self {
            needed,
            is_built_in: entry
                .name
                .split('/')
                .next()
                .is_some_and(|name| BuiltIn::from_name(name).is_some()),
            pods: lacking,
        })
    }

    fn message(&self) -> String {
        let needed = self.needed;
        let pods = self.pods.iter().map(|(pod, supported)| format!("{pod} ({supported})"));
        let or_build = if self.is_built_in {
            ""
        } else {
            ", or build the plugin with the ctrlmesh-sdk of that release"
        };
        format!(
            "a plugin needs sidecars that support ctrlmesh:plugin@{needed}; these pods support less and keep the rules that they have: {}; \
             restart their workload to give it the current sidecar{or_build}",
            join_first(pods.collect::<Vec<_>>().into_iter(), ", ")
        )
    }
}

/// Why no chain can be written in this namespace: a sidecar would refuse the whole document.
pub fn unreadable_documents(pods: Pods<'_>) -> Option<Reason> {
    let lacking = pods.sidecars.iter().filter(|sidecar| {
        let support = reported_support(sidecar, pods);
        support.is_some_and(|support| !support.reads_documents())
    });
    let lacking: Vec<String> = lacking.map(|sidecar| sidecar.pod.clone()).collect();
    (!lacking.is_empty()).then(|| {
        let message = format!(
            "this manager writes {CHAIN_API_VERSION}, which the sidecars of these pods do not read; they keep the rules that they \
             have: {}; restart their workload to give it the current sidecar",
            join_first(lacking.into_iter(), ", ")
        );
        Reason::new(Reason::SIDECAR_OUTDATED, message)
    })
}

/// The interfaces that a sidecar reports to support. `None` if it has never answered.
fn reported_support(sidecar: &Sidecar, pods: Pods<'_>) -> Option<Support> {
    match pods.reports.get(&sidecar.pod) {
        Some(Report::Status(status)) => Some(status.supports.clone().unwrap_or_default()),
        _ if pods.states.awaits_reports && pods.unpolled.contains(&sidecar.pod) => Some(Support::baseline()),
        _ => None,
    }
}

/// The object that an entry is compiled from. All entries of the manager have one.
fn object_of(entry: &Entry) -> Option<Object> {
    let origin = entry.origin.as_ref()?;
    Some((origin.kind.clone(), origin.name.clone()))
}

/// Objects whose shard shares a lock with this one, also by way of others: an edit may give a shard another lock.
fn objects_sharing_lock(of: &Object, desired: &[Entry], intended: &[Entry]) -> BTreeSet<Object> {
    let shards = || desired.iter().chain(intended).filter(|entry| is_of_shard(&entry.name));
    let mut found = BTreeSet::from([of.clone()]);
    loop {
        let is_known = |entry: &&Entry| object_of(entry).is_some_and(|object| found.contains(&object));
        let locks: BTreeSet<Option<&str>> = shards().filter(is_known).map(lock_of).collect();
        let more: BTreeSet<Object> = shards()
            .filter(|entry| locks.contains(&lock_of(entry)))
            .filter_map(object_of)
            .collect();
        let known = found.len();
        found.extend(more);
        if found.len() == known {
            return found;
        }
    }
}

/// Whether the entries of an object would change.
fn is_changed(of: &Object, desired: &[Entry], intended: &[Entry]) -> bool {
    let own = |entries: &[Entry]| -> Vec<Entry> {
        let own = entries.iter().filter(|entry| object_of(entry).as_ref() == Some(of));
        own.cloned().collect()
    };
    !ctrlmesh_manager_planner::compile::kept::is_same(&own(intended), &own(desired))
}

/// Whether the object of an entry still exists. Entries of deleted objects go.
fn still_exists(entry: &Entry, desired: &[Entry]) -> bool {
    desired.iter().any(|other| {
        let uid = |entry: &Entry| entry.origin.as_ref().map(|origin| origin.uid.clone());
        object_of(other) == object_of(entry) && uid(other) == uid(entry)
    })
}

/// ConfigMaps that have to be written. Plugins are written before the chain that needs them.
#[derive(Debug, Default)]
pub struct ConfigMapWrites {
    /// Plugins by number of the ConfigMap. Without bytes: a plugin that stays as it is stored.
    pub slots: Vec<(usize, BTreeMap<Digest, Option<Bytes>>)>,
    /// The chain is written, too.
    pub chain: bool,
}

impl ConfigMapWrites {
    pub const fn is_empty(&self) -> bool {
        self.slots.is_empty() && !self.chain
    }
}

/// The writes that store a chain and its plugins.
///
/// # Errors
/// A plugin finds no room.
pub fn config_map_writes(observation: &Observation, chain: &Chain, claims: &Claims) -> Result<ConfigMapWrites, NoRoom> {
    let (stored, fleet) = (&observation.config_maps, &observation.fleet);
    let is_stored = stored.is_watched && stored.chain.as_ref() == Some(chain) && stored.claims == *claims;
    let runs_chain = |sidecar: &Sidecar| fleet.runs_chain(sidecar, &chain.entries);
    // Plugins of earlier chains are removed once all sidecars run this one.
    let keeps_unused = !is_stored || !fleet.sidecars.iter().all(runs_chain);
    let placed = place_plugins(stored, chain, keeps_unused, &observation.plugins)?;
    let known = observation.plugins.packed();
    let mut slots = Vec::new();
    for (number, plugins) in placed.iter().enumerate() {
        let digests: BTreeSet<Digest> = plugins.keys().copied().collect();
        if !stored.holds(number, &digests, &known) {
            let bytes = |digest: &Digest| known.get(digest).map(|packed| packed.bytes.clone());
            let plugins = digests.iter().map(|digest| (*digest, bytes(digest))).collect();
            slots.push((number, plugins));
        }
    }
    Ok(ConfigMapWrites {
        slots,
        chain: !is_stored,
    })
}

/// Assigns the plugins of a chain to ConfigMaps. With `keeps_unused`, those that it does not need stay, too.
///
/// # Errors
/// A plugin finds no room.
pub fn place_plugins(
    stored: &StoredConfigMaps,
    chain: &Chain,
    keeps_unused: bool,
    plugins: &AvailablePlugins,
) -> Result<PluginSlots, NoRoom> {
    let known = plugins.packed().into_iter();
    let sizes: BTreeMap<Digest, usize> = known.map(|(digest, packed)| (digest, packed.bytes.len())).collect();
    let now = stored.slots(&sizes);
    let present: BTreeSet<Digest> = now.iter().flat_map(|slot| slot.keys().copied()).collect();
    let digests = chain.entries.iter().map(|entry| entry.plugin);
    let needed = digests.filter_map(|digest| {
        let size = sizes.get(&digest).copied();
        Some((digest, size.or_else(|| present.contains(&digest).then_some(0))?))
    });
    let in_use = if keeps_unused { present.clone() } else { BTreeSet::new() };
    assign_slots(&now, &needed.collect(), &in_use)
}

/// A plugin that fits into no ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "plugin {digest} has {bytes} bytes packed, and there is no room for it: a ConfigMap takes {MAX_SLOT_BYTES}, and there are \
     {PLUGIN_CONFIG_MAPS} of them in a namespace; make it smaller (opt-level = \"s\", lto, strip), or use fewer plugins"
)]
pub struct NoRoom {
    pub digest: Digest,
    /// The packed size of the plugin.
    pub bytes: usize,
}

/// Assigns plugins to ConfigMaps. A plugin stays where it is, and goes when neither the chain needs it nor a sidecar may run it.
///
/// # Errors
/// A plugin finds no room. Then nothing should be written.
pub fn assign_slots(
    now: &PluginSlots,
    needed: &BTreeMap<Digest, usize>,
    in_use: &BTreeSet<Digest>,
) -> Result<PluginSlots, NoRoom> {
    let mut slots = now.clone();
    for slot in &mut slots {
        slot.retain(|digest, _| needed.contains_key(digest) || in_use.contains(digest));
    }
    for (digest, bytes) in needed {
        if slots.iter().any(|slot| slot.contains_key(digest)) {
            continue;
        }
        let has_room = |slot: &&mut BTreeMap<Digest, usize>| slot.values().sum::<usize>() + bytes <= MAX_SLOT_BYTES;
        match slots.iter_mut().find(has_room) {
            Some(slot) => slot.insert(*digest, *bytes),
            None => {
                return Err(NoRoom {
                    digest: *digest,
                    bytes: *bytes,
                });
            }
        };
    }
    Ok(slots)
}

#[cfg(test)]
mod tests;
