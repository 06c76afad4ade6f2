//! Who leads in a shard, as its sidecars have overheard it. Pure.

use std::collections::BTreeSet;

use ctrlmesh_contract::Entry;
use ctrlmesh_contract::status::LeaderElection;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::fleet::{Fleet, Report, Sidecar};
use super::sidecar_poller::LOST;
use crate::api::sharding_config::LeaderStatus;
use crate::hand_over::{lock_of, shard_of};

/// Who leads in the shard of these entries. Two may say that they do, for answers are some seconds old: the one that began later
/// does. `before` is what was told last: it stands while its pod is about to answer for the first time, to this manager.
#[must_use]
pub(super) fn leading(entries: &[&Entry], fleet: &Fleet, before: Option<&Value>) -> Option<LeaderStatus> {
    // Pods that have left the shard have a lock of their own until they show nothing of it.
    let own = entries
        .iter()
        .filter(|entry| shard(entry) == Some(shard_of(&entry.name)));
    let locks: BTreeSet<String> = own.filter_map(|entry| lock_name(entry)).collect();
    let claims = fleet.sidecars.iter().flat_map(|sidecar| claims(sidecar, &locks, fleet));
    let leading = claims.max_by_key(|(since, leader)| (*since, leader.pod_name.clone()));
    let before = || {
        let before: LeaderStatus = serde_json::from_value(before?.clone()).ok()?;
        let is_awaited = |sidecar: &Sidecar| sidecar.pod == before.pod_name && is_about_to_answer(sidecar, fleet);
        let is_awaited = !locks.is_empty() && fleet.sidecars.iter().any(is_awaited);
        is_awaited.then_some(before)
    };
    leading.map(|(_, leader)| leader).or_else(before)
}

/// Name of the lock in which the pods of a shard's entry elect one of them: the shard-selector plugin makes it. `None`: they
/// have none.
#[must_use]
pub(super) fn lock_name(entry: &Entry) -> Option<String> {
    Some(format!("{}---{}", lock_of(entry)?, shard(entry)?))
}

fn shard(entry: &Entry) -> Option<&str> {
    entry.settings.value().get("shard")?.as_str()
}

/// What a sidecar says of leading by one of these locks.
fn claims(
    sidecar: &Sidecar,
    locks: &BTreeSet<String>,
    fleet: &Fleet,
) -> impl Iterator<Item = (Timestamp, LeaderStatus)> {
    let status = match fleet.reports.get(&sidecar.pod) {
        Some(Report::Status(status)) => Some(status),
        _ => None,
    };
    let elections = status.into_iter().flat_map(|status| &status.leader_elections);
    let own = elections.filter(|election| election.leads && locks.contains(&election.lock));
    own.filter_map(|election: &LeaderElection| {
        let since: Timestamp = election.since.as_ref()?.parse().ok()?;
        let leader = LeaderStatus {
            pod_name: sidecar.pod.clone(),
            holder_identity: election.holder.clone(),
            // An API server takes fewer texts as a time than can be read as one.
            since: since.to_string(),
        };
        Some((since, leader))
    })
}

/// It has not said anything yet, and is not known to be lost.
fn is_about_to_answer(sidecar: &Sidecar, fleet: &Fleet) -> bool {
    let is_lost = fleet
        .failures
        .get(&sidecar.pod)
        .is_some_and(|failures| *failures >= LOST);
    let has_answered = matches!(fleet.reports.get(&sidecar.pod), Some(Report::Status(_)));
    sidecar.ip.is_some() && !has_answered && !is_lost
}

#[cfg(test)]
mod tests;
