//! Hand-overs with sidecars that load chains arbitrarily late.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};

use ctrlmesh_contract::Settings;
use ctrlmesh_manager_api::sharding_config::Limit;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::json;

use super::shard::limits_of;
use super::*;
use crate::samples;

mod hash_ranges;
mod kept_claims;
mod moving_pods;
mod restart_policy;
mod sharing;
mod teardown;

static NONE: BTreeSet<String> = BTreeSet::new();

/// A goal without deleted objects.
fn goal<'a>(desired: &'a [Entry], restarts: &'a BTreeSet<String>) -> Goal<'a> {
    Goal {
        desired,
        restarts,
        deleted: &NONE,
        settle: SettleTimes::default(),
    }
}

/// Number of random sequences of events that a model plays. `CTRLMESH_MODEL_CASES` asks for more (`make soak-model`). A failure
/// prints its whole sequence, and the seed with which `CTRLMESH_MODEL_SEED` plays the same sequences again.
fn model_config(cases: u32) -> ProptestConfig {
    let number = |name: &str| Some(std::env::var(name).ok()?.parse::<u64>().unwrap());
    let seed = number("CTRLMESH_MODEL_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    // Shown if the test fails.
    println!("the sequences have CTRLMESH_MODEL_SEED={seed}");
    ProptestConfig {
        cases: number("CTRLMESH_MODEL_CASES").map_or(cases, |more| more.try_into().unwrap()),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..ProptestConfig::default()
    }
}

const SHARDS: usize = 4;
const BUCKETS: usize = 6;

/// Shard `id` with these buckets of deployments. Pod `x` belongs to shard `x`.
fn shard(id: usize, buckets: &[usize]) -> Entry {
    let buckets: Vec<String> = buckets.iter().map(ToString::to_string).collect();
    let settings = json!({
        "leaderElectionName": "lock",
        "shard": format!("s{id}"),
        "limits": [{
            "relateResources": [{"apiGroups": ["apps"], "resources": ["deployments"]}],
            "selector": {"matchExpressions": [{"key": "hash", "operator": "In", "values": buckets}]},
        }],
    });
    Entry {
        pod_selector: pods_of(id),
        order: 2000,
        settings: Settings::new(settings),
        ..samples::entry(&format!("shard-selector/s{id}"))
    }
}

fn pods_of(id: usize) -> LabelSelector {
    LabelSelector {
        match_labels: labels_of(id),
        ..LabelSelector::default()
    }
}

fn labels_of(pod: usize) -> BTreeMap<String, String> {
    [("shard".to_owned(), pod.to_string())].into()
}

/// Entries for the owner of each bucket. A shard without buckets has no entry.
fn entries_of_owners(owners: &[Option<usize>]) -> Vec<Entry> {
    let buckets_of = |id| -> Vec<usize> { (0..owners.len()).filter(|bucket| owners[*bucket] == Some(id)).collect() };
    let shards = (0..SHARDS).map(|id| (id, buckets_of(id)));
    shards
        .filter(|(_, buckets)| !buckets.is_empty())
        .map(|(id, buckets)| shard(id, &buckets))
        .collect()
}

/// Whether the sidecar of a pod with these entries shows a bucket's deployments. Without an entry it shows everything.
fn sees(entries: &[Entry], pod: usize, bucket: usize) -> bool {
    let own = entries
        .iter()
        .filter(|entry| entry.pod_selector.matches(&labels_of(pod)));
    shows(&own.cloned().collect::<Vec<_>>(), bucket)
}

/// Whether these entries of a pod show a bucket's deployments.
fn shows(own: &[Entry], bucket: usize) -> bool {
    let limits: Vec<Limit> = own.iter().flat_map(|entry| limits_of(entry.settings.value())).collect();
    let classes = crate::view::resource_classes(limits.iter());
    let Some(class) = classes.iter().next_back() else {
        return true;
    };
    crate::view::visible_objects(limits.iter(), class).is_some_and(|set| set.allows_value("hash", &bucket.to_string()))
}

/// Whether these entries of a pod show all services, which no shard limits.
fn shows_services(own: &[Entry]) -> bool {
    let limits: Vec<Limit> = own.iter().flat_map(|entry| limits_of(entry.settings.value())).collect();
    let services = |limit: &Limit| limit.relate_resources.is_empty();
    !limits.iter().any(services)
}

/// One pod for each shard that was ever desired, each with the chain that it runs.
#[derive(Default)]
struct Cluster {
    last: Vec<Entry>,
    claims: Claims,
    running: BTreeMap<usize, Vec<Entry>>,
    /// Unreachable pods that have been waited for long enough.
    given_up: BTreeSet<usize>,
}

/// A pod as the manager knows it.
#[derive(Debug)]
struct Known {
    uid: String,
    labels: BTreeMap<String, String>,
    running: BTreeSet<String>,
    runs: Vec<Entry>,
    is_blank: bool,
    is_quiet: bool,
    is_given_up: bool,
    may_lead: bool,
}

impl FleetState for Vec<Known> {
    fn is_unseen(&self, entry: &Entry) -> bool {
        let pods = all_pods(entry);
        let selected = self
            .iter()
            .filter(|known| !known.is_blank && pods.matches(&known.labels));
        let mut selected = selected.peekable();
        selected.peek().is_some() && selected.all(|known| !known.runs.contains(entry))
    }

    fn pods(&self) -> impl Iterator<Item = Pod<'_>> {
        self.iter().map(|known| Pod {
            uid: &known.uid,
            labels: &known.labels,
            running: &known.running,
            is_blank: known.is_blank,
            is_quiet: known.is_quiet,
            is_given_up: known.is_given_up,
            may_lead: known.may_lead,
        })
    }
}

/// Names of the entries that a pod with these labels runs.
fn names(entries: &[Entry], labels: &BTreeMap<String, String>) -> BTreeSet<String> {
    let own = entries.iter().filter(|entry| entry.pod_selector.matches(labels));
    own.map(|entry| entry.name.clone()).collect()
}

impl Cluster {
    fn fleet(&self) -> Vec<Known> {
        let known = |(pod, running): (&usize, &Vec<Entry>)| Known {
            uid: format!("uid-{pod}"),
            labels: labels_of(*pod),
            running: names(running, &labels_of(*pod)),
            runs: running.clone(),
            is_blank: false,
            is_quiet: *running == self.last && !self.given_up.contains(pod),
            is_given_up: self.given_up.contains(pod),
            may_lead: false,
        };
        self.running.iter().map(known).collect()
    }

    fn step(&mut self, desired: &[Entry]) -> BTreeMap<String, BTreeSet<String>> {
        let plan = plan(&self.last, &self.claims, goal(desired, &NONE), &self.fleet());
        // A manager that takes over reads the claims back.
        self.claims = serde_json::from_str(&serde_json::to_string(&plan.claims).unwrap()).unwrap();
        self.last = plan.entries;
        plan.waiting
    }

    /// The pods that show a bucket.
    fn owners(&self, bucket: usize) -> Vec<usize> {
        let running = self.running.iter();
        running
            .filter(|(pod, entries)| sees(entries, **pod, bucket))
            .map(|(pod, _)| *pod)
            .collect()
    }

    fn sync(&mut self, pod: usize) {
        let last = self.last.clone();
        if !self.given_up.contains(&pod) {
            self.running.entry(pod).and_modify(|running| *running = last);
        }
    }
}

fn sync_all_pods(cluster: &mut Cluster) {
    for pod in 0..SHARDS {
        cluster.sync(pod);
    }
}

fn with_pods(ids: std::ops::Range<usize>, first: &[Entry]) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.step(first);
    for pod in ids {
        cluster.running.insert(pod, cluster.last.clone());
    }
    cluster
}

#[test]
fn losing_shard_narrows_before_gaining_shard_widens() {
    let mut cluster = with_pods(0..2, &entries_of_owners(&[Some(0), Some(0), Some(1)]));
    let target = entries_of_owners(&[Some(0), Some(1), Some(1)]);
    let waiting = cluster.step(&target);
    let expected: BTreeSet<String> = ["shard-selector/s0".to_owned()].into();
    assert_eq!(waiting, BTreeMap::from([("shard-selector/s1".to_owned(), expected)]));
    assert_eq!(cluster.last[0], target[0]);
    assert!(!sees(&cluster.last, 1, 1) && sees(&cluster.last, 1, 2));
    let narrowed = cluster.last.clone();
    // The losing shard's pod has not acknowledged: the chain stays as it is.
    cluster.sync(1);
    cluster.step(&target);
    assert_eq!(cluster.last, narrowed);
    cluster.sync(0);
    assert!(cluster.step(&target).is_empty());
    assert!(sees(&cluster.last, 1, 1));
    assert_eq!(cluster.last[1].settings.value()["consistentReads"], true);
    assert!(cluster.last[0].settings.value().get("consistentReads").is_none());
    let settled = cluster.last.clone();
    sync_all_pods(&mut cluster);
    cluster.step(&target);
    assert_eq!((cluster.last, cluster.claims), (settled, Claims::default()));
}

/// The second of two edits arrives when the first is in the chain already, but no pod has loaded it.
#[test]
fn late_edit_of_losing_shard_is_still_one_move_when_gaining_shard_has_not_begun() {
    let mut cluster = with_pods(0..2, &entries_of_owners(&[Some(0), Some(0), Some(1)]));
    let shared = [shard(0, &[0, 1]), shard(1, &[1, 2])];
    assert!(cluster.step(&shared).is_empty());
    assert!(sees(&cluster.last, 1, 1), "both are told to show it");
    let target = entries_of_owners(&[Some(0), Some(1), Some(1)]);
    assert_eq!(cluster.step(&target).len(), 1);
    assert!(
        !sees(&cluster.last, 1, 1) && sees(&cluster.last, 1, 2),
        "it waits for the losing shard"
    );
    cluster.sync(1);
    assert_eq!(cluster.owners(1), [0]);
    cluster.step(&target);
    cluster.sync(0);
    cluster.step(&target);
    sync_all_pods(&mut cluster);
    assert_eq!(cluster.owners(1), [1]);
    // A shard that has begun to show the bucket keeps it.
    let mut cluster = with_pods(0..2, &entries_of_owners(&[Some(0), Some(0), Some(1)]));
    cluster.step(&shared);
    cluster.sync(1);
    assert!(cluster.step(&target).is_empty());
    assert!(sees(&cluster.last, 1, 1));
}

#[test]
fn change_that_moves_nothing_is_not_held_up() {
    let mut cluster = with_pods(0..2, &entries_of_owners(&[Some(0), None, Some(1)]));
    // Neither pod has acknowledged anything.
    cluster.running.insert(0, Vec::new());
    cluster.running.insert(1, Vec::new());
    assert!(
        cluster
            .step(&entries_of_owners(&[Some(0), Some(0), Some(1)]))
            .is_empty()
    );
    assert!(sees(&cluster.last, 0, 1));
}

/// The first shard has given up a bucket in the chain, but its sidecar may still show it.
#[test]
fn view_that_sidecar_may_still_run_is_remembered() {
    let mut cluster = with_pods(0..2, &entries_of_owners(&[Some(0), Some(0), Some(1)]));
    assert!(cluster.step(&entries_of_owners(&[Some(0), None, Some(1)])).is_empty());
    let target = entries_of_owners(&[Some(0), Some(1), Some(1)]);
    assert_eq!(cluster.step(&target).len(), 1);
    assert!(!sees(&cluster.last, 1, 1));
    sync_all_pods(&mut cluster);
    assert!(cluster.step(&target).is_empty());
    assert!(sees(&cluster.last, 1, 1));
}

#[test]
fn new_shard_sees_nothing_until_its_objects_are_given_up() {
    let mut cluster = with_pods(0..2, &entries_of_owners(&[Some(0), Some(0)]));
    cluster.running.remove(&1);
    let target = entries_of_owners(&[Some(0), Some(1)]);
    assert_eq!(cluster.step(&target).len(), 1);
    cluster.running.insert(1, cluster.last.clone());
    assert!(cluster.owners(1) == [0] && !sees(&cluster.last, 1, 0) && !sees(&cluster.last, 1, 1));
    sync_all_pods(&mut cluster);
    assert_eq!(cluster.owners(1), Vec::<usize>::new());
    cluster.step(&target);
    sync_all_pods(&mut cluster);
    assert_eq!(cluster.owners(1), [1]);
}

#[test]
fn pods_of_removed_shard_see_nothing_while_controller_has_others() {
    let mut cluster = with_pods(0..2, &entries_of_owners(&[Some(0), Some(1)]));
    let target = entries_of_owners(&[Some(0), Some(0)]);
    cluster.step(&target);
    sync_all_pods(&mut cluster);
    cluster.step(&target);
    sync_all_pods(&mut cluster);
    assert_eq!((cluster.owners(0), cluster.owners(1)), (vec![0], vec![0]));
    // The pod is deleted, and another replaces it.
    cluster.running.remove(&1);
    cluster.step(&target);
    cluster.running.insert(1, cluster.last.clone());
    assert_eq!((cluster.owners(0), cluster.owners(1)), (vec![0], vec![0]));
}

/// A pod that is given up blocks nobody, whether it was asked to narrow before or not.
#[test]
fn hand_over_overtakes_only_unreachable_pods() {
    let first = entries_of_owners(&[Some(0), Some(0), Some(1)]);
    let target = entries_of_owners(&[Some(0), Some(1), Some(1)]);
    let mut cluster = with_pods(0..2, &first);
    assert_eq!(cluster.step(&target).len(), 1);
    // An unreachable pod of the gaining shard changes nothing.
    cluster.given_up = [1].into();
    assert_eq!(cluster.step(&target).len(), 1);
    cluster.given_up = [0].into();
    let plan = plan(&cluster.last, &cluster.claims, goal(&target, &NONE), &cluster.fleet());
    let expected: BTreeSet<String> = ["shard-selector/s0".to_owned()].into();
    assert_eq!(
        plan.overtaking,
        BTreeMap::from([("shard-selector/s1".to_owned(), expected)])
    );
    let silent = BTreeMap::from([("shard-selector/s0".to_owned(), BTreeSet::from(["uid-0".to_owned()]))]);
    assert_eq!(plan.overtaken, silent, "no others that are given up");
    assert!(plan.waiting.is_empty() && sees(&plan.entries, 1, 1));
    // The claims remember what the unreachable pod may show.
    assert!(!plan.claims.is_empty());

    let mut cluster = with_pods(0..2, &first);
    cluster.given_up = [0].into();
    assert!(cluster.step(&target).is_empty());
    assert!(sees(&cluster.last, 1, 1));
}

#[test]
fn shards_of_different_controllers_do_not_wait_for_each_other() {
    let other = |entry: Entry| {
        let mut settings = entry.settings.value().clone();
        settings["leaderElectionName"] = "another".into();
        Entry {
            settings: Settings::new(settings),
            ..entry
        }
    };
    let mut cluster = with_pods(0..2, &[shard(0, &[0, 1]), other(shard(1, &[2]))]);
    let target = [shard(0, &[0]), other(shard(1, &[1, 2]))];
    assert!(cluster.step(&target).is_empty());
}

#[derive(Clone, Debug)]
enum Event {
    /// Someone edits the ShardingConfigs.
    Edit(Vec<Option<usize>>),
    /// A sidecar loads the last chain.
    Sync(usize),
    Pass,
    /// A sidecar becomes unreachable and is given up; or it comes back and loads the last chain.
    Lose(usize),
    Find(usize),
}

fn events() -> impl Strategy<Value = Event> {
    let owners = prop::collection::vec(prop::option::weighted(0.8, 0..SHARDS), BUCKETS);
    prop_oneof![
        1 => owners.prop_map(Event::Edit),
        4 => (0..SHARDS).prop_map(Event::Sync),
        3 => Just(Event::Pass),
        1 => (0..SHARDS).prop_map(Event::Lose),
        1 => (0..SHARDS).prop_map(Event::Find),
    ]
}

proptest! {
    #![proptest_config(model_config(96))]

    /// Whatever is edited and however late sidecars are, a bucket is never shown by two reachable pods, and in the end its own pod
    /// shows it.
    #[test]
    fn object_never_has_two_owners(
        first in prop::collection::vec(prop::option::of(0..SHARDS), BUCKETS),
        sequence in prop::collection::vec(events(), 1..60),
    ) {
        let everywhere: Vec<Entry> = (0..SHARDS).map(|id| shard(id, &[])).collect();
        let mut cluster = with_pods(0..SHARDS, &everywhere);
        let mut owners = first;
        // One shard must be left, because otherwise the controller is not sharded any more.
        if owners.iter().all(Option::is_none) {
            owners[0] = Some(0);
        }
        for event in sequence {
            match event {
                Event::Edit(edited) => {
                    owners = edited;
                    if owners.iter().all(Option::is_none) {
                        owners[0] = Some(0);
                    }
                }
                Event::Sync(pod) => cluster.sync(pod),
                Event::Pass => drop(cluster.step(&entries_of_owners(&owners))),
                Event::Lose(pod) => drop(cluster.given_up.insert(pod)),
                Event::Find(pod) => {
                    cluster.given_up.remove(&pod);
                    cluster.sync(pod);
                }
            }
            for bucket in 0..BUCKETS {
                let mut now = cluster.owners(bucket);
                now.retain(|pod| !cluster.given_up.contains(pod));
                prop_assert!(now.len() <= 1, "{bucket} is shown by {now:?}");
            }
        }
        cluster.given_up.clear();
        for _ in 0..4 {
            cluster.step(&entries_of_owners(&owners));
            sync_all_pods(&mut cluster);
        }
        for (bucket, owner) in owners.iter().enumerate() {
            prop_assert_eq!(cluster.owners(bucket), owner.iter().copied().collect::<Vec<_>>());
        }
        let settled = cluster.last.clone();
        cluster.step(&entries_of_owners(&owners));
        prop_assert_eq!(&cluster.last, &settled);
        prop_assert!(cluster.claims.is_empty());
    }
}
