use std::time::Duration;

use proptest::prelude::*;

use super::entry::EntryState;
use super::{
    Cell, Claim, Clock, Grant, MAX_CLAIMS, MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES, Rule, StateError, StateStore,
};

mod admission;
mod outcomes;

fn entry() -> (std::sync::Arc<EntryState>, Clock) {
    let clock = Clock::manual();
    (StateStore::with_clock(clock.clone()).entry("e"), clock)
}

fn claim(key: &str, limit: u32, interval_ms: u32, burst: u32, tokens: u32) -> Claim {
    Claim {
        key: key.into(),
        rule: Rule {
            limit,
            interval_ms,
            burst,
        },
        tokens,
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn bucket_starts_full_and_grants_after_exact_wait() {
    let (state, clock) = entry();
    let one = [claim("b", 3, 1000, 2, 1)];
    assert_eq!(state.take(one.clone()), Ok(Grant::Granted));
    assert_eq!(state.take(one.clone()), Ok(Grant::Granted));
    // A token is refilled every 333⅓ ms, rounded up.
    assert_eq!(state.take(one.clone()), Ok(Grant::WaitMs(334)));
    clock.advance(ms(333));
    assert_eq!(state.take(one.clone()), Ok(Grant::WaitMs(1)));
    clock.advance(ms(1));
    assert_eq!(state.take(one.clone()), Ok(Grant::Granted));
    // The excess 2/3 ms are not lost: the next token is available at 666⅔.
    clock.advance(ms(332));
    assert_eq!(state.take(one.clone()), Ok(Grant::WaitMs(1)));
    clock.advance(ms(1));
    assert_eq!(state.take(one.clone()), Ok(Grant::Granted));
}

#[test]
fn bucket_never_holds_more_than_its_burst() {
    let (state, clock) = entry();
    clock.advance(ms(3_600_000));
    assert_eq!(state.take([claim("b", 1000, 1, 5, 5)]), Ok(Grant::Granted));
    assert_eq!(state.take([claim("b", 1000, 1, 5, 1)]), Ok(Grant::WaitMs(1)));
}

#[test]
fn take_uses_all_buckets_or_none() {
    let (state, _) = entry();
    assert_eq!(state.take([claim("small", 1, 1000, 1, 1)]), Ok(Grant::Granted));
    let both = [claim("big", 1, 100, 10, 10), claim("small", 1, 1000, 1, 1)];
    assert_eq!(state.take(both.clone()), Ok(Grant::WaitMs(1000)));
    assert_eq!(
        state.take([claim("big", 1, 100, 10, 10)]),
        Ok(Grant::Granted),
        "nothing was taken from the big one"
    );
}

#[test]
fn claims_on_one_key_add_up() {
    let (state, _) = entry();
    let twice = [claim("b", 1, 1000, 3, 2), claim("b", 1, 1000, 3, 1)];
    assert_eq!(state.take(twice.clone()), Ok(Grant::Granted));
    assert_eq!(state.take([claim("b", 1, 1000, 3, 1)]), Ok(Grant::WaitMs(1000)));
    let too_much = [claim("c", 1, 1000, 3, 2), claim("c", 1, 1000, 3, 2)];
    assert_eq!(state.take(too_much.clone()), Err(StateError::Invalid));
}

#[test]
fn changed_limit_keeps_fill_level_in_proportion() {
    let (state, _) = entry();
    assert_eq!(state.take([claim("b", 10, 1000, 10, 5)]), Ok(Grant::Granted));
    // A bucket that is half full stays so: 50 of 100.
    assert_eq!(state.take([claim("b", 100, 500, 100, 51)]), Ok(Grant::WaitMs(5)));
    assert_eq!(state.take([claim("b", 100, 500, 100, 50)]), Ok(Grant::Granted));
    // An empty bucket stays empty.
    assert_eq!(state.take([claim("b", 1, 1000, 1000, 1)]), Ok(Grant::WaitMs(1000)));
}

#[test]
fn largest_numbers_do_not_overflow() {
    let (state, clock) = entry();
    let largest = claim("b", u32::MAX, u32::MAX, u32::MAX, u32::MAX);
    assert_eq!(state.take([largest.clone()]), Ok(Grant::Granted));
    assert_eq!(state.take([largest.clone()]), Ok(Grant::WaitMs(u64::from(u32::MAX))));
    clock.advance(Duration::MAX);
    assert_eq!(state.take([claim("b", 1, 1, u32::MAX, u32::MAX)]), Ok(Grant::Granted));
    let slowest = claim("s", 1, u32::MAX, u32::MAX, u32::MAX);
    assert_eq!(state.take([slowest.clone()]), Ok(Grant::Granted));
    let longest = u64::from(u32::MAX) * u64::from(u32::MAX);
    assert_eq!(state.take([slowest]), Ok(Grant::WaitMs(longest)));
}

#[test]
fn invalid_numbers_are_refused() {
    let (state, _) = entry();
    for bad in [
        claim("b", 0, 1, 1, 1),
        claim("b", 1, 0, 1, 1),
        claim("b", 1, 1, 0, 0),
        claim("b", 1, 1, 1, 2),
    ] {
        assert_eq!(state.take([bad]), Err(StateError::Invalid));
    }
    assert_eq!(state.window_add("w", 0, 1, 1), Err(StateError::Invalid));
    assert_eq!(state.window_add("w", 1, 0, 1), Err(StateError::Invalid));
    assert_eq!(state.window_add("w", 1, 65, 1), Err(StateError::Invalid));
    let many = vec![claim("b", 1, 1, 1, 0); MAX_CLAIMS + 1];
    assert_eq!(state.take(many.clone()), Err(StateError::Invalid));
}

#[test]
fn counter_stays_between_zero_and_its_maximum() {
    let (state, _) = entry();
    assert_eq!(state.add("c", 2, Some(2)), Ok(Some(2)));
    assert_eq!(state.add("c", 1, Some(2)), Ok(None));
    assert_eq!(state.add("c", -1, Some(1)), Ok(Some(1)));
    // Above a lowered maximum the counter may still fall.
    assert_eq!(state.add("c", 9, None), Ok(Some(10)));
    assert_eq!(state.add("c", -1, Some(2)), Ok(Some(9)));
    assert_eq!(state.add("c", i64::MIN, None), Ok(Some(0)));
    assert_eq!(state.add("c", i64::MAX, None), Ok(Some(i64::MAX)));
    assert_eq!(state.add("c", 1, None), Ok(Some(i64::MAX)));
}

#[test]
fn increment_adds_to_the_counter_of_add_up_to_its_largest_value() {
    let (state, _) = entry();
    let count = || state.add("c", 0, None).unwrap();
    state.increment("c", 2);
    assert_eq!(state.add("c", 1, None), Ok(Some(3)));
    state.increment("c", 4);
    assert_eq!(count(), Some(7));
    for by in [u64::MAX, 1] {
        state.increment("c", by);
        assert_eq!(count(), Some(i64::MAX));
    }
}

#[test]
fn increment_that_has_no_room_is_dropped_and_counted() {
    let (state, _) = entry();
    let dropped = || state.series().snapshot().1;
    state.compare_and_swap("cell", 0, vec![1]).unwrap();
    state.increment("cell", 1);
    state.increment(&"k".repeat(MAX_KEY_BYTES + 1), 1);
    assert_eq!(dropped(), 2);
    assert_eq!(state.get("cell").unwrap().unwrap().value, [1]);
    for number in 1..MAX_KEYS {
        state.increment(&number.to_string(), 1);
    }
    assert_eq!(dropped(), 2);
    state.increment("more", 1);
    assert_eq!(dropped(), 3);
    state.increment("1", 1);
    assert_eq!((state.add("1", 0, None), dropped()), (Ok(Some(2)), 3));
}

#[test]
fn window_forgets_slot_by_slot() {
    let (state, clock) = entry();
    assert_eq!(state.window_add("w", 1000, 10, 5), Ok(5));
    clock.advance(ms(950));
    assert_eq!(state.window_add("w", 1000, 10, 1), Ok(6));
    clock.advance(ms(50));
    assert_eq!(
        state.window_add("w", 1000, 10, 0),
        Ok(1),
        "the first slot has fallen out"
    );
    clock.advance(ms(900));
    assert_eq!(state.window_add("w", 1000, 10, 0), Ok(0));
    assert_eq!(state.window_add("w", 1000, 10, u64::MAX), Ok(u64::MAX));
    assert_eq!(state.window_add("w", 1000, 10, 1), Ok(u64::MAX));
}

#[test]
fn window_of_another_shape_starts_empty() {
    let (state, _) = entry();
    assert_eq!(state.window_add("w", 1000, 10, 5), Ok(5));
    assert_eq!(state.window_add("w", 1000, 5, 1), Ok(1));
}

#[test]
fn cell_is_written_only_with_its_current_version() {
    let (state, _) = entry();
    assert_eq!(state.get("k"), Ok(None));
    assert_eq!(state.compare_and_swap("k", 1, b"x".to_vec()), Ok(None));
    assert_eq!(state.compare_and_swap("k", 0, b"a".to_vec()), Ok(Some(1)));
    assert_eq!(state.compare_and_swap("k", 0, b"b".to_vec()), Ok(None));
    assert_eq!(state.compare_and_swap("k", 1, b"b".to_vec()), Ok(Some(2)));
    assert_eq!(
        state.get("k"),
        Ok(Some(Cell {
            value: b"b".to_vec(),
            version: 2
        }))
    );
    state.remove("k");
    assert_eq!(state.get("k"), Ok(None));
}

#[test]
fn key_has_one_kind_until_it_is_removed() {
    let (state, _) = entry();
    assert_eq!(state.add("x", 1, None), Ok(Some(1)));
    assert_eq!(state.take([claim("x", 1, 1, 1, 1)]), Err(StateError::WrongKind));
    assert_eq!(state.window_add("x", 1, 1, 1), Err(StateError::WrongKind));
    assert_eq!(state.get("x"), Err(StateError::WrongKind));
    assert_eq!(state.compare_and_swap("x", 0, Vec::new()), Err(StateError::WrongKind));
    state.remove("x");
    assert_eq!(state.window_add("x", 1, 1, 1), Ok(1));
    assert_eq!(state.add("x", 1, None), Err(StateError::WrongKind));
}

#[test]
fn keys_and_values_are_bounded_in_size() {
    let (state, _) = entry();
    let long = "k".repeat(MAX_KEY_BYTES + 1);
    assert_eq!(state.add(&long, 1, None), Err(StateError::TooLarge));
    assert_eq!(state.take([claim(&long, 1, 1, 1, 1)]), Err(StateError::TooLarge));
    assert_eq!(state.get(&long), Err(StateError::TooLarge));
    assert_eq!(
        state.compare_and_swap("k", 0, vec![0; MAX_VALUE_BYTES + 1]),
        Err(StateError::TooLarge)
    );
    assert_eq!(state.compare_and_swap("k", 0, vec![0; MAX_VALUE_BYTES]), Ok(Some(1)));
}

#[test]
fn excess_key_is_refused_and_others_continue() {
    let (state, _) = entry();
    for number in 0..MAX_KEYS {
        assert_eq!(state.add(&number.to_string(), 1, None), Ok(Some(1)));
    }
    assert_eq!(state.add("more", 1, None), Err(StateError::TooManyKeys));
    assert_eq!(
        state.compare_and_swap("more", 0, Vec::new()),
        Err(StateError::TooManyKeys)
    );
    assert_eq!(state.take([claim("more", 1, 1, 1, 1)]), Err(StateError::TooManyKeys));
    assert_eq!(state.add("0", 1, None), Ok(Some(2)));
}

#[test]
fn empty_keys_are_removed_when_room_is_needed() {
    let (state, clock) = entry();
    for number in 0..MAX_KEYS {
        assert_eq!(
            state.take([claim(&number.to_string(), 1, 10, 1, 1)]),
            Ok(Grant::Granted)
        );
    }
    assert_eq!(state.take([claim("more", 1, 10, 1, 1)]), Err(StateError::TooManyKeys));
    // The buckets are full again, which is equal to unused ones.
    clock.advance(ms(10));
    let three = [
        claim("more", 1, 10, 1, 1),
        claim("0", 1, 10, 1, 1),
        claim("third", 1, 10, 1, 1),
    ];
    assert_eq!(state.take(three.clone()), Ok(Grant::Granted));
    assert_eq!(
        state.take(three.into_iter().take(1)),
        Ok(Grant::WaitMs(10)),
        "what was taken is not forgotten"
    );
}

#[test]
fn peek_returns_result_without_change() {
    let (state, _) = entry();
    assert_eq!(state.peek_add("c", 2, None), Ok(Some(2)));
    assert_eq!(state.peek_add("c", 2, Some(1)), Ok(None));
    assert_eq!(state.add("c", 1, None), Ok(Some(1)));
    assert_eq!(state.peek_window("w", 1000, 10, 3), Ok(3));
    assert_eq!(state.window_add("w", 1000, 10, 1), Ok(1));
    assert_eq!(state.peek_window("w", 1000, 10, 3), Ok(4));
    assert_eq!(state.peek_swap("k", 0, b"x"), Ok(Some(1)));
    assert_eq!(state.get("k"), Ok(None));
}

#[test]
fn state_is_shared_by_name_and_dropped_with_its_entry() {
    let store = StateStore::new();
    assert_eq!(store.entry("a").add("c", 1, None), Ok(Some(1)));
    assert_eq!(store.entry("a").add("c", 1, None), Ok(Some(2)));
    assert_eq!(store.entry("b").add("c", 1, None), Ok(Some(1)));
    store.retain(|name| name == "b");
    let names: Vec<String> = store.entries().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["b"]);
    assert_eq!(store.entry("a").add("c", 1, None), Ok(Some(1)));
}

/// A step of a run: time passes, or tokens are requested.
#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Take(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![(0_u64..5000).prop_map(Step::Pass), (1_u32..20).prop_map(Step::Take)];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// From the start to any time, a bucket grants at most its burst and the tokens refilled since; and after the wait that it returns, it
    /// grants.
    #[test]
    fn bucket_grants_exactly_what_its_rule_allows(
        limit in 1_u32..50,
        interval_ms in 1_u32..3000,
        burst in 20_u32..60,
        steps in steps(),
    ) {
        let (state, clock) = entry();
        let mut granted: u128 = 0;
        let mut now: u128 = 0;
        for step in steps {
            match step {
                Step::Pass(milliseconds) => {
                    clock.advance(ms(milliseconds));
                    now += u128::from(milliseconds);
                }
                Step::Take(tokens) => {
                    let one = [claim("b", limit, interval_ms, burst, tokens)];
                    if let Grant::WaitMs(wait) = state.take(one.clone()).expect("legal") {
                        prop_assert!(wait > 0);
                        clock.advance(ms(wait - 1));
                        prop_assert_eq!(state.take(one.clone()), Ok(Grant::WaitMs(1)));
                        clock.advance(ms(1));
                        now += u128::from(wait);
                        prop_assert_eq!(state.take(one.clone()), Ok(Grant::Granted));
                    }
                    granted += u128::from(tokens);
                    let earned = now * u128::from(limit);
                    let allowed = u128::from(burst) * u128::from(interval_ms) + earned;
                    prop_assert!(granted * u128::from(interval_ms) <= allowed);
                }
            }
        }
    }

    /// A window is the sum of the amounts in its slots, computed the slow way.
    #[test]
    fn window_is_sum_over_its_slots(
        length_ms in 1_u32..2000,
        slots in 1_u32..=64,
        adds in prop::collection::vec((0_u64..700, 0_u64..10), 1..100),
    ) {
        let (state, clock) = entry();
        let slot = |now: u64| now * u64::from(slots) / u64::from(length_ms);
        let mut now = 0;
        let mut all: Vec<(u64, u64)> = Vec::new();
        for (pass, amount) in adds {
            clock.advance(ms(pass));
            now += pass;
            all.push((slot(now), amount));
            let sum: u64 = all
                .iter()
                .filter(|(number, _)| number + u64::from(slots) > slot(now))
                .map(|(_, amount)| amount)
                .sum();
            prop_assert_eq!(state.window_add("w", length_ms, slots, amount), Ok(sum));
        }
    }
}
