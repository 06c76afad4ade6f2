//! Shards are deleted, one by one and all together, while controllers still consider themselves leaders.

use super::sharing::with_lock;
use super::*;
use crate::hand_over::shard::left;

const PODS: usize = 5;

/// The shard that a pod belongs to by its labels.
const fn shard_of_pod(pod: usize) -> usize {
    pod % 3
}

fn entry_name(id: usize) -> String {
    format!("shard-selector/s{id}")
}

/// A shard of another controller in the same pods. It hides nothing.
fn shard_of_another_controller(lock: Option<&str>) -> Entry {
    let entry = Entry {
        pod_selector: LabelSelector::default(),
        settings: Settings::new(json!({ "leaderElectionName": "another", "shard": "other" })),
        ..samples::entry("shard-selector/other")
    };
    with_lock(&entry, lock)
}

/// A pod and the controller in it.
struct Controller {
    uid: String,
    /// Entries that its sidecar runs; `None`: the pod does not run yet.
    running: Option<Vec<Entry>>,
    /// The lock by which it considers itself the leader.
    leads: Option<String>,
}

/// Several pods for each shard. Each elects a leader with client-go, which notices late that it has lost its lock.
struct Mesh {
    last: Vec<Entry>,
    claims: Claims,
    pods: BTreeMap<usize, Controller>,
    made: usize,
    /// Shards with a ShardingConfig; `false`: it is deleted, but not released yet.
    objects: BTreeMap<usize, bool>,
    /// The shard of each bucket.
    owners: Vec<usize>,
    /// The locks that the ShardingConfigs name. Controllers use `lock`; sidecars do not change other locks.
    locks: [&'static str; 3],
    /// Whether another controller in the pods has a shard, too.
    has_another: bool,
}

impl Mesh {
    fn new(owners: &[usize]) -> Self {
        let mut mesh = Self {
            last: Vec::new(),
            claims: Claims::default(),
            pods: BTreeMap::new(),
            made: 0,
            objects: (0..3).map(|id| (id, true)).collect(),
            owners: owners.to_vec(),
            locks: ["lock"; 3],
            has_another: false,
        };
        mesh.look();
        for pod in 0..PODS {
            mesh.make(pod);
            mesh.sync(pod);
        }
        mesh
    }

    fn make(&mut self, pod: usize) {
        self.made += 1;
        let controller = Controller {
            uid: format!("uid-{}", self.made),
            running: None,
            leads: None,
        };
        self.pods.insert(pod, controller);
    }

    /// The lock that a pod's controller asks for.
    fn lock(&self, pod: usize) -> Option<String> {
        let running = self.pods.get(&pod)?.running.as_ref()?;
        let mut own = running
            .iter()
            .filter(|entry| entry.pod_selector.matches(&labels_of(shard_of_pod(pod))));
        let named = own.find(|entry| lock_of(entry) == Some("lock"));
        let sharded = named.and_then(|entry| entry.settings.value().get("shard")?.as_str());
        Some(sharded.map_or_else(|| "lock".to_owned(), |shard| format!("lock---{shard}")))
    }

    fn is_free(&self, lock: &str) -> bool {
        self.pods.values().all(|pod| pod.leads.as_deref() != Some(lock))
    }

    /// A sidecar loads the last chain. Its controller gets the lock that it asks for now if the lock is free; otherwise it has not
    /// noticed yet that it does not lead any more.
    fn sync(&mut self, pod: usize) {
        let last = self.last.clone();
        if let Some(controller) = self.pods.get_mut(&pod) {
            controller.running = Some(last);
        }
        self.elect(pod);
    }

    fn elect(&mut self, pod: usize) {
        let Some(lock) = self.lock(pod) else { return };
        if self.is_free(&lock)
            && let Some(controller) = self.pods.get_mut(&pod)
        {
            controller.leads = Some(lock);
        }
    }

    /// A controller notices that it has lost its lock and exits. It is started again, and the shard's lock is free.
    fn expire(&mut self, pod: usize) {
        if self.may_lead(pod)
            && let Some(controller) = self.pods.get_mut(&pod)
        {
            controller.leads = None;
        }
        self.elect(pod);
    }

    /// Whether it considers itself the leader by a lock that it does not ask for any more.
    fn may_lead(&self, pod: usize) -> bool {
        let leads = self.pods.get(&pod).and_then(|controller| controller.leads.clone());
        leads.is_some() && leads != self.lock(pod)
    }

    fn own(entries: &[Entry], pod: usize) -> Vec<&Entry> {
        let labels = labels_of(shard_of_pod(pod));
        let own = entries.iter().filter(|entry| entry.pod_selector.matches(&labels));
        own.collect()
    }

    fn fleet(&self) -> Vec<Known> {
        let known = |(pod, controller): (&usize, &Controller)| {
            let labels = labels_of(shard_of_pod(*pod));
            let running = controller.running.as_deref();
            Known {
                uid: controller.uid.clone(),
                running: names(running.unwrap_or_default(), &labels),
                runs: controller.running.clone().unwrap_or_default(),
                is_blank: running.is_none(),
                is_quiet: running.is_some_and(|running| Self::own(running, *pod) == Self::own(&self.last, *pod)),
                is_given_up: false,
                may_lead: self.may_lead(*pod),
                labels,
            }
        };
        self.pods.iter().map(known).collect()
    }

    /// A pass of the manager. Returns whether nothing has changed.
    fn look(&mut self) -> bool {
        let living = self.objects.iter().filter(|(_, is_alive)| **is_alive);
        let mut wanted: Vec<Entry> = living
            .map(|(id, _)| {
                let buckets: Vec<usize> = (0..BUCKETS).filter(|bucket| self.owners[*bucket] == *id).collect();
                with_lock(&shard(*id, &buckets), Some(self.locks[*id]))
            })
            .collect();
        if self.has_another {
            wanted.push(shard_of_another_controller(Some("another")));
        }
        let gone = self.objects.iter().filter(|(_, is_alive)| !**is_alive);
        let deleted: BTreeSet<String> = gone.map(|(id, _)| entry_name(*id)).collect();
        let goal = Goal {
            wanted: &wanted,
            restarts: &NONE,
            deleted: &deleted,
        };
        let fleet = self.fleet();
        let plan = plan(&self.last, &self.claims, goal, &fleet);
        let is_same = plan.entries == self.last && self.claims.cover(&plan.claims);
        if is_same {
            self.objects
                .retain(|id, is_alive| *is_alive || !is_released(&entry_name(*id), &self.last, &self.claims, &fleet));
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
        is_same && plan.waiting.is_empty()
    }

    /// Pods that act on a bucket.
    fn owners(&self, bucket: usize) -> Vec<usize> {
        let acts = |pod: &usize| {
            let controller = &self.pods[pod];
            let running = controller.running.as_deref().unwrap_or_default();
            controller.leads.is_some() && sees(running, shard_of_pod(*pod), bucket)
        };
        self.pods.keys().copied().filter(acts).collect()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for bucket in 0..BUCKETS {
            let now = self.owners(bucket);
            prop_assert!(now.len() <= 1, "{bucket} is acted on by {now:?}: {:#?}", self.last);
        }
        Ok(())
    }

    /// Lets everything happen that happens by itself. A person has to recreate some pods.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..12 {
            self.look();
            for pod in 0..PODS {
                self.sync(pod);
                self.check()?;
                self.expire(pod);
                self.check()?;
            }
        }
        Ok(())
    }

    /// Someone creates a ShardingConfig. The first ones of a controller arrive together, as those of a root do, because pods that
    /// none selects see everything.
    fn create(&mut self, id: usize) {
        let is_own = |entry: &Entry| entry.name != "shard-selector/other";
        if self.last.iter().any(is_own) {
            // An object that is being deleted can't be recreated before it is gone.
            self.objects.entry(id).or_insert(true);
        } else if self.objects.is_empty() {
            self.objects = (0..3).map(|id| (id, true)).collect();
            // An object that is deleted before a manager has seen it has no effect.
            self.look();
        }
    }

    fn undergo(&mut self, happens: Happens) {
        match happens {
            Happens::Edit(owners) => self.owners = owners,
            Happens::Delete(id) => self.delete(id),
            Happens::DeleteAll => (0..3).for_each(|id| self.delete(id)),
            Happens::Create(id) => self.create(id),
            Happens::Sync(pod) => self.sync(pod),
            Happens::Expire(pod) => self.expire(pod),
            Happens::Look => drop(self.look()),
            Happens::Another => self.has_another = !self.has_another,
            Happens::Make(pod) => self.make(pod),
            Happens::Remove(pod) => drop(self.pods.remove(&pod)),
        }
    }

    fn rename(&mut self, id: usize) {
        let lock = &mut self.locks[id];
        *lock = if *lock == "lock" { "other" } else { "lock" };
    }

    fn delete(&mut self, id: usize) {
        self.objects.entry(id).and_modify(|is_alive| *is_alive = false);
    }
}

#[test]
fn pods_of_deleted_shard_show_nothing_and_siblings_keep_what_they_have() {
    let mut mesh = Mesh::new(&[0, 0, 1, 1, 2, 2]);
    mesh.settle().unwrap();
    mesh.delete(0);
    mesh.look();
    assert!(mesh.objects.contains_key(&0), "its pods show its objects still");
    for _ in 0..2 {
        mesh.look();
        (0..PODS).for_each(|pod| mesh.sync(pod));
    }
    mesh.look();
    assert!(!mesh.objects.contains_key(&0), "its pods show nothing");
    // A recreated pod does not see everything either.
    mesh.make(0);
    mesh.settle().unwrap();
    let owners: Vec<usize> = (0..BUCKETS).map(|bucket| mesh.owners(bucket).len()).collect();
    assert_eq!(owners, [0, 0, 1, 1, 1, 1]);
}

/// A controller that elects no leader may name any lock. Nobody asks for it, but the manager knows by it which shards belong
/// together.
#[test]
fn pods_of_deleted_shard_see_everything_only_without_a_lock() {
    let of = |lock: Option<&str>| {
        let locked =
            |entries: Vec<Entry>| -> Vec<Entry> { entries.iter().map(|entry| with_lock(entry, lock)).collect() };
        let mut cluster = with_pods(0..2, &locked(wanted(&[Some(0), Some(1)])));
        for _ in 0..2 {
            cluster.step(&locked(wanted(&[None, Some(1)])));
            all_on(&mut cluster);
        }
        (cluster.owners(0), cluster.owners(1))
    };
    assert_eq!(of(Some("any")), (vec![], vec![1]));
    assert_eq!(of(None), (vec![0], vec![0, 1]), "a warning says so (docs/adr/0043)");
}

#[test]
fn pods_of_deleted_shard_show_nothing_when_another_controller_has_a_shard_there() {
    for lock in [Some("another"), None] {
        let another = shard_of_another_controller(lock);
        let mut cluster = with_pods(0..2, &[shard(0, &[0]), shard(1, &[1]), another.clone()]);
        for _ in 0..2 {
            cluster.step(&[shard(1, &[1]), another.clone()]);
            all_on(&mut cluster);
        }
        let owners = (cluster.owners(0), cluster.owners(1));
        assert_eq!(owners, (vec![], vec![1]), "{lock:?}");
    }
}

/// Its entry does not select the pod any more, and the pod still shows the entry's earlier view.
#[test]
fn deleted_shard_is_held_while_pod_that_left_it_shows_its_objects() {
    let cluster = with_pods(0..2, &wanted(&[Some(0), Some(1)]));
    let (name, mut fleet) = (entry_name(0), cluster.fleet());
    fleet[0].is_quiet = false;
    let goal = Goal {
        wanted: &wanted(&[None, Some(1)]),
        restarts: &NONE,
        deleted: &[name.clone()].into(),
    };
    let Plan { entries, claims, .. } = plan(&cluster.last, &cluster.claims, goal, &fleet);
    fleet[0].labels = labels_of(1);
    assert!(!is_released(&name, &entries, &claims, &fleet));
    fleet[0].is_quiet = true;
    assert!(is_released(&name, &entries, &claims, &fleet));
}

#[test]
fn deleted_shard_is_held_until_its_entries_show_nothing_and_its_pods_say_so() {
    let mut fleet = with_pods(0..1, &[]).fleet();
    let released = |entry: &Entry, fleet: &Vec<Known>| {
        is_released(&entry_name(0), std::slice::from_ref(entry), &Claims::default(), fleet)
    };
    let kept = Entry {
        name: format!("{}/keeps/0", entry_name(0)),
        ..shard(0, &[0])
    };
    assert!(!released(&kept, &fleet), "pods keep what they began with");
    let nothing = left(&kept, kept.name.clone(), kept.pod_selector.clone());
    assert!(released(&nothing, &fleet));
    fleet[0].is_quiet = false;
    assert!(!released(&nothing, &fleet), "its pod has not said so");
}

#[test]
fn last_shards_give_everything_to_one_of_them_until_other_pods_are_made_again() {
    let mut mesh = Mesh::new(&[0, 0, 1, 1, 2, 2]);
    mesh.settle().unwrap();
    (0..3).for_each(|id| mesh.delete(id));
    mesh.settle().unwrap();
    let owner = mesh.owners(0);
    assert_eq!(owner.len(), 1);
    assert!(
        (0..BUCKETS).all(|bucket| mesh.owners(bucket) == owner),
        "one has everything"
    );
    assert_eq!(mesh.objects.len(), 1, "those of shards that show nothing are released");
    let successor = entry_name(*mesh.objects.keys().next().unwrap());
    let teardown = mesh.claims.teardown_of(&successor).unwrap();
    let remaining: BTreeSet<String> = teardown
        .remaining(&mesh.last, &mesh.fleet())
        .map(str::to_owned)
        .collect();
    let successor_pods = |pod: &usize| entry_name(shard_of_pod(*pod)) == successor;
    let others: Vec<usize> = (0..PODS).filter(|pod| !successor_pods(pod)).collect();
    let uids: BTreeSet<String> = others.iter().map(|pod| mesh.pods[pod].uid.clone()).collect();
    assert_eq!(remaining, uids);
    for pod in others {
        assert!(!mesh.last.is_empty() && mesh.objects.len() == 1);
        mesh.make(pod);
        mesh.settle().unwrap();
    }
    assert!(mesh.last.is_empty() && mesh.objects.is_empty(), "{:#?}", mesh.last);
    assert!((0..BUCKETS).all(|bucket| mesh.owners(bucket).len() == 1));
}

#[test]
fn shard_whose_lock_changes_goes_like_a_deleted_one() {
    let mut mesh = Mesh::new(&[0, 0, 1, 1, 2, 2]);
    mesh.settle().unwrap();
    (0..3).for_each(|id| mesh.rename(id));
    mesh.settle().unwrap();
    let mut locks: BTreeSet<&str> = mesh.last.iter().filter_map(lock_of).collect();
    assert_eq!(
        locks.pop_first(),
        Some("lock"),
        "pods may lead by the old lock: {:#?}",
        mesh.last
    );
    assert_eq!(mesh.objects.len(), 3, "the objects stay");
    for pod in 0..PODS {
        mesh.make(pod);
        mesh.settle().unwrap();
    }
    assert!(
        mesh.last.iter().all(|entry| lock_of(entry) == Some("other")),
        "{:#?}",
        mesh.last
    );
}

#[test]
fn rules_go_at_once_when_no_pod_is_left_or_last_object_is_released_by_force() {
    let mut mesh = Mesh::new(&[0, 0, 1, 1, 2, 2]);
    mesh.settle().unwrap();
    (0..3).for_each(|id| mesh.delete(id));
    mesh.settle().unwrap();
    let mut forced = Mesh {
        last: mesh.last.clone(),
        claims: mesh.claims.clone(),
        pods: BTreeMap::new(),
        made: 0,
        objects: BTreeMap::new(),
        owners: mesh.owners.clone(),
        has_another: false,
        locks: mesh.locks,
    };
    std::mem::swap(&mut forced.pods, &mut mesh.pods);
    mesh.look();
    assert!(mesh.last.is_empty(), "there is no pod");
    mesh.look();
    assert!(mesh.objects.is_empty());
    forced.look();
    assert!(forced.last.is_empty(), "its object is gone");
}

#[derive(Clone, Debug)]
enum Happens {
    Edit(Vec<usize>),
    /// Another controller in the pods gets a shard, or loses it.
    Another,
    Delete(usize),
    DeleteAll,
    Create(usize),
    Sync(usize),
    Expire(usize),
    Look,
    Make(usize),
    Remove(usize),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        2 => prop::collection::vec(0..3_usize, BUCKETS).prop_map(Happens::Edit),
        1 => Just(Happens::Another),
        2 => (0..3_usize).prop_map(Happens::Delete),
        1 => Just(Happens::DeleteAll),
        3 => (0..3_usize).prop_map(Happens::Create),
        16 => (0..PODS).prop_map(Happens::Sync),
        8 => (0..PODS).prop_map(Happens::Expire),
        16 => Just(Happens::Look),
        2 => (0..PODS).prop_map(Happens::Make),
        1 => (0..PODS).prop_map(Happens::Remove),
    ]
}

proptest! {
    #![proptest_config(model_config(192))]

    /// Whatever is edited, deleted and recreated, and however long sidecars and leaders lag, two controllers never act on one
    /// object. In the end each object has one owner, and nothing is left of deleted shards.
    #[test]
    fn deleted_shards_never_give_an_object_two_owners(
        first in prop::collection::vec(0..3_usize, BUCKETS),
        story in prop::collection::vec(happens(), 1..120),
    ) {
        let mut mesh = Mesh::new(&first);
        for happens in story {
            mesh.undergo(happens);
            mesh.check()?;
        }
        mesh.settle()?;
        mesh.has_another = false;
        (0..3).for_each(|id| mesh.delete(id));
        mesh.settle()?;
        for pod in 0..PODS {
            mesh.make(pod);
            mesh.settle()?;
        }
        prop_assert!(mesh.last.is_empty() && mesh.objects.is_empty(), "{:#?}", mesh.last);
        prop_assert!(mesh.claims.is_empty());
        for bucket in 0..BUCKETS {
            prop_assert_eq!(mesh.owners(bucket).len(), 1);
        }
    }
}

/// A shard gets everything while its controller is torn down, and asks for the lock of a deleted shard. Then its ShardingConfig is
/// created again: one pod may get that lock while another leads by the lock before.
#[test]
fn shard_that_comes_back_waits_for_pods_that_lead_by_the_lock_of_a_deleted_shard() {
    use self::Happens as H;
    let story = [
        H::Delete(0),
        H::Look,
        H::Sync(3),
        H::Sync(0),
        H::Delete(2),
        H::Look,
        H::Sync(2),
        H::Make(4),
        H::Look,
        H::Make(1),
        H::DeleteAll,
        H::Look,
        H::Expire(0),
        H::Look,
        H::Sync(3),
        H::Create(0),
    ];
    let mut mesh = Mesh::new(&[0; BUCKETS]);
    for happens in story {
        mesh.undergo(happens);
        mesh.check().unwrap();
    }
    mesh.settle().unwrap();
}

/// The last shard gets everything, which no limit says, and one of its pods leads by the lock that it asked for before it left the
/// shard.
#[test]
fn shard_gets_everything_only_when_its_pods_lead_by_one_lock() {
    use self::Happens as H;
    let story = [
        H::DeleteAll,
        H::Look,
        H::Sync(4),
        H::Sync(1),
        H::Look,
        H::Create(1),
        H::Make(0),
        H::Remove(2),
        H::Look,
        H::Delete(1),
        H::Make(3),
        H::Sync(4),
        H::Look,
        H::Look,
        H::Create(2),
        H::Sync(3),
        H::Expire(1),
        H::Expire(4),
        H::Look,
        H::Delete(2),
    ];
    let mut mesh = Mesh::new(&[0; BUCKETS]);
    for happens in story {
        mesh.undergo(happens);
        mesh.check().unwrap();
    }
    mesh.settle().unwrap();
}
