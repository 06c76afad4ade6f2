//! Objects that would be shared because one of two edits arrives first.

use super::*;

fn shared(last: &[Entry], desired: &[Entry], fleet: &Vec<Known>) -> Vec<(String, String)> {
    shared_of(last, last, desired, fleet)
}

fn shared_of(last: &[Entry], meant: &[Entry], desired: &[Entry], fleet: &Vec<Known>) -> Vec<(String, String)> {
    let none = BTreeSet::new();
    pairs(&newly_shared(shown(last, meant, &none, &none), desired, fleet))
}

fn shown<'a>(
    last: &'a [Entry],
    meant: &'a [Entry],
    restarts: &'a BTreeSet<String>,
    of_roots: &'a BTreeSet<String>,
) -> Shown<'a> {
    Shown {
        last,
        meant,
        restarts,
        of_roots,
    }
}

fn pairs(shared: &BTreeMap<String, BTreeSet<String>>) -> Vec<(String, String)> {
    let pairs = shared
        .iter()
        .flat_map(|(name, others)| others.iter().map(move |other| (name, other)));
    pairs
        .map(|(name, other)| (shard_of(name).to_owned(), shard_of(other).to_owned()))
        .collect()
}

fn pair(name: &str, other: &str) -> (String, String) {
    (name.to_owned(), other.to_owned())
}

#[test]
fn gained_objects_that_another_shard_keeps_are_shared() {
    let fleet = with_pods(0..3, &[]).fleet();
    let last = [shard(0, &[0, 1]), shard(1, &[2])];
    let of = |desired: &[Entry]| shared(&last, desired, &fleet);
    assert_eq!(of(&last), []);
    assert_eq!(of(&[shard(0, &[0, 1]), shard(1, &[1, 2])]), [pair("s1", "s0")]);
    assert_eq!(of(&[shard(0, &[0]), shard(1, &[1, 2])]), [], "it is handed over");
    assert_eq!(of(&[shard(0, &[0, 1]), shard(1, &[2, 3])]), [], "nobody has it");
    let gained_by_both = [shard(0, &[0, 1, 3]), shard(1, &[2, 3])];
    assert_eq!(of(&gained_by_both), [], "nobody had it: both are meant to");
    assert_eq!(
        of(&[shard(0, &[0, 1]), shard(1, &[2]), shard(2, &[0])]),
        [pair("s2", "s0")]
    );
    let crossed = [shard(0, &[0, 1, 2]), shard(1, &[1, 2])];
    assert_eq!(of(&crossed), [pair("s0", "s1"), pair("s1", "s0")]);
    let shares_already = [shard(0, &[0, 1]), shard(1, &[1])];
    assert_eq!(shared(&shares_already, &shares_already, &fleet), []);
    assert_eq!(shared(&[], &crossed, &fleet), [], "all of it is new");
}

#[test]
fn pending_gain_is_kept_by_its_shard() {
    let fleet = with_pods(0..3, &[]).fleet();
    // The bucket is on its way from s0 to s1. Now s2 is to have it, and the edit of s1 has yet to arrive.
    let last = [shard(0, &[0]), shard(1, &[2]), shard(2, &[3])];
    let meant = [shard(0, &[0]), shard(1, &[1, 2]), shard(2, &[3])];
    let of = |desired: &[Entry]| shared_of(&last, &meant, desired, &fleet);
    assert_eq!(of(&meant), []);
    let early = [shard(0, &[0]), shard(1, &[1, 2]), shard(2, &[1, 3])];
    assert_eq!(of(&early), [pair("s2", "s1")]);
    assert_eq!(of(&[shard(0, &[0]), shard(1, &[2]), shard(2, &[1, 3])]), []);
}

#[test]
fn shards_that_wait_for_third_do_not_wait_for_each_other() {
    let fleet = with_pods(0..3, &[]).fleet();
    let last = [shard(0, &[0]), shard(1, &[2]), shard(2, &[3])];
    let meant = [shard(0, &[1]), shard(1, &[0, 2]), shard(2, &[0, 3])];
    assert_eq!(shared_of(&last, &meant, &meant, &fleet), []);
}

#[test]
fn shard_that_would_lose_all_or_restart_is_not_held_back() {
    let fleet = with_pods(0..2, &[]).fleet();
    let name = || BTreeSet::from(["shard-selector/s1".to_owned()]);
    let none = BTreeSet::new();
    let of = |last: &[Entry], desired: &[Entry], restarts: &BTreeSet<String>, of_roots: &BTreeSet<String>| {
        pairs(&newly_shared(shown(last, last, restarts, of_roots), desired, &fleet))
    };
    let last = [shard(0, &[0, 1]), shard(1, &[2, 3])];
    let (gains, swaps) = (
        [shard(0, &[0, 1]), shard(1, &[1, 2, 3])],
        [shard(0, &[0, 1]), shard(1, &[1, 2])],
    );
    let held = [pair("s1", "s0")];
    assert_eq!(of(&last, &swaps, &none, &none), held);
    assert_eq!(of(&last, &gains, &name(), &none), held, "no pod sees a change");
    assert_eq!(of(&last, &swaps, &name(), &none), [], "pods would be made again twice");
    assert_eq!(of(&last, &gains, &none, &name()), [], "its root takes care");
    // The combined limits would be too long.
    let many = |from: usize, more: usize| {
        let buckets: Vec<usize> = (from..from + 1_200).chain([more]).collect();
        shard(1, &buckets)
    };
    let last = [shard(0, &[0, 1]), many(10_000, 2)];
    assert_eq!(of(&last, &[shard(0, &[0, 1]), many(10_001, 1)], &none, &none), []);
}

pub(super) fn with_lock(entry: &Entry, name: Option<&str>) -> Entry {
    let mut settings = entry.settings.value().clone();
    let fields = settings.as_object_mut().unwrap();
    fields.remove("leaderElectionName");
    fields.extend(name.map(|name| ("leaderElectionName".to_owned(), json!(name))));
    Entry {
        settings: Settings::new(settings),
        ..entry.clone()
    }
}

#[test]
fn shards_that_show_nothing_or_belong_to_another_controller_are_not_waited_for() {
    let last = [shard(0, &[0, 1]), shard(1, &[2])];
    let desired = [shard(0, &[0, 1]), shard(1, &[1, 2])];
    let mut fleet = with_pods(0..2, &[]).fleet();
    fleet[0].is_blank = true;
    assert_eq!(shared(&last, &desired, &fleet), []);
    fleet.remove(0);
    assert_eq!(shared(&last, &desired, &fleet), []);
    let fleet = with_pods(0..2, &[]).fleet();
    let lockless = |entries: &[Entry]| entries.iter().map(|entry| with_lock(entry, None)).collect::<Vec<_>>();
    assert_eq!(shared(&lockless(&last), &lockless(&desired), &fleet), []);
    let others = |entries: &[Entry]| [entries[0].clone(), with_lock(&entries[1], Some("another"))];
    assert_eq!(shared(&others(&last), &others(&desired), &fleet), []);
}

#[test]
fn shared_objects_are_left_out_until_they_are_given_up() {
    let last = [shard(0, &[0, 1]), shard(1, &[2])];
    let desired = [shard(0, &[0, 1, 4]), shard(1, &[1, 2]), shard(2, &[0])];
    let names = ["shard-selector/s1".to_owned(), "shard-selector/s2".to_owned()];
    let held = without_new_sharing(&last, &desired, &names);
    assert_eq!(held[0], desired[0]);
    assert_eq!(held[1], last[1]);
    let seen = |bucket| sees(&held, 2, bucket);
    assert!(!(0..BUCKETS).any(seen), "it is new, and sees nothing");
}
