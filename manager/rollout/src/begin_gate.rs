//! Decides which shards may not begin yet. Pure.
//!
//! Pods without a sidecar see every object, and compete for another lock. While one runs, the shards that select it do not begin,
//! so that an operator can be sharded by a rolling restart.
//!
//! All shards of a lock begin together, and once. A shard that joins others that have begun is not blocked: it gets what they give up,
//! which otherwise nobody would have. So a pod without a sidecar beside a sharded operator blocks nothing. Blocked shards begin
//! when the first pod with a sidecar is there and those without have been gone for some seconds: they may be away only for a
//! moment, because a node is drained, or their workload is moved in later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::labels;
use ctrlmesh_contract::{Chain, Entry, LabelSelector};
use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_api::status::Reason;
use ctrlmesh_manager_planner::hand_over::{Claims, is_of_shard, is_unbegun, lock_of, unbegun_entry};

use crate::fleet::{Report, UninjectedPods, join_first};
use crate::observation::{CustomResources, entry_name_of};
use crate::pods::Pods;

/// Pause between two lists of pods without a sidecar, which are not watched.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which that pause holds after a change. In a rolling restart, each pod that ends is a change.
const FREQUENT_LIST_PERIOD: Duration = Duration::from_mins(1);
/// Pause between two lists after that: an operator without the label in its template may wait for days.
const LATER_LIST_INTERVAL: Duration = Duration::from_secs(10);
/// Time for which pods without a sidecar have to be gone. Workloads replace a pod within a second.
const MIN_GONE_TIME: Duration = Duration::from_secs(5);

/// Entries of shards that may not begin, and why.
pub type BlockedShards = BTreeMap<String, BeginBlocker>;

/// Why a shard may not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginBlocker {
    /// These pods of its controller have no sidecar.
    Pods(BTreeSet<String>),
    /// The pods without a sidecar are gone, but none with a sidecar is there yet.
    NoPods,
    /// The pods without a sidecar have been gone for a moment only.
    Gone,
    /// Pods could not be listed, with the error.
    Unknown(String),
}

impl BeginBlocker {
    pub fn reason(&self) -> Reason {
        match self {
            Self::Pods(pods) => Reason::new(Reason::WITHOUT_SIDECAR, without_sidecar_message(pods)),
            Self::NoPods => {
                let message = format!(
                    "the pods without a sidecar are gone; the shard begins with the first pod that has a sidecar (label {}: \"true\")",
                    labels::ENABLE_PROXY
                );
                Reason::new(Reason::NO_PODS, message)
            }
            Self::Gone => {
                let seconds = MIN_GONE_TIME.as_secs();
                let message = format!(
                    "the pods without a sidecar are gone; the shard begins when none has come back for {seconds} s"
                );
                Reason::new(Reason::BEGINNING, message)
            }
            Self::Unknown(problem) => {
                let message = format!(
                    "the shard shows nothing until the manager knows whether pods without a sidecar run, which see everything; the manager \
                     can't list pods here: {problem}"
                );
                Reason::new(Reason::PODS_UNKNOWN, message)
            }
        }
    }
}

/// Shards that have begun: by their locks, or by their entries if they have none.
#[derive(Default)]
struct BegunShards<'a> {
    locks: BTreeSet<&'a str>,
    names: BTreeSet<&'a str>,
}

impl<'a> BegunShards<'a> {
    /// The shards that have begun by the chain alone.
    fn in_chain(entries: &'a [Entry]) -> Self {
        let mut begun = Self::default();
        let has_begun = |entry: &&Entry| is_of_shard(&entry.name) && !is_unbegun(entry);
        entries.iter().filter(has_begun).for_each(|entry| begun.add(entry));
        begun
    }

    /// The shards that have begun by the chain, by claims, and by reports of sidecars.
    fn in_namespace(chain: &'a Chain, claims: &'a Claims, desired: &'a [Entry], pods: &'a Pods<'_>) -> Self {
        let mut begun = Self::in_chain(&chain.entries);
        begun.locks.extend(claims.locks(pods));
        for entry in desired.iter().filter(|entry| is_of_shard(&entry.name)) {
            let last = chain.entries.iter().find(|last| last.name == entry.name);
            if last.is_some_and(|last| continues_begun_shard(last, entry)) || is_reported(entry, last, chain, *pods) {
                begun.add(entry);
            }
        }
        begun
    }

    fn add(&mut self, entry: &'a Entry) {
        match lock_of(entry) {
            Some(lock) => self.locks.insert(lock),
            None => self.names.insert(&entry.name),
        };
    }

    fn has_entry(&self, name: &str, lock: Option<&str>) -> bool {
        lock.map_or_else(|| self.names.contains(name), |lock| self.locks.contains(lock))
    }
}

/// Whether an entry continues one whose shard had begun, perhaps with another lock.
fn continues_begun_shard(last: &Entry, entry: &Entry) -> bool {
    !is_unbegun(last) && object_uid(last) == object_uid(entry)
}

/// UID of the object that an entry is compiled from.
fn object_uid(entry: &Entry) -> Option<&str> {
    entry.origin.as_ref().map(|origin| origin.uid.as_str())
}

/// Whether a sidecar runs a shard that has begun though the chain does not say so, because somebody deleted it or restored an old one.
fn is_reported(entry: &Entry, last: Option<&Entry>, chain: &Chain, pods: Pods<'_>) -> bool {
    let waits = unbegun_entry(entry);
    let is_known = |hash: &str| {
        [Some(&waits), last]
            .into_iter()
            .flatten()
            .any(|it| it.settings.hash() == hash)
    };
    pods.reports.values().any(|report| match report {
        Report::Status(status) if status.chain.generation >= chain.generation => {
            let mut entries = status.chain.entries.iter();
            entries.any(|at| at.name == entry.name && !is_known(&at.settings_hash))
        }
        _ => false,
    })
}

/// Returns the desired entries that may not begin. `chain`, `claims` and `gate` are those of the pass before.
pub fn blocked_shards(
    (chain, claims): (&Chain, &Claims),
    desired: &[Entry],
    resources: &CustomResources,
    pods: Pods<'_>,
    gate: &BeginGate,
    now: Instant,
) -> BlockedShards {
    let begun = BegunShards::in_namespace(chain, claims, desired, &pods);
    let has_not_begun = |entry: &&Entry| is_of_shard(&entry.name) && !begun.has_entry(&entry.name, lock_of(entry));
    let blocker = |entry: &Entry| {
        let is_sibling = |other: &&Entry| other.name == entry.name || has_lock_of(other, entry);
        // A pod without a sidecar handles objects of any shard, also of one that is not compiled yet.
        let mut selectors = sibling_selectors(resources, entry);
        selectors.extend(desired.iter().filter(is_sibling).map(|it| it.pod_selector.clone()));
        let has_waited = chain.entries.iter().filter(is_sibling).any(is_unbegun);
        let siblings = desired.iter().filter(is_sibling).map(|it| it.name.as_str());
        let blocker = uninjected_blocker(&pods.uninjected, &selectors).or_else(|| match has_waited {
            true if !has_pods(pods, &selectors) => Some(BeginBlocker::NoPods),
            true if !gate.are_gone(siblings, now) => Some(BeginBlocker::Gone),
            _ => None,
        });
        Some((entry.name.clone(), blocker?))
    };
    desired.iter().filter(has_not_begun).filter_map(blocker).collect()
}

/// Why a shard may not begin whose controller has the pods that these select.
fn uninjected_blocker(uninjected: &UninjectedPods, selectors: &[LabelSelector]) -> Option<BeginBlocker> {
    if let Some(problem) = &uninjected.unknown {
        return Some(BeginBlocker::Unknown(problem.clone()));
    }
    let is_selected = |labels: &BTreeMap<String, String>| selectors.iter().any(|pods| pods.matches(labels));
    let selected = uninjected.pods.iter().filter(|(_, labels)| is_selected(labels));
    let pods: BTreeSet<String> = selected.map(|(pod, _)| pod.clone()).collect();
    (!pods.is_empty()).then_some(BeginBlocker::Pods(pods))
}

/// Whether an entry is of a shard of the same controller.
fn has_lock_of(other: &Entry, entry: &Entry) -> bool {
    is_of_shard(&other.name) && lock_of(other).is_some() && lock_of(other) == lock_of(entry)
}

/// Selectors of the shards whose objects name an entry's lock.
fn sibling_selectors(resources: &CustomResources, entry: &Entry) -> Vec<LabelSelector> {
    let is_sibling = |config: &&ShardingConfig| config_lock(config).is_some() && config_lock(config) == lock_of(entry);
    let shards = resources.sharding_configs.iter().filter(is_shard).filter(is_sibling);
    shards.filter_map(|config| config.spec.selector.clone()).collect()
}

/// Whether there is a pod with a sidecar that is not being deleted.
fn has_pods(pods: Pods<'_>, selectors: &[LabelSelector]) -> bool {
    let mut staying = pods.sidecars.iter().filter(|sidecar| !sidecar.is_ending);
    staying.any(|sidecar| selectors.iter().any(|pods| pods.matches(&sidecar.labels)))
}

fn is_shard(config: &&ShardingConfig) -> bool {
    config.spec.root.is_none()
}

fn config_lock(config: &ShardingConfig) -> Option<&str> {
    let controller = config.spec.controller.as_ref();
    controller.map(|controller| controller.leader_election_name.as_str())
}

/// Whether any shard may be blocked, by the objects and the last entries alone. Only then are pods listed.
pub fn may_be_blocked(resources: &CustomResources, last: &[Entry]) -> bool {
    let begun = BegunShards::in_chain(last);
    let mut shards = resources.sharding_configs.iter().filter(is_shard);
    // Unreadable objects still have their entries.
    let mut kept = last.iter().filter(|entry| is_unbegun(entry));
    shards.any(|config| !begun.has_entry(&entry_name_of(config), config_lock(config)))
        || kept.any(|entry| !begun.has_entry(&entry.name, lock_of(entry)))
}

/// Blocked shards, from one pass to the next.
#[derive(Clone, Debug, Default)]
pub struct BeginGate {
    blocked: BlockedShards,
    /// Since when exactly these are blocked, for the same reasons.
    since: Option<Instant>,
    /// Since when the pods without a sidecar that an entry waits for are gone.
    gone: BTreeMap<String, Instant>,
    /// When pods could not be listed last, and why.
    pub failed: Option<(Instant, String)>,
}

impl BeginGate {
    /// Records which shards are blocked. `entries` are those of the chain that follows. If a chain that lets shards begin cannot be
    /// written, the time that was waited still counts.
    pub fn record(&mut self, blocked: &BlockedShards, entries: &[Entry], now: Instant) {
        // Errors of API servers may contain times and names.
        let kinds = |blocked: &BlockedShards| -> BlockedShards {
            let kind = |(name, why): (&String, &BeginBlocker)| match why {
                BeginBlocker::Unknown(_) => (name.clone(), BeginBlocker::Unknown(String::new())),
                why => (name.clone(), why.clone()),
            };
            blocked.iter().map(kind).collect()
        };
        if self.since.is_none() || kinds(&self.blocked) != kinds(blocked) {
            self.since = Some(now);
        }
        self.blocked.clone_from(blocked);
        self.gone
            .retain(|name, _| entries.iter().any(|entry| entry.name == *name));
        for (name, why) in blocked {
            match why {
                BeginBlocker::NoPods | BeginBlocker::Gone => drop(self.gone.entry(name.clone()).or_insert(now)),
                BeginBlocker::Pods(_) | BeginBlocker::Unknown(_) => drop(self.gone.remove(name)),
            }
        }
    }

    /// Whether the pods that any of these shards waited for are gone for long enough. Shards of a lock wait for the same.
    fn are_gone<'a>(&self, shards: impl Iterator<Item = &'a str>, now: Instant) -> bool {
        let since = shards.filter_map(|name| self.gone.get(name)).min();
        since.is_some_and(|since| now.duration_since(*since) >= MIN_GONE_TIME)
    }

    /// Time until pods are listed again, if any shard is blocked.
    pub fn next_list_in(&self, now: Instant) -> Option<Duration> {
        (!self.blocked.is_empty()).then(|| self.pause(now))
    }

    /// Records whether this pass could list pods, if it tried.
    pub fn record_listing(&mut self, uninjected: &UninjectedPods) {
        if let Some(at) = uninjected.listed {
            self.failed = uninjected.unknown.clone().map(|problem| (at, problem));
        }
    }

    /// Why pods could not be listed a moment ago. Until the pause is over, passes do not try again.
    pub fn list_error(&self, now: Instant) -> Option<&str> {
        let (at, problem) = self.failed.as_ref()?;
        (now.duration_since(*at) < self.pause(now)).then_some(problem.as_str())
    }

    fn pause(&self, now: Instant) -> Duration {
        match self.since {
            Some(since) if now.duration_since(since) >= FREQUENT_LIST_PERIOD => LATER_LIST_INTERVAL,
            _ => LIST_INTERVAL,
        }
    }
}

fn without_sidecar_message(pods: &BTreeSet<String>) -> String {
    format!(
        "the shard shows nothing while pods without a sidecar see everything: {}; restart their workload with label {}: \"true\", or change \
         their labels if they are not of this controller. To remove a pod that is stuck terminating on a lost node: kubectl delete pod --force",
        join_first(pods.iter().cloned(), ", "),
        labels::ENABLE_PROXY
    )
}

#[cfg(test)]
mod tests;
