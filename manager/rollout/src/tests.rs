//! Whole decisions, from an observation and the state of earlier passes. No server, no clock.

mod messages;
mod scale;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ctrlmesh_contract::support::Support;
use ctrlmesh_contract::world::Interface;
use ctrlmesh_contract::{Chain, Digest};
use ctrlmesh_manager_api::status::Reason;
use ctrlmesh_manager_planner::built_in::BuiltIn;
use ctrlmesh_manager_planner::hand_over::Claims;
use ctrlmesh_manager_planner::samples;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::*;
use crate::config_maps::{PackedPlugin, StoredConfigMaps};
use crate::decision::Outcome;
use crate::fleet::{Fleet, Report, Sidecar};
use crate::object_summary::summary_of;
use crate::observation::{AvailablePlugins, CustomResources, NamedPlugins, Settings};
use crate::pod_actions::{EvictionError, RestartResult};

const POD: &str = "operator-0";

fn builtin_plugins() -> BTreeMap<BuiltIn, PackedPlugin> {
    let packed = |plugin: &BuiltIn| PackedPlugin {
        digest: Digest::of(plugin.name().as_bytes()),
        bytes: plugin.name().into(),
        interface: Some(Interface(0, 1, 0)),
    };
    BuiltIn::ALL.iter().map(|plugin| (*plugin, packed(plugin))).collect()
}

fn plugins() -> AvailablePlugins {
    static BUILTIN: OnceLock<AvailablePlugins> = OnceLock::new();
    let builtin = || AvailablePlugins::new(Arc::new(builtin_plugins()), NamedPlugins::default());
    BUILTIN.get_or_init(builtin).clone()
}

/// A namespace with these objects and one pod, whose sidecar reports this.
fn observation(documents: Vec<Value>, report: Report) -> Observation {
    let sidecar = Sidecar {
        pod: POD.to_owned(),
        uid: "uid".to_owned(),
        ip: Some("10.0.0.1".to_owned()),
        is_scheduled: true,
        ..Sidecar::default()
    };
    let fleet = Fleet {
        sidecars: vec![sidecar],
        reports: [(POD.to_owned(), report)].into(),
        fresh: [POD.to_owned()].into(),
        ..Fleet::default()
    };
    Observation {
        namespace: "demo".to_owned(),
        now: Instant::now(),
        time: Timestamp::UNIX_EPOCH,
        resources: CustomResources::parse(documents, Vec::new()),
        config_maps: StoredConfigMaps::default(),
        fleet,
        plugins: plugins(),
        settings: Settings::default(),
    }
}

fn running(generation: u64, chain: Option<&Chain>) -> Report {
    let entries = chain.into_iter().flat_map(|chain| &chain.entries);
    Report::Status(Box::new(samples::running(generation, entries)))
}

fn without_chain() -> Report {
    running(0, None)
}

/// Writes what was decided, and reports back.
fn carry_out(observation: &mut Observation, decision: &Decision, pass_state: &mut PassState) {
    let (chain, claims) = (decision.next.chain.clone(), decision.next.claims.clone());
    let outcome = Outcome {
        written: vec![("ctrlmesh-chain".to_owned(), Some("1".to_owned()))],
        nudged: decision.nudges.clone(),
        ..Outcome::default()
    };
    pass_state.record(observation, decision, &outcome, observation.now);
    let known = observation.plugins.packed();
    let used = chain
        .entries
        .iter()
        .filter_map(|entry| known.get(&entry.plugin).cloned());
    observation.config_maps = StoredConfigMaps::written(chain.clone(), claims, used.collect::<Vec<_>>());
    let sidecar = &mut observation.fleet.sidecars[0];
    sidecar.nudged = Some(chain.generation);
}

fn decided(observation: &Observation, pass_state: PassState) -> (Decision, PassState) {
    let (decision, pass_state) = decide(observation, pass_state);
    (decision.unwrap(), pass_state)
}

#[test]
fn first_chain_is_written_with_its_plugin_and_pods_are_nudged() {
    let observation = observation(vec![samples::faults("a")], without_chain());
    let (decision, _) = decided(&observation, PassState::default());
    let writes = decision.writes.unwrap();
    assert!(writes.chain);
    assert_eq!(writes.slots.len(), 1);
    assert_eq!(
        (decision.next.chain.generation, decision.next.chain.entries.len()),
        (1, 1)
    );
    let nudged: Vec<_> = decision.nudges.iter().map(|nudge| nudge.pod.as_str()).collect();
    assert_eq!(nudged, [POD]);
    assert_eq!(decision.next.chain_blocker, None);
}

#[test]
fn decision_depends_on_its_arguments_alone() {
    let observation = observation(vec![samples::faults("a"), samples::shard("b", &[])], without_chain());
    let text = || format!("{:?}", decide(&observation, PassState::default()));
    assert_eq!(text(), text());
}

#[test]
fn stored_and_acknowledged_chain_leads_to_no_write() {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    let (decision, mut pass_state) = decided(&observation, PassState::default());
    carry_out(&mut observation, &decision, &mut pass_state);
    let chain = decision.next.chain;
    observation.fleet.reports = [(POD.to_owned(), running(1, Some(&chain)))].into();
    let (decision, pass_state) = decided(&observation, pass_state);
    assert!(decision.writes.unwrap().is_empty());
    assert_eq!((decision.nudges, decision.next.chain), (Vec::new(), chain));
    assert!(!decision.is_finished);
    assert!(pass_state.is_idle(&StoredConfigMaps::default()));
}

#[test]
fn chain_that_lost_its_label_is_written_again_with_its_generation() {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    let (decision, mut pass_state) = decided(&observation, PassState::default());
    carry_out(&mut observation, &decision, &mut pass_state);
    observation.config_maps.is_watched = false;
    let (decision, _) = decided(&observation, pass_state);
    assert!(decision.writes.unwrap().chain);
    assert_eq!(decision.next.chain.generation, 1);
}

#[test]
fn deleted_chain_is_restored_from_memory() {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    let (first, mut pass_state) = decided(&observation, PassState::default());
    carry_out(&mut observation, &first, &mut pass_state);
    observation.config_maps = StoredConfigMaps::default();
    let (decision, _) = decided(&observation, pass_state);
    assert!(decision.writes.unwrap().chain);
    assert_eq!(decision.next.chain, first.next.chain);
}

#[test]
fn first_chain_waits_for_reports_for_some_seconds() {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    observation.fleet.unpolled = [POD.to_owned()].into();
    let (decision, pass_state) = decide(&observation, PassState::default());
    assert!(decision.is_none());
    observation.now += MAX_UNPOLLED_WAIT;
    let (decision, _) = decide(&observation, pass_state.clone());
    assert!(decision.is_some_and(|decision| !decision.states.awaits_reports));
}

/// Such a manager does not know what pods show whose labels have changed meanwhile. Later, pods that start hold up nothing.
#[test]
fn manager_that_takes_over_polls_all_sidecars_first() {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    let chain = Chain {
        namespace: "demo".to_owned(),
        generation: 1,
        entries: Vec::new(),
    };
    observation.config_maps = StoredConfigMaps::written(chain, Default::default(), []);
    observation.fleet.unpolled = [POD.to_owned()].into();
    let (decision, pass_state) = decide(&observation, PassState::default());
    assert!(decision.is_none());
    observation.now += MAX_UNPOLLED_WAIT;
    assert!(
        decide(&observation, pass_state.clone()).0.is_some(),
        "it was waited for"
    );
    observation.now -= MAX_UNPOLLED_WAIT;
    observation.fleet.unpolled.clear();
    let (_, pass_state) = decided(&observation, pass_state);
    observation.fleet.unpolled = [POD.to_owned()].into();
    let (decision, _) = decided(&observation, pass_state);
    assert!(decision.states.awaits_reports && decision.requeue_after <= Some(MAX_UNPOLLED_WAIT));
}

#[test]
fn settle_time_of_shard_is_stored_with_the_chain() {
    let mut shard = samples::shard("a", &[]);
    shard["spec"]["settleSeconds"] = 60.into();
    let (decision, _) = decided(&observation(vec![shard], without_chain()), PassState::default());
    let NextChain { chain, claims, .. } = decision.next;
    let labels = [("shard".to_owned(), "a".to_owned())].into();
    let times: Vec<_> = claims.settle_times("uid", &labels, &chain.entries).collect();
    assert_eq!(times, [Some(Duration::from_secs(60))]);
}

#[test]
fn settle_time_of_earlier_shard_counts_for_pod_that_has_moved() {
    let mut observation = observation(Vec::new(), without_chain());
    let entry = samples::entry("shard-selector/b");
    let claims =
        r#"{"shown":{"shard-selector/a":[{"named":["uid"],"limits":[]}]},"settle":{"shard-selector/a":60000}}"#;
    let chain = Chain {
        namespace: "demo".to_owned(),
        generation: 1,
        entries: vec![entry],
    };
    observation.fleet.reports = [(POD.to_owned(), running(1, Some(&chain)))].into();
    observation.config_maps = StoredConfigMaps::written(chain, serde_json::from_str(claims).unwrap(), []);
    observation.settings.settle = Duration::ZERO;
    let mut pass_state = PassState::default();
    let mut is_quiet_after = |seconds| {
        observation.now += Duration::from_secs(seconds);
        pods::assess_pods(&observation, &mut pass_state.chain, &mut pass_state.pods)
            .states
            .quiet
            .contains(POD)
    };
    let quiet: Vec<bool> = [0, 59, 1].map(&mut is_quiet_after).to_vec();
    assert_eq!(quiet, [false, false, true]);
}

#[test]
fn later_chain_of_a_sidecar_is_outnumbered_once_a_minute() {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    let (decision, mut pass_state) = decided(&observation, PassState::default());
    carry_out(&mut observation, &decision, &mut pass_state);
    let chain = decision.next.chain;
    observation.fleet.reports = [(POD.to_owned(), running(9, Some(&chain)))].into();
    let (decision, mut pass_state) = decided(&observation, pass_state);
    assert_eq!(decision.states.rolled_back_by.as_deref(), Some(POD));
    let raised = decision.next.chain.generation;
    assert!(raised > 9, "{raised}");
    carry_out(&mut observation, &decision, &mut pass_state);
    observation.fleet.reports = [(POD.to_owned(), running(90, Some(&chain)))].into();
    for (seconds, expected) in [(59, None), (60, Some(POD))] {
        observation.now += Duration::from_secs(seconds);
        let (decision, _) = decided(&observation, pass_state.clone());
        assert_eq!(decision.states.rolled_back_by.as_deref(), expected, "{seconds}");
        observation.now -= Duration::from_secs(seconds);
    }
}

#[test]
fn chain_is_blocked_by_a_sidecar_that_cannot_read_it() {
    let mut status = samples::running(0, []);
    status.supports = Some(Support {
        documents: vec!["chain.ctrlmesh.kusionstack.io/v9".to_owned()],
        ..Support::current()
    });
    let observation = observation(vec![samples::faults("a")], Report::Status(Box::new(status)));
    let (decision, _) = decided(&observation, PassState::default());
    let Reason { code, message } = decision.next.chain_blocker.unwrap();
    assert_eq!(code, Reason::SIDECAR_OUTDATED);
    assert!(message.contains(POD), "{message}");
    assert!(decision.next.chain.entries.is_empty());
}

#[test]
fn namespace_is_finished_when_its_pods_run_the_empty_chain() {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    let (decision, mut pass_state) = decided(&observation, PassState::default());
    carry_out(&mut observation, &decision, &mut pass_state);
    let first = decision.next.chain;
    observation.resources = CustomResources::default();
    for (report, is_finished) in [
        (running(1, Some(&first)), false),
        (Report::Unavailable("can't be reached".to_owned()), true),
        (running(2, None), true),
    ] {
        observation.fleet.reports = [(POD.to_owned(), report)].into();
        let (decision, _) = decided(&observation, pass_state.clone());
        assert_eq!(decision.is_finished, is_finished, "{:?}", observation.fleet.reports);
        assert!(decision.next.chain.entries.is_empty());
    }
}

#[test]
fn own_writes_are_waited_for_until_the_cache_shows_them() {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    let (decision, mut pass_state) = decided(&observation, PassState::default());
    let outcome = Outcome {
        written: vec![("ctrlmesh-chain".to_owned(), Some("7".to_owned()))],
        ..Outcome::default()
    };
    pass_state.record(&observation, &decision, &outcome, observation.now);
    let is_waiting = |version: Option<&str>, now| {
        let mut stored = StoredConfigMaps::default();
        stored.version = version.map(str::to_owned);
        pass_state.has_unseen_writes(&stored, now)
    };
    assert!(is_waiting(None, observation.now) && is_waiting(Some("6"), observation.now));
    assert!(!is_waiting(Some("7"), observation.now) && !is_waiting(Some("8"), observation.now));
    assert!(
        !is_waiting(None, observation.now + config_maps::MAX_UNSEEN),
        "somebody deleted it"
    );
    observation.now += config_maps::MAX_UNSEEN;
    let (_, pass_state) = decided(&observation, pass_state);
    assert!(!pass_state.has_unseen_writes(&StoredConfigMaps::default(), observation.now));
}

#[test]
fn failed_passes_are_retried_later_each_time() {
    let observation = observation(vec![samples::faults("a")], without_chain());
    let (decision, mut pass_state) = decided(&observation, PassState::default());
    let failed = Outcome {
        nudges_failed: 1,
        ..Outcome::default()
    };
    let mut delays = Vec::new();
    for outcome in [&failed, &failed, &failed, &Outcome::default()] {
        pass_state.record(&observation, &decision, outcome, observation.now);
        delays.push(pass_state.retry_delay().as_secs());
    }
    assert_eq!(delays, [1, 2, 4, 1]);
}

#[test]
fn refused_eviction_backs_off() {
    let mut restarts = pod_actions::Restarts::default();
    let refusal = || EvictionError {
        code: Some(429),
        message: "budget".to_owned(),
    };
    let result = |response| RestartResult::of_eviction(&Sidecar::default(), response);
    let now = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..7 {
        restarts.record(&[("a".to_owned(), result(Err(refusal())))].into(), now);
        pauses.push(restarts.pause_of("a").unwrap().as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    restarts.record(&[("a".to_owned(), result(Ok(())))].into(), now);
    assert_eq!(restarts.pause_of("a"), None);
}

#[test]
fn restart_in_status_is_explained_by_its_result_or_else_by_the_plan() {
    let observation = observation(vec![samples::shard("a", &[])], without_chain());
    let (mut decision, _) = decided(&observation, PassState::default());
    let restart_of = |decision: &Decision, outcome: &Outcome| {
        let document = &observation.resources.documents[0];
        summary_of(document, &observation, decision, outcome).1.restart
    };
    assert_eq!(restart_of(&decision, &Outcome::default()), None);
    let entry = decision.next.chain.entries[0].name.clone();
    let planned = Reason::new(Reason::RESTARTING, "waiting for a to end");
    decision.restarts.reasons.insert(entry.clone(), planned.clone());
    assert_eq!(restart_of(&decision, &Outcome::default()), Some(planned));
    let result = RestartResult::NoPod;
    let reason = result.reason();
    let outcome = Outcome {
        restarts: [(entry, result)].into(),
        ..Outcome::default()
    };
    assert_eq!(restart_of(&decision, &outcome), Some(reason));
}

#[test]
fn quiet_time_restarts_when_generations_are_skipped() {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    let (decision, mut pass_state) = decided(&observation, PassState::default());
    carry_out(&mut observation, &decision, &mut pass_state);
    let mut stored = decision.next.chain;
    let mut quiet_since = |generation: u64| {
        stored.generation = generation;
        observation.now += Duration::from_secs(1);
        let report = running(generation, Some(&stored));
        observation.fleet.reports.insert(POD.to_owned(), report);
        observation.config_maps = StoredConfigMaps::written(stored.clone(), Claims::default(), None);
        pass_state = decide(&observation, std::mem::take(&mut pass_state)).1;
        (pass_state.pods.quiet["uid"].1, observation.now)
    };
    let (first, _) = quiet_since(1);
    assert_eq!(quiet_since(2).0, first);
    let (since, now) = quiet_since(4);
    assert_eq!(since, now, "the pod may have run generation 3");
}
