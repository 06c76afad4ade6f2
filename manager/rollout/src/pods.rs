//! Concludes what pods may still show: which run the chain with nothing left from before, which may lead by an old lock, and which
//! are not waited for any longer. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::time::{Duration, Instant};

use ctrlmesh_contract::{Chain, Digest, Entry};
use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_planner::hand_over::{self, LOCK_EXPIRY, lock_of, restart_policy, shard_of};

use crate::config_maps::{ChainHistory, StoredChain};
use crate::fleet::{Fleet, Report, Sidecar, named_pods, runs_entry};
use crate::observation::Observation;

/// Time for which sidecars are polled often after a chain was written.
const MAX_AWAITED: Duration = Duration::from_mins(2);
/// Polls that must fail, after a pod is waited for, before it is given up: the time alone may be a pause between two polls.
const MIN_FAILURES: u32 = 3;

/// When each pod (by UID) started running its current shard entries with no request left from an earlier chain, together with
/// the digest of those entries.
pub type QuietSince = BTreeMap<String, (Digest, Instant)>;

/// The shard locks that each pod (by UID) asks for, and since when.
pub type Locks = BTreeMap<String, (BTreeSet<String>, Instant)>;

/// Pods that are waited for and do not answer, by UID: a pod that is replaced under the same name is another one.
pub type SilentPods = BTreeMap<String, Silence>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// When the wait began.
    since: Instant,
    /// Failed polls in a row at that time.
    failures: u32,
}

/// Pods from one pass to the next.
#[derive(Clone, Debug, Default)]
pub struct PodHistory {
    pub quiet: QuietSince,
    pub locks: Locks,
    /// Names of the entries that each pod (by UID) may run.
    pub running: BTreeMap<String, BTreeSet<String>>,
    pub silent: SilentPods,
    /// Since when there are sidecars that were not polled yet.
    pub unpolled_since: Option<Instant>,
    /// All sidecars that this manager found at first were polled, or waited for long enough.
    pub are_all_polled: bool,
}

/// Conclusions of a pass from reports and history. Pods are given by name.
#[derive(Clone, Debug, Default)]
pub struct PodStates {
    /// Pods that have run the chain, with nothing left from before, for the settle time of their shards.
    pub quiet: BTreeSet<String>,
    /// Pods that can't be reached, and were waited for as long as the policies of their shards say.
    pub given_up: BTreeSet<String>,
    /// Pods whose controllers can't lead any more by a lock that their entries do not name.
    pub lease_expired: BTreeSet<String>,
    /// Names of the entries that each pod (by UID) may run.
    pub running: BTreeMap<String, BTreeSet<String>>,
    /// No chain was written in this namespace yet.
    pub is_first: bool,
    /// A pod whose sidecar runs a later chain than the stored one.
    pub rolled_back_by: Option<String>,
    /// Sidecars that were not polled yet are waited for, for some seconds: a manager that has just started to lead does not know
    /// what they support.
    pub awaits_reports: bool,
}

/// The fleet together with what a pass concludes about its pods.
#[derive(Clone, Copy, Debug)]
pub struct Pods<'a> {
    pub fleet: &'a Fleet,
    pub states: &'a PodStates,
}

impl Deref for Pods<'_> {
    type Target = Fleet;

    fn deref(&self) -> &Fleet {
        self.fleet
    }
}

impl Pods<'_> {
    /// Whether a sidecar shows nothing. It can't run yet; or it has no chain because none was ever written, lets nothing through,
    /// and its predecessor in the pod has left nothing. Where there is a chain, a sidecar that starts may find an earlier one, and
    /// counts once it reports what it runs.
    #[must_use]
    pub fn is_blank(&self, sidecar: &Sidecar) -> bool {
        let has_none = || match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => status.chain.generation == 0 && status.chain.earlier.is_none(),
            _ => sidecar.nudged.is_none(),
        };
        !sidecar.is_scheduled || self.states.is_first && has_none()
    }
}

impl hand_over::FleetState for Pods<'_> {
    fn is_rolled_back(&self) -> bool {
        self.states.rolled_back_by.is_some()
    }

    fn is_unseen(&self, entry: &Entry) -> bool {
        let selector = hand_over::all_pods(entry);
        let pods = self.selected(&selector).filter(|sidecar| !self.is_blank(sidecar));
        let mut pods = pods.peekable();
        // A pod that does not answer may run the entry.
        let runs_other = |sidecar: &Sidecar| match self.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => !status.chain.entries.iter().any(|at| runs_entry(entry, at)),
            _ => false,
        };
        pods.peek().is_some() && pods.all(runs_other)
    }

    fn pods(&self) -> impl Iterator<Item = hand_over::Pod<'_>> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        self.sidecars.iter().map(|sidecar| hand_over::Pod {
            uid: &sidecar.uid,
            labels: &sidecar.labels,
            running: self.states.running.get(&sidecar.uid).unwrap_or(&NONE),
            is_blank: self.is_blank(sidecar),
            is_quiet: self.states.quiet.contains(&sidecar.pod),
            is_given_up: self.states.given_up.contains(&sidecar.pod),
            may_lead: !self.states.lease_expired.contains(&sidecar.pod),
        })
    }
}

#[derive(Debug, Default)]
pub struct PodAssessment {
    pub states: PodStates,
    /// Pods that should be polled more often. `None`: as before.
    pub awaited: Option<BTreeSet<String>>,
    /// Time until the next pod has settled, or the next lease has run out.
    pub settles_in: Option<Duration>,
}

/// Concludes what pods may show. [`pods_given_up`] follows when it is clear that the pass goes on.
pub fn assess_pods(observation: &Observation, chains: &mut ChainHistory, history: &mut PodHistory) -> PodAssessment {
    let Observation {
        fleet,
        config_maps,
        now,
        ..
    } = observation;
    let now = *now;
    let generation = config_maps.chain.as_ref().map_or(0, |chain| chain.generation);
    if chains.observe(config_maps.digest, generation, now) == StoredChain::Skipped {
        history.quiet.clear();
    }
    chains.highest_generation = fleet.generation().max(chains.highest_generation);
    let mut assessment = PodAssessment::default();
    let states = &mut assessment.states;
    states.is_first = config_maps.version.is_none() && chains.last.is_none();
    if chains.may_raise(now) {
        states.rolled_back_by = pod_ahead(observation, chains);
    }
    update_running(fleet, config_maps.chain.as_ref(), &mut history.running);
    states.running.clone_from(&history.running);
    let (Some(chain), Some((_, known_since))) = (&config_maps.chain, chains.stored) else {
        history.quiet.clear();
        return assessment;
    };
    let is_awaited = |sidecar: &&Sidecar| {
        let is_lagging = now.duration_since(known_since) < MAX_AWAITED && !fleet.runs_chain(sidecar, &chain.entries);
        // A silent pod is polled often also after it is given up: it may come back.
        is_lagging || history.silent.contains_key(&sidecar.uid)
    };
    let awaited = fleet.sidecars.iter().filter(is_awaited);
    assessment.awaited = Some(awaited.map(|sidecar| sidecar.pod.clone()).collect());
    history.quiet = pods_quiet_since(fleet, chain, &history.quiet, now);
    let configs = &observation.resources.sharding_configs;
    let left = |sidecar: &Sidecar| {
        let (_, since) = history.quiet.get(&sidecar.uid)?;
        let earlier = config_maps
            .claims
            .settle_times(&sidecar.uid, &sidecar.labels, &chain.entries);
        let settle = settle_time(sidecar, configs, earlier, observation.settings.settle);
        Some(settle.saturating_sub(now.duration_since(*since)))
    };
    let settling = fleet.sidecars.iter().filter_map(left).filter(|left| !left.is_zero());
    let settled = fleet
        .sidecars
        .iter()
        .filter(|sidecar| left(sidecar).is_some_and(|left| left.is_zero()));
    states.quiet = settled.map(|sidecar| sidecar.pod.clone()).collect();
    let settles_in = settling.min();
    history.locks = requested_locks(fleet, chain, &history.quiet, &history.locks, now);
    states.lease_expired = pods_with_expired_leases(fleet, &history.locks, now);
    let leases = history.locks.values();
    let leases = leases.map(|(_, since)| LOCK_EXPIRY.saturating_sub(now.duration_since(*since)));
    let leases = leases.filter(|left| !left.is_zero() && !config_maps.claims.is_empty());
    assessment.settles_in = settles_in.into_iter().chain(leases).min();
    assessment
}

/// The settle time of a pod: the longest of its shards. `earlier`: times of the shards whose objects it may show, as
/// the claims say. Those of its ShardingConfigs may have been edited since, or can't be read.
fn settle_time(
    sidecar: &Sidecar,
    configs: &[ShardingConfig],
    earlier: impl Iterator<Item = Option<Duration>>,
    default: Duration,
) -> Duration {
    let times = shards_of(sidecar, configs).map(|config| settle_time_of(config, default));
    let earlier = earlier.map(|time| time.unwrap_or(default));
    times.chain(earlier).max().unwrap_or(default)
}

pub(crate) fn settle_time_of(config: &ShardingConfig, default: Duration) -> Duration {
    let seconds = config.spec.settle_seconds;
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(default, Duration::from_secs)
}

/// ShardingConfigs that are shards and select a pod.
fn shards_of<'c>(sidecar: &Sidecar, configs: &'c [ShardingConfig]) -> impl Iterator<Item = &'c ShardingConfig> {
    configs.iter().filter(move |config| {
        let pods = config.spec.selector.as_ref();
        config.spec.root.is_none() && pods.is_some_and(|pods| pods.matches(&sidecar.labels))
    })
}

/// Name of the lock by which the pods of a shard's entry elect a leader. The shard-selector plugin makes the same. `None`: they
/// have no lock.
#[must_use]
pub fn lock_name(entry: &Entry) -> Option<String> {
    Some(format!("{}---{}", lock_of(entry)?, shard_setting(entry)?))
}

/// Name of the shard in the settings of its entry.
pub fn shard_setting(entry: &Entry) -> Option<&str> {
    entry.settings.value().get("shard")?.as_str()
}

/// Since when pods ask for the locks that their entries name. A change of limits does not restart the time.
fn requested_locks(fleet: &Fleet, chain: &Chain, quiet: &QuietSince, before: &Locks, now: Instant) -> Locks {
    let locks_of = |sidecar: &Sidecar| {
        let own: BTreeSet<String> = sidecar.own_entries(&chain.entries).filter_map(lock_name).collect();
        let known = before.get(&sidecar.uid).filter(|(locks, _)| *locks == own);
        let since = known.map(|(_, since)| *since);
        // A pod asks for other locks once it reports that it runs these entries.
        let since = since.or_else(|| quiet.contains_key(&sidecar.uid).then_some(now))?;
        Some((sidecar.uid.clone(), (own, since)))
    };
    fleet.sidecars.iter().filter_map(locks_of).collect()
}

/// Pods whose controllers can't lead any more by a lock that their entries do not name: they have asked for other locks for the
/// length of a lease, and their sidecars report no such leadership.
fn pods_with_expired_leases(fleet: &Fleet, locks: &Locks, now: Instant) -> BTreeSet<String> {
    let is_expired = |sidecar: &&Sidecar| {
        let known = locks.get(&sidecar.uid);
        let known = known.filter(|(_, since)| now.duration_since(*since) >= LOCK_EXPIRY);
        known.is_some_and(|(own, _)| match fleet.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => {
                let mut elections = status.leader_elections.iter();
                !elections.any(|election| election.leads && !own.contains(&election.lock))
            }
            _ => false,
        })
    };
    let expired = fleet.sidecars.iter().filter(is_expired);
    expired.map(|sidecar| sidecar.pod.clone()).collect()
}

/// A pod whose sidecar runs a later chain than the stored one, or another of its generation: somebody has restored an old
/// ConfigMap, or two managers led at once. Then pods may show something else than what is remembered.
fn pod_ahead(observation: &Observation, chains: &ChainHistory) -> Option<String> {
    let stored = &observation.config_maps;
    let last = chains.last.as_ref().map(|(chain, _)| chain);
    let known = stored.chain.as_ref().or(last)?.generation;
    let is_ahead = |(_, report): &(&String, &Report)| match report {
        Report::Status(status) => {
            let reported = status.chain.generation;
            let is_other =
                status.chain.digest.is_some() && stored.digest.is_some() && status.chain.digest != stored.digest;
            reported > known || reported == known && is_other
        }
        Report::Unavailable(_) => false,
    };
    let mut reports = observation.fleet.reports.iter();
    reports.find(is_ahead).map(|(pod, _)| pod.clone())
}

/// Updates which entries pods may run. A report that is older than the chain adds to what may run; a fresh one replaces it.
fn update_running(fleet: &Fleet, chain: Option<&Chain>, running: &mut BTreeMap<String, BTreeSet<String>>) {
    for sidecar in &fleet.sidecars {
        let running = running.entry(sidecar.uid.clone()).or_default();
        let is_fresh = fleet.fresh.contains(&sidecar.pod);
        if let Some(Report::Status(status)) = fleet.reports.get(&sidecar.pod) {
            let names = status.chain.entries.iter().map(|entry| entry.name.clone());
            if is_fresh {
                *running = names.collect();
            } else {
                running.extend(names);
            }
        }
        if !is_fresh {
            let own = sidecar.own_entries(chain.into_iter().flat_map(|chain| &chain.entries));
            running.extend(own.map(|entry| entry.name.clone()));
        }
    }
    let uids = fleet.uids();
    running.retain(|uid, _| uids.contains(uid.as_str()));
}

/// Since when pods run the entries of their shards with nothing left from before. Changes of other entries, or of other shards,
/// do not restart the time.
fn pods_quiet_since(fleet: &Fleet, chain: &Chain, before: &QuietSince, now: Instant) -> QuietSince {
    let quiet_since = |sidecar: &Sidecar| {
        let own = sidecar.own_entries(&chain.entries);
        let own: Vec<&Entry> = own.filter(|entry| hand_over::is_of_shard(&entry.name)).collect();
        let line = |entry: &&Entry| format!("{} {} {}\n", entry.name, entry.plugin, entry.settings.hash());
        let digest = Digest::of(own.iter().map(line).collect::<String>().as_bytes());
        let known = before.get(&sidecar.uid).filter(|(at, _)| *at == digest);
        let since = known.map_or(now, |(_, since)| *since);
        let is_fresh = fleet.runs_its_shard(sidecar, &chain.entries);
        // The sidecar was not polled since, but nothing has changed for it.
        let is_as_before = known.is_some() && fleet.reported_its_shard(sidecar, &chain.entries);
        (is_fresh || is_as_before).then(|| (sidecar.uid.clone(), (digest, since)))
    };
    fleet.sidecars.iter().filter_map(quiet_since).collect()
}

/// Pods that are not waited for any longer, because the policies of all their shards say so.
pub fn pods_given_up(silent: &SilentPods, fleet: &Fleet, configs: &[ShardingConfig], now: Instant) -> BTreeSet<String> {
    let is_given_up = |sidecar: &&Sidecar| {
        let silence = silent.get(&sidecar.uid).filter(|_| !answers_or_cannot(sidecar, fleet));
        // A pod without an address can't be polled.
        let is_polled = |silence: &&Silence| {
            sidecar.ip.is_none() || failed_polls(sidecar, fleet) >= silence.failures.saturating_add(MIN_FAILURES)
        };
        let silence = silence.filter(is_polled);
        let timeouts: Option<Vec<_>> = shards_of(sidecar, configs)
            .map(|config| config.spec.unreachable_pods.as_ref()?.overtaking_timeout())
            .collect();
        let longest = timeouts.and_then(|timeouts| timeouts.into_iter().max());
        silence
            .zip(longest)
            .is_some_and(|(silence, timeout)| now.duration_since(silence.since) >= timeout)
    };
    let given_up = fleet.sidecars.iter().filter(is_given_up);
    given_up.map(|sidecar| sidecar.pod.clone()).collect()
}

/// Whether a sidecar answers, or does not run yet.
fn answers_or_cannot(sidecar: &Sidecar, fleet: &Fleet) -> bool {
    !sidecar.is_scheduled || matches!(fleet.reports.get(&sidecar.pod), Some(Report::Status(_)))
}

fn failed_polls(sidecar: &Sidecar, fleet: &Fleet) -> u32 {
    fleet.failures.get(&sidecar.pod).copied().unwrap_or_default()
}

/// The awaited pods that do not answer, and since when. `awaited`: UIDs by the shard's entry.
pub fn update_silence(
    before: &SilentPods,
    awaited: &BTreeMap<String, BTreeSet<String>>,
    pods: Pods<'_>,
    now: Instant,
) -> SilentPods {
    let is_waited_for = |sidecar: &&Sidecar| awaited.values().any(|pods| pods.contains(&sidecar.uid));
    let waited = pods.sidecars.iter().filter(is_waited_for);
    // A pod that was given up still does not answer, though nobody waits for it now.
    let known = pods
        .sidecars
        .iter()
        .filter(|sidecar| pods.states.given_up.contains(&sidecar.pod));
    let silent = waited
        .chain(known)
        .filter(|sidecar| !answers_or_cannot(sidecar, pods.fleet));
    let silence = |sidecar: &Sidecar| {
        let failures = failed_polls(sidecar, pods.fleet);
        // Fewer failures than before: it has answered meanwhile, or has another address.
        let before = before.get(&sidecar.uid).filter(|silence| silence.failures <= failures);
        before.copied().unwrap_or(Silence { since: now, failures })
    };
    silent.map(|sidecar| (sidecar.uid.clone(), silence(sidecar))).collect()
}

/// A shard that others wait for, with the pods that keep them waiting.
pub fn describe_holder(
    holder: &str,
    awaited: &BTreeMap<String, BTreeSet<String>>,
    entries: &[Entry],
    pods: Pods<'_>,
) -> String {
    let is_waited_for = |sidecar: &&Sidecar| {
        let awaited = awaited.get(holder);
        awaited.is_some_and(|pods| pods.contains(&sidecar.uid))
    };
    let waited = pods.sidecars.iter().filter(is_waited_for);
    let late = waited.filter(|sidecar| {
        restart_policy::shard_entry_of(holder).is_some() || !pods.states.quiet.contains(&sidecar.pod)
    });
    let mut late: Vec<(String, String)> = late
        .map(|sidecar| (sidecar.pod.clone(), pods.unsettled_reason(sidecar, entries)))
        .collect();
    late.sort();
    match named_pods(&late, ", ") {
        pods if pods.is_empty() => shard_of(holder).to_owned(),
        pods => format!("{} ({pods})", shard_of(holder)),
    }
}

#[cfg(test)]
mod tests;
