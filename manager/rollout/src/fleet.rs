//! The sidecars of a namespace and their last reports. What follows from these for a rollout is in [`crate::pods`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ctrlmesh_contract::names::{annotations, pod};
use ctrlmesh_contract::status::{EntryState, EntryStatus, Refused, StaleCache, Status};
use ctrlmesh_contract::{Entry, LabelSelector};
use ctrlmesh_manager_planner::hand_over;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};
use kube_core::ResourceExt as _;

const READY: &str = "Ready";
/// Failed polls in a row that make a report void. Until then the last one counts.
pub const FAILED_POLLS_UNTIL_VOID: u32 = 2;
/// Maximum pods that the message of a condition or Event names.
const MAX_NAMED: usize = 5;

/// A pod with a sidecar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sidecar {
    pub pod: String,
    /// Address of its pod; `None` before it has one.
    pub ip: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub uid: String,
    /// Resource version of its pod.
    pub version: String,
    /// Generation of the chain that its pod was last annotated with.
    pub nudged: Option<u64>,
    /// Generation of the chain of repeated nudges, and their number.
    pub renudged: Option<(u64, u32)>,
    /// The pod was deleted.
    pub is_ending: bool,
    /// The pod is on a node, so it may run.
    pub is_scheduled: bool,
    /// Number of pods of its shard, by the annotation of a pod that keeps its limits until it is replaced.
    pub shard_pods: Option<usize>,
    /// Kubelet reports the pod as ready.
    pub is_ready: bool,
    /// Kind and name of the controller that owns its pod.
    pub owner: Option<String>,
    /// When the oldest running container beside it started, in seconds since 1970.
    pub running_since: Option<i64>,
}

impl Sidecar {
    /// `None` if the pod has ended.
    pub fn from_pod(pod: &Pod) -> Option<Self> {
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
            is_scheduled: has_node || ip.is_some(),
            ip,
            labels: pod.labels().clone(),
            uid: pod.uid().unwrap_or_default(),
            version: pod.resource_version().unwrap_or_default(),
            nudged: number(annotations::CHAIN_GENERATION),
            renudged: pod.annotations().get(annotations::CHAIN_BUMP).and_then(|text| {
                let (generation, times) = text.split_once('.')?;
                Some((generation.parse().ok()?, times.parse().ok()?))
            }),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
            shard_pods: number(annotations::SHARD_PODS).and_then(|number| usize::try_from(number).ok()),
            is_ready: conditions.unwrap_or_default().iter().any(is_ready),
            owner: owner.map(|owner| format!("{} {}", owner.kind, owner.name)),
            running_since: running_since(pod),
        })
    }

    /// Whether reports of one are reports of the other.
    pub fn is_same_process(&self, other: &Self) -> bool {
        (&self.pod, &self.uid, &self.ip) == (&other.pod, &other.uid, &other.ip)
    }

    /// The entries that it should run.
    pub fn own_entries<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> impl Iterator<Item = &'a Entry> {
        let entries = entries.into_iter();
        entries.filter(move |entry| entry.pod_selector.matches(&self.labels))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    Status(Box<Status>),
    /// Why there is no status.
    Unavailable(String),
}

/// The last report of a sidecar, and the polls that failed since.
#[derive(Clone, Debug)]
pub struct LastReport {
    pub report: Report,
    /// When the poll began that led to the report. `None`: it was not polled yet.
    pub polled_at: Option<Instant>,
    /// Polls in a row that failed.
    pub failures: u32,
    /// The sidecar was polled after the chain was written and after its pod's labels last changed.
    pub is_fresh: bool,
}

/// The sidecars of a namespace and their last reports, at one time.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// Sorted by the pods' names.
    pub sidecars: Vec<Sidecar>,
    /// By the pod's name.
    pub reports: BTreeMap<String, Report>,
    /// Pods whose last report is newer than the chain and their labels.
    pub fresh: BTreeSet<String>,
    /// Pods that were not polled yet.
    pub unpolled: BTreeSet<String>,
    pub uninjected: UninjectedPods,
    /// Failed polls in a row, by pod.
    pub failures: BTreeMap<String, u32>,
}

/// Why a sidecar does not run the chain as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LagReason {
    Silent,
    Behind,
    Refused,
    /// Requests from before the chain are in flight.
    Busy,
    /// An entry of its own is not active.
    Failing,
}

impl LagReason {
    pub const ALL: [Self; 5] = [Self::Silent, Self::Behind, Self::Refused, Self::Busy, Self::Failing];

    /// The value of label `reason` of metric `sidecars_lagging`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Behind => "behind",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::Failing => "failing",
        }
    }
}

impl Fleet {
    /// Treats a status whose generation is beyond `believable` as no status.
    pub fn from_reports(sidecars: Vec<Sidecar>, reports: &BTreeMap<String, LastReport>, believable: u64) -> Self {
        let checked = |last: &LastReport| match &last.report {
            Report::Status(status) if status.chain.generation > believable => Report::Unavailable(format!(
                "reports generation {} of the chain, which no manager has written",
                status.chain.generation
            )),
            report => report.clone(),
        };
        let pods = |is: fn(&LastReport) -> bool| -> BTreeSet<String> {
            let those = reports.iter().filter(|(_, report)| is(report));
            those.map(|(pod, _)| pod.clone()).collect()
        };
        let failures = |(pod, last): (&String, &LastReport)| (pod.clone(), last.failures);
        Self {
            sidecars,
            reports: reports.iter().map(|(pod, last)| (pod.clone(), checked(last))).collect(),
            fresh: pods(|last| last.is_fresh),
            unpolled: pods(|last| last.polled_at.is_none()),
            failures: reports.iter().map(failures).collect(),
            ..Self::default()
        }
    }

    /// The UIDs of all pods, to look up many of them.
    pub(crate) fn uids(&self) -> BTreeSet<&str> {
        self.sidecars.iter().map(|sidecar| sidecar.uid.as_str()).collect()
    }

    /// The highest generation that any sidecar reports.
    pub fn generation(&self) -> u64 {
        let generations = self.reports.values().filter_map(|report| match report {
            Report::Status(status) => Some(status.chain.generation),
            Report::Unavailable(_) => None,
        });
        generations.max().unwrap_or_default()
    }

    pub fn selected(&self, selector: &LabelSelector) -> impl Iterator<Item = &Sidecar> {
        self.sidecars.iter().filter(|sidecar| selector.matches(&sidecar.labels))
    }

    /// Whether a sidecar runs its own of these entries, and no request of an earlier chain is left. False until it was polled
    /// after the chain was written.
    #[must_use]
    pub fn runs_chain(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        self.runs_those(sidecar, entries, |_| true)
    }

    /// The same for shard entries alone. Others hold up no hand-over.
    #[must_use]
    pub fn runs_its_shard(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        self.runs_those(sidecar, entries, hand_over::is_of_shard)
    }

    /// The same for shard entries by the last report, which may be older than the chain.
    #[must_use]
    pub fn reported_its_shard(&self, sidecar: &Sidecar, entries: &[Entry]) -> bool {
        self.report_matches(sidecar, entries, hand_over::is_of_shard)
    }

    fn runs_those(&self, sidecar: &Sidecar, entries: &[Entry], counts: impl Fn(&str) -> bool) -> bool {
        // Nothing can run before the pod has a node.
        !sidecar.is_scheduled || self.fresh.contains(&sidecar.pod) && self.report_matches(sidecar, entries, counts)
    }

    fn report_matches(&self, sidecar: &Sidecar, entries: &[Entry], counts: impl Fn(&str) -> bool) -> bool {
        match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => {
                status.chain.earlier.is_none() && runs_own_entries(status, sidecar, entries, counts)
            }
            _ => false,
        }
    }

    /// Why a sidecar does not run the chain as it should.
    #[must_use]
    pub fn lag_reason(&self, sidecar: &Sidecar, entries: &[Entry], generation: u64) -> Option<LagReason> {
        let Some(Report::Status(status)) = self.reports.get(&sidecar.pod) else {
            return sidecar.own_entries(entries).next().map(|_| LagReason::Silent);
        };
        if runs_own_entries(status, sidecar, entries, |_| true) {
            let is_failing = status
                .chain
                .entries
                .iter()
                .any(|entry| entry.state != EntryState::Active);
            return if status.chain.earlier.is_none() {
                is_failing.then_some(LagReason::Failing)
            } else {
                Some(LagReason::Busy)
            };
        }
        Some(match refused_chain(status, generation) {
            Some(_) => LagReason::Refused,
            None => LagReason::Behind,
        })
    }

    /// Pods that were polled and do not run the chain.
    pub fn lagging_sidecars<'a>(&'a self, entries: &'a [Entry]) -> impl Iterator<Item = &'a Sidecar> {
        let polled = self
            .sidecars
            .iter()
            .filter(|sidecar| !self.unpolled.contains(&sidecar.pod));
        polled.filter(move |sidecar| match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => !runs_own_entries(status, sidecar, entries, |_| true),
            Some(Report::Unavailable(_)) | None => sidecar.ip.is_some(),
        })
    }

    /// Why a hand-over waits for a pod.
    #[must_use]
    pub fn unsettled_reason(&self, sidecar: &Sidecar, entries: &[Entry]) -> String {
        let status = match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => status,
            Some(Report::Unavailable(problem)) => return problem.clone(),
            None => return NOT_POLLED.to_owned(),
        };
        let earlier = status.chain.earlier;
        if !runs_own_entries(status, sidecar, entries, hand_over::is_of_shard) {
            behind_reason(status, status.refused.as_ref())
        } else if earlier.is_none() {
            "has done so and is settling".to_owned()
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
            let stale: Vec<String> = stale.map(stale_cache_text).collect();
            let stale = match stale.as_slice() {
                [] => String::new(),
                stale => format!(": {}", stale.join(", ")),
            };
            format!("has not given up {} from before{stale}", counts.join(", "))
        }
    }
}

/// Client and resource of a stale cache, without counts, which would change the condition all the time.
fn stale_cache_text(cache: &StaleCache) -> String {
    let StaleCache { client, resource, .. } = cache;
    if cache.refused_watches > 1 {
        format!("{resource} of {client}, which repeats an expired watch and does not list")
    } else {
        format!("{resource} of {client}")
    }
}

pub const NOT_POLLED: &str = "was not polled yet";

/// Whether a sidecar runs its own of these entries, and no others that count.
fn runs_own_entries(status: &Status, sidecar: &Sidecar, entries: &[Entry], counts: impl Fn(&str) -> bool) -> bool {
    let running = || status.chain.entries.iter().filter(|running| counts(&running.name));
    let own: Vec<&Entry> = sidecar
        .own_entries(entries)
        .filter(|entry| counts(&entry.name))
        .collect();
    running().count() == own.len() && own.iter().all(|entry| running().any(|at| runs_entry(entry, at)))
}

/// Whether a running entry is this one, with the same plugin and settings.
pub fn runs_entry(entry: &Entry, at: &EntryStatus) -> bool {
    at.name == entry.name && at.plugin == entry.plugin && at.settings_hash == entry.settings.hash()
}

/// Why a sidecar refuses a generation of the chain, if it does.
pub fn refused_chain(status: &Status, generation: u64) -> Option<&Refused> {
    let refused = status.refused.as_ref();
    refused.filter(|refused| refused.generation.is_none_or(|refused| refused == generation))
}

pub fn behind_reason(status: &Status, refused: Option<&Refused>) -> String {
    match refused {
        Some(refused) => format!("refuses the chain: {}", refused.message),
        None => format!("still runs generation {} of the chain", status.chain.generation),
    }
}

/// Pods of a namespace without a sidecar. Empty when no shard could have to wait for them.
#[derive(Clone, Debug, Default)]
pub struct UninjectedPods {
    /// Labels by pod name.
    pub pods: BTreeMap<String, BTreeMap<String, String>>,
    /// Why they are not known.
    pub unknown: Option<String>,
    /// When they were listed, or could not be. `None`: this pass did not try.
    pub listed: Option<Instant>,
}

impl UninjectedPods {
    pub const fn unknown(problem: String) -> Self {
        Self {
            pods: BTreeMap::new(),
            unknown: Some(problem),
            listed: None,
        }
    }
}

/// The first of these, and how many more there are.
pub fn join_first(all: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = all.len().checked_sub(MAX_NAMED).filter(|more| *more > 0);
    let more = more.map(|more| format!("and {more} more"));
    all.take(MAX_NAMED).chain(more).collect::<Vec<_>>().join(between)
}

/// The first of these pods, each with its problem.
pub fn named_pods(pods: &[(String, String)], between: &str) -> String {
    join_first(pods.iter().map(|(pod, problem)| format!("{pod} {problem}")), between)
}

/// Drops the parts of a pod that [`Sidecar::from_pod`] does not read, so that caches stay small.
pub fn strip_pod(pod: &mut Pod) {
    pod.managed_fields_mut().clear();
    let node = pod.spec.take().and_then(|spec| spec.node_name);
    pod.spec = node.map(|node| PodSpec {
        node_name: Some(node),
        ..PodSpec::default()
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        pod_ip: status.pod_ip,
        conditions: status.conditions.map(|mut conditions| {
            conditions.retain(|condition| condition.type_ == READY);
            conditions
        }),
        container_statuses: status.container_statuses.map(strip_containers),
        ..PodStatus::default()
    });
}

/// Keeps the start times of running containers, but the sidecar's.
fn strip_containers(mut containers: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    containers.retain(|container| container.name != pod::SIDECAR);
    let stripped = containers.into_iter().filter_map(|container| {
        let running = container.state?.running?;
        let state = ContainerState {
            running: Some(running),
            ..ContainerState::default()
        };
        Some(ContainerStatus {
            name: container.name,
            state: Some(state),
            ..ContainerStatus::default()
        })
    });
    stripped.collect()
}

/// When the oldest running container of a pod started, apart from the sidecar. Seconds since 1970.
fn running_since(pod: &Pod) -> Option<i64> {
    let containers = pod.status.as_ref()?.container_statuses.iter().flatten();
    let others = containers.filter(|container| container.name != pod::SIDECAR);
    let started = |container: &ContainerStatus| {
        let running = container.state.as_ref()?.running.as_ref()?;
        Some(running.started_at.as_ref()?.0.as_second())
    };
    others.filter_map(started).min()
}

#[cfg(test)]
mod tests;
