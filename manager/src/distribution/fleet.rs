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
    /// How many pods its shard had when it was to keep what it sees.
    pub(super) shard_pods: Option<usize>,
}

impl Sidecar {
    /// `None`: the pod is over, and so is its sidecar.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let number = |annotation: &str| pod.annotations().get(annotation)?.parse::<u64>().ok();
        (!matches!(phase, "Succeeded" | "Failed")).then(|| Self {
            pod: pod.name_any(),
            ip: status
                .and_then(|status| status.pod_ip.clone())
                .filter(|ip| !ip.is_empty()),
            labels: pod.labels().clone(),
            told: number(annotations::CHAIN_GENERATION),
            uid: pod.uid().unwrap_or_default(),
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

    /// Whether a sidecar runs these entries as far as they select it, and nothing of an earlier chain goes on there.
    #[must_use]
    pub(super) fn is_at(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        // Nothing can run before the pod has an address.
        if sidecar.ip.is_none() {
            return true;
        }
        let Some(Answer::Status(status)) = self.answers.get(&sidecar.pod) else {
            return false;
        };
        let mut own = entries
            .iter()
            .filter(|entry| entry.pod_selector.matches(&sidecar.labels));
        let runs = |entry: &Entry| {
            let mut running = status.chain.entries.iter();
            running.any(|at| {
                at.name == entry.name && at.plugin == entry.plugin && at.settings_hash == entry.settings.hash()
            })
        };
        let count = entries
            .iter()
            .filter(|entry| entry.pod_selector.matches(&sidecar.labels))
            .count();
        status.chain.earlier.is_none() && status.chain.entries.len() == count && own.all(runs)
    }
}

impl hand_over::Fleet for Fleet {
    fn has_pods(&self, selector: &LabelSelector) -> bool {
        self.selected(selector).next().is_some()
    }

    fn is_quiet(&self, selector: &LabelSelector) -> bool {
        self.selected(selector).all(|sidecar| self.quiet.contains(&sidecar.pod))
    }

    fn is_settled(&self, selector: &LabelSelector) -> bool {
        let is_settled = |pod: &String| self.quiet.contains(pod) || self.given_up.contains(pod);
        self.selected(selector).all(|sidecar| is_settled(&sidecar.pod))
    }

    fn is_given_up(&self, selector: &LabelSelector) -> bool {
        let mut selected = self.selected(selector).peekable();
        selected.peek().is_some() && selected.all(|sidecar| self.given_up.contains(&sidecar.pod))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_told_once_that_it_is_behind() {
        let sidecar = |told| Sidecar {
            pod: "operator-0".to_owned(),
            ip: Some("10.0.0.1".to_owned()),
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
