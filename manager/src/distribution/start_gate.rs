//! Which shards wait to begin. Pods without a sidecar see everything, and the lock that they ask for is another: while one runs,
//! the shards that select it wait, so that an operator can be sharded by a rolling restart. Pure.
//!
//! The shards of a lock begin together, and once. Who joins those who have begun does not wait: it gets what they give up, and would
//! leave it to nobody. So a pod that is started without a sidecar beside a sharded operator stops nobody. Who has waited begins with a
//! pod that has a sidecar, never with none at all, and when those without have been gone for some seconds: they may only be away for a
//! moment, for a node is drained, or their workload is moved in later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::labels;
use ctrlmesh_contract::{Chain, Entry, LabelSelector};

use super::decide::Reason;
use super::fleet::{Fleet, Report};
use super::next_chain::entry_of;
use super::objects::CustomResources;
use super::status;
use crate::api::ShardingConfig;
use crate::hand_over::{Claims, is_of_shard, is_waiting, lock_of, waiting as while_waiting};

/// Until it is looked again whether pods without a sidecar are gone: nothing watches them.
const AGAIN: Duration = Duration::from_secs(1);
/// How long that is so. In a rolling restart each pod that goes begins it anew.
const SOON: Duration = Duration::from_mins(1);
/// The same later on: who has no label in the template yet may wait for days.
const LATER: Duration = Duration::from_secs(10);
/// How long pods without a sidecar have to be gone. Workloads make the next pod within a second of the end of the one before.
const GONE: Duration = Duration::from_secs(5);

/// Entries that wait, and why.
pub(super) type BlockedShards = BTreeMap<String, StartBlocker>;

/// Why a shard does not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartBlocker {
    /// These pods of its controller have no sidecar.
    Pods(BTreeSet<String>),
    /// They are gone, and none with a sidecar has come yet.
    NoPods,
    /// They are gone, for no more than a moment yet.
    Gone,
    /// Nobody knows whether there are any: what was said when they were asked for.
    Unknown(String),
}

impl StartBlocker {
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Pods(pods) => Reason::new("WithoutSidecar", status::without_sidecar(pods)),
            Self::NoPods => {
                let message = format!(
                    "the pods without a sidecar are gone; begins with the first pod that has one, by label {}: \"true\"",
                    labels::ENABLE_PROXY
                );
                Reason::new("NoPods", message)
            }
            Self::Gone => {
                let seconds = GONE.as_secs();
                let message =
                    format!("the pods without a sidecar are gone; begins when none has come back for {seconds} s");
                Reason::new("Beginning", message)
            }
            Self::Unknown(problem) => {
                let message = format!(
                    "shows nothing until it is known whether pods without a sidecar run, for those see everything; the manager can't \
                     list pods here: {problem}"
                );
                Reason::new("PodsUnknown", message)
            }
        }
    }
}

/// Who has begun: shards by their locks, those without one by their entries.
#[derive(Default)]
struct StartedShards<'a> {
    locks: BTreeSet<&'a str>,
    names: BTreeSet<&'a str>,
}

impl<'a> StartedShards<'a> {
    /// As far as the chain says.
    fn said(entries: &'a [Entry]) -> Self {
        let mut begun = Self::default();
        let has_begun = |entry: &&Entry| is_of_shard(&entry.name) && !is_waiting(entry);
        entries.iter().filter(has_begun).for_each(|entry| begun.add(entry));
        begun
    }

    /// As far as anything says.
    fn of(chain: &'a Chain, claims: &'a Claims, wanted: &'a [Entry], fleet: &'a Fleet) -> Self {
        let mut begun = Self::said(&chain.entries);
        begun.locks.extend(claims.locks(fleet));
        for entry in wanted.iter().filter(|entry| is_of_shard(&entry.name)) {
            let last = chain.entries.iter().find(|last| last.name == entry.name);
            if last.is_some_and(|last| goes_on(last, entry)) || runs_entry(entry, last, chain, fleet) {
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

    fn has(&self, name: &str, lock: Option<&str>) -> bool {
        lock.map_or_else(|| self.names.contains(name), |lock| self.locks.contains(lock))
    }
}

/// Whether an entry is what became of one that had begun, perhaps with another lock.
fn goes_on(last: &Entry, entry: &Entry) -> bool {
    !is_waiting(last) && object(last) == object(entry)
}

/// UID of the object that an entry is of.
fn object(entry: &Entry) -> Option<&str> {
    entry.origin.as_ref().map(|origin| origin.uid.as_str())
}

/// Whether a sidecar runs a shard that has begun, as the chain does not say: somebody has taken that away, or put an earlier one back.
fn runs_entry(entry: &Entry, last: Option<&Entry>, chain: &Chain, fleet: &Fleet) -> bool {
    let waits = while_waiting(entry);
    let is_known = |hash: &str| {
        [Some(&waits), last]
            .into_iter()
            .flatten()
            .any(|it| it.settings.hash() == hash)
    };
    fleet.reports.values().any(|answer| match answer {
        Report::Status(status) if status.chain.generation >= chain.generation => {
            let mut entries = status.chain.entries.iter();
            entries.any(|at| at.name == entry.name && !is_known(&at.settings_hash))
        }
        _ => false,
    })
}

/// Which of the wanted entries wait. `chain`, `claims`, `beginning`: the last ones.
pub(super) fn waiting(
    (chain, claims): (&Chain, &Claims),
    wanted: &[Entry],
    objects: &CustomResources,
    fleet: &Fleet,
    beginning: &StartGate,
    now: Instant,
) -> BlockedShards {
    let begun = StartedShards::of(chain, claims, wanted, fleet);
    let waits = |entry: &&Entry| is_of_shard(&entry.name) && !begun.has(&entry.name, lock_of(entry));
    let why = |entry: &Entry| {
        let is_sibling = |other: &&Entry| other.name == entry.name || has_lock_of(other, entry);
        // What one of them handles may be of any shard, also of one that can't be shown yet.
        let mut selectors = of_objects(objects, entry);
        selectors.extend(wanted.iter().filter(is_sibling).map(|it| it.pod_selector.clone()));
        let has_waited = chain.entries.iter().filter(is_sibling).any(is_waiting);
        let siblings = wanted.iter().filter(is_sibling).map(|it| it.name.as_str());
        let why = fleet.uninjected.why(&selectors).or_else(|| match has_waited {
            true if !has_pods(fleet, &selectors) => Some(StartBlocker::NoPods),
            true if !beginning.are_gone(siblings, now) => Some(StartBlocker::Gone),
            _ => None,
        });
        Some((entry.name.clone(), why?))
    };
    wanted.iter().filter(waits).filter_map(why).collect()
}

/// Whether an entry is of a shard of the same controller.
fn has_lock_of(other: &Entry, entry: &Entry) -> bool {
    is_of_shard(&other.name) && lock_of(other).is_some() && lock_of(other) == lock_of(entry)
}

/// Pods of the shards that objects name for an entry's lock.
fn of_objects(objects: &CustomResources, entry: &Entry) -> Vec<LabelSelector> {
    let is_sibling = |config: &&ShardingConfig| lock(config).is_some() && lock(config) == lock_of(entry);
    let shards = objects.sharding_configs.iter().filter(is_shard).filter(is_sibling);
    shards
        .filter_map(|config| config.spec.selector.as_ref())
        .map(Into::into)
        .collect()
}

/// Whether there is a pod with a sidecar, and going to stay.
fn has_pods(fleet: &Fleet, selectors: &[LabelSelector]) -> bool {
    let mut pods = fleet.sidecars.iter().filter(|sidecar| !sidecar.is_ending);
    pods.any(|sidecar| selectors.iter().any(|pods| pods.matches(&sidecar.labels)))
}

fn is_shard(config: &&ShardingConfig) -> bool {
    config.spec.root.is_none()
}

/// The lock that a shard's controller asks for.
fn lock(config: &ShardingConfig) -> Option<&str> {
    let controller = config.spec.controller.as_ref();
    controller.map(|controller| controller.leader_election_name.as_str())
}

/// Whether a shard may have to wait, as far as objects and the last entries say: then pods are listed.
pub(super) fn may_wait(objects: &CustomResources, last: &[Entry]) -> bool {
    let begun = StartedShards::said(last);
    let mut shards = objects.sharding_configs.iter().filter(is_shard);
    // Of objects that can't be read, the entries are there.
    let mut kept = last.iter().filter(|entry| is_waiting(entry));
    shards.any(|config| !begun.has(&entry_of(config), lock(config)))
        || kept.any(|entry| !begun.has(&entry.name, lock_of(entry)))
}

/// Who waits, from one pass to the next.
#[derive(Clone, Debug, Default)]
pub(super) struct StartGate {
    waiting: BlockedShards,
    /// Since when it is just those, for just that.
    since: Option<Instant>,
    /// Since when there are no pods without a sidecar that a shard would wait for, by its entry.
    gone: BTreeMap<String, Instant>,
    /// When pods could not be listed, and why.
    pub(super) failed: Option<(Instant, String)>,
}

impl StartGate {
    /// Notes who waits, and in what entries. What has begun is not written yet, and may not be taken: those who waited go on from there.
    pub(super) fn note(&mut self, waiting: &BlockedShards, entries: &[Entry], now: Instant) {
        // API servers put times and names of their own into what they say.
        let kinds = |waiting: &BlockedShards| -> BlockedShards {
            let kind = |(name, why): (&String, &StartBlocker)| match why {
                StartBlocker::Unknown(_) => (name.clone(), StartBlocker::Unknown(String::new())),
                why => (name.clone(), why.clone()),
            };
            waiting.iter().map(kind).collect()
        };
        if self.since.is_none() || kinds(&self.waiting) != kinds(waiting) {
            self.since = Some(now);
        }
        self.waiting.clone_from(waiting);
        self.gone
            .retain(|name, _| entries.iter().any(|entry| entry.name == *name));
        for (name, why) in waiting {
            match why {
                StartBlocker::NoPods | StartBlocker::Gone => drop(self.gone.entry(name.clone()).or_insert(now)),
                StartBlocker::Pods(_) | StartBlocker::Unknown(_) => drop(self.gone.remove(name)),
            }
        }
    }

    /// Whether those are gone for long enough whom any of these shards has waited for: shards of a lock wait for the same.
    fn are_gone<'a>(&self, shards: impl Iterator<Item = &'a str>, now: Instant) -> bool {
        let since = shards.filter_map(|name| self.gone.get(name)).min();
        since.is_some_and(|since| now.duration_since(*since) >= GONE)
    }

    /// When to look again, if anybody waits.
    pub(super) fn again(&self, now: Instant) -> Option<Duration> {
        (!self.waiting.is_empty()).then(|| self.pause(now))
    }

    /// Why pods could not be listed a moment ago. Passes that others ask for do not wait for that once more.
    pub(super) fn failed(&self, now: Instant) -> Option<&str> {
        let (at, problem) = self.failed.as_ref()?;
        (now.duration_since(*at) < self.pause(now)).then_some(problem.as_str())
    }

    fn pause(&self, now: Instant) -> Duration {
        match self.since {
            Some(since) if now.duration_since(since) >= SOON => LATER,
            _ => AGAIN,
        }
    }
}

#[cfg(test)]
mod tests;
