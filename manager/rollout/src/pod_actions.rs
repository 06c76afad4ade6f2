//! Decides which pods are nudged, labelled and evicted. Pure.
//!
//! A pod is nudged by an annotation with the chain's generation, so that kubelet syncs its volume now and not within a minute. It
//! is repeated while the pod answers and has not got the chain: kubelet may have synced with what its own watch showed before.
//!
//! Pods of a shard with `reshard: Restart` see a change only in a replacement. They are labelled to keep their limits, then evicted
//! one by one. Guarantee: at most one pod of a shard is missing because of evictions. How many pods there are is noted on those
//! that wait ([`SHARD_PODS`]), before each eviction if there are more by now; while there are fewer, none is evicted, however long
//! that takes. Pods do not show whether somebody scaled the shard down or whether replacements fail, so a person decides, by
//! removing the annotation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::annotations::SHARD_PODS;
use ctrlmesh_contract::{Chain, Entry, Origin};
use ctrlmesh_manager_api::status::Reason;
use ctrlmesh_manager_planner::hand_over::restart_policy::{Evict, Hold};
use k8s_openapi::jiff::Timestamp;

use crate::config_maps::MAX_UNSEEN;
use crate::fleet::{Fleet, LagReason, Report, Sidecar, named_pods};
use crate::next_chain::NextChain;
use crate::pods::lock_name;

/// Pauses before a nudge is repeated. After the last one, kubelet syncs by itself.
const NUDGE_BACKOFF: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(30)];
/// Pods that a command in a message names.
pub const MAX_COMMAND: usize = 20;
/// Pause after a refused eviction: the first, and the longest. It doubles each time.
const EVICTION_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The last nudge of each pod, by UID.
pub type NudgeHistory = BTreeMap<String, LastNudge>;

/// When a pod was nudged, or found to be nudged by an earlier manager.
#[derive(Clone, Copy, Debug)]
pub struct LastNudge {
    generation: u64,
    at: Instant,
    /// Repetitions of the nudge.
    again: u32,
}

/// A pod that is to be nudged now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNudge {
    pub pod: String,
    uid: String,
    /// Earlier nudges for the same chain.
    pub again: u32,
}

/// The pods to nudge now, and the time until the next one is due. Nudges are annotations, so it does not matter which manager
/// wrote them.
pub fn due_nudges(
    history: &mut NudgeHistory,
    fleet: &Fleet,
    entries: &[Entry],
    generation: u64,
    now: Instant,
) -> (Vec<PodNudge>, Option<Duration>) {
    let uids = fleet.uids();
    history.retain(|uid, last| last.generation == generation && uids.contains(uid.as_str()));
    let (mut due, mut next) = (Vec::new(), None::<Duration>);
    for sidecar in fleet.lagging_sidecars(entries) {
        let nudge = |again| PodNudge {
            pod: sidecar.pod.clone(),
            uid: sidecar.uid.clone(),
            again,
        };
        if sidecar.nudged != Some(generation) {
            let last = history.get(&sidecar.uid);
            if last.is_none_or(|last| now.duration_since(last.at) >= MAX_UNSEEN) {
                due.push(nudge(0));
            }
            continue;
        }
        // One more sync does not help a sidecar that is silent or has refused the chain.
        if fleet.lag_reason(sidecar, entries, generation) != Some(LagReason::Behind) {
            continue;
        }
        let known = sidecar.renudged.filter(|(of, _)| *of == generation);
        let last = history.entry(sidecar.uid.clone()).or_insert(LastNudge {
            generation,
            at: now,
            again: 0,
        });
        let again = known.map_or(0, |(_, again)| again).max(last.again);
        let Some(pause) = usize::try_from(again).ok().and_then(|again| NUDGE_BACKOFF.get(again)) else {
            continue;
        };
        match pause.saturating_sub(now.duration_since(last.at)) {
            Duration::ZERO => due.push(nudge(again.saturating_add(1))),
            left => next = Some(next.map_or(left, |next| next.min(left))),
        }
    }
    (due, next)
}

pub fn record_nudge(history: &mut NudgeHistory, nudge: &PodNudge, generation: u64, now: Instant) {
    let last = LastNudge {
        generation,
        at: now,
        again: nudge.again,
    };
    history.insert(nudge.uid.clone(), last);
}

/// Restarts from one pass to the next. A new manager observes them again.
#[derive(Clone, Debug, Default)]
pub struct Restarts {
    /// UIDs of evicted pods, which caches may still show as running.
    evicted: BTreeSet<String>,
    /// When pods were first missing, as far as this manager knows, by the shard's entry.
    missing: BTreeMap<String, Timestamp>,
    /// Refused evictions, by the shard's entry.
    refused: BTreeMap<String, RefusedEviction>,
}

#[derive(Clone, Debug)]
struct RefusedEviction {
    reason: Reason,
    pause: Duration,
    until: Instant,
}

/// The next step of a restart.
#[derive(Clone, Debug, PartialEq)]
pub enum RestartStep {
    /// Evict the next pod.
    Evict,
    /// Evict none before this has happened.
    Wait(String),
    /// Note this number of pods before any eviction: otherwise one that does not come back would not be missed.
    Count(usize),
    /// No stale pod is left.
    Done,
}

/// Why restarts of shards are not done yet, by the shard's entry.
pub type RestartReasons = BTreeMap<String, Reason>;

/// Steps of restarts for this pass.
#[derive(Debug, Default)]
pub struct RestartPlan {
    /// Pods to label, so that they keep their limits until they are replaced.
    pub holds: Vec<Hold>,
    pub actions: Vec<RestartAction>,
    /// Restarts that do nothing in this pass.
    pub reasons: RestartReasons,
}

/// A step of a restart that writes something: [`RestartStep::Evict`] or [`RestartStep::Count`].
#[derive(Debug)]
pub struct RestartAction {
    pub evict: Evict,
    pub step: RestartStep,
    /// Name of the shard's lock, whose holder is evicted last.
    pub lock: Option<String>,
    /// The ShardingConfig.
    pub origin: Option<Origin>,
}

impl RestartAction {
    /// The pod to evict. `holder`: identity of the lock's holder, `None` if there is none, or why it can't be read. It is read
    /// just before the eviction, because leaders change at any time.
    ///
    /// # Errors
    /// No pod is evicted in this pass.
    pub fn pod_to_evict<'a>(
        &self,
        fleet: &'a Fleet,
        holder: Result<Option<String>, String>,
    ) -> Result<&'a Sidecar, RestartResult> {
        let leader = holder.map_err(|error| RestartResult::UnknownLeader { error })?;
        next_to_evict(&stale_pods(&self.evict, fleet), fleet, leader.as_deref()).ok_or(RestartResult::NoPod)
    }
}

/// Why the API server evicted no pod.
#[derive(Debug)]
pub struct EvictionError {
    /// Status code of the response, if there was one.
    pub code: Option<u16>,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartResult {
    /// The number of pods is noted on those that wait, unless there is an error.
    Counted {
        count: usize,
        error: Option<String>,
    },
    /// The lock can't be read. The leader might be evicted first.
    UnknownLeader {
        error: String,
    },
    /// No pod is left to evict.
    NoPod,
    Evicted {
        pod: String,
        uid: String,
    },
    /// The pod is gone or ends, or another one has its name.
    Ending {
        pod: String,
    },
    Refused {
        pod: String,
        error: String,
    },
}

impl RestartResult {
    /// The result of evicting this pod.
    #[must_use]
    pub fn of_eviction(sidecar: &Sidecar, response: Result<(), EvictionError>) -> Self {
        let pod = sidecar.pod.clone();
        match response {
            Ok(()) => Self::Evicted {
                pod,
                uid: sidecar.uid.clone(),
            },
            Err(error) if matches!(error.code, Some(404 | 409)) => Self::Ending { pod },
            Err(error) => Self::Refused {
                pod,
                error: error.message,
            },
        }
    }

    /// Why the restart is not done yet.
    #[must_use]
    pub fn reason(&self) -> Reason {
        let message = match self {
            Self::Counted { count, error: None } => format!("noted that it has {count} pods"),
            Self::Counted {
                count,
                error: Some(error),
            } => format!("failed to note that it has {count} pods: {error}"),
            Self::UnknownLeader { error } => format!("can't read which pod leads: {error}"),
            Self::NoPod => "its pods are gone".to_owned(),
            Self::Evicted { pod, .. } => format!("replacing {pod}"),
            Self::Ending { pod } => ending_message(pod),
            Self::Refused { pod, error } => {
                return Reason::new(Reason::EVICTION_REFUSED, format!("{pod} can't be evicted: {error}"));
            }
        };
        Reason::new(Reason::RESTARTING, message)
    }
}

fn ending_message(pod: &str) -> String {
    format!("waiting for {pod} to end")
}

/// The next step of every restart. `next`: the chain that is stored.
pub fn restart_plan(
    next: &NextChain,
    fleet: &Fleet,
    restarts: &mut Restarts,
    (now, time): (Instant, Timestamp),
) -> RestartPlan {
    restarts.forget_finished(&next.plan.evict, fleet);
    let keeps = "its pods are being labelled to keep what they see until they are replaced";
    let preparing = next.plan.preparing.iter();
    let mut plan = RestartPlan {
        holds: next.plan.hold.clone(),
        reasons: preparing
            .map(|entry| (entry.clone(), Reason::new(Reason::RESTARTING, keeps)))
            .collect(),
        ..RestartPlan::default()
    };
    for evict in &next.plan.evict {
        let step = restarts.step(evict, &next.chain, fleet, time);
        let refused = restarts.refused.get(&evict.entry).filter(|refused| now < refused.until);
        let reason = match (&step, refused) {
            (RestartStep::Done, _) => continue,
            (RestartStep::Wait(message), _) => Some(Reason::new(Reason::RESTARTING, message)),
            (RestartStep::Evict, Some(refused)) => Some(refused.reason.clone()),
            (RestartStep::Evict | RestartStep::Count(_), _) => None,
        };
        if let Some(reason) = reason {
            plan.reasons.insert(evict.entry.clone(), reason);
            continue;
        }
        let entry = next.chain.entries.iter().find(|entry| entry.name == evict.entry);
        plan.actions.push(RestartAction {
            evict: evict.clone(),
            step,
            lock: entry.and_then(lock_name),
            origin: entry.and_then(|entry| entry.origin.clone()),
        });
    }
    plan
}

impl Restarts {
    fn forget_finished(&mut self, evict: &[Evict], fleet: &Fleet) {
        let uids = fleet.uids();
        let is_at_work = |entry: &String| evict.iter().any(|evict| evict.entry == *entry);
        self.evicted.retain(|uid| uids.contains(uid.as_str()));
        self.missing.retain(|entry, _| is_at_work(entry));
        self.refused.retain(|entry, _| is_at_work(entry));
    }

    /// Records the results of evictions, by the shard's entry.
    pub fn record(&mut self, results: &BTreeMap<String, RestartResult>, now: Instant) {
        for (entry, result) in results {
            match result {
                RestartResult::Evicted { uid, .. } => {
                    self.refused.remove(entry);
                    self.evicted.insert(uid.clone());
                }
                RestartResult::Refused { .. } => self.back_off(entry, result.reason(), now),
                _ => {}
            }
        }
    }

    /// Decides whether a pod may be evicted now.
    ///
    /// Stale pods need not be ready: those that are not go first ([`next_to_evict`]), so no working pod goes while another does not
    /// work.
    fn step(&mut self, evict: &Evict, chain: &Chain, fleet: &Fleet, now: Timestamp) -> RestartStep {
        if stale_pods(evict, fleet).is_empty() {
            return RestartStep::Done;
        }
        let all: Vec<&Sidecar> = fleet.selected(&evict.pods).collect();
        let is_going = |sidecar: &&&Sidecar| sidecar.is_ending || self.evicted.contains(&sidecar.uid);
        if let Some(sidecar) = all.iter().find(is_going) {
            return RestartStep::Wait(ending_message(&sidecar.pod));
        }
        let here = all.len();
        let noted = all.iter().filter_map(|sidecar| sidecar.shard_pods).max();
        let noted = noted.unwrap_or_default();
        if here < noted {
            let since = *self.missing.entry(evict.entry.clone()).or_insert(now);
            let count = format!("{here} of {noted}");
            return RestartStep::Wait(missing_pods(&chain.namespace, &all, &count, since));
        }
        let new = all
            .iter()
            .filter(|sidecar| !evict.stale.has_pod(&sidecar.uid, &sidecar.labels));
        let new: Vec<&Sidecar> = new.copied().collect();
        if let Some(message) = unfinished_replacement(&new, &chain.entries, fleet) {
            return RestartStep::Wait(message);
        }
        self.missing.remove(&evict.entry);
        if here > noted {
            RestartStep::Count(here)
        } else {
            RestartStep::Evict
        }
    }

    /// Pause after the last refused eviction of a shard.
    #[cfg(test)]
    pub fn pause_of(&self, entry: &str) -> Option<Duration> {
        self.refused.get(entry).map(|refused| refused.pause)
    }

    /// Delays the next attempt, each time for longer.
    fn back_off(&mut self, entry: &str, reason: Reason, now: Instant) {
        let before = self.refused.get(entry).map(|refused| refused.pause * 2);
        let pause = before.unwrap_or(EVICTION_BACKOFF.0).min(EVICTION_BACKOFF.1);
        let until = now + pause;
        let refused = RefusedEviction { reason, pause, until };
        self.refused.insert(entry.to_owned(), refused);
    }
}

/// Why a replacement does not do its work yet.
fn unfinished_replacement(new: &[&Sidecar], entries: &[Entry], fleet: &Fleet) -> Option<String> {
    let is_behind = |sidecar: &&&Sidecar| sidecar.ip.is_none() || !fleet.runs_chain(sidecar, entries);
    if let Some(sidecar) = new.iter().find(is_behind) {
        return Some(format!("{} does not run the chain yet", sidecar.pod));
    }
    let unready = new.iter().filter(|sidecar| !sidecar.is_ready);
    let unready: Vec<_> = unready
        .map(|sidecar| (sidecar.pod.clone(), "is not ready".to_owned()))
        .collect();
    (!unready.is_empty()).then(|| named_pods(&unready, ", "))
}

/// Message about a shard that lacks pods. `count`: how many of how many are there.
fn missing_pods(namespace: &str, pods: &[&Sidecar], count: &str, since: Timestamp) -> String {
    let since = ctrlmesh_manager_api::status::timestamp(since);
    let owners: BTreeSet<&str> = pods.iter().filter_map(|sidecar| sidecar.owner.as_deref()).collect();
    let owners = match Vec::from_iter(owners).join(" and ") {
        none if none.is_empty() => "the owner of its pods".to_owned(),
        owners => owners,
    };
    let noted = || pods.iter().filter(|sidecar| sidecar.shard_pods.is_some());
    let pods: Vec<&str> = noted().take(MAX_COMMAND).map(|sidecar| sidecar.pod.as_str()).collect();
    let more = match noted().count().saturating_sub(MAX_COMMAND) {
        0 => String::new(),
        more => format!(" (and {more} more of its pods)"),
    };
    format!(
        "{count} pods exist since {since}, and no other is evicted until all do: see the events of {owners}. \
         If the shard is meant to have fewer: kubectl annotate pods -n {namespace} {} {SHARD_PODS}-{more}",
        pods.join(" ")
    )
}

/// Pods of a shard that have to be replaced.
pub fn stale_pods<'a>(evict: &Evict, fleet: &'a Fleet) -> Vec<&'a Sidecar> {
    let sidecars = fleet.sidecars.iter();
    sidecars
        .filter(|sidecar| evict.is_due(&sidecar.uid, &sidecar.labels))
        .collect()
}

/// The pod to evict next: one that is not ready first. The leader goes last, because evicting it elects another; before it pods
/// that do not answer, which may lead.
fn next_to_evict<'a>(kept: &[&'a Sidecar], fleet: &Fleet, leader: Option<&str>) -> Option<&'a Sidecar> {
    let is_leader = |pod: &str| {
        // Identities of client-go are `<host name>_<random>`.
        leader.is_some_and(|leader| leader == pod || leader.strip_prefix(pod).is_some_and(|rest| rest.starts_with('_')))
    };
    let rank = |sidecar: &Sidecar| match fleet.reports.get(&sidecar.pod) {
        _ if is_leader(&sidecar.pod) => 2,
        Some(Report::Status(_)) => 0,
        _ => 1,
    };
    kept.iter()
        .copied()
        .min_by_key(|sidecar| (sidecar.is_ready, rank(sidecar), sidecar.pod.clone()))
}

#[cfg(test)]
mod tests {
    mod nudges;
    mod restarts;
}
