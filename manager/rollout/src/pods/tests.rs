use ctrlmesh_contract::status::Status;
use ctrlmesh_manager_planner::samples;

use super::*;

mod unreachable;

const SHARD: &str = "shard-selector/a";
const OTHER: &str = "fault-injection/b";

fn entry(name: &str, plugin: &str) -> Entry {
    Entry {
        plugin: Digest::of(plugin.as_bytes()),
        ..samples::entry(name)
    }
}

fn chain(entries: &[Entry]) -> Chain {
    Chain {
        namespace: "demo".to_owned(),
        generation: 7,
        entries: entries.to_vec(),
    }
}

fn status_running(entries: &[Entry]) -> Status {
    samples::running(0, entries)
}

/// One pod with this status.
fn fleet(status: Status, is_fresh: bool) -> Fleet {
    let sidecar = Sidecar {
        pod: "operator-0".to_owned(),
        uid: "uid".to_owned(),
        is_scheduled: true,
        ..Sidecar::default()
    };
    let fresh = is_fresh.then(|| sidecar.pod.clone());
    Fleet {
        reports: [(sidecar.pod.clone(), Report::Status(Box::new(status)))].into(),
        sidecars: vec![sidecar],
        fresh: fresh.into_iter().collect(),
        ..Fleet::default()
    }
}

/// The same pod without a status.
fn silent_fleet() -> Fleet {
    let mut fleet = fleet(Status::default(), true);
    let report = Report::Unavailable("does not answer".to_owned());
    fleet.reports.insert("operator-0".to_owned(), report);
    fleet
}

fn quiet_since(quiet: &QuietSince) -> Option<Instant> {
    quiet.get("uid").map(|(_, since)| *since)
}

#[test]
fn pod_is_quiet_from_when_it_runs_its_shard() {
    let of_shard = [entry(SHARD, "1")];
    let chain = chain(&of_shard);
    let quiet = |fleet: &Fleet, before: &QuietSince| super::pods_quiet_since(fleet, &chain, before, Instant::now());
    let none = QuietSince::new();
    assert_eq!(
        quiet_since(&quiet(&fleet(status_running(&[]), true), &none)),
        None,
        "it runs something else"
    );
    assert_eq!(quiet_since(&quiet(&silent_fleet(), &none)), None);
    let at_it = fleet(status_running(&of_shard), true);
    let first = quiet(&at_it, &none);
    assert!(quiet_since(&first).is_some());
    assert_eq!(quiet(&at_it, &first), first, "it counts from the first time");
    let mut busy = status_running(&of_shard);
    busy.chain.earlier.writes = 1;
    assert_eq!(quiet_since(&quiet(&fleet(busy, true), &first)), None);
    assert_eq!(quiet_since(&quiet(&silent_fleet(), &first)), None);
}

#[test]
fn stale_report_neither_starts_nor_ends_quiet_state() {
    let of_shard = [entry(SHARD, "1")];
    let stale = fleet(status_running(&of_shard), false);
    let first_chain = chain(&of_shard);
    assert_eq!(
        quiet_since(&pods_quiet_since(
            &stale,
            &first_chain,
            &QuietSince::new(),
            Instant::now()
        )),
        None,
        "nobody becomes so"
    );
    let first = pods_quiet_since(
        &fleet(status_running(&of_shard), true),
        &first_chain,
        &QuietSince::new(),
        Instant::now(),
    );
    assert_eq!(
        pods_quiet_since(&stale, &first_chain, &first, Instant::now()),
        first,
        "nothing has changed for it"
    );
    let more = chain(&[entry(SHARD, "1"), entry(OTHER, "1")]);
    assert_eq!(
        pods_quiet_since(&stale, &more, &first, Instant::now()),
        first,
        "nor here"
    );
    let other = [entry(SHARD, "2")];
    assert_eq!(
        quiet_since(&pods_quiet_since(&stale, &chain(&other), &first, Instant::now())),
        None,
        "its shard has changed"
    );
    let begun = Instant::now();
    let anew = pods_quiet_since(
        &fleet(status_running(&other), true),
        &chain(&other),
        &first,
        Instant::now(),
    );
    assert!(quiet_since(&anew).unwrap() >= begun, "it begins anew");
    let left = fleet(status_running(&[]), false);
    assert_eq!(
        quiet_since(&pods_quiet_since(&left, &first_chain, &first, Instant::now())),
        None,
        "it runs something else"
    );
}

#[test]
fn pod_may_run_reported_and_stored_entries_until_it_reports_anew() {
    let before = [entry(SHARD, "1")];
    let chain = chain(&[entry(OTHER, "1")]);
    let mut running_of = BTreeMap::new();
    let mut run = |fleet: Fleet| {
        update_running(&fleet, Some(&chain), &mut running_of);
        assert_eq!(running_of.len(), fleet.sidecars.len(), "who is gone is forgotten");
        let running = fleet.sidecars.first().map(|sidecar| running_of[&sidecar.uid].clone());
        running.unwrap_or_default().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(run(fleet(status_running(&before), true)), [SHARD]);
    assert_eq!(
        run(silent_fleet()),
        [SHARD],
        "a poll without a response is no word about it"
    );
    assert_eq!(run(fleet(status_running(&before), false)), [OTHER, SHARD]);
    assert_eq!(
        run(fleet(status_running(&chain.entries), true)),
        [OTHER],
        "it has said so"
    );
    assert_eq!(
        run(fleet(status_running(&before), false)),
        [OTHER, SHARD],
        "it may have both"
    );
    assert!(run(Fleet::default()).is_empty());
    assert!(run(silent_fleet()).is_empty());
}

#[test]
fn settle_time_is_the_longest_of_a_pods_shards() {
    let default = Duration::from_secs(2);
    let config = |seconds: Option<i32>| {
        let mut config = ShardingConfig::new("a", ctrlmesh_manager_api::ShardingConfigSpec::default());
        config.spec.selector = Some(ctrlmesh_manager_api::LabelSelector::default());
        config.spec.settle_seconds = seconds;
        config
    };
    let time = |configs: &[ShardingConfig], earlier: &[Option<u64>]| {
        let earlier = earlier.iter().map(|seconds| seconds.map(Duration::from_secs));
        settle_time(&Sidecar::default(), configs, earlier, default).as_secs()
    };
    let of = |configs: &[ShardingConfig]| time(configs, &[]);
    assert_eq!(of(&[]), 2);
    assert_eq!(of(&[config(None)]), 2);
    assert_eq!(of(&[config(Some(0))]), 0);
    assert_eq!(of(&[config(Some(30)), config(Some(1))]), 30);
    assert_eq!(time(&[config(Some(1))], &[Some(60), None]), 60);
    assert_eq!(time(&[config(Some(1))], &[None]), 2);
}

#[test]
fn controller_may_lead_until_lease_expires_and_sidecar_reports_no_leadership() {
    let mut status = status_running(&[]);
    let now = Instant::now();
    let of = |status: &Status, age: Duration| {
        let own = BTreeSet::from(["lock---a".to_owned()]);
        let locks = Locks::from([("uid".to_owned(), (own, now - age))]);
        !pods_with_expired_leases(&fleet(status.clone(), true), &locks, now).is_empty()
    };
    assert!(!of(&status, LOCK_EXPIRY - Duration::from_millis(1)));
    assert!(of(&status, LOCK_EXPIRY));
    let mut election = ctrlmesh_contract::status::LeaderElection {
        lock: "lock---a".to_owned(),
        leads: true,
        ..Default::default()
    };
    status.leader_elections.push(election.clone());
    assert!(of(&status, LOCK_EXPIRY), "its own");
    election.lock = "lock---b".to_owned();
    status.leader_elections.push(election);
    assert!(!of(&status, LOCK_EXPIRY * 4), "of a longer lease");
}

#[test]
fn lock_time_starts_when_sidecar_asks_for_it_and_not_when_limits_change() {
    let sharded = |name: &str, limits: u64| {
        let mut entry = entry(SHARD, "a");
        let settings = serde_json::json!({"leaderElectionName": "lock", "shard": name, "limits": [limits]});
        entry.settings = ctrlmesh_contract::Settings::new(settings);
        chain(&[entry])
    };
    let (fleet, begun) = (fleet(status_running(&[]), true), Instant::now());
    let quiet = QuietSince::from([("uid".to_owned(), (Digest::of(b""), begun))]);
    let asked_since = |locks: &Locks| locks.get("uid").map(|(_, since)| *since);
    let first = requested_locks(&fleet, &sharded("a", 1), &quiet, &Locks::new(), begun);
    assert_eq!(asked_since(&first), Some(begun));
    let later = begun + LOCK_EXPIRY;
    let next = requested_locks(&fleet, &sharded("a", 2), &QuietSince::new(), &first, later);
    assert_eq!(asked_since(&next), Some(begun));
    let renamed = requested_locks(&fleet, &sharded("b", 2), &QuietSince::new(), &next, later);
    assert_eq!(asked_since(&renamed), None, "it has not said so");
    let renamed = requested_locks(&fleet, &sharded("b", 2), &quiet, &renamed, later);
    assert_eq!(asked_since(&renamed), Some(later));
}

#[test]
fn sidecar_without_a_chain_is_blank() {
    let sidecar = |nudged| Sidecar {
        pod: "operator-0".to_owned(),
        is_scheduled: true,
        nudged,
        ..Sidecar::default()
    };
    let is_blank = |is_first, report, sidecar: &Sidecar| {
        let fleet = Fleet {
            reports: BTreeMap::from([("operator-0".to_owned(), report)]),
            ..Fleet::default()
        };
        let states = PodStates {
            is_first,
            ..PodStates::default()
        };
        Pods {
            fleet: &fleet,
            states: &states,
        }
        .is_blank(sidecar)
    };
    let silent = || Report::Unavailable("starts".to_owned());
    let at = |generation| {
        let mut status = Status::default();
        status.chain.generation = generation;
        Report::Status(Box::new(status))
    };
    assert!(!is_blank(false, at(0), &sidecar(None)), "it may find an earlier one");
    assert!(is_blank(true, at(0), &sidecar(None)));
    let mut restarted = Status::default();
    restarted.chain.earlier.writes = 1;
    let restarted = Report::Status(Box::new(restarted));
    assert!(!is_blank(true, restarted, &sidecar(None)), "it may still write");
    assert!(!is_blank(true, at(7), &sidecar(None)), "somebody deleted the chain");
    assert!(is_blank(true, silent(), &sidecar(None)));
    assert!(!is_blank(true, silent(), &sidecar(Some(7))), "it was told of one");
    assert!(!is_blank(false, silent(), &sidecar(None)));
    let pending = Sidecar::default();
    assert!(is_blank(false, silent(), &pending));
}

/// The promise that a late edit is still one move rests on this.
#[test]
fn entry_is_unseen_only_if_every_pod_reports_something_else() {
    use ctrlmesh_manager_planner::hand_over::FleetState as _;
    let (new, old) = (entry(SHARD, "new"), entry(SHARD, "old"));
    let is_unseen = |fleet: &Fleet, states: &PodStates| Pods { fleet, states }.is_unseen(&new);
    let later = PodStates::default();
    let old_alone = fleet(status_running(std::slice::from_ref(&old)), true);
    assert!(is_unseen(&old_alone, &later));
    assert!(!is_unseen(
        &fleet(status_running(std::slice::from_ref(&new)), true),
        &later
    ));
    assert!(!is_unseen(&silent_fleet(), &later), "it may run the entry");
    let mut two = old_alone;
    two.sidecars.push(Sidecar {
        pod: "operator-1".to_owned(),
        uid: "uid-1".to_owned(),
        is_scheduled: true,
        ..Sidecar::default()
    });
    assert!(!is_unseen(&two, &later), "the second one may run the entry");
    two.sidecars.remove(0);
    two.sidecars[0].is_scheduled = false;
    assert!(!is_unseen(&two, &later), "no pod says anything");
}
