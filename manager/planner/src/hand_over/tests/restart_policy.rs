//! Shards whose pods see no change while they run.

use super::*;
use crate::hand_over::restart_policy::shard_entry_of;
use ctrlmesh_contract::names::labels::KEEPS_LIMITS;

/// Pod `x` belongs to shard `x % SHARDS`.
const PODS: usize = 2 * SHARDS;

/// Whether a pod sees each bucket.
type View = Vec<bool>;

#[derive(Clone, Debug)]
struct Running {
    /// Labels at the API server.
    labels: BTreeMap<String, String>,
    /// Labels that its sidecar knows.
    known: BTreeMap<String, String>,
    /// `None`: the pod does not run yet.
    running: Option<Vec<Entry>>,
    /// The view that it started with.
    first: Option<View>,
}

impl Running {
    fn new(id: usize) -> Self {
        let labels = labels_of(id % SHARDS);
        Self {
            known: labels.clone(),
            labels,
            running: None,
            first: None,
        }
    }

    fn entries_selecting(entries: &[Entry], labels: &BTreeMap<String, String>) -> Vec<Entry> {
        let own = entries.iter().filter(|entry| entry.pod_selector.matches(labels));
        own.cloned().collect()
    }

    fn view(&self) -> Option<View> {
        let own = Self::entries_selecting(self.running.as_ref()?, &self.known);
        let limits: Vec<Limit> = own.iter().flat_map(|entry| limits_of(entry.settings.value())).collect();
        let classes = crate::view::resource_classes(limits.iter());
        let sees = |bucket: usize| match classes.iter().next_back() {
            None => true,
            Some(class) => {
                let set = crate::view::visible_objects(limits.iter(), class);
                set.is_some_and(|set| set.allows_value("hash", &bucket.to_string()))
            }
        };
        Some((0..BUCKETS).map(sees).collect())
    }

    fn is_at(&self, last: &[Entry]) -> bool {
        let Some(running) = &self.running else { return true };
        Self::entries_selecting(running, &self.known) == Self::entries_selecting(last, &self.labels)
    }
}

struct Cluster {
    last: Vec<Entry>,
    claims: Claims,
    pods: Vec<Running>,
    evictions: usize,
    preparing: BTreeSet<String>,
}

impl Cluster {
    fn fleet(&self) -> Vec<Known> {
        let known = |(id, pod): (usize, &Running)| Known {
            uid: format!("uid-{id}"),
            labels: pod.labels.clone(),
            running: names(pod.running.as_deref().unwrap_or_default(), &pod.known),
            runs: pod.running.clone().unwrap_or_default(),
            is_blank: pod.running.is_none(),
            is_quiet: pod.is_at(&self.last),
            is_given_up: false,
            may_lead: false,
        };
        self.pods.iter().enumerate().map(known).collect()
    }

    fn start(owners: &[usize]) -> Self {
        let mut cluster = Self {
            last: Vec::new(),
            claims: Claims::default(),
            pods: Vec::new(),
            evictions: 0,
            preparing: BTreeSet::new(),
        };
        cluster.run_pass(owners);
        cluster.pods = (0..PODS).map(Running::new).collect();
        (0..PODS).for_each(|pod| cluster.sync(pod));
        cluster
    }

    /// A pass of the manager: it acts on pods only after it has stored the chain.
    fn run_pass(&mut self, owners: &[usize]) -> bool {
        let buckets_of = |id| -> Vec<usize> { (0..owners.len()).filter(|bucket| owners[*bucket] == id).collect() };
        let desired: Vec<Entry> = (0..SHARDS).map(|id| shard(id, &buckets_of(id))).collect();
        let restarts = desired.iter().map(|entry| entry.name.clone()).collect();
        let plan = plan(&self.last, &self.claims, goal(&desired, &restarts), &self.fleet());
        let is_new = plan.entries != self.last;
        self.claims = serde_json::from_str(&serde_json::to_string(&plan.claims).unwrap()).unwrap();
        self.last = plan.entries;
        self.preparing = plan.preparing;
        if is_new {
            return false;
        }
        for hold in &plan.hold {
            for pod in self.pods.iter_mut().filter(|pod| hold.pods.matches(&pod.labels)) {
                pod.labels.insert(KEEPS_LIMITS.to_owned(), hold.value.clone());
            }
        }
        for evict in &plan.evict {
            let is_new = |pod: &Running| evict.pods.matches(&pod.labels) && !evict.stale.has_pod("", &pod.labels);
            let mut new = self.pods.iter().filter(|pod| is_new(pod));
            if new.any(|pod| pod.running.is_none() || !pod.is_at(&self.last)) {
                continue;
            }
            let mut pods = self.pods.iter_mut().enumerate();
            if let Some((id, pod)) = pods.find(|(_, pod)| evict.stale.has_pod("", &pod.labels)) {
                *pod = Running::new(id);
                self.evictions += 1;
            }
        }
        plan.waiting.is_empty() && plan.hold.is_empty() && plan.evict.is_empty() && plan.awaited.is_empty()
    }

    fn sync(&mut self, id: usize) {
        let pod = &mut self.pods[id];
        pod.running = Some(self.last.clone());
        if pod.first.is_none() {
            pod.known = pod.labels.clone();
            pod.first = pod.view();
        }
    }

    fn learn_labels(&mut self, id: usize) {
        let pod = &mut self.pods[id];
        pod.known = pod.labels.clone();
    }

    fn views(&self) -> Vec<Option<View>> {
        self.pods.iter().map(Running::view).collect()
    }

    /// Shards whose pods show a bucket.
    fn owners(&self, bucket: usize) -> BTreeSet<usize> {
        let views = self.views().into_iter().enumerate();
        let shows = views.filter(|(_, view)| view.as_ref().is_some_and(|view| view[bucket]));
        shows.map(|(id, _)| id % SHARDS).collect()
    }

    fn settle(&mut self, owners: &[usize]) -> usize {
        for round in 0..400 {
            let is_settled = self.run_pass(owners);
            let is_there = self
                .pods
                .iter()
                .all(|pod| pod.running.is_some() && pod.is_at(&self.last));
            if is_settled && is_there {
                return round;
            }
            for pod in 0..PODS {
                self.sync(pod);
                self.learn_labels(pod);
            }
        }
        panic!("it never ends: {:#?}", self.last);
    }
}

#[test]
fn pods_are_recreated_once_and_gaining_shard_after_losing_one() {
    let mut cluster = Cluster::start(&[0, 0, 1, 2, 3, 3]);
    let target = [0, 1, 1, 2, 3, 3];
    while cluster.evictions == 0 {
        assert!(!cluster.run_pass(&target));
        for pod in 0..PODS {
            cluster.sync(pod);
            cluster.learn_labels(pod);
        }
        assert_eq!(cluster.owners(1), [0].into());
    }
    let names: Vec<&str> = cluster
        .last
        .iter()
        .filter_map(|entry| shard_entry_of(&entry.name))
        .collect();
    assert_eq!(names, ["shard-selector/s0"], "the losing shard is done first");
    cluster.settle(&target);
    assert_eq!(cluster.evictions, 4, "two pods of each of the two shards");
    assert!(
        cluster.last.iter().all(|entry| shard_entry_of(&entry.name).is_none()),
        "nobody keeps anything"
    );
    assert_eq!(cluster.owners(1), [1].into());
    // The label of pods that kept an earlier view has no effect later.
    cluster.settle(&[0, 0, 1, 2, 3, 3]);
    assert_eq!((cluster.evictions, cluster.owners(1)), (8, [0].into()));
}

#[test]
fn change_reverted_in_time_restarts_no_pod() {
    let first = [0, 0, 1, 2, 3, 3];
    let mut cluster = Cluster::start(&first);
    for _ in 0..2 {
        cluster.run_pass(&[0, 1, 1, 2, 3, 3]);
    }
    assert_eq!(
        cluster.preparing,
        ["shard-selector/s0".to_owned()].into(),
        "it is not as it shall be"
    );
    assert!(cluster.pods[0].labels.contains_key(KEEPS_LIMITS), "it has begun");
    cluster.settle(&first);
    assert_eq!(cluster.evictions, 0);
    assert_eq!(cluster.last.len(), SHARDS);
}

/// A refused object keeps its entries of the last chain, also those of pods that keep their view.
#[test]
fn object_refused_during_restarts_keeps_its_entries() {
    let mut cluster = Cluster::start(&[0, 0, 1, 2, 3, 3]);
    let target = [0, 1, 1, 2, 3, 3];
    while cluster.evictions == 0 {
        cluster.run_pass(&target);
        (0..PODS).for_each(|pod| {
            cluster.sync(pod);
            cluster.learn_labels(pod);
        });
    }
    let mut kept = cluster.last.clone();
    kept.retain(|entry| !entry.name.starts_with("shard-selector/s1"));
    kept.push(shard(1, &[1, 2]));
    let plan = plan(&cluster.last, &cluster.claims, goal(&kept, &NONE), &cluster.fleet());
    assert!(plan.waiting.contains_key("shard-selector/s1"), "{:?}", plan.waiting);
    assert_eq!(plan.evict.len(), 1);
}

#[derive(Clone, Debug)]
enum Event {
    Edit(Vec<usize>),
    Sync(usize),
    Learn(usize),
    Pass,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => prop::collection::vec(0..SHARDS, BUCKETS).prop_map(Event::Edit),
        8 => (0..PODS).prop_map(Event::Sync),
        6 => (0..PODS).prop_map(Event::Learn),
        6 => Just(Event::Pass),
    ]
}

proptest! {
    #![proptest_config(model_config(64))]

    /// No pod sees a change while it runs, no bucket is shown by pods of two shards, and in the end its own shard shows it.
    #[test]
    fn running_pod_never_sees_change(
        first in prop::collection::vec(0..SHARDS, BUCKETS),
        sequence in prop::collection::vec(events(), 1..160),
    ) {
        let mut cluster = Cluster::start(&first);
        let mut owners = first;
        for event in sequence {
            match event {
                Event::Edit(edited) => owners = edited,
                Event::Sync(pod) => cluster.sync(pod),
                Event::Learn(pod) => cluster.learn_labels(pod),
                Event::Pass => drop(cluster.run_pass(&owners)),
            }
            for (id, pod) in cluster.pods.iter().enumerate() {
                prop_assert_eq!(pod.view(), pod.first.clone(), "pod {} has seen a change", id);
            }
            for bucket in 0..BUCKETS {
                let now = cluster.owners(bucket);
                prop_assert!(now.len() <= 1, "{bucket} is shown by {now:?}");
            }
        }
        cluster.settle(&owners);
        for (bucket, owner) in owners.iter().enumerate() {
            prop_assert_eq!(cluster.owners(bucket), BTreeSet::from([*owner]));
        }
        prop_assert!(cluster.claims.is_empty());
        prop_assert_eq!(cluster.last.len(), SHARDS);
    }
}
