//! The sidecars of a namespace, and what they said last.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::names::annotations;
use ctrlmesh_contract::status::{EntryState, EntryStatus, Refused, StaleCache, Status};
use ctrlmesh_contract::{Entry, LabelSelector};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::ResourceExt as _;

use super::bypassed::running_since;
use super::sidecar_poller::LastReport;
use super::uninjected::UninjectedPods;
use crate::hand_over;

/// The condition of a pod that is ready.
pub(super) const READY: &str = "Ready";

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
    pub(super) nudged: Option<u64>,
    /// Of which generation it was told again, and how often.
    pub(super) renudged: Option<(u64, u32)>,
    /// Its pod was deleted.
    pub(super) is_ending: bool,
    /// It is on a node: it may run.
    pub(super) is_placed: bool,
    /// Names of the entries that it said last to run.
    pub(super) running: BTreeSet<String>,
    /// How many pods its shard has, as was noted last while it keeps what it sees.
    pub(super) shard_pods: Option<usize>,
    /// Its pod is ready, as kubelet says.
    pub(super) is_ready: bool,
    /// Kind and name of what made its pod.
    pub(super) owner: Option<String>,
    /// Since when containers beside it run, in seconds since 1970.
    pub(super) running_since: Option<i64>,
}

impl Sidecar {
    /// `None`: the pod is over, and so is its sidecar.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let number = |annotation: &str| pod.annotations().get(annotation)?.parse::<u64>().ok();
        let ip = status.and_then(|status| status.pod_ip.clone());
        let ip = ip.filter(|ip| !ip.is_empty());
        let conditions = status.and_then(|status| status.conditions.as_deref());
        let is_ready = |condition: &PodCondition| condition.type_ == READY && condition.status == "True";
        let owner = pod
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true));
        let has_node = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        (!matches!(phase, "Succeeded" | "Failed")).then(|| Self {
            pod: pod.name_any(),
            is_placed: has_node || ip.is_some(),
            ip,
            labels: pod.labels().clone(),
            uid: pod.uid().unwrap_or_default(),
            version: pod.resource_version().unwrap_or_default(),
            nudged: number(annotations::CHAIN_GENERATION),
            renudged: pod.annotations().get(annotations::CHAIN_BUMP).and_then(|text| {
                let (generation, times) = text.split_once('.')?;
                Some((generation.parse().ok()?, times.parse().ok()?))
            }),
            running: BTreeSet::new(),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
            shard_pods: number(annotations::SHARD_PODS).and_then(|number| usize::try_from(number).ok()),
            is_ready: conditions.unwrap_or_default().iter().any(is_ready),
            owner: owner.map(|owner| format!("{} {}", owner.kind, owner.name)),
            running_since: running_since(pod),
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
pub(super) enum Report {
    /// Its status.
    Status(Box<Status>),
    /// Why there is none.
    Unavailable(String),
}

/// All of a namespace, at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    /// By pod.
    pub(super) sidecars: Vec<Sidecar>,
    /// By pod.
    pub(super) reports: BTreeMap<String, Report>,
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
    /// They are waited for, for seconds at most: a manager that has just begun to lead knows nothing of what they support.
    pub(super) awaits_answers: bool,
    /// Pods without a sidecar, if that matters.
    pub(super) uninjected: UninjectedPods,
    /// Questions in a row that a pod has not answered.
    pub(super) failures: BTreeMap<String, u32>,
    /// Pods whose controllers can't take themselves for leaders by a lock that they ask for no more.
    pub(super) lease_expired: BTreeSet<String>,
}

impl Fleet {
    /// What was heard. Who speaks of a generation beyond what is believed says nothing at all.
    pub(super) fn from_reports(sidecars: Vec<Sidecar>, heard: &BTreeMap<String, LastReport>, believed: u64) -> Self {
        let answer = |heard: &LastReport| match &heard.answer {
            Report::Status(status) if status.chain.generation > believed => Report::Unavailable(format!(
                "speaks of generation {} of the chain, which nobody has written",
                status.chain.generation
            )),
            answer => answer.clone(),
        };
        let pods = |is: fn(&LastReport) -> bool| -> BTreeSet<String> {
            let those = heard.iter().filter(|(_, heard)| is(heard));
            those.map(|(pod, _)| pod.clone()).collect()
        };
        Self {
            sidecars,
            reports: heard.iter().map(|(pod, heard)| (pod.clone(), answer(heard))).collect(),
            fresh: pods(|heard| heard.is_fresh),
            unasked: pods(|heard| heard.asked.is_none()),
            failures: heard.iter().map(|(pod, heard)| (pod.clone(), heard.failures)).collect(),
            ..Self::default()
        }
    }

    /// The highest generation that any of them speaks of.
    pub(super) fn generation(&self) -> u64 {
        let generations = self.reports.values().filter_map(|answer| match answer {
            Report::Status(status) => Some(status.chain.generation),
            Report::Unavailable(_) => None,
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
        let has_none = || match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => status.chain.generation == 0 && status.chain.earlier.is_none(),
            _ => sidecar.nudged.is_none(),
        };
        !sidecar.is_placed || self.is_first && has_none()
    }

    /// Whether a sidecar runs these entries as far as they select it, and nothing of an earlier chain goes on there.
    #[must_use]
    pub(super) fn runs_chain(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        self.runs_those(sidecar, entries, |_| true)
    }

    /// The same for entries of shards alone: others hold up no hand-over.
    #[must_use]
    pub(super) fn runs_its_shard(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        self.runs_those(sidecar, entries, hand_over::is_of_shard)
    }

    /// Whether it said so of its shard, perhaps before the chain was there.
    #[must_use]
    pub(super) fn reported_its_shard(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        self.says(sidecar, entries, hand_over::is_of_shard)
    }

    fn runs_those(&self, sidecar: &Sidecar, entries: &[Entry], counts: impl Fn(&str) -> bool) -> bool {
        // Nothing can run before the pod has a node.
        !sidecar.is_placed || self.fresh.contains(&sidecar.pod) && self.says(sidecar, entries, counts)
    }

    fn says(&self, sidecar: &Sidecar, entries: &[Entry], counts: impl Fn(&str) -> bool) -> bool {
        match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => status.chain.earlier.is_none() && runs(status, sidecar, entries, counts),
            _ => false,
        }
    }

    /// Why a sidecar is not where the chain wants it, in a word of a closed set. `None`: it is.
    #[must_use]
    pub(super) fn lag_reason(&self, sidecar: &Sidecar, entries: &[Entry], generation: u64) -> Option<&'static str> {
        let Some(Report::Status(status)) = self.reports.get(&sidecar.pod) else {
            return sidecar.own(entries).next().map(|_| "silent");
        };
        if runs(status, sidecar, entries, |_| true) {
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
        Some(match refusal(status, generation) {
            Some(_) => "refused",
            None => "behind",
        })
    }

    /// Pods that do not run the chain, as far as is known.
    pub(super) fn behind<'a>(&'a self, entries: &'a [Entry]) -> impl Iterator<Item = &'a Sidecar> {
        let asked = self
            .sidecars
            .iter()
            .filter(|sidecar| !self.unasked.contains(&sidecar.pod));
        asked.filter(move |sidecar| match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => !runs(status, sidecar, entries, |_| true),
            Some(Report::Unavailable(_)) | None => sidecar.ip.is_some(),
        })
    }

    /// Why others wait for a pod.
    #[must_use]
    pub(super) fn unsettled_reason(&self, sidecar: &Sidecar, entries: &[Entry]) -> String {
        let status = match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => status,
            Some(Report::Unavailable(problem)) => return problem.clone(),
            None => return UNASKED.to_owned(),
        };
        let earlier = status.chain.earlier;
        if !runs(status, sidecar, entries, hand_over::is_of_shard) {
            behind_reason(status, status.refused.as_ref())
        } else if earlier.is_none() {
            "has done so and settles".to_owned()
        } else {
            let count = |count, what| (count > 0).then(|| format!("{count} {what}"));
            let counts = [
                count(earlier.writes, "of its writes"),
                count(earlier.lists, "of its lists"),
                count(earlier.watches, "of its watches"),
                count(earlier.caches, "of its caches"),
            ];
            let counts: Vec<String> = counts.into_iter().flatten().collect();
            let stale = status.chain.stale_caches.iter().filter(|cache| !cache.given_up);
            let stale: Vec<String> = stale.map(whose).collect();
            let stale = match stale.as_slice() {
                [] => String::new(),
                stale => format!(": {}", stale.join(", ")),
            };
            format!("has not given up {} from before{stale}", counts.join(", "))
        }
    }
}

/// Whose cache it is. Without counts: a condition is not written anew for each of them.
fn whose(cache: &StaleCache) -> String {
    let StaleCache { client, resource, .. } = cache;
    if cache.refused_watches > 1 {
        format!("{resource} of {client}, which repeats an expired watch and does not list")
    } else {
        format!("{resource} of {client}")
    }
}

/// Of a pod that was not asked yet.
pub(super) const UNASKED: &str = "was not asked yet";

/// Whether a sidecar runs its own of these entries, and no others that count.
fn runs(status: &Status, sidecar: &Sidecar, entries: &[Entry], counts: impl Fn(&str) -> bool) -> bool {
    let running = || status.chain.entries.iter().filter(|running| counts(&running.name));
    let own: Vec<&Entry> = sidecar.own(entries).filter(|entry| counts(&entry.name)).collect();
    running().count() == own.len() && own.iter().all(|entry| running().any(|at| runs_entry(entry, at)))
}

/// Whether what runs is this entry, as it is now.
pub(super) fn runs_entry(entry: &Entry, at: &EntryStatus) -> bool {
    at.name == entry.name && at.plugin == entry.plugin && at.settings_hash == entry.settings.hash()
}

/// Why it refuses a generation of the chain, if it does.
pub(super) fn refusal(status: &Status, generation: u64) -> Option<&Refused> {
    let refused = status.refused.as_ref();
    refused.filter(|refused| refused.generation.is_none_or(|refused| refused == generation))
}

/// Why a sidecar that answers does not run the chain.
pub(super) fn behind_reason(status: &Status, refused: Option<&Refused>) -> String {
    match refused {
        Some(refused) => format!("refuses the chain: {}", refused.message),
        None => format!("runs generation {} of the chain still", status.chain.generation),
    }
}

impl hand_over::Fleet for Fleet {
    fn is_rolled_back(&self) -> bool {
        self.is_rolled_back
    }

    fn is_unseen(&self, entry: &Entry) -> bool {
        let selector = hand_over::all_pods(entry);
        let pods = self.selected(&selector).filter(|sidecar| !self.is_blank(sidecar));
        let mut pods = pods.peekable();
        // Who does not answer may run it.
        let runs_other = |sidecar: &Sidecar| match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => !status.chain.entries.iter().any(|at| runs_entry(entry, at)),
            _ => false,
        };
        pods.peek().is_some() && pods.all(runs_other)
    }

    fn pods(&self) -> impl Iterator<Item = hand_over::Pod<'_>> {
        self.sidecars.iter().map(|sidecar| hand_over::Pod {
            uid: &sidecar.uid,
            labels: &sidecar.labels,
            running: &sidecar.running,
            is_blank: self.is_blank(sidecar),
            is_quiet: self.quiet.contains(&sidecar.pod),
            is_given_up: self.given_up.contains(&sidecar.pod),
            may_lead: !self.lease_expired.contains(&sidecar.pod),
        })
    }
}

#[cfg(test)]
mod tests;
