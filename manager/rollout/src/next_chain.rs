//! The next chain: what the objects ask for, what of that is held back for now, and the step of the hand-over
//! ([`ctrlmesh_manager_planner::hand_over`]) that comes next. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::CHAIN_CONFIG_MAP;
use ctrlmesh_contract::names::labels::AUTO_SHARDING_ROOT;
use ctrlmesh_contract::{Chain, Entry, Origin};
use ctrlmesh_manager_api::sharding_config::{Reshard, ShardingConfig};
use ctrlmesh_manager_api::status::Reason;
use ctrlmesh_manager_planner::compile::kept::is_same;
use ctrlmesh_manager_planner::compile::{RefusedObject, WarnedObject, kept};
use ctrlmesh_manager_planner::hand_over::{
    Claims, Goal, Plan, SettleTimes, Shown, newly_shared, shard_of, without_new_sharing,
};
use ctrlmesh_manager_planner::{LabelKeys, Objects, Resolved, compile, hand_over};
use kube_core::ResourceExt as _;

use crate::begin_gate::{self, BeginGate, BlockedShards};
use crate::config_maps::ChainHistory;
use crate::observation::{CustomResources, Observation, entry_name_of, is_deleted, origin_of};
use crate::plugins::{self, Unsupported};
use crate::pods::{Pods, settle_time_of};

/// Time for which objects that a second shard would begin to share are not shown to it. The objects of one `kubectl apply`, or of one
/// sync of a GitOps tool, arrive within this time.
pub const OVERLAP_GRACE: Duration = Duration::from_secs(10);
/// Pause until the end of a grace period is checked again.
const OVERLAP_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Room in the chain's ConfigMap for signatures and names, in bytes.
const CONFIG_MAP_RESERVE: usize = 4 * 1024;

/// The chain that should be stored after this pass, and why it is not what the objects ask for.
#[derive(Debug)]
pub struct NextChain {
    pub chain: Chain,
    pub claims: Claims,
    pub plan: Plan,
    pub overlap_grace: OverlapGrace,
    /// Shards that have not begun, because pods without a sidecar run.
    pub blocked: BlockedShards,
    /// Invalid objects.
    pub refused: Vec<RefusedObject>,
    /// Valid objects with warnings.
    pub warned: Vec<WarnedObject>,
    /// Objects that keep their entries, because sidecars can't run the new ones.
    pub unsupported: Unsupported,
    /// Why the stored chain stays.
    pub chain_blocker: Option<Reason>,
}

impl NextChain {
    fn unchanged(chain: Chain, claims: Claims) -> Self {
        Self {
            chain,
            claims,
            plan: Plan::default(),
            overlap_grace: OverlapGrace::default(),
            blocked: BlockedShards::new(),
            refused: Vec::new(),
            warned: Vec::new(),
            unsupported: Unsupported::default(),
            chain_blocker: None,
        }
    }
}

/// Decides on the next chain. It is the stored one if nothing changes, or if the change is blocked.
pub fn next_chain(
    observation: &Observation,
    pods: Pods<'_>,
    chains: &ChainHistory,
    begin_gate: &BeginGate,
    overlaps: &OverlapsSince,
) -> NextChain {
    let stored = &observation.config_maps;
    let (last, claims) = match (&stored.chain, &chains.last) {
        (Some(chain), _) => (Some(chain.clone()), stored.claims.clone()),
        (None, Some((chain, claims))) => (Some(chain.clone()), claims.clone()),
        (None, None) => (None, Claims::default()),
    };
    let is_rolled_back = pods.states.rolled_back_by.is_some();
    let last_generation = last.as_ref().map_or(0, |chain| chain.generation);
    let highest = chains.highest_generation.max(last_generation);
    let highest = highest.saturating_add(u64::from(is_rolled_back));
    let chain = last.clone().unwrap_or_else(|| Chain {
        namespace: observation.namespace.clone(),
        generation: highest.max(1),
        entries: Vec::new(),
    });
    let mut next = NextChain::unchanged(chain, claims);
    // Keep the target of an in-flight hand-over.
    let intended = last.as_ref().map(|chain| Chain {
        entries: next.claims.with_target_limits(&chain.entries),
        ..chain.clone()
    });
    let desired = compile_desired(
        &observation.namespace,
        &observation.resources,
        intended.as_ref(),
        &observation.plugins.resolved(),
        &observation.settings.label_keys,
    );
    let desired = match desired {
        Ok(desired) => desired,
        Err(error) => {
            next.chain_blocker = Some(invalid_chain(&error));
            return next;
        }
    };
    (next.refused, next.warned) = (desired.refused, desired.warned);
    let intended = intended.map_or_else(Vec::new, |chain| chain.entries);
    let interfaces = observation.plugins.interfaces();
    let entries;
    (next.unsupported, entries) = Unsupported::hold_back(desired.entries, &intended, &interfaces, pods);
    let entries = (intended.as_slice(), entries);
    plan_hand_over(&mut next, entries, observation, pods, begin_gate, overlaps);
    let is_known = is_same(&next.chain.entries, &next.plan.entries) && next.claims.cover(&next.plan.claims);
    if last.is_none() || is_rolled_back || !is_known {
        let successor = || planned_chain(&next, last.as_ref(), highest, observation);
        match plugins::unreadable_documents(pods).map_or_else(successor, Err) {
            Ok((chain, claims)) => (next.chain, next.claims) = (chain, claims),
            Err(reason) => next.chain_blocker = Some(reason),
        }
    }
    next
}

/// Plans the way to the desired entries, after holding some of them back: for a grace period, or until pods without a sidecar
/// are gone.
fn plan_hand_over(
    next: &mut NextChain,
    (intended, desired): (&[Entry], Vec<Entry>),
    observation: &Observation,
    pods: Pods<'_>,
    begin_gate: &BeginGate,
    overlaps: &OverlapsSince,
) {
    let (resources, now) = (&observation.resources, observation.now);
    let (last, restarts) = (&next.chain.entries, restart_entries(resources));
    let shown = Shown {
        last,
        meant: &without_unbegun(intended, last),
        restarts: &restarts,
        of_roots: &generated_entries(resources),
    };
    let before = (&next.chain, &next.claims);
    let blocked = begin_gate::blocked_shards(before, &desired, resources, pods, begin_gate, now);
    let to_begin: Vec<Entry> = desired
        .iter()
        .filter(|entry| blocked.contains_key(&entry.name))
        .cloned()
        .collect();
    let (overlap_grace, mut desired) = OverlapGrace::hold_back(shown, desired, pods, overlaps, now);
    for entry in desired.iter_mut().filter(|entry| blocked.contains_key(&entry.name)) {
        *entry = hand_over::unbegun_entry(entry);
    }
    let default = observation.settings.settle;
    let goal = Goal {
        desired: &desired,
        restarts: &restarts,
        deleted: &resources.deleted_entries(),
        settle: SettleTimes {
            default,
            by_entry: &settle_times(resources, default),
        },
    };
    let mut plan = hand_over::plan(last, &next.claims, goal, &pods);
    // Remember the target of blocked shards too: an object may be invalid when its time comes.
    plan.claims.set_targets(&to_begin);
    (next.overlap_grace, next.blocked, next.plan) = (overlap_grace, blocked, plan);
}

/// The chain of the plan, if sidecars and ConfigMaps can take it.
fn planned_chain(
    next: &NextChain,
    last: Option<&Chain>,
    highest: u64,
    observation: &Observation,
) -> Result<(Chain, Claims), Reason> {
    let generation = kept::next_generation(last, highest, &next.plan.entries).ok_or_else(|| {
        let message = format!(
            "there is no generation after {highest}; stop the managers, delete ConfigMap {CHAIN_CONFIG_MAP}, start them, and replace \
             the pods"
        );
        Reason::new(Reason::NO_GENERATION, message)
    })?;
    let chain = Chain {
        namespace: next.chain.namespace.clone(),
        generation,
        entries: next.plan.entries.clone(),
    };
    let claims = serde_json::to_vec(&next.plan.claims).map_or(usize::MAX, |claims| claims.len());
    compile::check_chain(&chain, claims.saturating_add(CONFIG_MAP_RESERVE)).map_err(|error| invalid_chain(&error))?;
    let placed = plugins::place_plugins(&observation.config_maps, &chain, true, &observation.plugins);
    placed.map_err(|error| Reason::new(Reason::NO_ROOM, error.to_string()))?;
    Ok((chain, next.plan.claims.clone()))
}

fn invalid_chain(error: &ctrlmesh_contract::Error) -> Reason {
    let code = match error {
        ctrlmesh_contract::Error::TooLarge { .. } => Reason::TOO_LARGE,
        _ => Reason::INVALID_CHAIN,
    };
    Reason::new(code, error.to_string())
}

/// The entries that a hand-over leads to. Shards that have not begun show nothing that another shard could keep.
fn without_unbegun(intended: &[Entry], last: &[Entry]) -> Vec<Entry> {
    let waiting = last.iter().filter(|entry| hand_over::is_unbegun(entry));
    let waiting: BTreeSet<&str> = waiting.map(|entry| entry.name.as_str()).collect();
    let until_begun = |entry: &Entry| {
        if waiting.contains(entry.name.as_str()) {
            hand_over::unbegun_entry(entry)
        } else {
            entry.clone()
        }
    };
    intended.iter().map(until_begun).collect()
}

/// Entries of shards with `reshard: Restart`, whose pods see no change while they run.
fn restart_entries(resources: &CustomResources) -> BTreeSet<String> {
    let shards = resources.sharding_configs.iter();
    let restarts = shards.filter(|config| config.spec.reshard == Reshard::Restart);
    restarts.map(entry_name_of).collect()
}

/// Settle times of shards whose ShardingConfigs can be read, by entry.
fn settle_times(resources: &CustomResources, default: Duration) -> BTreeMap<String, Duration> {
    let shards = resources.sharding_configs.iter();
    let time = |config: &ShardingConfig| (entry_name_of(config), settle_time_of(config, default));
    shards.filter(|config| config.spec.root.is_none()).map(time).collect()
}

/// Entries of shards that are generated from a root.
fn generated_entries(resources: &CustomResources) -> BTreeSet<String> {
    let shards = resources.sharding_configs.iter();
    let made = shards.filter(|config: &&ShardingConfig| config.labels().contains_key(AUTO_SHARDING_ROOT));
    made.map(entry_name_of).collect()
}

/// The entries that the objects ask for.
#[derive(Debug)]
struct Desired {
    entries: Vec<Entry>,
    refused: Vec<RefusedObject>,
    warned: Vec<WarnedObject>,
}

/// Compiles a namespace. Unreadable objects keep their entries, as invalid ones do.
fn compile_desired(
    namespace: &str,
    resources: &CustomResources,
    last: Option<&Chain>,
    resolved: &Resolved,
    keys: &LabelKeys,
) -> Result<Desired, ctrlmesh_contract::Error> {
    let compiled = compile(&Objects {
        namespace,
        sharding_configs: &resources.sharding_configs,
        circuit_breakers: &resources.circuit_breakers,
        fault_injections: &resources.fault_injections,
        resolved,
        held: &resources.held,
        last,
        keys,
    })?;
    let mut entries = compiled.chain.entries;
    let unreadable = resources.unreadable.iter().map(|(document, _)| document);
    let unreadable: Vec<Origin> = unreadable
        .filter(|document| !is_deleted(document))
        .map(origin_of)
        .collect();
    let unsynced = last.into_iter().flat_map(|chain| &chain.entries).filter(|entry| {
        let origin = entry.origin.as_ref();
        origin.is_some_and(|origin| resources.unsynced_kinds.contains(&origin.kind.as_str()))
    });
    let kept = unreadable.iter().flat_map(|origin| kept::entries_of(last, origin));
    for kept in kept.chain(unsynced) {
        if !entries.iter().any(|entry| entry.name == kept.name) {
            entries.push(kept.clone());
        }
    }
    entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    Ok(Desired {
        entries,
        refused: compiled.refused,
        warned: compiled.warned,
    })
}

/// Since when shards would begin to share objects: by the entry that gains and the entry that has them.
pub type OverlapsSince = BTreeMap<(String, String), Instant>;

/// Entries that are held back because they would begin to share objects, so that an edit of the other shard can arrive.
#[derive(Clone, Debug, Default)]
pub struct OverlapGrace {
    /// Entries that show less for now, each with the entries that have the same objects.
    held: BTreeMap<String, BTreeSet<String>>,
    /// All overlaps, also those whose grace period is over.
    pub since: OverlapsSince,
}

impl OverlapGrace {
    /// Holds back desired entries that would begin to share objects. Returns the entries as they may be now, too.
    fn hold_back(
        shown: Shown<'_>,
        desired: Vec<Entry>,
        pods: Pods<'_>,
        before: &OverlapsSince,
        now: Instant,
    ) -> (Self, Vec<Entry>) {
        let mut held = newly_shared(shown, &desired, &pods);
        let mut since = OverlapsSince::new();
        for (name, others) in &mut held {
            others.retain(|other| {
                let pair = (name.clone(), other.clone());
                let began = before.get(&pair).copied().unwrap_or(now);
                since.insert(pair, began);
                now.duration_since(began) < OVERLAP_GRACE
            });
        }
        held.retain(|_, others| !others.is_empty());
        let desired = if held.is_empty() {
            desired
        } else {
            without_new_sharing(shown.last, &desired, held.keys())
        };
        (Self { held, since }, desired)
    }

    /// The shards for whose edit an entry waits.
    pub fn others_of(&self, name: &str) -> impl Iterator<Item = &str> {
        self.held.get(name).into_iter().flatten().map(|other| shard_of(other))
    }

    /// Time until the next check, if anything is held back.
    pub fn next_check_in(&self) -> Option<Duration> {
        (!self.held.is_empty()).then_some(OVERLAP_CHECK_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleet::{Fleet, Sidecar};
    use crate::pods::PodStates;
    use ctrlmesh_manager_planner::samples;

    fn shard(name: &str, values: &[&str]) -> Entry {
        let mut entry = samples::entry(&format!("shard-selector/{name}"));
        let resources = json!([{"apiGroups": [""], "resources": ["pods"]}]);
        let one_of = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
        let limits = json!([{"relateResources": resources, "selector": one_of}]);
        entry.settings = ctrlmesh_contract::Settings::new(json!({"leaderElectionName": "lock", "limits": limits}));
        entry
    }

    #[test]
    fn overlap_is_held_back_once_for_the_grace_period() {
        let sidecar = Sidecar {
            is_scheduled: true,
            ..Sidecar::default()
        };
        let fleet = Fleet {
            sidecars: vec![sidecar],
            ..Fleet::default()
        };
        let pods = Pods {
            fleet: &fleet,
            states: &PodStates::default(),
        };
        let last = vec![shard("left", &["b"]), shard("right", &["c"])];
        let desired = || vec![shard("left", &["b"]), shard("right", &["b", "c"])];
        let begun = Instant::now();
        let none = BTreeSet::new();
        let shown = |entries| Shown {
            last: entries,
            meant: entries,
            restarts: &none,
            of_roots: &none,
        };
        let of = |before: &OverlapsSince, later: Duration| {
            OverlapGrace::hold_back(shown(&last), desired(), pods, before, begun + later)
        };
        let (grace, held) = of(&OverlapsSince::new(), Duration::ZERO);
        assert_eq!(held, last);
        let name = "shard-selector/right".to_owned();
        assert_eq!(grace.others_of(&name).collect::<Vec<_>>(), ["left"]);
        assert_eq!(grace.next_check_in(), Some(OVERLAP_CHECK_INTERVAL));
        let pair = (name, "shard-selector/left".to_owned());
        assert_eq!(grace.since, OverlapsSince::from([(pair, begun)]));
        let (grace, held) = of(&grace.since, OVERLAP_GRACE - Duration::from_millis(1));
        assert_eq!(held, last, "the time does not begin anew");
        let (grace, held) = of(&grace.since, OVERLAP_GRACE);
        assert_eq!(held, desired());
        assert_eq!(grace.next_check_in(), None);
        // The chain may be blocked for another reason: the overlap is not held back once more when that is over.
        assert_eq!(of(&grace.since, OVERLAP_GRACE * 2).1, desired());
        let (grace, _) = OverlapGrace::hold_back(shown(&desired()), desired(), pods, &grace.since, begun);
        assert!(grace.since.is_empty());
    }

    #[test]
    fn entries_of_an_unsynced_kind_stay_in_the_chain() {
        let resolved = Resolved {
            built_in: ctrlmesh_manager_planner::built_in::BuiltIn::ALL
                .into_iter()
                .map(|plugin| (plugin, ctrlmesh_contract::Digest::of(plugin.name().as_bytes())))
                .collect(),
            ..Resolved::default()
        };
        let keys = LabelKeys::default();
        let (shard, faults) = (samples::shard("a", &[]), samples::faults("b"));
        let all = CustomResources::parse(vec![shard.clone(), faults], Vec::new());
        let last = Chain {
            namespace: "demo".to_owned(),
            generation: 1,
            entries: compile_desired("demo", &all, None, &resolved, &keys).unwrap().entries,
        };
        assert_eq!(last.entries.len(), 2);
        let names = |unsynced| {
            let resources = CustomResources::parse(vec![shard.clone()], unsynced);
            let desired = compile_desired("demo", &resources, Some(&last), &resolved, &keys).unwrap();
            let names = desired.entries.into_iter().map(|entry| entry.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(Vec::new()), ["shard-selector/a"], "it is gone");
        assert_eq!(names(vec!["FaultInjection"]).len(), 2, "nobody knows");
    }
}
