//! What would be shared because one edit comes before the other.

use super::*;

fn shared(last: &[Entry], wanted: &[Entry], fleet: &Vec<Known>) -> Vec<(String, String)> {
    shared_of(last, last, wanted, fleet)
}

fn shared_of(last: &[Entry], meant: &[Entry], wanted: &[Entry], fleet: &Vec<Known>) -> Vec<(String, String)> {
    let shared = newly_shared(last, meant, wanted, fleet);
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
fn what_one_gains_and_another_keeps_would_be_shared() {
    let fleet = with_pods(0..3, &[]).fleet();
    let last = [shard(0, &[0, 1]), shard(1, &[2])];
    let of = |wanted: &[Entry]| shared(&last, wanted, &fleet);
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
fn who_is_about_to_get_something_keeps_it_too() {
    let fleet = with_pods(0..3, &[]).fleet();
    // On its way from s0 to s1; now s2 is to have it, and s1's edit has yet to come.
    let last = [shard(0, &[0]), shard(1, &[2]), shard(2, &[3])];
    let meant = [shard(0, &[0]), shard(1, &[1, 2]), shard(2, &[3])];
    let of = |wanted: &[Entry]| shared_of(&last, &meant, wanted, &fleet);
    assert_eq!(of(&meant), []);
    let early = [shard(0, &[0]), shard(1, &[1, 2]), shard(2, &[1, 3])];
    assert_eq!(of(&early), [pair("s2", "s1")]);
    assert_eq!(of(&[shard(0, &[0]), shard(1, &[2]), shard(2, &[1, 3])]), []);
}

#[test]
fn nobody_waits_for_shards_that_show_nothing_or_are_of_another_controller() {
    let last = [shard(0, &[0, 1]), shard(1, &[2])];
    let wanted = [shard(0, &[0, 1]), shard(1, &[1, 2])];
    let mut fleet = with_pods(0..2, &[]).fleet();
    fleet[0].is_blank = true;
    assert_eq!(shared(&last, &wanted, &fleet), []);
    fleet.remove(0);
    assert_eq!(shared(&last, &wanted, &fleet), []);
    let of_another = |entry: &Entry| {
        let mut settings = entry.settings.value().clone();
        settings["leaderElectionName"] = json!("another");
        Entry {
            settings: Settings::new(settings),
            ..entry.clone()
        }
    };
    let fleet = with_pods(0..2, &[]).fleet();
    let others = |entries: &[Entry]| [entries[0].clone(), of_another(&entries[1])];
    assert_eq!(shared(&others(&last), &others(&wanted), &fleet), []);
}

#[test]
fn what_would_be_shared_is_left_out_and_the_rest_is_as_wanted() {
    let last = [shard(0, &[0, 1]), shard(1, &[2])];
    let wanted = [shard(0, &[0, 1, 4]), shard(1, &[1, 2]), shard(2, &[0])];
    let names = ["shard-selector/s1".to_owned(), "shard-selector/s2".to_owned()];
    let held = unshared(&last, &wanted, &names);
    assert_eq!(held[0], wanted[0]);
    assert_eq!(held[1], last[1]);
    let seen = |bucket| sees(&held, 2, bucket);
    assert!(!(0..BUCKETS).any(seen), "it is new, and sees nothing");
}
