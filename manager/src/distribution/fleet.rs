//! The sidecars of a namespace, and what they said last.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::names::annotations;
use ctrlmesh_contract::status::{EntryState, Status};
use ctrlmesh_contract::{Entry, LabelSelector};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use super::follow::Heard;
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
    /// UID of its pod.
    pub(super) uid: String,
    /// Version of its pod.
    pub(super) version: String,
    /// Generation of the chain that its pod was told of last.
    pub(super) told: Option<u64>,
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
            uid: pod.uid().unwrap_or_default(),
            version: pod.resource_version().unwrap_or_default(),
            told: number(annotations::CHAIN_GENERATION),
            running: BTreeSet::new(),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
            shard_pods: number(annotations::SHARD_PODS).and_then(|number| usize::try_from(number).ok()),
        })
    }

    /// Whether what was heard of one is true of the other.
    pub(super) fn is_same_process(&self, other: &Self) -> bool {
        (&self.pod, &self.uid, &self.ip) == (&other.pod, &other.uid, &other.ip)
    }

    /// The entries that it should run.
    pub(super) fn own<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> impl Iterator<Item = &'a Entry> {
        let entries = entries.into_iter();
        entries.filter(move |entry| entry.pod_selector.matches(&self.labels))
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
    /// Sidecars run a later chain than the one that lies there.
    pub(super) is_rolled_back: bool,
    /// Pods that can't be reached, and have been waited for long enough.
    pub(super) given_up: BTreeSet<String>,
    /// Pods that were asked since the chain lies there, and since they are what they are: their answers are no older.
    pub(super) fresh: BTreeSet<String>,
    /// Pods that were not asked yet.
    pub(super) unasked: BTreeSet<String>,
}

impl Fleet {
    /// What was heard. Who speaks of a generation beyond what is believed says nothing at all.
    pub(super) fn heard(sidecars: Vec<Sidecar>, heard: &BTreeMap<String, Heard>, believed: u64) -> Self {
        let answer = |heard: &Heard| match &heard.answer {
            Answer::Status(status) if status.chain.generation > believed => Answer::None(format!(
                "speaks of generation {} of the chain, which nobody has written",
                status.chain.generation
            )),
            answer => answer.clone(),
        };
        let pods = |is: fn(&Heard) -> bool| -> BTreeSet<String> {
            let those = heard.iter().filter(|(_, heard)| is(heard));
            those.map(|(pod, _)| pod.clone()).collect()
        };
        Self {
            sidecars,
            answers: heard.iter().map(|(pod, heard)| (pod.clone(), answer(heard))).collect(),
            fresh: pods(|heard| heard.is_fresh),
            unasked: pods(|heard| heard.asked.is_none()),
            ..Self::default()
        }
    }

    /// The highest generation that any of them speaks of.
    pub(super) fn generation(&self) -> u64 {
        let generations = self.answers.values().filter_map(|answer| match answer {
            Answer::Status(status) => Some(status.chain.generation),
            Answer::None(_) => None,
        });
        generations.max().unwrap_or_default()
    }

    /// Those that a selector selects.
    pub(super) fn selected(&self, selector: &LabelSelector) -> impl Iterator<Item = &Sidecar> {
        self.sidecars.iter().filter(|sidecar| selector.matches(&sidecar.labels))
    }

    /// Whether a sidecar shows nothing: it can't run yet, or has no chain, for none was ever written, lets nothing through, and none before
    /// it in the pod has left anything. Where there is a chain, a sidecar that starts may find an earlier one: it counts when it
    /// has said what it runs.
    #[must_use]
    pub(super) fn is_blank(&self, sidecar: &Sidecar) -> bool {
        let has_none = || match self.answers.get(&sidecar.pod) {
            Some(Answer::Status(status)) => status.chain.generation == 0 && status.chain.earlier.is_none(),
            _ => sidecar.told.is_none(),
        };
        !sidecar.is_placed || self.is_first && has_none()
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

    /// Whether it said so of its shard, perhaps before the chain was there.
    #[must_use]
    pub(super) fn was_in_its_shard(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        self.says(sidecar, entries, hand_over::is_of_shard)
    }

    fn is_at_those(&self, sidecar: &Sidecar, entries: &[Entry], counts: impl Fn(&str) -> bool) -> bool {
        // Nothing can run before the pod has a node.
        !sidecar.is_placed || self.fresh.contains(&sidecar.pod) && self.says(sidecar, entries, counts)
    }

    fn says(&self, sidecar: &Sidecar, entries: &[Entry], counts: impl Fn(&str) -> bool) -> bool {
        let Some(Answer::Status(status)) = self.answers.get(&sidecar.pod) else {
            return false;
        };
        let own: Vec<&Entry> = sidecar.own(entries).filter(|entry| counts(&entry.name)).collect();
        status.chain.earlier.is_none() && runs(status, &own, counts)
    }

    /// Why a sidecar is not where the chain wants it, in a word of a closed set. `None`: it is.
    #[must_use]
    pub(super) fn lag(&self, sidecar: &Sidecar, entries: &[Entry], generation: u64) -> Option<&'static str> {
        let own: Vec<&Entry> = sidecar.own(entries).collect();
        let Some(Answer::Status(status)) = self.answers.get(&sidecar.pod) else {
            return (!own.is_empty()).then_some("silent");
        };
        if runs(status, &own, |_| true) {
            let is_failing = status
                .chain
                .entries
                .iter()
                .any(|entry| entry.state != EntryState::Active);
            return if status.chain.earlier.is_none() {
                is_failing.then_some("failing")
            } else {
                Some("busy")
            };
        }
        let is_refused = status
            .refused
            .as_ref()
            .is_some_and(|refused| refused.generation.is_none_or(|refused| refused == generation));
        Some(if is_refused { "refused" } else { "behind" })
    }

    /// Pods that are not at the chain and were not told of this generation: kubelet would let them wait for a minute. What was
    /// told is written on the pod, so it does not matter who tells, or when.
    #[must_use]
    pub(super) fn untold(&self, entries: &[Entry], generation: u64) -> Vec<String> {
        let is_untold = |sidecar: &&Sidecar| sidecar.told != Some(generation) && !self.unasked.contains(&sidecar.pod);
        let untold = self.sidecars.iter().filter(is_untold);
        let is_behind = |sidecar: &&Sidecar| match self.answers.get(&sidecar.pod) {
            Some(Answer::Status(status)) => !runs(status, &sidecar.own(entries).collect::<Vec<_>>(), |_| true),
            Some(Answer::None(_)) | None => sidecar.ip.is_some(),
        };
        untold.filter(is_behind).map(|sidecar| sidecar.pod.clone()).collect()
    }

    /// Why others wait for a pod.
    #[must_use]
    pub(super) fn why_unsettled(&self, sidecar: &Sidecar, entries: &[Entry]) -> String {
        let status = match self.answers.get(&sidecar.pod) {
            Some(Answer::Status(status)) => status,
            Some(Answer::None(problem)) => return problem.clone(),
            None => return "was not asked yet".to_owned(),
        };
        let earlier = status.chain.earlier;
        let of_shard: Vec<&Entry> = sidecar
            .own(entries)
            .filter(|entry| hand_over::is_of_shard(&entry.name))
            .collect();
        if !runs(status, &of_shard, hand_over::is_of_shard) {
            match &status.refused {
                Some(refused) => format!("refuses the chain: {}", refused.message),
                None => format!("runs generation {} of the chain still", status.chain.generation),
            }
        } else if earlier.is_none() {
            "has done so and settles".to_owned()
        } else {
            format!(
                "has {} writes, {} lists and {} watches from before",
                earlier.writes, earlier.lists, earlier.watches
            )
        }
    }
}

/// Whether it runs these entries, and no others that count.
fn runs(status: &Status, own: &[&Entry], counts: impl Fn(&str) -> bool) -> bool {
    let running = || status.chain.entries.iter().filter(|running| counts(&running.name));
    let is_run = |entry: &&Entry| {
        running()
            .any(|at| at.name == entry.name && at.plugin == entry.plugin && at.settings_hash == entry.settings.hash())
    };
    running().count() == own.len() && own.iter().all(is_run)
}

impl hand_over::Fleet for Fleet {
    fn is_rolled_back(&self) -> bool {
        self.is_rolled_back
    }

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
        assert!(
            !fleet(false, at(0)).is_blank(&sidecar(None)),
            "it may find an earlier one"
        );
        assert!(fleet(true, at(0)).is_blank(&sidecar(None)));
        let mut restarted = Status::default();
        restarted.chain.earlier.writes = 1;
        let restarted = Answer::Status(Box::new(restarted));
        assert!(!fleet(true, restarted).is_blank(&sidecar(None)), "it may still write");
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

    fn entry(name: &str) -> Entry {
        Entry {
            name: name.to_owned(),
            plugin: ctrlmesh_contract::Digest::of(b"plugin"),
            pod_selector: LabelSelector::default(),
            order: 0,
            on_failure: ctrlmesh_contract::FailurePolicy::Closed,
            timeout_ms: 10,
            memory_mib: 16,
            settings: ctrlmesh_contract::Settings::default(),
            origin: None,
        }
    }

    fn running(generation: u64, entries: &[Entry]) -> Status {
        let mut status = Status::default();
        status.chain.generation = generation;
        status.chain.entries = entries
            .iter()
            .map(|entry| ctrlmesh_contract::status::EntryStatus {
                name: entry.name.clone(),
                plugin: entry.plugin,
                settings_hash: entry.settings.hash().to_owned(),
                state: EntryState::Active,
                faults: 0,
                error: None,
                until: None,
                reports: BTreeMap::new(),
            })
            .collect();
        status
    }

    fn fleet(told: Option<u64>, answer: Answer) -> Fleet {
        let sidecar = Sidecar {
            pod: "operator-0".to_owned(),
            ip: Some("10.0.0.1".to_owned()),
            told,
            ..Sidecar::default()
        };
        Fleet {
            sidecars: vec![sidecar],
            answers: BTreeMap::from([("operator-0".to_owned(), answer)]),
            fresh: BTreeSet::from(["operator-0".to_owned()]),
            ..Fleet::default()
        }
    }

    #[test]
    fn an_answer_from_before_the_chain_is_no_word_about_it() {
        let entries = [entry("shard-selector/a")];
        let mut fleet = fleet(None, Answer::Status(Box::new(running(7, &entries))));
        fleet.sidecars[0].is_placed = true;
        let is_at = |fleet: &Fleet| fleet.is_at(&fleet.sidecars[0], &entries);
        assert!(is_at(&fleet));
        fleet.fresh.clear();
        assert!(!is_at(&fleet));
    }

    #[test]
    fn a_pod_is_told_of_a_chain_that_it_does_not_run_and_once() {
        let entries = [entry("shard-selector/a")];
        let untold = |told, status: Option<Status>| {
            let answer = status.map_or(Answer::None("starts".to_owned()), |status| {
                Answer::Status(Box::new(status))
            });
            fleet(told, answer).untold(&entries, 7)
        };
        assert_eq!(
            untold(None, Some(running(6, &[]))),
            ["operator-0"],
            "made when the chain was"
        );
        assert_eq!(
            untold(Some(6), Some(running(6, &[]))),
            ["operator-0"],
            "the leader died"
        );
        assert_eq!(untold(Some(6), None), ["operator-0"], "it does not answer");
        assert!(untold(Some(7), Some(running(6, &[]))).is_empty(), "told already");
        assert!(
            untold(Some(6), Some(running(6, &entries))).is_empty(),
            "it is not concerned"
        );
    }

    #[test]
    fn nobody_is_believed_who_speaks_of_a_generation_that_nobody_wrote() {
        let heard = |generation| Heard {
            answer: Answer::Status(Box::new(running(generation, &[]))),
            asked: Some(std::time::Instant::now()),
            is_fresh: true,
        };
        let heard = BTreeMap::from([("a".to_owned(), heard(u64::MAX)), ("b".to_owned(), heard(9))]);
        let fleet = Fleet::heard(Vec::new(), &heard, 1 << 20);
        assert_eq!(fleet.generation(), 9);
        assert!(matches!(&fleet.answers["a"], Answer::None(problem) if problem.contains("nobody has written")));
    }

    #[test]
    fn each_reason_to_wait_for_a_pod_is_named() {
        let entries = [entry("shard-selector/a")];
        let why = |status: Status| {
            let fleet = fleet(None, Answer::Status(Box::new(status)));
            let lag = fleet.lag(&fleet.sidecars[0], &entries, 7);
            (lag, fleet.why_unsettled(&fleet.sidecars[0], &entries))
        };
        let mut busy = running(7, &entries);
        busy.chain.earlier.watches = 2;
        assert_eq!(
            why(busy),
            (
                Some("busy"),
                "has 0 writes, 0 lists and 2 watches from before".to_owned()
            )
        );
        assert_eq!(
            why(running(6, &[])),
            (Some("behind"), "runs generation 6 of the chain still".to_owned())
        );
        assert_eq!(why(running(7, &entries)), (None, "has done so and settles".to_owned()));
        let silent = fleet(None, Answer::None("does not answer in time".to_owned()));
        assert_eq!(silent.lag(&silent.sidecars[0], &entries, 7), Some("silent"));
        let why = silent.why_unsettled(&silent.sidecars[0], &entries);
        assert_eq!(why, "does not answer in time");
    }
}
