//! The sidecars of a namespace, and what they said last.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::names::annotations;
use ctrlmesh_contract::status::Status;
use ctrlmesh_contract::{Entry, LabelSelector};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::hand_over;

/// A pod with a sidecar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sidecar {
    /// Its pod.
    pub(super) pod: String,
    /// Address of its pod; `None` before it has one.
    pub(super) ip: Option<String>,
    /// Labels of its pod.
    pub(super) labels: BTreeMap<String, String>,
    /// Generation of the chain that its pod was told of last.
    pub(super) told: Option<u64>,
    /// UID of its pod.
    pub(super) uid: String,
    /// Its pod was deleted.
    pub(super) is_ending: bool,
    /// It is on a node: it may run.
    pub(super) is_placed: bool,
    /// Names of the entries that it said last to run.
    pub(super) running: BTreeSet<String>,
    /// How many pods its shard had when it was to keep what it sees.
    pub(super) shard_pods: Option<usize>,
}

impl Sidecar {
    /// `None`: the pod is over, and so is its sidecar.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let number = |annotation: &str| pod.annotations().get(annotation)?.parse::<u64>().ok();
        let ip = status.and_then(|status| status.pod_ip.clone());
        let ip = ip.filter(|ip| !ip.is_empty());
        let has_node = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        (!matches!(phase, "Succeeded" | "Failed")).then(|| Self {
            pod: pod.name_any(),
            is_placed: has_node || ip.is_some(),
            ip,
            labels: pod.labels().clone(),
            told: number(annotations::CHAIN_GENERATION),
            uid: pod.uid().unwrap_or_default(),
            running: BTreeSet::new(),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
            shard_pods: number(annotations::SHARD_PODS).and_then(|number| usize::try_from(number).ok()),
        })
    }
}

/// What a sidecar said.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// Its status.
    Status(Box<Status>),
    /// Why there is none.
    None(String),
}

/// All of a namespace, at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    /// By pod.
    pub(super) sidecars: Vec<Sidecar>,
    /// By pod.
    pub(super) answers: BTreeMap<String, Answer>,
    /// Pods that have been quiet for long enough.
    pub(super) quiet: BTreeSet<String>,
    /// No chain was written in this namespace yet.
    pub(super) is_first: bool,
    /// Pods that can't be reached, and have been waited for long enough.
    pub(super) given_up: BTreeSet<String>,
}

impl Fleet {
    /// Those that a selector selects.
    pub(super) fn selected(&self, selector: &LabelSelector) -> impl Iterator<Item = &Sidecar> {
        self.sidecars.iter().filter(|sidecar| selector.matches(&sidecar.labels))
    }

    /// Pods whose sidecars answer that they have another chain than this one, and that nobody told of it: they were made, or a
    /// leader died, just when it was written. Kubelet would let them wait for a minute.
    #[must_use]
    pub(super) fn untold(&self, entries: &[Entry], generation: u64) -> Vec<String> {
        let is_behind = |sidecar: &&Sidecar| match self.answers.get(&sidecar.pod) {
            Some(Answer::Status(status)) => status.chain.generation < generation && !self.is_at(sidecar, entries),
            _ => false,
        };
        let untold = self.sidecars.iter().filter(|sidecar| sidecar.told != Some(generation));
        untold.filter(is_behind).map(|sidecar| sidecar.pod.clone()).collect()
    }

    /// Whether a sidecar shows nothing: it can't run yet, or has no chain, lets nothing through, and none before it in the pod has left
    /// anything. Where no chain was ever written, one that does not answer has none.
    #[must_use]
    pub(super) fn is_blank(&self, sidecar: &Sidecar) -> bool {
        let has_none = || match self.answers.get(&sidecar.pod) {
            Some(Answer::Status(status)) => status.chain.generation == 0 && status.chain.earlier.is_none(),
            _ => self.is_first && sidecar.told.is_none(),
        };
        !sidecar.is_placed || has_none()
    }

    /// Whether a sidecar runs these entries as far as they select it, and nothing of an earlier chain goes on there.
    #[must_use]
    pub(super) fn is_at(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        self.is_at_those(sidecar, entries, |_| true)
    }

    /// The same for entries of shards alone: others hold up no hand-over.
    #[must_use]
    pub(super) fn is_in_its_shard(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        self.is_at_those(sidecar, entries, hand_over::is_of_shard)
    }

    fn is_at_those(&self, sidecar: &Sidecar, entries: &[Entry], counts: impl Fn(&str) -> bool) -> bool {
        // Nothing can run before the pod has a node.
        if !sidecar.is_placed {
            return true;
        }
        let Some(Answer::Status(status)) = self.answers.get(&sidecar.pod) else {
            return false;
        };
        let own = entries
            .iter()
            .filter(|entry| counts(&entry.name) && entry.pod_selector.matches(&sidecar.labels));
        let own: Vec<&Entry> = own.collect();
        let running = || status.chain.entries.iter().filter(|running| counts(&running.name));
        let runs = |entry: &&Entry| {
            running().any(|at| {
                at.name == entry.name && at.plugin == entry.plugin && at.settings_hash == entry.settings.hash()
            })
        };
        status.chain.earlier.is_none() && running().count() == own.len() && own.iter().all(runs)
    }
}

impl hand_over::Fleet for Fleet {
    fn pods(&self) -> impl Iterator<Item = hand_over::Pod<'_>> {
        self.sidecars.iter().map(|sidecar| hand_over::Pod {
            uid: &sidecar.uid,
            labels: &sidecar.labels,
            running: &sidecar.running,
            is_blank: self.is_blank(sidecar),
            is_quiet: self.quiet.contains(&sidecar.pod),
            is_given_up: self.given_up.contains(&sidecar.pod),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_chain_shows_nothing() {
        let sidecar = |told| Sidecar {
            pod: "operator-0".to_owned(),
            is_placed: true,
            told,
            ..Sidecar::default()
        };
        let fleet = |is_first, answer| Fleet {
            answers: BTreeMap::from([("operator-0".to_owned(), answer)]),
            is_first,
            ..Fleet::default()
        };
        let silent = || Answer::None("starts".to_owned());
        let at = |generation| {
            let mut status = Status::default();
            status.chain.generation = generation;
            Answer::Status(Box::new(status))
        };
        assert!(fleet(false, at(0)).is_blank(&sidecar(None)));
        let mut restarted = Status::default();
        restarted.chain.earlier.writes = 1;
        let restarted = Answer::Status(Box::new(restarted));
        assert!(!fleet(false, restarted).is_blank(&sidecar(None)), "it may still write");
        assert!(
            !fleet(true, at(7)).is_blank(&sidecar(None)),
            "somebody deleted the chain"
        );
        assert!(fleet(true, silent()).is_blank(&sidecar(None)));
        assert!(!fleet(true, silent()).is_blank(&sidecar(Some(7))), "it was told of one");
        assert!(!fleet(false, silent()).is_blank(&sidecar(None)));
        let pending = Sidecar::default();
        assert!(fleet(false, silent()).is_blank(&pending));
    }

    #[test]
    fn a_pod_is_told_once_that_it_is_behind() {
        let sidecar = |told| Sidecar {
            pod: "operator-0".to_owned(),
            ip: Some("10.0.0.1".to_owned()),
            is_placed: true,
            told,
            ..Sidecar::default()
        };
        let entry = Entry {
            name: "shard-selector/a".to_owned(),
            plugin: ctrlmesh_contract::Digest::of(b"plugin"),
            pod_selector: LabelSelector::default(),
            order: 0,
            on_failure: ctrlmesh_contract::FailurePolicy::Closed,
            timeout_ms: 10,
            memory_mib: 16,
            settings: ctrlmesh_contract::Settings::default(),
            origin: None,
        };
        let answer = |generation| {
            let mut status = Status::default();
            status.chain.generation = generation;
            Answer::Status(Box::new(status))
        };
        let untold = |told, answer| {
            let fleet = Fleet {
                sidecars: vec![sidecar(told)],
                answers: BTreeMap::from([("operator-0".to_owned(), answer)]),
                ..Fleet::default()
            };
            fleet.untold(std::slice::from_ref(&entry), 7)
        };
        assert_eq!(untold(None, answer(0)), ["operator-0"], "made when the chain was");
        assert_eq!(untold(Some(6), answer(6)), ["operator-0"], "the leader died");
        assert!(untold(Some(7), answer(6)).is_empty(), "told already");
        assert!(untold(Some(6), answer(7)).is_empty(), "it found out by itself");
        assert!(untold(None, Answer::None("starts".to_owned())).is_empty());
    }
}
