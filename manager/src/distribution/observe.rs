//! What is known of the sidecars of a namespace now: what they said last, who is quiet, and what each may run.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ctrlmesh_contract::{Chain, Digest, Entry, LabelSelector};

use super::config_maps::StoredConfigMaps;
use super::fleet::{Fleet, Report, Sidecar};
use super::leading::lock_name;
use super::memory::{Locks, Memory, Quiet};
use super::reconcile::Distributor;
use crate::api::ShardingConfig;
use crate::hand_over;

/// How long sidecars are asked often after a chain was written.
const MAX_AWAITED: Duration = Duration::from_mins(2);
/// How long a controller may take itself for the leader by a lock that it could not renew: client-go's leases last for 15 s unless
/// told otherwise. Of longer ones, sidecars tell what they have overheard.
pub(super) const LEASE: Duration = Duration::from_secs(15);
/// How far beyond what was written a sidecar may speak of: more is no generation, but somebody's joke.
const MAX_AHEAD: u64 = 1 << 20;

impl Distributor {
    /// The sidecars, and until when the next of them has settled.
    pub(super) fn observe(
        &self,
        namespace: &str,
        configs: &[ShardingConfig],
        stored: &StoredConfigMaps,
        memory: &mut Memory,
    ) -> (Fleet, Option<Duration>) {
        let pods = self.caches.pods(namespace);
        let sidecars: Vec<Sidecar> = pods.iter().filter_map(|pod| Sidecar::of(pod)).collect();
        let is_new = memory.observe_chain(stored.digest, stored.chain.as_ref().map_or(0, |chain| chain.generation));
        let heard = self.poller.track(namespace, &sidecars, is_new);
        let believed = memory.written_generation(stored).saturating_add(MAX_AHEAD);
        let mut fleet = Fleet::from_reports(sidecars, &heard, believed);
        fleet.is_first = stored.version.is_none() && memory.last.is_none();
        memory.generation = fleet.generation().max(memory.generation);
        fleet.is_rolled_back = memory.may_raise() && is_rolled_back(&fleet, stored, memory);
        run(&mut fleet, stored.chain.as_ref(), memory);
        let (Some(chain), Some((_, known))) = (&stored.chain, memory.chain) else {
            memory.quiet.clear();
            return (fleet, None);
        };
        let is_awaited = |sidecar: &&Sidecar| {
            // Who is waited for without an answer is asked until it is given up, and after: it may be back.
            let is_lagging = known.elapsed() < MAX_AWAITED && !fleet.runs_chain(sidecar, &chain.entries);
            is_lagging || memory.silent.contains_key(&sidecar.uid)
        };
        let awaited = fleet.sidecars.iter().filter(is_awaited);
        let awaited: BTreeSet<&str> = awaited.map(|sidecar| sidecar.pod.as_str()).collect();
        self.poller.prioritize(namespace, &awaited);
        memory.quiet = quiet(&fleet, chain, &memory.quiet);
        let (now, default) = (Instant::now(), Duration::from_millis(self.context.args.settle_ms));
        let left = |sidecar: &Sidecar| {
            let (_, since) = memory.quiet.get(&sidecar.uid)?;
            Some(settle(sidecar, configs, default).saturating_sub(now.duration_since(*since)))
        };
        let unsettled = fleet.sidecars.iter().filter_map(left);
        let settles = unsettled.filter(|left| !left.is_zero()).min();
        let settled = fleet
            .sidecars
            .iter()
            .filter(|sidecar| left(sidecar).is_some_and(|left| left.is_zero()));
        fleet.quiet = settled.map(|sidecar| sidecar.pod.clone()).collect();
        memory.locks = locks(&fleet, chain, &memory.quiet, &memory.locks, now);
        fleet.lease_expired = lease_expired(&fleet, &memory.locks, now);
        let leases = memory
            .locks
            .values()
            .map(|(_, since)| LEASE.saturating_sub(now.duration_since(*since)));
        let leases = leases.filter(|left| !left.is_zero() && !stored.claims.is_empty());
        let settles = settles.into_iter().chain(leases).min();
        (fleet, settles)
    }
}

/// How long a pod must have been quiet: as its shards say, the longest of them.
fn settle(sidecar: &Sidecar, configs: &[ShardingConfig], default: Duration) -> Duration {
    let own = configs.iter().filter(|config| {
        let pods = config.spec.selector.as_ref().map(LabelSelector::from);
        config.spec.root.is_none() && pods.is_some_and(|pods| pods.matches(&sidecar.labels))
    });
    let times = own.map(|config| {
        let seconds = config
            .spec
            .settle_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        seconds.map_or(default, Duration::from_secs)
    });
    times.max().unwrap_or(default)
}

/// Since when pods ask for the locks that their entries name. A change of what they show is none of that.
fn locks(fleet: &Fleet, chain: &Chain, quiet: &Quiet, before: &Locks, now: Instant) -> Locks {
    let of = |sidecar: &Sidecar| {
        let own: BTreeSet<String> = sidecar.own(&chain.entries).filter_map(lock_name).collect();
        let known = before.get(&sidecar.uid).filter(|(locks, _)| *locks == own);
        let since = known.map(|(_, since)| *since);
        // It asks for others when it has said that it runs these entries.
        let since = since.or_else(|| quiet.contains_key(&sidecar.uid).then_some(now))?;
        Some((sidecar.uid.clone(), (own, since)))
    };
    fleet.sidecars.iter().filter_map(of).collect()
}

/// Pods whose controllers can't lead any more by a lock that their entries do not name: they have asked for others for long enough, and
/// nothing was overheard that says otherwise.
fn lease_expired(fleet: &Fleet, locks: &Locks, now: Instant) -> BTreeSet<String> {
    let is_unled = |sidecar: &&Sidecar| {
        let known = locks.get(&sidecar.uid);
        let known = known.filter(|(_, since)| now.duration_since(*since) >= LEASE);
        known.is_some_and(|(own, _)| match fleet.reports.get(&sidecar.pod) {
            Some(Report::Status(status)) => {
                let mut elections = status.leader_elections.iter();
                !elections.any(|election| election.leads && !own.contains(&election.lock))
            }
            _ => false,
        })
    };
    let lease_expired = fleet.sidecars.iter().filter(is_unled);
    lease_expired.map(|sidecar| sidecar.pod.clone()).collect()
}

/// Whether a sidecar runs a later chain than the one that lies there, or another of its generation: somebody has put back an earlier one, or
/// two managers led. What the others run then is not what is remembered.
fn is_rolled_back(fleet: &Fleet, stored: &StoredConfigMaps, memory: &Memory) -> bool {
    let last = memory.last.as_ref().map(|(chain, _)| chain);
    let Some(chain) = stored.chain.as_ref().or(last) else {
        return false;
    };
    let is_ahead = |(_, answer): &(&String, &Report)| match answer {
        Report::Status(status) => {
            let (said, known) = (status.chain.generation, chain.generation);
            let is_other =
                status.chain.digest.is_some() && stored.digest.is_some() && status.chain.digest != stored.digest;
            said > known || said == known && is_other
        }
        Report::Unavailable(_) => false,
    };
    let ahead = fleet.reports.iter().find(is_ahead);
    if let Some((pod, _)) = ahead {
        tracing::warn!(
            namespace = chain.namespace,
            generation = chain.generation,
            pod,
            "a sidecar runs a later chain than the one that lies there; all shards give up what they show, and get it again"
        );
    }
    ahead.is_some()
}

/// Notes which entries sidecars may run. An answer that is not fresh is no word about those of the chain.
fn run(fleet: &mut Fleet, chain: Option<&Chain>, memory: &mut Memory) {
    for sidecar in &mut fleet.sidecars {
        let running = memory.running.entry(sidecar.uid.clone()).or_default();
        if let Some(Report::Status(status)) = fleet.reports.get(&sidecar.pod) {
            let names = status.chain.entries.iter().map(|entry| entry.name.clone());
            if fleet.fresh.contains(&sidecar.pod) {
                *running = names.collect();
            } else {
                running.extend(names);
            }
        }
        if !fleet.fresh.contains(&sidecar.pod) {
            let own = sidecar.own(chain.into_iter().flat_map(|chain| &chain.entries));
            running.extend(own.map(|entry| entry.name.clone()));
        }
        sidecar.running.clone_from(running);
    }
    let is_there = |uid: &String| fleet.sidecars.iter().any(|sidecar| sidecar.uid == *uid);
    memory.running.retain(|uid, _| is_there(uid));
}

/// Since when sidecars run the entries of their shards, and nothing of earlier ones. A change of other entries, or of other shards, is
/// none for them.
fn quiet(fleet: &Fleet, chain: &Chain, before: &Quiet) -> Quiet {
    let now = Instant::now();
    let of = |sidecar: &Sidecar| {
        let own = sidecar.own(&chain.entries);
        let own: Vec<&Entry> = own.filter(|entry| hand_over::is_of_shard(&entry.name)).collect();
        let line = |entry: &&Entry| format!("{} {} {}\n", entry.name, entry.plugin, entry.settings.hash());
        let digest = Digest::of(own.iter().map(line).collect::<String>().as_bytes());
        let known = before.get(&sidecar.uid).filter(|(at, _)| *at == digest);
        let since = match known {
            Some((_, since)) => *since,
            None => now,
        };
        let is_fresh = fleet.runs_its_shard(sidecar, &chain.entries);
        // Not asked since, and nothing has changed for it: it is still so.
        let is_as_before = known.is_some() && fleet.reported_its_shard(sidecar, &chain.entries);
        (is_fresh || is_as_before).then(|| (sidecar.uid.clone(), (digest, since)))
    };
    fleet.sidecars.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests;
