//! A controller's pods, and the manager that plans for them.
//!
//! Sidecars load chains late and learn late that their pod's labels have changed. The manager knows of them only by reports, which
//! may be old; it judges these as the distribution does (`rollout/src/pods.rs`). Leaders notice late that they have lost their lock.

use ctrlmesh_contract::names::labels::KEEPS_LIMITS;

use super::*;

pub(super) const PODS: usize = 5;

/// The shard that a pod is made for.
pub(super) const fn shard_of_pod(pod: usize) -> usize {
    pod % 3
}

pub(super) fn entry_name(id: usize) -> String {
    format!("shard-selector/s{id}")
}

/// A shard of another controller in the same pods. It hides nothing.
pub(super) fn shard_of_another_controller(lock: Option<&str>) -> Entry {
    let entry = Entry {
        pod_selector: LabelSelector::default(),
        settings: Settings::new(json!({ "leaderElectionName": "another", "shard": "other" })),
        ..samples::entry("shard-selector/other")
    };
    with_lock(&entry, lock)
}

type Labels = BTreeMap<String, String>;

/// A pod and the controller in it.
pub(super) struct Controller {
    pub(super) uid: String,
    /// Labels at the API server.
    labels: Labels,
    /// Labels that its sidecar knows.
    known: Labels,
    /// Entries that its sidecar runs; `None`: the pod does not run yet.
    pub(super) running: Option<Vec<Entry>>,
    /// The lock by which it considers itself the leader.
    pub(super) leads: Option<String>,
    /// The pod has changed shards since the controller got its lock.
    is_moved: bool,
    memory: Memory,
}

/// A manager's knowledge of a pod.
#[derive(Default)]
struct Memory {
    /// The entries of its last report, and when it was asked.
    report: Option<(Vec<Entry>, usize)>,
    /// When a pass first saw the chain and the pod's labels as they are.
    since: usize,
    labels: Labels,
    /// The shard entries that the pod runs with nothing left from before.
    quiet: Option<Vec<Entry>>,
    /// The locks that the pod asks for.
    asked: Option<BTreeSet<String>>,
    may_run: BTreeSet<String>,
}

/// The shard entries of a pod with these labels.
fn entries_selecting(entries: &[Entry], labels: &Labels) -> Vec<Entry> {
    let own = entries.iter().filter(|entry| entry.pod_selector.matches(labels));
    own.cloned().collect()
}

fn locks_of(own: &[Entry]) -> BTreeSet<String> {
    let lock = |entry: &Entry| {
        Some(format!(
            "{}---{}",
            lock_of(entry)?,
            entry.settings.value().get("shard")?
        ))
    };
    own.iter().filter_map(lock).collect()
}

impl Controller {
    fn new(number: usize, pod: usize) -> Self {
        let labels = labels_of(shard_of_pod(pod));
        Self {
            uid: format!("uid-{number}"),
            known: labels.clone(),
            labels,
            running: None,
            leads: None,
            is_moved: false,
            memory: Memory::default(),
        }
    }

    fn running_entries(&self) -> Vec<Entry> {
        entries_selecting(self.running.as_deref().unwrap_or_default(), &self.known)
    }

    /// The lock that the controller asks for.
    fn requested_lock(&self) -> Option<String> {
        self.running.as_ref()?;
        let own = self.running_entries();
        let named = own.iter().find(|entry| lock_of(entry) == Some("lock"));
        let sharded = named.and_then(|entry| entry.settings.value().get("shard")?.as_str());
        Some(sharded.map_or_else(|| "lock".to_owned(), |shard| format!("lock---{shard}")))
    }

    /// Whether it considers itself the leader by a lock that it does not ask for any more.
    fn may_lead(&self) -> bool {
        self.leads.is_some() && self.leads != self.requested_lock()
    }

    /// Whether its sidecar hides all objects, because the pod has changed shards and the controller may lead by the earlier lock.
    /// A sidecar does not know what to hide if the new shard has everything.
    fn is_shown_nothing(&self) -> bool {
        let narrows = |entry: &Entry| lock_of(entry) == Some("lock") && !has_everything(entry);
        self.is_moved && self.may_lead() && self.running_entries().iter().any(narrows)
    }

    /// A pass of the manager judges the pod.
    fn judge(&mut self, last: &[Entry], clock: usize, is_new_chain: bool) {
        let (labels, may_lead) = (self.labels.clone(), self.may_lead());
        let memory = &mut self.memory;
        if is_new_chain || memory.labels != labels {
            memory.since = clock;
            memory.labels.clone_from(&labels);
        }
        let own = entries_selecting(last, &labels);
        let reported = memory.report.as_ref().map(|(entries, _)| entries);
        let is_fresh = memory.report.as_ref().is_some_and(|(_, asked)| *asked >= memory.since);
        if is_fresh {
            memory.may_run.clear();
        }
        let names = |entries: &[Entry]| entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>();
        memory
            .may_run
            .extend(reported.into_iter().flat_map(|entries| names(entries)));
        if !is_fresh {
            memory.may_run.extend(names(&own));
        }
        let is_known = memory.quiet.as_ref().is_some_and(|quiet| is_same(quiet, &own));
        let is_quiet = (is_fresh || is_known) && reported.is_some_and(|entries| is_same(entries, &own));
        memory.quiet = is_quiet.then(|| own.clone());
        let locks = locks_of(&own);
        if memory.asked.as_ref() != Some(&locks) {
            memory.asked = is_quiet.then_some(locks);
        }
        // As long as the controller may lead, it has not asked for another lock for the length of a lease.
        if may_lead {
            memory.asked = None;
        }
    }

    fn observed_pod(&self) -> Known {
        let memory = &self.memory;
        Known {
            uid: self.uid.clone(),
            labels: self.labels.clone(),
            running: memory.may_run.clone(),
            runs: memory
                .report
                .as_ref()
                .map_or_else(Vec::new, |(entries, _)| entries.clone()),
            is_blank: self.running.is_none(),
            is_quiet: memory.quiet.is_some(),
            is_given_up: false,
            may_lead: memory.asked.is_none(),
        }
    }
}

fn has_everything(entry: &Entry) -> bool {
    limits_of(entry.settings.value()).is_empty()
}

/// Whether entries are equal but for their pods, as sidecars report them.
fn is_same(entries: &[Entry], others: &[Entry]) -> bool {
    let key = |entry: &Entry| (entry.name.clone(), entry.settings.clone());
    entries.iter().map(key).eq(others.iter().map(key))
}

/// Several pods for each shard. Each elects a leader with client-go, which notices late that it has lost its lock.
pub(super) struct Mesh {
    pub(super) last: Vec<Entry>,
    pub(super) claims: Claims,
    pub(super) pods: BTreeMap<usize, Controller>,
    made: usize,
    /// Counts events.
    clock: usize,
    /// The chain that the last pass has seen.
    seen: Vec<Entry>,
    /// A manager that takes over plans nothing before it has asked all sidecars.
    has_asked_all: bool,
    /// Each pass knows what all sidecars run at that time.
    pub(super) has_current_reports: bool,
    /// Shards with a ShardingConfig; `false`: it is deleted, but not released yet.
    pub(super) objects: BTreeMap<usize, bool>,
    /// Shards with `reshard: Restart`.
    pub(super) restarts: BTreeSet<usize>,
    /// Numbers of pods that were evicted, in order.
    pub(super) evicted: Vec<usize>,
    /// The shard of each bucket.
    owners: Vec<usize>,
    /// The lock that the ShardingConfigs name. Controllers use `lock`; sidecars do not change other locks.
    lock: &'static str,
    /// Entries have the lock of before.
    is_lock_changing: bool,
    /// Whether another controller in the pods has a shard, too.
    pub(super) has_another: bool,
}

impl Mesh {
    pub(super) fn new(owners: &[usize]) -> Self {
        let mut mesh = Self {
            last: Vec::new(),
            claims: Claims::default(),
            pods: BTreeMap::new(),
            made: 0,
            clock: 0,
            seen: Vec::new(),
            has_asked_all: false,
            has_current_reports: false,
            objects: (0..3).map(|id| (id, true)).collect(),
            restarts: BTreeSet::new(),
            evicted: Vec::new(),
            owners: owners.to_vec(),
            lock: "lock",
            is_lock_changing: false,
            has_another: false,
        };
        mesh.run_pass();
        for pod in 0..PODS {
            mesh.create_pod(pod);
            mesh.sync(pod);
            mesh.report(pod);
        }
        mesh
    }

    pub(super) fn create_pod(&mut self, pod: usize) {
        self.made += 1;
        self.pods.insert(pod, Controller::new(self.made, pod));
    }

    fn is_free(&self, lock: &str) -> bool {
        self.pods.values().all(|pod| pod.leads.as_deref() != Some(lock))
    }

    /// A sidecar loads the last chain. Its controller gets the lock that it asks for now if the lock is free; otherwise it has not
    /// noticed yet that it does not lead any more.
    pub(super) fn sync(&mut self, pod: usize) {
        let last = self.last.clone();
        if let Some(controller) = self.pods.get_mut(&pod) {
            if controller.running.is_none() {
                controller.known.clone_from(&controller.labels);
            }
            controller.running = Some(last);
        }
        self.elect_leader(pod);
    }

    /// A sidecar learns the labels of its pod. A pod that changes shards loads the last chain with its labels, because kubelet writes
    /// both at once. Nobody could prevent that it acts for its new shard by an earlier chain (docs/manager.md names this case).
    pub(super) fn learn_labels(&mut self, pod: usize) {
        let last = self.last.clone();
        if let Some(controller) = self.pods.get_mut(&pod) {
            if controller.known.get("shard") != controller.labels.get("shard") {
                controller.is_moved = true;
                controller.running = controller.running.is_some().then_some(last);
            }
            controller.known.clone_from(&controller.labels);
        }
        self.elect_leader(pod);
    }

    /// The manager polls a sidecar.
    pub(super) fn report(&mut self, pod: usize) {
        self.clock += 1;
        if let Some(controller) = self.pods.get_mut(&pod) {
            let own = controller.running_entries();
            controller.memory.report = controller.running.is_some().then_some((own, self.clock));
        }
    }

    fn elect_leader(&mut self, pod: usize) {
        let Some(lock) = self.pods.get(&pod).and_then(Controller::requested_lock) else {
            return;
        };
        if self.is_free(&lock)
            && let Some(controller) = self.pods.get_mut(&pod)
        {
            controller.is_moved &= controller.leads.as_ref() == Some(&lock);
            controller.leads = Some(lock);
        }
    }

    /// A controller notices that it has lost its lock and exits. It is started again, and the shard's lock is free.
    pub(super) fn expire(&mut self, pod: usize) {
        if let Some(controller) = self.pods.get_mut(&pod).filter(|controller| controller.may_lead()) {
            controller.leads = None;
        }
        self.elect_leader(pod);
    }

    pub(super) fn fleet(&self) -> Vec<Known> {
        self.pods.values().map(Controller::observed_pod).collect()
    }

    fn desired_entries(&self) -> Vec<Entry> {
        let living = self.objects.iter().filter(|(_, is_alive)| **is_alive);
        let shard = |(id, _): (&usize, &bool)| {
            let buckets: Vec<usize> = (0..BUCKETS).filter(|bucket| self.owners[*bucket] == *id).collect();
            with_lock(&shard(*id, &buckets), Some(self.lock))
        };
        let another = self.has_another.then(|| shard_of_another_controller(Some("another")));
        living.map(shard).chain(another).collect()
    }

    /// A pass of the manager: it acts on pods only after it has stored the chain. Returns whether nothing is left to do.
    pub(super) fn run_pass(&mut self) -> bool {
        self.clock += 1;
        let is_asked = |pod: &Controller| pod.running.is_none() || pod.memory.report.is_some();
        self.has_asked_all |= self.has_current_reports || self.pods.values().all(is_asked);
        if !self.has_asked_all {
            return false;
        }
        let is_new_chain = self.seen != self.last;
        self.seen.clone_from(&self.last);
        if self.has_current_reports {
            (0..PODS).for_each(|pod| self.report(pod));
        }
        for controller in self.pods.values_mut() {
            controller.judge(&self.last, self.clock, is_new_chain && !self.has_current_reports);
        }
        let gone = self.objects.iter().filter(|(_, is_alive)| !**is_alive);
        let deleted: BTreeSet<String> = gone.map(|(id, _)| entry_name(*id)).collect();
        let of_objects = self.restarts.iter().filter(|id| self.objects.contains_key(id));
        let restarts: BTreeSet<String> = of_objects.map(|id| entry_name(*id)).collect();
        let goal = Goal {
            desired: &self.desired_entries(),
            restarts: &restarts,
            deleted: &deleted,
            settle: SettleTimes::default(),
        };
        let fleet = self.fleet();
        let plan = plan(&self.last, &self.claims, goal, &fleet);
        let is_same = plan.entries == self.last && self.claims.cover(&plan.claims);
        if is_same {
            self.act_on_plan(&plan, &fleet);
        }
        // A manager that takes over reads the claims back.
        self.claims = serde_json::from_str(&serde_json::to_string(&plan.claims).unwrap()).unwrap();
        let names: BTreeSet<&str> = plan.entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(
            names.len(),
            plan.entries.len(),
            "sidecars refuse it: {:#?}",
            plan.entries
        );
        self.last = plan.entries;
        let lock = self.lock;
        self.is_lock_changing &= !self.last.iter().any(|entry| lock_of(entry) == Some(lock));
        is_same && plan.waiting.is_empty() && plan.hold.is_empty() && plan.evict.is_empty()
    }

    /// Releases objects, and labels and evicts pods.
    fn act_on_plan(&mut self, plan: &Plan, fleet: &Vec<Known>) {
        let is_released = |id: &usize| is_released(&entry_name(*id), &self.last, &self.claims, &plan.evict, fleet);
        self.objects.retain(|id, is_alive| *is_alive || !is_released(id));
        for hold in &plan.hold {
            for pod in self.pods.values_mut().filter(|pod| hold.pods.matches(&pod.labels)) {
                pod.labels.insert(KEEPS_LIMITS.to_owned(), hold.value.clone());
            }
        }
        for evict in &plan.evict {
            let is_stale = |pod: &Controller| evict.stale.has_pod(&pod.uid, &pod.labels);
            let mut own = self.pods.iter().filter(|(_, pod)| evict.pods.matches(&pod.labels));
            let is_late = |pod: &Controller| pod.running.is_none() || pod.memory.quiet.is_none();
            if own.clone().any(|(_, pod)| !is_stale(pod) && is_late(pod)) {
                continue;
            }
            if let Some((number, _)) = own.find(|(_, pod)| is_stale(pod)) {
                let number = *number;
                self.create_pod(number);
                self.evicted.push(number);
            }
        }
    }

    /// Pods that act on a bucket.
    pub(super) fn owners(&self, bucket: usize) -> Vec<usize> {
        let acts = |pod: &usize| {
            let controller = &self.pods[pod];
            controller.leads.is_some() && !controller.is_shown_nothing() && shows(&controller.running_entries(), bucket)
        };
        self.pods.keys().copied().filter(acts).collect()
    }

    pub(super) fn check(&self) -> Result<(), TestCaseError> {
        for bucket in 0..BUCKETS {
            let now = self.owners(bucket);
            prop_assert!(now.len() <= 1, "{bucket} is acted on by {now:?}: {:#?}", self.last);
        }
        Ok(())
    }

    /// Another controller that has a shard sees what no shard of this one limits.
    pub(super) fn check_another(&self) -> Result<(), TestCaseError> {
        for pod in self.pods.values().filter(|_| self.has_another) {
            prop_assert!(shows_services(&pod.running_entries()), "{:#?}", pod.running_entries());
        }
        Ok(())
    }

    /// Lets everything happen that happens by itself. A person has to recreate some pods.
    pub(super) fn settle(&mut self) -> Result<(), TestCaseError> {
        let mut done = 0;
        for _ in 0..60 {
            done = if self.run_pass() { done + 1 } else { 0 };
            for pod in 0..PODS {
                self.sync(pod);
                self.check()?;
                self.learn_labels(pod);
                self.check()?;
                self.report(pod);
                self.expire(pod);
                self.check()?;
            }
            if done > 3 {
                break;
            }
        }
        Ok(())
    }

    /// Someone creates a ShardingConfig. The first ones of a controller arrive together, as those of a root do, because pods that
    /// none selects see everything.
    pub(super) fn create(&mut self, id: usize) {
        let is_own = |entry: &Entry| entry.name != "shard-selector/other";
        if self.last.iter().any(is_own) {
            // An object that is being deleted can't be recreated before it is gone.
            self.objects.entry(id).or_insert(true);
        } else if self.objects.is_empty() {
            self.objects = (0..3).map(|id| (id, true)).collect();
            // An object that is deleted before a manager has seen it has no effect.
            self.run_pass();
        }
    }

    pub(super) fn apply_event(&mut self, event: Event) {
        match event {
            Event::Edit(owners) => self.owners = owners,
            Event::Delete(_) if self.is_lock_changing => {}
            Event::Delete(id) => self.delete(id),
            Event::DeleteAll => (0..3).for_each(|id| self.delete(id)),
            Event::Create(id) => self.create(id),
            // The API server refuses another lock, so objects are replaced for it. As long as one is missing, its pods are in no
            // shard, and the first shards with the new lock hide nothing from them (docs/manager.md names this case).
            Event::Rename if self.is_lock_changing || (0..3).any(|id| self.objects.get(&id) != Some(&true)) => {}
            Event::Rename => self.change_lock(),
            Event::Restart(id) => {
                if !self.restarts.remove(&id) {
                    self.restarts.insert(id);
                }
            }
            Event::Sync(pod) => self.sync(pod),
            Event::Learn(pod) => self.learn_labels(pod),
            Event::Report(pod) => self.report(pod),
            Event::Expire(pod) => self.expire(pod),
            Event::Pass => drop(self.run_pass()),
            Event::Another => self.has_another = !self.has_another,
            Event::NextManager => self.change_manager(),
            Event::Make(pod) => self.create_pod(pod),
            Event::Relabel(pod, id) => self.relabel(pod, id),
            Event::Remove(pod) => drop(self.pods.remove(&pod)),
        }
    }

    /// Another manager takes over, which knows only what is stored.
    fn change_manager(&mut self) {
        for controller in self.pods.values_mut() {
            controller.memory = Memory::default();
        }
        self.seen.clear();
        self.has_asked_all = false;
    }

    /// Somebody moves a pod to another shard. Nothing guards a running pod that moves to the shard that has everything, because it may
    /// lead by another lock (docs/manager.md names this case).
    pub(super) fn relabel(&mut self, pod: usize, id: usize) {
        let shard = entry_name(id);
        let gets_everything = self
            .last
            .iter()
            .any(|entry| entry.name == shard && has_everything(entry));
        if let Some(controller) = self.pods.get_mut(&pod)
            && !(gets_everything && controller.running.is_some())
        {
            controller.labels.extend(labels_of(id));
        }
    }

    /// The lock of all shards changes.
    pub(super) fn change_lock(&mut self) {
        self.lock = if self.lock == "lock" { "other" } else { "lock" };
        self.is_lock_changing = true;
    }

    pub(super) fn delete(&mut self, id: usize) {
        self.objects.entry(id).and_modify(|is_alive| *is_alive = false);
    }
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Edit(Vec<usize>),
    /// Another controller in the pods gets a shard, or loses it.
    Another,
    Delete(usize),
    DeleteAll,
    Create(usize),
    /// The lock of the ShardingConfigs is edited.
    Rename,
    /// A shard gets `reshard: Restart`, or loses it.
    Restart(usize),
    NextManager,
    Sync(usize),
    Learn(usize),
    Report(usize),
    Expire(usize),
    Pass,
    Make(usize),
    Relabel(usize, usize),
    Remove(usize),
}

pub(super) fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => prop::collection::vec(0..3_usize, BUCKETS).prop_map(Event::Edit),
        1 => Just(Event::Another),
        2 => (0..3_usize).prop_map(Event::Delete),
        1 => Just(Event::DeleteAll),
        3 => (0..3_usize).prop_map(Event::Create),
        1 => Just(Event::Rename),
        1 => (0..3_usize).prop_map(Event::Restart),
        1 => Just(Event::NextManager),
        16 => (0..PODS).prop_map(Event::Sync),
        4 => (0..PODS).prop_map(Event::Learn),
        16 => (0..PODS).prop_map(Event::Report),
        8 => (0..PODS).prop_map(Event::Expire),
        20 => Just(Event::Pass),
        2 => (0..PODS).prop_map(Event::Make),
        1 => ((0..PODS), (0..3_usize)).prop_map(|(pod, id)| Event::Relabel(pod, id)),
        1 => (0..PODS).prop_map(Event::Remove),
    ]
}
