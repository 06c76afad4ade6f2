//! Summarizes an object for its status: from the decision, and from what sidecars report of its entries (enforcement, leader,
//! bypassed pods). Pure.
//!
//! A pod is taken to bypass its sidecar when its containers run and send nothing to the API server through it. A controller that
//! waits for its lock asks for it all the time, and an idle one keeps its watches open, so silence means neither. Another container
//! of the pod may send a request, so one request is no proof of the opposite. Times are those of the pod's node: kubelet says when
//! containers started, the sidecar what time it is and when requests came.

use std::collections::BTreeSet;

use ctrlmesh_contract::status::{ApiTraffic, EntryState, EntryStatus, LeaderElection, Status};
use ctrlmesh_contract::{Chain, Digest, Entry, Origin};
use ctrlmesh_manager_api::sharding_config::LeaderStatus;
use ctrlmesh_manager_api::status::{BreakerState, LimitingSnapshot, Reason, TargetStatus};
use ctrlmesh_manager_planner::built_in::BuiltIn;
use ctrlmesh_manager_planner::compile::kept;
use ctrlmesh_manager_planner::hand_over::{lock_of, restart_policy, shard_of};
use ctrlmesh_manager_planner::switches;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::begin_gate::BeginBlocker;
use crate::decision::{Decision, Outcome, WriteFailure};
use crate::deletion;
use crate::fleet::{
    FAILED_POLLS_UNTIL_VOID, Fleet, NOT_POLLED, Report, Sidecar, behind_reason, refused_chain, runs_entry,
};
use crate::observation::{Observation, is_deleted, is_shard, origin_of};
use crate::pod_actions::RestartResult;
use crate::pods::{Pods, describe_holder, lock_name, shard_setting};

/// Problem of a sidecar that runs the chain, but nothing of the object.
const NO_ENTRY: &str =
    "runs the chain, but no entry of this object: it sees other labels, if only for a moment, or has no --labels-file";
/// Limit for `targetStatus`.
pub const MAX_TARGETS: usize = 100;
/// Limit for the snapshots of one sidecar.
const MAX_SNAPSHOTS: usize = 64;
/// Time that a container may run before its first request, in seconds.
const START_TIME: i64 = 60;
/// Time without a request after the last one, while none is in flight, in seconds. A program that neither watches nor elects a
/// leader may send one only once an hour.
const SILENCE: i64 = 2 * 60 * 60;

/// Everything that the status of an object is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectSummary {
    /// Every invalid field. Empty: the object is valid.
    pub mistakes: String,
    /// Settings that are valid, but probably not intended.
    pub warnings: String,
    /// The object is valid, but not all its plugins are fetched.
    pub is_unresolved: bool,
    /// The entries that the object had before stay.
    pub is_kept: bool,
    /// The object generates shards, and is none itself.
    pub is_root: bool,
    /// Why its entries are not in the chain.
    pub blocker: Option<Reason>,
    /// Generation of the chain.
    pub chain: u64,
    /// Shards that have to give up objects first, each with the pods that are waited for and why.
    pub waits_for: Vec<String>,
    /// Shards that have some of its objects, during the grace period.
    pub overlaps: Vec<String>,
    /// Why its shard may not begin.
    pub begin_blocker: Option<Reason>,
    /// Why it was deleted and is not gone.
    pub deleted: Option<Reason>,
    /// Why not all its pods are replaced yet.
    pub restart: Option<Reason>,
    /// `status.plugins`: the plugins that its references resolve to. `None`: it has none.
    pub plugins: Option<Vec<Value>>,
    /// Reason code if not all of them resolve.
    pub plugins_problem: Option<&'static str>,
    /// Hash of its entries' settings.
    pub hash: String,
    pub enforcement: Enforcement,
    /// Pods that send nothing to the API server through their sidecars.
    pub bypassed: BTreeSet<String>,
    pub leader: Option<LeaderStatus>,
}

/// Summarizes an object after a pass. `outcome` is that of the decision.
pub fn summary_of(
    document: &Value,
    observation: &Observation,
    decision: &Decision,
    outcome: &Outcome,
) -> (Origin, ObjectSummary) {
    let (next, fleet) = (&decision.next, &observation.fleet);
    let pods = Pods {
        fleet,
        states: &decision.states,
    };
    let origin = origin_of(document);
    let entries: Vec<&Entry> = kept::entries_of(Some(&next.chain), &origin).collect();
    let is_it = |other: &Origin| (&other.kind, &other.name) == (&origin.kind, &origin.name);
    let refused = next.refused.iter().find(|refused| is_it(&refused.origin));
    let mut unreadable = observation.resources.unreadable.iter();
    let unreadable = unreadable.find(|(other, _)| is_it(&origin_of(other)));
    let is_unresolved = refused.is_some_and(|refused| refused.is_unresolved);
    let mistakes = refused
        .filter(|refused| !refused.is_unresolved)
        .map(|refused| &refused.reasons)
        .or(unreadable.map(|(_, mistakes)| mistakes));
    let holders: BTreeSet<&String> = entries
        .iter()
        .filter_map(|entry| next.plan.waiting.get(&entry.name))
        .flatten()
        .collect();
    let overlaps = entries
        .iter()
        .flat_map(|entry| next.overlap_grace.others_of(&entry.name));
    let overlaps: BTreeSet<&str> = overlaps.collect();
    let begin_blocker = entries.iter().find_map(|entry| next.blocked.get(&entry.name));
    let is_pending = is_deleted(document) && is_shard(document);
    let named = &observation.plugins.named;
    let hashes: Vec<String> = entries.iter().map(|entry| entry.settings.hash().to_owned()).collect();
    let summary = ObjectSummary {
        mistakes: mistakes.map(ToString::to_string).unwrap_or_default(),
        warnings: warning_text(&origin, decision),
        is_unresolved,
        is_kept: (mistakes.is_some() || is_unresolved) && !entries.is_empty(),
        is_root: document.pointer("/spec/root").is_some(),
        blocker: object_blocker(document, &origin, observation, decision, outcome),
        chain: next.chain.generation,
        waits_for: holders
            .into_iter()
            .map(|holder| describe_holder(holder, &next.plan.awaited, &next.chain.entries, pods))
            .collect(),
        overlaps: overlaps.into_iter().map(str::to_owned).collect(),
        begin_blocker: begin_blocker.map(BeginBlocker::reason),
        deleted: is_pending.then(|| deletion::pending_reason(document, next, pods)),
        restart: entries
            .iter()
            .find_map(|entry| restart_reason(&entry.name, decision, outcome)),
        plugins: plugin_status(document, observation),
        plugins_problem: named.problem(&origin.name),
        hash: combined_hash(&hashes),
        enforcement: enforcement_of(&entries, &next.chain, fleet),
        bypassed: bypassing_pods(&entries, fleet),
        leader: leader_of(&entries, fleet, document.pointer("/status/leader")),
    };
    (origin, summary)
}

fn warning_text(origin: &Origin, decision: &Decision) -> String {
    let mut warned = decision.next.warned.iter();
    let is_it = |other: &Origin| (&other.kind, &other.name) == (&origin.kind, &origin.name);
    let warned = warned.find(|warned| is_it(&warned.origin));
    let warnings = warned.into_iter().flat_map(|warned| warned.warnings.list());
    let warnings = warnings.map(|it| format!("warning: {}: {}", it.path, it.problem));
    warnings.collect::<Vec<_>>().join("; ")
}

/// Why not all pods of a shard are replaced. A pass that writes the chain takes no step of a restart.
fn restart_reason(entry: &str, decision: &Decision, outcome: &Outcome) -> Option<Reason> {
    let plan = &decision.next.plan;
    let is_at_work = || plan.preparing.contains(entry) || plan.evict.iter().any(|evict| evict.entry == entry);
    let soon = || Reason::new(Reason::RESTARTING, "its pods are being replaced one by one");
    let result = outcome.restarts.get(entry).map(RestartResult::reason);
    let planned = || decision.restarts.reasons.get(entry).cloned();
    result.or_else(planned).or_else(|| is_at_work().then(soon))
}

/// `status.plugins` of an object. Pins of an unreadable object stay.
fn plugin_status(document: &Value, observation: &Observation) -> Option<Vec<Value>> {
    if document["kind"] != "ShardingConfig" {
        return None;
    }
    let name = document.pointer("/metadata/name").and_then(Value::as_str)?;
    match observation.plugins.named.status(name) {
        Some(found) => Some(found.iter().map(|plugin| json!(plugin)).collect()),
        None if document.pointer("/spec/plugins").is_some() => document.pointer("/status/plugins")?.as_array().cloned(),
        None => None,
    }
}

/// Why the entries of an object stay as they were: for the whole namespace, or for this object.
fn object_blocker(
    document: &Value,
    origin: &Origin,
    observation: &Observation,
    decision: &Decision,
    outcome: &Outcome,
) -> Option<Reason> {
    let next = &decision.next;
    let incomplete = || {
        let is_held = observation.resources.held.contains(&origin.uid);
        is_held.then(|| {
            Reason::new(
                Reason::PROGRESSING,
                "the shard takes effect when all shards of its root are written",
            )
        })
    };
    let held_back = || switches::why_held_back(document, &next.chain).map(|why| Reason::new(Reason::SWITCHED_OFF, why));
    let unsupported = || {
        let message = next.unsupported.message_of(origin);
        message.map(|message| Reason::new(Reason::SIDECAR_OUTDATED, message))
    };
    let of_namespace = write_failure(outcome).or_else(|| next.chain_blocker.clone());
    of_namespace.or_else(incomplete).or_else(held_back).or_else(unsupported)
}

/// Why the chain could not be written. A conflict is resolved by the next pass.
fn write_failure(outcome: &Outcome) -> Option<Reason> {
    match outcome.failure.as_ref()? {
        WriteFailure::Conflict => None,
        WriteFailure::Failed(reason) => Some(reason.clone()),
    }
}

/// A hash of hashes; empty if there are none.
#[must_use]
pub fn combined_hash(hashes: &[String]) -> String {
    match hashes {
        [] => String::new(),
        [one] => one.clone(),
        many => Digest::of(many.concat().as_bytes()).hex(),
    }
}

/// Numbers of sidecars, by whether they run an object's entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    /// Sidecars that its selectors select.
    pub selected: usize,
    /// Sidecars that run what they should.
    pub enforced: usize,
    /// The other pods, each with its problem.
    pub lagging: Vec<(String, String)>,
    /// Each sidecar, lagging ones first.
    pub targets: Vec<TargetStatus>,
    /// Breakers that are not closed.
    pub opened: i64,
}

/// The state of the sidecars that an object's entries select. `chain`: the one that the entries are part of.
#[must_use]
pub fn enforcement_of(entries: &[&Entry], chain: &Chain, fleet: &Fleet) -> Enforcement {
    let mut enforcement = Enforcement::default();
    for sidecar in &fleet.sidecars {
        let own: Vec<&Entry> = sidecar.own_entries(entries.iter().copied()).collect();
        if own.is_empty() {
            continue;
        }
        enforcement.selected += 1;
        let problem = sidecar_problem(&own, chain, fleet, sidecar);
        let mut target = target_status(&own, fleet, sidecar);
        enforcement.opened += count_open(&target.limiting_snapshots);
        match problem {
            None => enforcement.enforced += 1,
            Some(problem) => {
                target.message.clone_from(&problem);
                enforcement.lagging.push((sidecar.pod.clone(), problem));
            }
        }
        enforcement.targets.push(target);
    }
    enforcement
        .targets
        .sort_by_key(|target| (target.message.is_empty(), target.pod_name.clone()));
    enforcement.targets.truncate(MAX_TARGETS);
    enforcement
}

/// Why a sidecar does not run an object's entries.
fn sidecar_problem(own: &[&Entry], chain: &Chain, fleet: &Fleet, sidecar: &Sidecar) -> Option<String> {
    let status = match fleet.reports.get(&sidecar.pod) {
        Some(Report::Status(status)) => status,
        Some(Report::Unavailable(problem)) => return Some(problem.clone()),
        None => return Some(NOT_POLLED.to_owned()),
    };
    for entry in own {
        let Some(running) = status.chain.entries.iter().find(|running| runs_entry(entry, running)) else {
            let refused = refused_chain(status, chain.generation);
            let is_there = status.chain.entries.iter().any(|running| running.name == entry.name);
            if refused.is_none() && !is_there && status.chain.generation == chain.generation {
                return Some(NO_ENTRY.to_owned());
            }
            return Some(behind_reason(status, refused));
        };
        if running.state != EntryState::Active {
            return Some(failure_text(running));
        }
        if restart_policy::shard_entry_of(&entry.name).is_some() {
            return Some("keeps what it sees until it is replaced".to_owned());
        }
    }
    other_shard(own, chain, sidecar).map(|other| {
        format!("is also selected by {other}, and sees only what both show; exclude it in spec.selector of one of them")
    })
}

/// Another shard with the same lock that selects the sidecar. A pod may run two controllers, each with shards.
fn other_shard<'c>(own: &[&Entry], chain: &'c Chain, sidecar: &Sidecar) -> Option<&'c str> {
    let (shard, lock) = own.iter().find_map(|entry| Some((entry, lock_of(entry)?)))?;
    let shards = sidecar
        .own_entries(&chain.entries)
        .filter(|entry| lock_of(entry) == Some(lock));
    let mut names = shards.map(|entry| shard_of(&entry.name));
    names.find(|name| *name != shard_of(&shard.name))
}

fn failure_text(running: &EntryStatus) -> String {
    let error = running.error.as_deref().unwrap_or("no error is reported");
    match (running.state, &running.until) {
        (EntryState::Quarantined, Some(until)) => format!("{} is quarantined until {until}: {error}", running.name),
        _ => format!("{} fails: {error}", running.name),
    }
}

fn target_status(own: &[&Entry], fleet: &Fleet, sidecar: &Sidecar) -> TargetStatus {
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
                .extend(entry.reports.values().filter_map(limiting_snapshot));
        }
    }
    target.limiting_snapshots.truncate(MAX_SNAPSHOTS);
    target.config_hash = combined_hash(&hashes);
    target
}

/// A circuit breaker as the plugin reports it.
fn limiting_snapshot(report: &Value) -> Option<LimitingSnapshot> {
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

/// The leader in the shard of these entries, by the sidecars' reports. Reports are some seconds old, so two pods may claim to lead:
/// the one that began later does. `before` is the leader in the stored status. It stays until this manager has polled its pod for
/// the first time.
#[must_use]
fn leader_of(entries: &[&Entry], fleet: &Fleet, before: Option<&Value>) -> Option<LeaderStatus> {
    // Pods that have left the shard elect by a lock of their own until they show nothing of it.
    let own = entries
        .iter()
        .filter(|entry| shard_setting(entry) == Some(shard_of(&entry.name)));
    let locks: BTreeSet<String> = own.filter_map(|entry| lock_name(entry)).collect();
    let claims = fleet
        .sidecars
        .iter()
        .flat_map(|sidecar| reported_leaders(sidecar, &locks, fleet));
    let leading = claims.max_by_key(|(since, leader)| (*since, leader.pod_name.clone()));
    let before = || {
        let before: LeaderStatus = serde_json::from_value(before?.clone()).ok()?;
        let is_awaited = |sidecar: &Sidecar| sidecar.pod == before.pod_name && is_about_to_answer(sidecar, fleet);
        let is_awaited = !locks.is_empty() && fleet.sidecars.iter().any(is_awaited);
        is_awaited.then_some(before)
    };
    leading.map(|(_, leader)| leader).or_else(before)
}

/// Leaderships by one of these locks that a sidecar reports.
fn reported_leaders(
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
            // Normalized: an API server accepts fewer forms of a time than the parser.
            since: since.to_string(),
        };
        Some((since, leader))
    })
}

/// Whether a sidecar has not answered yet, and is not known to be lost.
fn is_about_to_answer(sidecar: &Sidecar, fleet: &Fleet) -> bool {
    let is_lost = fleet
        .failures
        .get(&sidecar.pod)
        .is_some_and(|failures| *failures >= FAILED_POLLS_UNTIL_VOID);
    let has_answered = matches!(fleet.reports.get(&sidecar.pod), Some(Report::Status(_)));
    sidecar.ip.is_some() && !has_answered && !is_lost
}

/// Pods that seem to bypass their sidecars, and so the rules for API traffic among these entries.
fn bypassing_pods(entries: &[&Entry], fleet: &Fleet) -> BTreeSet<String> {
    let for_api: Vec<&Entry> = entries.iter().copied().filter(|entry| has_api_rules(entry)).collect();
    let is_concerned = |sidecar: &&Sidecar| sidecar.own_entries(for_api.iter().copied()).next().is_some();
    let is_bypassed = |sidecar: &&Sidecar| match fleet.reports.get(&sidecar.pod) {
        Some(Report::Status(status)) => !sidecar.is_ending && has_no_traffic(status, sidecar.running_since),
        Some(Report::Unavailable(_)) | None => false,
    };
    let pods = fleet.sidecars.iter().filter(is_concerned).filter(is_bypassed);
    pods.map(|sidecar| sidecar.pod.clone()).collect()
}

/// Whether an entry has a rule for requests to the API server. Plugins that are not built in are assumed to.
fn has_api_rules(entry: &Entry) -> bool {
    let plugin = entry.name.split('/').next().and_then(BuiltIn::from_name);
    let settings = entry.settings.value();
    let has = |rule: &Value, list: &str| {
        rule.get(list)
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty())
    };
    let rules = |list: &str, is_for_api: &dyn Fn(&Value) -> bool| {
        let rules = settings.get(list).and_then(Value::as_array);
        rules.into_iter().flatten().any(is_for_api)
    };
    match plugin {
        Some(BuiltIn::RateLimit | BuiltIn::CircuitBreaker) => rules("rateLimitings", &|rule| {
            has(rule, "resourceRules") || has(rule, "nonResourceRules") || !has(rule, "restRules")
        }),
        Some(BuiltIn::FaultInject) => rules("httpFault", &|fault| {
            // Faults without a match, such as `groupDown`, are for API traffic.
            let is_external = |matching: &Value| {
                has(matching, "httpMatch") && !has(matching, "resources") && !has(matching, "nonResources")
            };
            !fault.get("match").is_some_and(is_external)
        }),
        Some(BuiltIn::TrimObjects | BuiltIn::ShardSelector) | None => true,
    }
}

/// Whether the containers run and had time for a request, but sent none.
fn has_no_traffic(status: &Status, running_since: Option<i64>) -> bool {
    let (Some(traffic), Some(running_since)) = (&status.api_traffic, running_since) else {
        return false;
    };
    status.not_ready.is_empty() && lacks_requests(traffic, running_since).unwrap_or_default()
}

/// `None`: the sidecar takes no requests yet, or reports no times.
fn lacks_requests(traffic: &ApiTraffic, running_since: i64) -> Option<bool> {
    let time = |text: &str| Some(text.parse::<Timestamp>().ok()?.as_second());
    let (now, since) = (time(&traffic.now)?, time(traffic.since.as_deref()?)?);
    let last = traffic.last.as_deref().and_then(time);
    let had_time = now.saturating_sub(since.max(running_since)) >= START_TIME;
    Some(match last.filter(|last| *last >= running_since) {
        // Requests of an earlier container ended with it.
        None => had_time && traffic.in_flight.unwrap_or_default() == 0,
        // An older sidecar does not report what is in flight, which may be a watch.
        Some(last) => traffic.in_flight == Some(0) && now.saturating_sub(last) >= SILENCE,
    })
}

#[cfg(test)]
mod tests {
    mod bypassed;
    mod leader;
}
