//! What sidecars can't run: an entry that asks for more than a sidecar of its pods says that it supports is held back. Its object
//! keeps the entries that it had, which that sidecar runs, and the pods are named. Pure.
//!
//! The chain is one document for a namespace, so an entry is held back for all of its pods; entries of other objects go on. The
//! shards of one lock are held back together: otherwise one of them would be given what another, which is held back, still shows.
//!
//! Only answers count. A sidecar that has never answered holds up nothing, as everywhere else: a chain that it can't run it
//! refuses by itself. Until it was asked for the first time, which takes a moment, it is taken for one of the oldest.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::names::CHAIN_API_VERSION;
use ctrlmesh_contract::support::Support;
use ctrlmesh_contract::world::Interface;
use ctrlmesh_contract::{Digest, Entry, Origin};

use super::decide::Reason;
use super::fleet::{Fleet, Report, Sidecar};
use super::status::few;
use crate::built_in::BuiltIn;
use crate::hand_over::{is_of_shard, lock_of};

/// Reason code of the condition.
pub(super) const OUTDATED: &str = "SidecarOutdated";

/// Versions of the plugin interface that plugins need. One that is not here runs already, and asks for nothing new.
pub(super) type Interfaces = BTreeMap<Digest, Interface>;

/// Kind and name of an object.
type Object = (String, String);

/// Objects that are held back, each with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unsupported(BTreeMap<Object, String>);

/// What an entry asks for, and the pods whose sidecars do not support it.
struct MissingSupport {
    needed: Interface,
    is_built_in: bool,
    pods: BTreeMap<String, String>,
}

impl Unsupported {
    /// What is held back of the wanted entries, and the entries as they may be. `meant`: those of the last chain.
    pub(super) fn held(
        wanted: Vec<Entry>,
        meant: &[Entry],
        interfaces: &Interfaces,
        fleet: &Fleet,
    ) -> (Self, Vec<Entry>) {
        let mut lacks = BTreeMap::new();
        for entry in wanted.iter().filter(|entry| !meant.contains(entry)) {
            let Some(object) = object(entry) else { continue };
            if let Some(lack) = MissingSupport::of(entry, interfaces, fleet) {
                lacks.entry(object).or_insert(lack);
            }
        }
        if lacks.is_empty() {
            return (Self::default(), wanted);
        }
        let mut held = BTreeMap::new();
        for (object, lack) in &lacks {
            let siblings = siblings(object, &wanted, meant).into_iter();
            for sibling in siblings.filter(|sibling| is_changed(sibling, &wanted, meant)) {
                held.insert(sibling, lack.message());
            }
        }
        held.extend(lacks.into_iter().map(|(object, lack)| (object, lack.message())));
        let is_held = |entry: &&Entry| object(entry).is_some_and(|object| held.contains_key(&object));
        let mut entries: Vec<Entry> = wanted.iter().filter(|entry| !is_held(entry)).cloned().collect();
        let kept = meant.iter().filter(is_held).filter(|entry| is_there(entry, &wanted));
        entries.extend(kept.cloned());
        entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
        (Self(held), entries)
    }

    /// Why an object is held back, if it is.
    pub(super) fn of(&self, origin: &Origin) -> Option<&str> {
        self.0
            .get(&(origin.kind.clone(), origin.name.clone()))
            .map(String::as_str)
    }
}

impl MissingSupport {
    /// `None`: every sidecar that answers, and that the entry selects, supports it.
    fn of(entry: &Entry, interfaces: &Interfaces, fleet: &Fleet) -> Option<Self> {
        let needed = *interfaces.get(&entry.plugin)?;
        let selected = fleet.selected(&entry.pod_selector);
        let lacking = selected.filter_map(|sidecar| {
            let support = support(sidecar, fleet)?;
            (!support.runs(needed)).then(|| (sidecar.pod.clone(), support.plugins.join(", ")))
        });
        let pods: BTreeMap<String, String> = lacking.collect();
        (!pods.is_empty()).then(|| Self {
            needed,
            is_built_in: entry
                .name
                .split('/')
                .next()
                .is_some_and(|name| BuiltIn::of(name).is_some()),
            pods,
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
            "needs sidecars that support ctrlmesh:plugin@{needed}; these pods support less and keep the rules that they have: {}; \
             restart their workload to give it the current sidecar{or_build}",
            few(pods.collect::<Vec<_>>().into_iter(), ", ")
        )
    }
}

/// Why no document can be written in this namespace: a sidecar would refuse it as a whole.
pub(super) fn unreadable(fleet: &Fleet) -> Option<Reason> {
    let lacking = fleet.sidecars.iter().filter(|sidecar| {
        let support = support(sidecar, fleet);
        support.is_some_and(|support| !support.reads_documents())
    });
    let pods: Vec<String> = lacking.map(|sidecar| sidecar.pod.clone()).collect();
    (!pods.is_empty()).then(|| {
        let message = format!(
            "this manager writes {CHAIN_API_VERSION}, which the sidecars of these pods do not read; they keep the rules that they \
             have: {}; restart their workload to give it the current sidecar",
            few(pods.into_iter(), ", ")
        );
        Reason::new(OUTDATED, message)
    })
}

/// What a sidecar says that it supports. `None`: it has said nothing at all.
fn support(sidecar: &Sidecar, fleet: &Fleet) -> Option<Support> {
    match fleet.reports.get(&sidecar.pod) {
        Some(Report::Status(status)) => Some(status.supports.clone().unwrap_or_default()),
        _ if fleet.awaits_answers && fleet.unasked.contains(&sidecar.pod) => Some(Support::baseline()),
        _ => None,
    }
}

/// The object that an entry is made from. All entries of the manager have one.
fn object(entry: &Entry) -> Option<Object> {
    let origin = entry.origin.as_ref()?;
    Some((origin.kind.clone(), origin.name.clone()))
}

/// The objects that have a shard with the same lock as this one, or as one of those: an edit may give a shard another lock.
fn siblings(of: &Object, wanted: &[Entry], meant: &[Entry]) -> BTreeSet<Object> {
    let shards = || wanted.iter().chain(meant).filter(|entry| is_of_shard(&entry.name));
    let mut found = BTreeSet::from([of.clone()]);
    loop {
        let is_known = |entry: &&Entry| object(entry).is_some_and(|object| found.contains(&object));
        let locks: BTreeSet<Option<&str>> = shards().filter(is_known).map(lock_of).collect();
        let more: BTreeSet<Object> = shards()
            .filter(|entry| locks.contains(&lock_of(entry)))
            .filter_map(object)
            .collect();
        let known = found.len();
        found.extend(more);
        if found.len() == known {
            return found;
        }
    }
}

/// Whether the chain would be another for an object.
fn is_changed(of: &Object, wanted: &[Entry], meant: &[Entry]) -> bool {
    let own = |entries: &[Entry]| -> Vec<Entry> {
        let own = entries.iter().filter(|entry| object(entry).as_ref() == Some(of));
        own.cloned().collect()
    };
    !crate::compile::kept::is_same(&own(meant), &own(wanted))
}

/// Whether the object of an entry is there still: what is deleted asks for nothing, and goes.
fn is_there(entry: &Entry, wanted: &[Entry]) -> bool {
    wanted.iter().any(|other| {
        let uid = |entry: &Entry| entry.origin.as_ref().map(|origin| origin.uid.clone());
        object(other) == object(entry) && uid(other) == uid(entry)
    })
}

#[cfg(test)]
mod tests;
