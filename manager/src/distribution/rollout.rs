//! What became of an object, from what its sidecars say. Pure.

use ctrlmesh_contract::status::{EntryState, EntryStatus};
use ctrlmesh_contract::{Chain, Entry};
use serde_json::Value;

use super::fleet::{Fleet, Report, Sidecar, UNASKED, behind_reason, refusal, runs_entry};
use crate::api::status::{BreakerState, LimitingSnapshot, TargetStatus};
use crate::built_in::BuiltIn;
use crate::hand_over::{lock_of, shard_of};

/// Of a sidecar that knows the chain, and runs nothing of the object.
const UNSELECTED: &str =
    "runs the chain, but not this: its labels are others there, if only for a moment, or it has no --labels-file";
/// Sidecars that are told one by one in a status.
pub(super) const MAX_TARGETS: usize = 100;
/// Snapshots of one sidecar.
const MAX_SNAPSHOTS: usize = 64;

/// How many sidecars run an object's entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rollout {
    /// Those that its selectors select.
    pub(super) selected: usize,
    /// Those that run what they should.
    pub(super) enforced: usize,
    /// Why some do not, by pod.
    pub(super) lagging: Vec<(String, String)>,
    /// One by one: those that lag first.
    pub(super) targets: Vec<TargetStatus>,
    /// Breakers that are not closed.
    pub(super) opened: i64,
}

/// Looks at the sidecars that an object's entries select; they are of this chain.
#[must_use]
pub(super) fn outcome(entries: &[&Entry], chain: &Chain, fleet: &Fleet) -> Rollout {
    let mut outcome = Rollout::default();
    for sidecar in &fleet.sidecars {
        let own: Vec<&Entry> = sidecar.own(entries.iter().copied()).collect();
        if own.is_empty() {
            continue;
        }
        outcome.selected += 1;
        let problem = problem(&own, chain, fleet, sidecar);
        let mut target = target(&own, fleet, sidecar);
        outcome.opened += count_open(&target.limiting_snapshots);
        match problem {
            None => outcome.enforced += 1,
            Some(problem) => {
                target.message.clone_from(&problem);
                outcome.lagging.push((sidecar.pod.clone(), problem));
            }
        }
        outcome.targets.push(target);
    }
    outcome
        .targets
        .sort_by_key(|target| (target.message.is_empty(), target.pod_name.clone()));
    outcome.targets.truncate(MAX_TARGETS);
    outcome
}

/// Why a sidecar does not run an object's entries.
fn problem(own: &[&Entry], chain: &Chain, fleet: &Fleet, sidecar: &Sidecar) -> Option<String> {
    let status = match fleet.reports.get(&sidecar.pod) {
        Some(Report::Status(status)) => status,
        Some(Report::Unavailable(problem)) => return Some(problem.clone()),
        None => return Some(UNASKED.to_owned()),
    };
    for entry in own {
        let Some(running) = status.chain.entries.iter().find(|running| runs_entry(entry, running)) else {
            let refused = refusal(status, chain.generation);
            let is_there = status.chain.entries.iter().any(|running| running.name == entry.name);
            if refused.is_none() && !is_there && status.chain.generation == chain.generation {
                return Some(UNSELECTED.to_owned());
            }
            return Some(behind_reason(status, refused));
        };
        if running.state != EntryState::Active {
            return Some(failing(running));
        }
        if crate::hand_over::restart::base(&entry.name).is_some() {
            return Some("sees what it saw before until it is made again".to_owned());
        }
    }
    other_shard(own, chain, sidecar).map(|other| {
        format!("is a pod of {other}, too, and sees what both show only; let spec.selector of one of them leave it out")
    })
}

/// Another shard of its controller that selects the sidecar of a shard. (A pod may run two controllers, each with shards.)
fn other_shard<'c>(own: &[&Entry], chain: &'c Chain, sidecar: &Sidecar) -> Option<&'c str> {
    let (shard, lock) = own.iter().find_map(|entry| Some((entry, lock_of(entry)?)))?;
    let shards = sidecar.own(&chain.entries).filter(|entry| lock_of(entry) == Some(lock));
    let mut names = shards.map(|entry| shard_of(&entry.name));
    names.find(|name| *name != shard_of(&shard.name))
}

fn failing(running: &EntryStatus) -> String {
    let error = running.error.as_deref().unwrap_or("it does not say why");
    match (running.state, &running.until) {
        (EntryState::Quarantined, Some(until)) => format!("{} is left alone until {until}: {error}", running.name),
        _ => format!("{} fails: {error}", running.name),
    }
}

fn target(own: &[&Entry], fleet: &Fleet, sidecar: &Sidecar) -> TargetStatus {
    let mut target = TargetStatus {
        pod_name: sidecar.pod.clone(),
        pod_ip: sidecar.ip.clone().unwrap_or_default(),
        ..TargetStatus::default()
    };
    let Some(Report::Status(status)) = fleet.reports.get(&sidecar.pod) else {
        return target;
    };
    let running = status
        .chain
        .entries
        .iter()
        .filter(|running| own.iter().any(|entry| entry.name == running.name));
    let mut hashes = Vec::new();
    for entry in running {
        hashes.push(entry.settings_hash.clone());
        if entry.name.starts_with(BuiltIn::CircuitBreaker.name()) {
            target
                .limiting_snapshots
                .extend(entry.reports.values().filter_map(snapshot));
        }
    }
    target.limiting_snapshots.truncate(MAX_SNAPSHOTS);
    target.config_hash = super::status::hash(&hashes);
    target
}

/// A breaker, as the plugin reports it.
fn snapshot(report: &Value) -> Option<LimitingSnapshot> {
    let text = |field: &str| report.get(field).and_then(Value::as_str).map(str::to_owned);
    let number = |field: &str| report.get(field).and_then(Value::as_u64).unwrap_or_default();
    Some(LimitingSnapshot {
        name: text("name")?,
        key: text("key").unwrap_or_default(),
        state: match text("state")?.as_str() {
            "Opened" => BreakerState::Opened,
            "HalfOpen" => BreakerState::HalfOpened,
            _ => BreakerState::Closed,
        },
        reason: text("reason").unwrap_or_default(),
        last_transition_time: text("lastTransitionTime"),
        recovers_at: text("recoversAt"),
        requests: number("requests"),
        failures: number("failures"),
    })
}

fn count_open(snapshots: &[LimitingSnapshot]) -> i64 {
    let open = snapshots
        .iter()
        .filter(|snapshot| snapshot.state != BreakerState::Closed)
        .count();
    i64::try_from(open).unwrap_or(i64::MAX)
}
