//! A namespace with many sidecars in memory, through edits and a quiet hour of a simulated clock. The orders of all
//! decisions are counted, and compared with the formulas of `docs/scale.md`. `CTRLMESH_SCALE_SIDECARS` sets the number
//! of sidecars (`make scale`).
//!
//! Not simulated: requests, watches and polls. The manager's own test of this name counts those, in real time.

use std::ops::Range;

use ctrlmesh_contract::Entry;
use serde_json::json;

use super::*;
use crate::conditions::{is_same, object_status};
use crate::object_summary::summary_of;

const DEFAULT_SIDECARS: usize = 200;
const SHARDS: usize = 4;
const FAULT_INJECTIONS: usize = 2;
const OBJECTS: usize = SHARDS + FAULT_INJECTIONS;
/// Batches in which sidecars acknowledge a chain.
const BATCHES: usize = 10;
/// Passes after which a rollout that goes on is a failure.
const MAX_PASSES: usize = 20;
/// Default of `--poll-seconds`, which is also the longest pause between two passes.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_hours(1);
/// Label of the objects that move.
const MOVING: &str = "moving";

fn number_of_sidecars() -> usize {
    let number = std::env::var("CTRLMESH_SCALE_SIDECARS");
    number.map_or(DEFAULT_SIDECARS, |number| number.parse().unwrap())
}

/// The writes and nudges that decisions have ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Orders {
    passes: usize,
    /// Writes of the chain's ConfigMap.
    chains: usize,
    /// Writes of ConfigMaps with plugins.
    slots: usize,
    nudges: usize,
    statuses: usize,
}

/// A namespace and its manager, without a cluster.
struct Simulation {
    observation: Observation,
    pass_state: PassState,
    orders: Orders,
    /// Pods whose own entries changed, added up over the chains that were written.
    changed_pods: usize,
}

impl Simulation {
    fn new(sidecars: usize) -> Self {
        let shards = (0..SHARDS).map(|number| {
            let mut shard = samples::shard(&format!("s{number}"), &[]);
            let own = format!("v{number}");
            let moving = (number == 0).then_some(MOVING);
            shard["spec"]["limits"] = limits(&[own.as_str()].into_iter().chain(moving).collect::<Vec<_>>());
            shard
        });
        let faults = (0..FAULT_INJECTIONS).map(|number| samples::faults(&format!("f{number}")));
        let mut observation = observation(shards.chain(faults).collect(), without_chain());
        let sidecar = |number: usize| Sidecar {
            pod: format!("operator-{number:05}"),
            uid: format!("{number:08x}-0000-4000-8000-000000000000"),
            ip: Some("10.0.0.1".to_owned()),
            labels: [("shard".to_owned(), format!("s{}", number % SHARDS))].into(),
            is_scheduled: true,
            ..Sidecar::default()
        };
        observation.fleet = Fleet {
            sidecars: (0..sidecars).map(sidecar).collect(),
            ..Fleet::default()
        };
        let mut simulation = Self {
            observation,
            pass_state: PassState::default(),
            orders: Orders::default(),
            changed_pods: 0,
        };
        simulation.acknowledge(0..sidecars);
        simulation
    }

    /// A namespace in which an edit has no effect on shards: the first edit after their creation ends their consistent
    /// reads.
    fn with_settled_shards(sidecars: usize) -> Self {
        let mut simulation = Self::new(sidecars);
        simulation.roll_out();
        simulation.edit_fault(502);
        simulation.roll_out();
        simulation
    }

    /// Counts the orders that this action causes, without those before it.
    fn count(&mut self, action: impl FnOnce(&mut Self)) -> Orders {
        (self.orders, self.changed_pods) = Default::default();
        action(self);
        self.orders
    }

    /// Edits the spec of an object.
    fn edit(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut documents = std::mem::take(&mut self.observation.resources.documents);
        let mut all = documents.iter_mut();
        let document = all.find(|document| document["metadata"]["name"] == name).unwrap();
        change(&mut document["spec"]);
        let generation = document["metadata"]["generation"].as_u64().unwrap();
        document["metadata"]["generation"] = json!(generation + 1);
        self.observation.resources = CustomResources::parse(documents, Vec::new());
    }

    /// Edits the FaultInjection `f0`, which selects all pods.
    fn edit_fault(&mut self, http_status: u16) {
        self.edit("f0", |spec| {
            spec["httpFault"][0]["abort"]["httpStatus"] = json!(http_status);
        });
    }

    /// Takes a value from the first shard, and gives it to the second.
    fn move_objects(&mut self) {
        self.edit("s0", |spec| spec["limits"] = limits(&["v0"]));
        self.edit("s1", |spec| spec["limits"] = limits(&["v1", MOVING]));
    }

    /// A pass. Its orders are carried out at once, and the caches show them to the next pass.
    fn pass(&mut self) -> Decision {
        let (decision, mut pass_state) = decided(&self.observation, std::mem::take(&mut self.pass_state));
        let writes = decision.writes.as_ref().unwrap();
        self.orders.passes += 1;
        self.orders.chains += usize::from(writes.chain);
        self.orders.slots += writes.slots.len();
        self.orders.nudges += decision.nudges.len();
        let outcome = Outcome {
            nudged: decision.nudges.clone(),
            ..Outcome::default()
        };
        pass_state.record(&self.observation, &decision, &outcome, self.observation.now);
        self.pass_state = pass_state;
        self.write_statuses(&decision, &outcome);
        if writes.chain {
            self.store_chain(&decision);
        }
        let generation = decision.next.chain.generation;
        let nudges = decision.nudges.iter();
        let nudged: BTreeMap<&str, u32> = nudges.map(|nudge| (nudge.pod.as_str(), nudge.again)).collect();
        for sidecar in &mut self.observation.fleet.sidecars {
            if let Some(again) = nudged.get(sidecar.pod.as_str()) {
                sidecar.nudged = Some(generation);
                sidecar.renudged = (*again > 0).then_some((generation, *again));
            }
        }
        decision
    }

    fn write_statuses(&mut self, decision: &Decision, outcome: &Outcome) {
        let changed_status = |document: &Value| {
            let (origin, summary) = summary_of(document, &self.observation, decision, outcome);
            let before = document.get("status").cloned().unwrap_or_default();
            let after = object_status(&origin, &summary, &before, "2026-01-01T00:00:00Z");
            (!is_same(&before, &after)).then_some(after)
        };
        let documents = self.observation.resources.documents.iter();
        let statuses: Vec<Option<Value>> = documents.map(changed_status).collect();
        for (document, status) in self.observation.resources.documents.iter_mut().zip(statuses) {
            if let Some(status) = status {
                document["status"] = status;
                self.orders.statuses += 1;
            }
        }
    }

    /// Stores the chain of a decision. All reports are older than it.
    fn store_chain(&mut self, decision: &Decision) {
        let (chain, claims) = (decision.next.chain.clone(), decision.next.claims.clone());
        let observation = &mut self.observation;
        let before = observation.config_maps.chain.as_ref();
        let before = before.map_or(&[][..], |chain| &chain.entries);
        let has_changed = |sidecar: &&Sidecar| own_entries(sidecar, before) != own_entries(sidecar, &chain.entries);
        self.changed_pods += observation.fleet.sidecars.iter().filter(has_changed).count();
        let known = observation.plugins.packed();
        let plugins = chain.entries.iter().map(|entry| known[&entry.plugin].clone());
        let plugins: Vec<PackedPlugin> = plugins.collect();
        observation.config_maps = StoredConfigMaps::written(chain, claims, plugins);
        observation.fleet.fresh.clear();
    }

    /// These sidecars load the stored chain, if there is one, and are polled.
    fn acknowledge(&mut self, sidecars: Range<usize>) {
        let Observation { fleet, config_maps, .. } = &mut self.observation;
        let chain = config_maps.chain.as_ref();
        let entries = chain.map_or(&[][..], |chain| &chain.entries);
        for sidecar in &fleet.sidecars[sidecars] {
            let status = samples::running(chain.map_or(0, |chain| chain.generation), sidecar.own_entries(entries));
            fleet
                .reports
                .insert(sidecar.pod.clone(), Report::Status(Box::new(status)));
            fleet.fresh.insert(sidecar.pod.clone());
        }
    }

    /// Passes until nothing is left to do. All sidecars load each chain before the next pass.
    fn roll_out(&mut self) {
        for _ in 0..MAX_PASSES {
            let decision = self.pass();
            if !decision.writes.unwrap().chain && decision.nudges.is_empty() {
                return;
            }
            self.acknowledge(0..self.observation.fleet.sidecars.len());
        }
        panic!("not rolled out after {MAX_PASSES} passes");
    }

    /// Passes of this time, with the pauses that they ask for.
    fn wait(&mut self, time: Duration) {
        let end = self.observation.now + time;
        while self.observation.now < end {
            let pause = self.pass().requeue_after.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
            assert!(!pause.is_zero(), "it would pass for ever");
            self.observation.now += pause;
        }
    }

    fn pods_of_shard(&self, number: usize) -> usize {
        let shard = format!("s{number}");
        let sidecars = self.observation.fleet.sidecars.iter();
        sidecars.filter(|sidecar| sidecar.labels["shard"] == shard).count()
    }
}

fn limits(values: &[&str]) -> Value {
    json!([{
        "relateResources": [{ "apiGroups": ["*"], "resources": ["pods"] }],
        "selector": { "matchExpressions": [{ "key": "a", "operator": "In", "values": values }] },
    }])
}

/// The fields of its entries that a sidecar compares.
fn own_entries(sidecar: &Sidecar, entries: &[Entry]) -> Vec<(String, Digest, String)> {
    let own = sidecar.own_entries(entries);
    own.map(|entry| (entry.name.clone(), entry.plugin, entry.settings.hash().to_owned()))
        .collect()
}

#[test]
fn first_chain_is_one_write_and_nudges_every_pod_once() {
    let sidecars = number_of_sidecars();
    let mut simulation = Simulation::new(sidecars);
    let orders = simulation.count(Simulation::roll_out);
    let expected = Orders {
        passes: 2,
        chains: 1,
        slots: 1,
        nudges: sidecars,
        statuses: 2 * OBJECTS,
    };
    assert_eq!(orders, expected);
    println!("{sidecars} sidecars, first chain: {orders:?}");
}

#[test]
fn edit_is_one_chain_and_one_nudge_for_each_selected_pod() {
    let sidecars = number_of_sidecars();
    let mut simulation = Simulation::with_settled_shards(sidecars);
    let orders = simulation.count(|simulation| {
        simulation.edit_fault(503);
        simulation.roll_out();
    });
    let expected = Orders {
        passes: 2,
        chains: 1,
        slots: 0,
        nudges: sidecars,
        statuses: 2,
    };
    assert_eq!(orders, expected);
    println!("{sidecars} sidecars, edit of an object for all pods: {orders:?}");
}

#[test]
fn acknowledgements_in_batches_are_a_pass_and_a_status_for_each_batch() {
    let sidecars = number_of_sidecars();
    let mut simulation = Simulation::with_settled_shards(sidecars);
    let size = sidecars.div_ceil(BATCHES);
    let batches = sidecars.div_ceil(size);
    let orders = simulation.count(|simulation| {
        simulation.edit_fault(503);
        simulation.pass();
        for batch in 0..batches {
            simulation.acknowledge(batch * size..((batch + 1) * size).min(sidecars));
            simulation.pass();
        }
    });
    let expected = Orders {
        passes: 1 + batches,
        chains: 1,
        slots: 0,
        nudges: sidecars,
        statuses: 1 + batches,
    };
    assert_eq!(orders, expected);
    println!("{sidecars} sidecars, edit acknowledged in {batches} batches: {orders:?}");
}

#[test]
fn move_between_shards_is_two_chains_and_nudges_pods_of_these_shards_alone() {
    let sidecars = number_of_sidecars();
    let mut simulation = Simulation::with_settled_shards(sidecars);
    let orders = simulation.count(|simulation| {
        simulation.move_objects();
        simulation.roll_out();
    });
    assert_eq!((orders.passes, orders.chains, orders.slots), (3, 2, 0));
    let moved = simulation.pods_of_shard(0) + simulation.pods_of_shard(1);
    assert_eq!((orders.nudges, simulation.changed_pods), (moved, moved));
    assert!(orders.statuses <= orders.passes * OBJECTS, "{orders:?}");
    println!("{sidecars} sidecars, objects move between two of {SHARDS} shards: {orders:?}");
}

#[test]
fn pods_that_stay_behind_are_nudged_three_times_more() {
    let sidecars = number_of_sidecars();
    let mut simulation = Simulation::with_settled_shards(sidecars);
    let late = (sidecars / 10).max(1);
    let orders = simulation.count(|simulation| {
        simulation.edit_fault(503);
        simulation.pass();
        simulation.acknowledge(0..sidecars - late);
        simulation.wait(Duration::from_mins(2));
    });
    assert_eq!((orders.chains, orders.nudges), (1, sidecars + 3 * late));
    assert_eq!(orders.statuses, 2, "nothing has changed since");
    println!("{sidecars} sidecars, {late} of them behind for two minutes: {orders:?}");
}

#[test]
fn quiet_hour_orders_nothing() {
    let sidecars = number_of_sidecars();
    let mut simulation = Simulation::with_settled_shards(sidecars);
    let orders = simulation.count(|simulation| simulation.wait(HOUR));
    assert!((360..=362).contains(&orders.passes), "{orders:?}");
    assert_eq!(Orders { passes: 0, ..orders }, Orders::default());
    println!("{sidecars} sidecars, quiet hour: {orders:?}");
}

/// Shortest times of some decisions and of some whole passes, with statuses, while nothing changes.
fn shortest_times(sidecars: usize) -> [Duration; 2] {
    let mut simulation = Simulation::with_settled_shards(sidecars);
    let time = |action: &mut dyn FnMut()| {
        let begun = Instant::now();
        action();
        begun.elapsed()
    };
    let mut times = [Duration::MAX; 2];
    for _ in 0..20 {
        let mut pass_state = Some(simulation.pass_state.clone());
        let decided = time(&mut || drop(decide(&simulation.observation, pass_state.take().unwrap())));
        let passed = time(&mut || drop(simulation.pass()));
        times = [times[0].min(decided), times[1].min(passed)];
    }
    times
}

/// The shortest of many times is hardly disturbed by other programs. A search for each pod among all pods would take 64 times as long.
#[test]
fn pass_over_eight_times_the_sidecars_takes_less_than_24_times_as_long() {
    let sidecars = number_of_sidecars();
    let [few, all] = [(sidecars / 8).max(8), sidecars].map(shortest_times);
    println!("{sidecars} sidecars: decision and whole pass {all:?}; an eighth of them: {few:?}");
    for (few, all) in few.iter().zip(&all) {
        assert!(*all < *few * 24, "{all:?} is more than 24 times {few:?}");
    }
}
