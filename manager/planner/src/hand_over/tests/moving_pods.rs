//! Pods that change shards, come, go and start in none; with leases and without.

use super::*;

const PODS: usize = 5;

/// A shard that sees these buckets, for these pods.
fn shard_for_pods(id: usize, buckets: &[usize], pods: &[usize], has_lock: bool) -> Entry {
    let mut entry = shard(id, buckets);
    let mut settings = entry.settings.value().clone();
    if !has_lock && let Some(fields) = settings.as_object_mut() {
        fields.remove("leaderElectionName");
    }
    entry.settings = Settings::new(settings);
    entry.pod_selector = LabelSelector {
        match_expressions: vec![ctrlmesh_contract::Requirement {
            key: "pod".to_owned(),
            operator: ctrlmesh_contract::Operator::In,
            values: pods.iter().map(ToString::to_string).collect(),
        }],
        ..LabelSelector::default()
    };
    entry
}

fn labels_of_pod(pod: usize) -> BTreeMap<String, String> {
    [("pod".to_owned(), pod.to_string())].into()
}

/// The shard of each bucket, and of each pod.
#[derive(Clone, Debug)]
struct Plan {
    buckets: Vec<usize>,
    pods: Vec<Option<usize>>,
}

impl Plan {
    fn entries(&self, has_lock: bool) -> Vec<Entry> {
        let pods = |id| -> Vec<usize> { (0..PODS).filter(|pod| self.pods[*pod] == Some(id)).collect() };
        let buckets = |id| -> Vec<usize> { (0..BUCKETS).filter(|bucket| self.buckets[*bucket] == id).collect() };
        let shards = (0..SHARDS).filter(|id| !pods(*id).is_empty());
        shards
            .map(|id| shard_for_pods(id, &buckets(id), &pods(id), has_lock))
            .collect()
    }

    /// Without leases each shard has a single pod: replicas would act beside each other, and nothing says to which controller a
    /// deleted shard belonged.
    fn with_single_pods(mut self) -> Self {
        let mut free: Vec<usize> = (0..SHARDS).collect();
        for pod in &mut self.pods {
            let desired = pod.and_then(|shard| free.iter().position(|free| *free == shard));
            *pod = (!free.is_empty()).then(|| free.remove(desired.unwrap_or(0)));
        }
        self
    }
}

struct Pods {
    has_lock: bool,
    last: Vec<Entry>,
    claims: Claims,
    /// UID, and running entries; `None`: the pod does not run yet.
    pods: BTreeMap<usize, (String, Option<Vec<Entry>>)>,
    made: usize,
    /// UID of each lease's holder.
    leases: BTreeMap<String, String>,
}

impl Pods {
    /// All pods run, and see everything.
    fn new(has_lock: bool) -> Self {
        let mut pods = Self {
            has_lock,
            last: Vec::new(),
            claims: Claims::default(),
            pods: BTreeMap::new(),
            made: 0,
            leases: BTreeMap::new(),
        };
        for pod in 0..PODS {
            pods.create_pod(pod);
            pods.sync(pod);
        }
        pods
    }

    fn create_pod(&mut self, pod: usize) {
        self.made += 1;
        self.pods.insert(pod, (format!("uid-{}", self.made), None));
        self.elect_leaders();
    }

    fn sync(&mut self, pod: usize) {
        let last = self.last.clone();
        if let Some((_, running)) = self.pods.get_mut(&pod) {
            *running = Some(last);
        }
        self.elect_leaders();
    }

    fn entries_of_pod(entries: &[Entry], pod: usize) -> Vec<&Entry> {
        let own = entries
            .iter()
            .filter(|entry| entry.pod_selector.matches(&labels_of_pod(pod)));
        own.collect()
    }

    /// The lease that a pod asks for.
    fn lease(&self, pod: usize) -> Option<String> {
        let (_, running) = self.pods.get(&pod)?;
        let own = Self::entries_of_pod(running.as_ref()?, pod);
        let shard = own.first().map(|entry| entry.settings.value()["shard"].to_string());
        Some(shard.unwrap_or_default())
    }

    /// Leases expire when their holder is gone or asks for another. The first pod that asks gets a free one.
    fn elect_leaders(&mut self) {
        let asks: Vec<(String, String)> = (0..PODS)
            .filter_map(|pod| Some((self.lease(pod)?, self.pods.get(&pod)?.0.clone())))
            .collect();
        self.leases
            .retain(|lease, uid| asks.contains(&(lease.clone(), uid.clone())));
        for (lease, uid) in asks {
            self.leases.entry(lease).or_insert(uid);
        }
    }

    fn fleet(&self) -> Vec<Known> {
        let known = |(pod, (uid, running)): (&usize, &(String, Option<Vec<Entry>>))| Known {
            uid: uid.clone(),
            labels: labels_of_pod(*pod),
            running: names(running.as_deref().unwrap_or_default(), &labels_of_pod(*pod)),
            runs: running.clone().unwrap_or_default(),
            is_blank: running.is_none(),
            is_quiet: running
                .as_ref()
                .is_some_and(|running| Self::entries_of_pod(running, *pod) == Self::entries_of_pod(&self.last, *pod)),
            is_given_up: false,
            may_lead: false,
        };
        self.pods.iter().map(known).collect()
    }

    fn run_pass(&mut self, desired: &[Entry]) -> bool {
        let plan = plan(&self.last, &self.claims, goal(desired, &NONE), &self.fleet());
        if plan.entries == self.last {
            return plan.waiting.is_empty();
        }
        // The next manager knows only what is stored.
        self.claims = serde_json::from_str(&serde_json::to_string(&plan.claims).unwrap()).unwrap();
        self.last = plan.entries;
        false
    }

    /// The pods that act on a bucket: they see it and hold their lease.
    fn owners(&self, bucket: usize) -> Vec<usize> {
        let acts = |pod: &usize| {
            let Some((uid, Some(running))) = self.pods.get(pod) else {
                return false;
            };
            let leads = !self.has_lock
                || self
                    .lease(*pod)
                    .is_some_and(|lease| self.leases.get(&lease) == Some(uid));
            let own: Vec<Entry> = Self::entries_of_pod(running, *pod).into_iter().cloned().collect();
            leads && shows(&own, bucket)
        };
        (0..PODS).filter(acts).collect()
    }

    fn settle(&mut self, desired: &[Entry]) {
        for _ in 0..20 {
            let is_settled = self.run_pass(desired);
            for pod in 0..PODS {
                if !self.pods.contains_key(&pod) && (self.has_lock || pod < PODS - 1) {
                    self.create_pod(pod);
                }
                self.sync(pod);
            }
            if is_settled {
                return;
            }
        }
        panic!("it never ends: {:#?}", self.last);
    }
}

#[derive(Clone, Debug)]
enum Event {
    Edit(Plan),
    Sync(usize),
    Pass,
    /// The pod is recreated.
    Recreate(usize),
    Delete(usize),
}

fn edits() -> impl Strategy<Value = Plan> {
    let buckets = prop::collection::vec(0..SHARDS, BUCKETS);
    let pods = prop::collection::vec(prop::option::weighted(0.9, 0..SHARDS), PODS);
    (buckets, pods).prop_map(|(buckets, mut pods)| {
        // One pod must be left, because otherwise the controller is not sharded any more.
        pods[0] = pods[0].or(Some(0));
        Plan { buckets, pods }
    })
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => edits().prop_map(Event::Edit),
        8 => (0..PODS).prop_map(Event::Sync),
        6 => Just(Event::Pass),
        1 => (0..PODS).prop_map(Event::Recreate),
        1 => (0..PODS).prop_map(Event::Delete),
    ]
}

fn play_sequence(first: Plan, sequence: Vec<Event>, has_lock: bool) -> Result<(), TestCaseError> {
    let mut pods = Pods::new(has_lock);
    // Every pod is in a shard once: one that never was is not sharded, and sees everything.
    let mut desired = Plan {
        pods: (0..PODS).map(|pod| Some(pod % SHARDS)).collect(),
        ..first
    };
    // Without leases there must be no more pods than shards.
    let last = if has_lock { PODS } else { PODS - 1 };
    pods.pods.retain(|pod, _| *pod < last);
    pods.run_pass(&desired.entries(has_lock));
    let mut bounds = [if has_lock { 1 } else { PODS }; BUCKETS];
    for event in sequence {
        match event {
            Event::Edit(edited) => desired = if has_lock { edited } else { edited.with_single_pods() },
            Event::Sync(pod) => pods.sync(pod),
            Event::Pass => drop(pods.run_pass(&desired.entries(has_lock))),
            Event::Recreate(pod) => pods.create_pod(pod.min(last - 1)),
            Event::Delete(pod) => {
                pods.pods.remove(&pod);
                pods.elect_leaders();
            }
        }
        for (bucket, bound) in bounds.iter_mut().enumerate() {
            let now = pods.owners(bucket);
            prop_assert!(now.len() <= *bound, "{bucket} is acted on by {now:?}");
            // Without leases all pods act on everything before there are shards, and never again.
            *bound = now.len().max(1);
        }
    }
    let entries = desired.entries(has_lock);
    pods.settle(&entries);
    for (bucket, shard) in desired.buckets.iter().enumerate() {
        let own: Vec<usize> = (0..PODS).filter(|pod| desired.pods[*pod] == Some(*shard)).collect();
        let now = pods.owners(bucket);
        prop_assert!(
            now.len() == own.len().min(1) && now.iter().all(|pod| own.contains(pod)),
            "{bucket}: {now:?} of {own:?}"
        );
    }
    let plan = plan(&pods.last, &pods.claims, goal(&entries, &NONE), &pods.fleet());
    prop_assert!(plan.entries == pods.last && plan.claims.is_empty(), "{:?}", plan.claims);
    Ok(())
}

proptest! {
    #![proptest_config(model_config(192))]

    #[test]
    fn pods_never_act_beside_each_other_with_leases(
        first in edits(),
        sequence in prop::collection::vec(events(), 1..80),
    ) {
        play_sequence(first, sequence, true)?;
    }

    #[test]
    fn pods_never_act_beside_each_other_without_leases(
        first in edits(),
        sequence in prop::collection::vec(events(), 1..80),
    ) {
        play_sequence(first, sequence, false)?;
    }
}
