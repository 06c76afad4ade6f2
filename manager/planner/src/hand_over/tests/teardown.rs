//! Shards are deleted, one by one and all together, while controllers still consider themselves leaders.

use super::sharing::with_lock;
use super::*;
use crate::hand_over::shard::leaver_entry;

mod mesh;

use mesh::{Event, Mesh, PODS, entry_name, events, shard_of_another_controller, shard_of_pod};

#[test]
fn pods_of_deleted_shard_show_nothing_and_siblings_keep_what_they_have() {
    let mut mesh = Mesh::new(&[0, 0, 1, 1, 2, 2]);
    mesh.settle().unwrap();
    mesh.delete(0);
    mesh.run_pass();
    assert!(mesh.objects.contains_key(&0), "its pods show its objects still");
    for _ in 0..2 {
        mesh.run_pass();
        for pod in 0..PODS {
            mesh.sync(pod);
            mesh.report(pod);
        }
    }
    mesh.run_pass();
    assert!(!mesh.objects.contains_key(&0), "its pods show nothing");
    // A recreated pod does not see everything either.
    mesh.create_pod(0);
    mesh.settle().unwrap();
    let owners: Vec<usize> = (0..BUCKETS).map(|bucket| mesh.owners(bucket).len()).collect();
    assert_eq!(owners, [0, 0, 1, 1, 1, 1]);
}

/// A controller that elects no leader may name any lock. Nobody asks for it, but the manager knows by it which shards belong
/// together.
#[test]
fn pods_of_deleted_shard_see_everything_only_without_a_lock() {
    let owners_with_lock = |lock: Option<&str>| {
        let locked =
            |entries: Vec<Entry>| -> Vec<Entry> { entries.iter().map(|entry| with_lock(entry, lock)).collect() };
        let mut cluster = with_pods(0..2, &locked(entries_of_owners(&[Some(0), Some(1)])));
        for _ in 0..2 {
            cluster.step(&locked(entries_of_owners(&[None, Some(1)])));
            sync_all_pods(&mut cluster);
        }
        (cluster.owners(0), cluster.owners(1))
    };
    assert_eq!(owners_with_lock(Some("any")), (vec![], vec![1]));
    assert_eq!(
        owners_with_lock(None),
        (vec![0], vec![0, 1]),
        "a warning says so (docs/adr/0043)"
    );
}

#[test]
fn pods_of_deleted_shard_show_nothing_when_another_controller_has_a_shard_there() {
    for lock in [Some("another"), None] {
        let another = shard_of_another_controller(lock);
        let mut cluster = with_pods(0..2, &[shard(0, &[0]), shard(1, &[1]), another.clone()]);
        for _ in 0..2 {
            cluster.step(&[shard(1, &[1]), another.clone()]);
            sync_all_pods(&mut cluster);
        }
        let owners = (cluster.owners(0), cluster.owners(1));
        assert_eq!(owners, (vec![], vec![1]), "{lock:?}");
    }
}

/// Its limits name deployments. What it does not name is the other controller's alone.
#[test]
fn leaver_of_one_controller_hides_nothing_else_from_another_one() {
    for lock in [Some("another"), None] {
        let another = shard_of_another_controller(lock);
        let pair = [shard(0, &[0]), shard(1, &[1]), another.clone()];
        let mut cluster = with_pods(0..2, &pair);
        let mut visible = |target: &[Entry]| {
            for _ in 0..3 {
                cluster.step(target);
                sync_all_pods(&mut cluster);
            }
            let own = names(&cluster.last, &labels_of(0)).into_iter();
            let own = own.filter_map(|name| cluster.last.iter().find(|entry| entry.name == name));
            let own: Vec<Entry> = own.cloned().collect();
            (shows_services(&own), shows(&own, 0))
        };
        assert_eq!(visible(&pair[1..]), (true, false), "one shard of two goes, {lock:?}");
        assert_eq!(
            visible(&pair[1..2]),
            (false, false),
            "the other controller has no shard"
        );
        assert_eq!(visible(&pair[1..]), (true, false), "it has one again");
        let moved = Entry {
            pod_selector: pods_of(7),
            ..pair[0].clone()
        };
        assert_eq!(visible(&[moved, pair[1].clone(), another.clone()]), (true, false));
    }
}

#[test]
fn teardown_of_one_controller_hides_nothing_else_from_another_one() {
    let mut mesh = Mesh::new(&[0, 0, 1, 1, 2, 2]);
    mesh.has_another = true;
    mesh.settle().unwrap();
    (0..3).for_each(|id| mesh.delete(id));
    mesh.settle().unwrap();
    assert!(mesh.last.len() > 2, "{:#?}", mesh.last);
    mesh.check_another().unwrap();
}

/// Its entry does not select the pod any more, and the pod still shows the entry's earlier view.
#[test]
fn deleted_shard_is_held_while_pod_that_left_it_shows_its_objects() {
    let cluster = with_pods(0..2, &entries_of_owners(&[Some(0), Some(1)]));
    let (name, mut fleet) = (entry_name(0), cluster.fleet());
    fleet[0].is_quiet = false;
    let goal = Goal {
        desired: &entries_of_owners(&[None, Some(1)]),
        restarts: &NONE,
        deleted: &[name.clone()].into(),
        settle: SettleTimes::default(),
    };
    let Plan { entries, claims, .. } = plan(&cluster.last, &cluster.claims, goal, &fleet);
    fleet[0].labels = labels_of(1);
    assert!(!is_released(&name, &entries, &claims, &[], &fleet));
    fleet[0].is_quiet = true;
    assert!(is_released(&name, &entries, &claims, &[], &fleet));
}

/// Its sidecar hides what the new shard sees, but has nothing to hide once the shard has everything.
#[test]
fn shard_gets_everything_only_when_pod_that_came_to_it_does_not_lead_by_its_earlier_lock() {
    let all = entries_of_owners(&[Some(0), Some(1), Some(2)]);
    let cluster = with_pods(0..3, &all);
    let (mut last, mut claims, mut fleet) = (cluster.last.clone(), cluster.claims.clone(), cluster.fleet());
    let deleted: BTreeSet<String> = (0..3).map(entry_name).collect();
    let mut pass = |fleet: &Vec<Known>, desired: &[Entry]| {
        let goal = Goal {
            desired,
            restarts: &NONE,
            deleted: if desired.is_empty() { &deleted } else { &NONE },
            settle: SettleTimes::default(),
        };
        let plan = plan(&last, &claims, goal, fleet);
        (last, claims) = (plan.entries, plan.claims);
        let successor = last.iter().find(|entry| entry.name == entry_name(0)).unwrap();
        limits_of(successor.settings.value()).is_empty()
    };
    fleet[1].labels = labels_of(0);
    (fleet[1].is_quiet, fleet[1].may_lead) = (false, true);
    pass(&fleet, &all);
    fleet[1].is_quiet = true;
    for _ in 0..4 {
        assert!(!pass(&fleet, &[]));
    }
    fleet[1].may_lead = false;
    assert!((0..2).any(|_| pass(&fleet, &[])));
}

#[test]
fn deleted_shard_is_held_until_its_entries_show_nothing_and_its_pods_say_so() {
    let mut fleet = with_pods(0..1, &[]).fleet();
    let released = |entry: &Entry, fleet: &Vec<Known>| {
        is_released(
            &entry_name(0),
            std::slice::from_ref(entry),
            &Claims::default(),
            &[],
            fleet,
        )
    };
    let kept = Entry {
        name: format!("{}/keeps/0", entry_name(0)),
        ..shard(0, &[0])
    };
    assert!(!released(&kept, &fleet), "pods keep what they began with");
    let nothing = leaver_entry(&kept, kept.name.clone(), kept.pod_selector.clone(), &[]);
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
    assert_eq!(mesh.objects.len(), 3, "replacements of their pods need them");
    let successor = entry_name(shard_of_pod(owner[0]));
    let teardown = mesh.claims.teardown_of(&successor, &mesh.last).unwrap();
    assert!(teardown.is_of(&successor));
    let remaining: BTreeSet<String> = teardown
        .remaining(&mesh.last, &mesh.fleet())
        .map(str::to_owned)
        .collect();
    let successor_pods = |pod: &usize| entry_name(shard_of_pod(*pod)) == successor;
    let others: Vec<usize> = (0..PODS).filter(|pod| !successor_pods(pod)).collect();
    let uids: BTreeSet<String> = others.iter().map(|pod| mesh.pods[pod].uid.clone()).collect();
    assert_eq!(remaining, uids);
    for pod in others {
        assert!(!mesh.last.is_empty() && mesh.objects.len() == 3);
        mesh.create_pod(pod);
        mesh.settle().unwrap();
    }
    assert!(mesh.last.is_empty() && mesh.objects.is_empty(), "{:#?}", mesh.last);
    assert!((0..BUCKETS).all(|bucket| mesh.owners(bucket).len() == 1));
}

#[test]
fn deleted_shards_with_restart_are_held_until_their_pods_are_evicted_one_by_one() {
    let mut mesh = Mesh::new(&[0, 0, 1, 1, 2, 2]);
    mesh.settle().unwrap();
    mesh.restarts = [0, 1].into();
    (0..3).for_each(|id| mesh.delete(id));
    let uids: Vec<String> = mesh.pods.values().map(|pod| pod.uid.clone()).collect();
    let mut held = Vec::new();
    for _ in 0..40 {
        let evicted = mesh.evicted.len();
        mesh.run_pass();
        if mesh.evicted.len() > evicted {
            held.push(mesh.objects.contains_key(&1));
        }
        for pod in 0..PODS {
            mesh.sync(pod);
            mesh.report(pod);
            mesh.check().unwrap();
        }
    }
    assert_eq!(
        mesh.evicted,
        [1, 4],
        "the pods of the successor and of shards without the policy stay"
    );
    assert_eq!(held, [true, true]);
    assert_eq!(mesh.objects.len(), 3, "they wait for pod 2");
    assert_eq!(mesh.pods[&2].uid, uids[2]);
}

#[test]
fn replacements_are_not_evicted_when_pods_are_too_many_to_name() {
    let restarts: BTreeSet<String> = (0..2).map(entry_name).collect();
    let entries = entries_of_owners(&[Some(0), Some(1)]);
    let mut fleet = with_pods(0..1, &entries).fleet();
    for number in 0..1100 {
        fleet.push(Known {
            uid: format!("other-{number}"),
            labels: labels_of(1),
            running: BTreeSet::new(),
            runs: entries.clone(),
            is_blank: false,
            is_quiet: true,
            is_given_up: false,
            may_lead: false,
        });
    }
    let goal = Goal {
        desired: &[],
        restarts: &restarts,
        deleted: &restarts,
        settle: SettleTimes::default(),
    };
    let evicts = |fleet: &Vec<Known>| plan(&entries, &Claims::default(), goal, fleet).evict.len();
    assert_eq!(evicts(&fleet), 0);
    fleet.truncate(1000);
    assert_eq!(evicts(&fleet), 1);
}

#[test]
fn shard_whose_lock_changes_goes_like_a_deleted_one() {
    let mut mesh = Mesh::new(&[0, 0, 1, 1, 2, 2]);
    mesh.settle().unwrap();
    mesh.change_lock();
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
        mesh.create_pod(pod);
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
    let (pods, objects) = (std::mem::take(&mut mesh.pods), mesh.objects.clone());
    let (last, claims) = (mesh.last.clone(), mesh.claims.clone());
    mesh.run_pass();
    assert!(mesh.last.is_empty(), "there is no pod");
    mesh.run_pass();
    assert!(mesh.objects.is_empty() && !objects.is_empty());
    (mesh.pods, mesh.last, mesh.claims) = (pods, last, claims);
    mesh.run_pass();
    assert!(mesh.last.is_empty(), "its object is gone");
}

proptest! {
    #![proptest_config(model_config(192))]

    /// Whatever is edited, deleted and recreated, and however long sidecars and leaders lag, two controllers never act on one
    /// object. In the end each object has one owner, and nothing is left of deleted shards.
    #[test]
    fn deleted_shards_never_give_an_object_two_owners(
        first in prop::collection::vec(0..3_usize, BUCKETS),
        sequence in prop::collection::vec(events(), 1..120),
    ) {
        let mut mesh = Mesh::new(&first);
        for event in sequence {
            mesh.apply_event(event);
            mesh.check()?;
        }
        mesh.settle()?;
        mesh.check_another()?;
        (mesh.has_another, mesh.restarts) = (false, BTreeSet::new());
        (0..3).for_each(|id| mesh.delete(id));
        mesh.settle()?;
        for pod in 0..PODS {
            mesh.create_pod(pod);
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
    use self::Event as H;
    let sequence = [
        H::Delete(0),
        H::Pass,
        H::Sync(3),
        H::Sync(0),
        H::Delete(2),
        H::Pass,
        H::Sync(2),
        H::Make(4),
        H::Pass,
        H::Make(1),
        H::DeleteAll,
        H::Pass,
        H::Expire(0),
        H::Pass,
        H::Sync(3),
        H::Create(0),
    ];
    let mut mesh = Mesh::new(&[0; BUCKETS]);
    mesh.has_current_reports = true;
    for event in sequence {
        mesh.apply_event(event);
        mesh.check().unwrap();
    }
    mesh.settle().unwrap();
}

/// The last shard gets everything, which no limit says, and one of its pods leads by the lock that it asked for before it left the
/// shard.
#[test]
fn shard_gets_everything_only_when_its_pods_lead_by_one_lock() {
    use self::Event as H;
    let sequence = [
        H::DeleteAll,
        H::Pass,
        H::Sync(4),
        H::Sync(1),
        H::Pass,
        H::Create(1),
        H::Make(0),
        H::Remove(2),
        H::Pass,
        H::Delete(1),
        H::Make(3),
        H::Sync(4),
        H::Pass,
        H::Pass,
        H::Create(2),
        H::Sync(3),
        H::Expire(1),
        H::Expire(4),
        H::Pass,
        H::Delete(2),
    ];
    let mut mesh = Mesh::new(&[0; BUCKETS]);
    mesh.has_current_reports = true;
    for event in sequence {
        mesh.apply_event(event);
        mesh.check().unwrap();
    }
    mesh.settle().unwrap();
}
