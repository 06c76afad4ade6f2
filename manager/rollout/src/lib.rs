//! Decides what one pass of the manager over a namespace does. [`decide`] is pure and total: it takes what was observed and what is
//! kept from the pass before, and returns a [`Decision`] and the next [`PassState`]. It has no cluster, no files and no clock; the
//! time is part of the observation. The manager's `controllers/distribution` observes, carries out the decision and writes status.
//!
//! | module | holds |
//! |---|---|
//! | [`conditions`], [`object_summary`] | the status of an object, and the summary that it is made of |
//! | [`pass_state`] | the state that is kept from pass to pass, with counts for metrics |
//! | [`decision`] | what a pass does, and the outcome |
//! | [`deletion`], [`pod_actions`] | when a deleted ShardingConfig may go; which pods to nudge and to evict |
//! | [`next_chain`] | the next chain on the way to the desired one, and why it is blocked |
//! | [`plugins`], [`begin_gate`] | which ConfigMap holds which plugin, and which sidecars support it; shards that must not begin yet |
//! | [`pods`] | which pods run the chain, are quiet, or are given up |
//! | [`observation`] | everything that is decided on, with the plugins that chains may use |
//! | [`config_maps`], [`fleet`] | what is stored, and the chains of the passes before; sidecars with their reports, and lists of pods in messages |

pub mod begin_gate;
pub mod conditions;
pub mod config_maps;
pub mod decision;
pub mod deletion;
pub mod fleet;
pub mod next_chain;
pub mod object_summary;
pub mod observation;
pub mod pass_state;
pub mod plugins;
pub mod pod_actions;
pub mod pods;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use ctrlmesh_manager_planner::hand_over::shard_of;

use decision::{Decision, Overtaking};
use fleet::{Report, Sidecar, UninjectedPods};
use next_chain::NextChain;
use observation::Observation;
use pass_state::{MAX_UNPOLLED_WAIT, PassState};
use plugins::ConfigMapWrites;
use pod_actions::RestartPlan;
use pods::Pods;

/// Pause while pods are waited for that do not answer.
const UNREACHABLE_REQUEUE: Duration = Duration::from_secs(1);
/// Pause while pods of a shard are replaced.
const RESTART_REQUEUE: Duration = Duration::from_millis(500);

/// The pods without a sidecar as far as they are known without a list. `None`: a shard may have to wait for them, so they have to be
/// listed.
pub fn known_uninjected(observation: &Observation, pass_state: &PassState) -> Option<UninjectedPods> {
    let last = pass_state.remembered().last;
    let last = observation.config_maps.chain.as_ref().or(last);
    let is_first = observation.config_maps.version.is_none() && pass_state.chain.last.is_none();
    let waits_for_reports = is_first && pass_state.awaits_reports(&observation.fleet, observation.now);
    let entries = last.map_or(&[][..], |chain| &chain.entries);
    if waits_for_reports || !begin_gate::may_be_blocked(&observation.resources, entries) {
        return Some(UninjectedPods::default());
    }
    let error = pass_state.begin_gate.list_error(observation.now);
    error.map(|problem| UninjectedPods::unknown(problem.to_owned()))
}

/// Decides what a pass does. Returns no decision while a manager that has just started to lead has not polled all sidecars: their
/// generations are not known, nor what pods show whose labels have changed. The first report starts the next pass.
pub fn decide(observation: &Observation, pass_state: PassState) -> (Option<Decision>, PassState) {
    let mut pass_state = pass_state;
    let (fleet, now) = (&observation.fleet, observation.now);
    pass_state.forget_seen_writes();
    let assessment = pods::assess_pods(observation, &mut pass_state.chain, &mut pass_state.pods);
    let mut states = assessment.states;
    states.awaits_reports = pass_state.awaits_reports(fleet, now);
    let unpolled_since = pass_state.pods.unpolled_since.unwrap_or(now);
    pass_state.pods.unpolled_since = (!fleet.unpolled.is_empty()).then_some(unpolled_since);
    if states.awaits_reports && (states.is_first || !pass_state.pods.are_all_polled) {
        return (None, pass_state);
    }
    pass_state.pods.are_all_polled = true;
    let configs = &observation.resources.sharding_configs;
    states.given_up = pods::pods_given_up(&pass_state.pods.silent, fleet, configs, now);
    pass_state.begin_gate.record_listing(&fleet.uninjected);

    let pods = Pods { fleet, states: &states };
    let next = next_chain::next_chain(
        observation,
        pods,
        &pass_state.chain,
        &pass_state.begin_gate,
        &pass_state.overlaps,
    );
    pass_state.overlaps.clone_from(&next.overlap_grace.since);
    pass_state.begin_gate.record(&next.blocked, &next.chain.entries, now);
    pass_state.pods.silent = pods::update_silence(&pass_state.pods.silent, &next.plan.awaited, pods, now);

    let (entries, generation) = (&next.chain.entries, next.chain.generation);
    let writes = plugins::config_map_writes(observation, &next.chain, &next.claims);
    let is_written = |writes: &ConfigMapWrites| writes.chain;
    let overtakings = writes
        .as_ref()
        .is_ok_and(is_written)
        .then(|| planned_overtakings(&next, pods));
    let (nudges, next_nudge) = pod_actions::due_nudges(&mut pass_state.nudges, fleet, entries, generation, now);
    let (mut released, mut restarts) = (BTreeSet::new(), RestartPlan::default());
    // The parts of a plan that are about pods hold once its chain is stored.
    if next.chain_blocker.is_none() && writes.as_ref().is_ok_and(ConfigMapWrites::is_empty) {
        released = deletion::released_entries(&next, &observation.resources, pods);
        restarts = pod_actions::restart_plan(&next, fleet, &mut pass_state.restarts, (now, observation.time));
    }
    update_gauges(&next, pods, observation, &mut pass_state);
    let plan = &next.plan;
    let is_restarting = !(plan.preparing.is_empty() && plan.hold.is_empty() && plan.evict.is_empty());
    let pauses = [
        assessment.settles_in,
        states.awaits_reports.then_some(MAX_UNPOLLED_WAIT),
        (!pass_state.pods.silent.is_empty()).then_some(UNREACHABLE_REQUEUE),
        is_restarting.then_some(RESTART_REQUEUE),
        pass_state.begin_gate.next_list_in(now),
        next.overlap_grace.next_check_in(),
        next_nudge,
    ];
    let decision = Decision {
        is_finished: is_finished(observation, &next, pods),
        next,
        writes,
        overtakings: overtakings.unwrap_or_default(),
        nudges,
        restarts,
        released,
        awaited: assessment.awaited,
        requeue_after: pauses.into_iter().flatten().min(),
        states,
    };
    (Some(decision), pass_state)
}

/// Whether there is nothing to run, and every sidecar that runs something else can't be reached.
fn is_finished(observation: &Observation, next: &NextChain, pods: Pods<'_>) -> bool {
    let is_empty = observation.resources.documents.is_empty() && next.chain.entries.is_empty();
    let is_silent = |sidecar: &Sidecar| matches!(pods.reports.get(&sidecar.pod), Some(Report::Unavailable(_)));
    let mut sidecars = pods.sidecars.iter();
    is_empty
        && next.claims.are_over(&pods)
        && pods.unpolled.is_empty()
        && sidecars.all(|sidecar| is_silent(sidecar) || pods.runs_chain(sidecar, &[]))
}

/// Hand-overs that go on without unreachable pods.
fn planned_overtakings(next: &NextChain, pods: Pods<'_>) -> Vec<Overtaking> {
    let plan = &next.plan;
    let overtaking = plan.overtaking.iter();
    let overtaking = overtaking.filter(|(name, _)| !plan.waiting.contains_key(*name));
    let overtaking_of = |(name, holders): (&String, &BTreeSet<String>)| {
        let uids: BTreeSet<&String> = holders
            .iter()
            .filter_map(|holder| plan.overtaken.get(holder))
            .flatten()
            .collect();
        let unreachable = pods.sidecars.iter().filter(|sidecar| uids.contains(&sidecar.uid));
        let unreachable: Vec<&str> = unreachable.map(|sidecar| sidecar.pod.as_str()).collect();
        let holders: BTreeSet<&str> = holders.iter().map(|holder| shard_of(holder)).collect();
        let holders: Vec<&str> = holders.into_iter().collect();
        let entry = next.chain.entries.iter().find(|entry| entry.name == *name);
        Overtaking {
            entry: name.clone(),
            origin: entry.and_then(|entry| entry.origin.clone()),
            note: Overtaking::note_text(&holders, &unreachable),
        }
    };
    overtaking.map(overtaking_of).collect()
}

/// Counts lagging sidecars and waiting entries for the metrics.
fn update_gauges(next: &NextChain, pods: Pods<'_>, observation: &Observation, pass_state: &mut PassState) {
    let gauges = &mut pass_state.gauges;
    gauges.set_waiting(next.plan.waiting.keys(), observation.now);
    gauges.lagging.clear();
    for sidecar in pods.sidecars.iter().filter(|sidecar| sidecar.ip.is_some()) {
        if let Some(reason) = pods.lag_reason(sidecar, &next.chain.entries, next.chain.generation) {
            *gauges.lagging.entry(reason).or_default() += 1;
        }
    }
}
