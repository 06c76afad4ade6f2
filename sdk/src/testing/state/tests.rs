//! The arithmetic that the contract promises.

use super::*;

fn claim(key: &str, limit: u32, interval_ms: u32, burst: u32, tokens: u32) -> Claim {
    Claim {
        key: key.to_owned(),
        bucket: Bucket {
            limit,
            interval_ms,
            burst,
        },
        tokens,
    }
}

#[test]
fn bucket_starts_full_and_says_how_long_to_wait() {
    let mut state = State::default();
    let one = [claim("b", 3, 1000, 2, 1)];
    assert_eq!(state.take(&one, 0), Ok(Grant::Granted));
    assert_eq!(state.take(&one, 0), Ok(Grant::Granted));
    // A third of a second, rounded up to whole milliseconds.
    assert_eq!(state.take(&one, 0), Ok(Grant::WaitMs(334)));
    assert_eq!(state.take(&one, 333), Ok(Grant::WaitMs(1)));
    assert_eq!(state.take(&one, 334), Ok(Grant::Granted));
}

#[test]
fn refused_claim_takes_nothing_from_any_bucket() {
    let mut state = State::default();
    assert_eq!(state.take(&[claim("small", 1, 1000, 1, 1)], 0), Ok(Grant::Granted));
    let both = [claim("large", 1, 1000, 5, 5), claim("small", 1, 1000, 1, 1)];
    assert_eq!(state.take(&both, 0), Ok(Grant::WaitMs(1000)));
    assert_eq!(state.take(&[claim("large", 1, 1000, 5, 5)], 0), Ok(Grant::Granted));
}

#[test]
fn one_bucket_claimed_twice_is_charged_for_both() {
    let mut state = State::default();
    let twice = [claim("b", 1, 1000, 4, 2), claim("b", 1, 1000, 4, 2)];
    assert_eq!(state.take(&twice, 0), Ok(Grant::Granted));
    assert_eq!(state.take(&twice, 3000), Ok(Grant::WaitMs(1000)));
    let never = [claim("b", 1, 1000, 3, 2), claim("b", 1, 1000, 3, 2)];
    assert_eq!(state.take(&never, 3000), Err(StateError::Invalid));
}

#[test]
fn bucket_never_holds_more_than_its_burst() {
    let mut state = State::default();
    assert_eq!(state.take(&[claim("b", 10, 1, 4, 4)], 0), Ok(Grant::Granted));
    assert_eq!(state.take(&[claim("b", 10, 1, 4, 4)], 1_000_000), Ok(Grant::Granted));
    assert_eq!(state.take(&[claim("b", 10, 1, 4, 1)], 1_000_000), Ok(Grant::WaitMs(1)));
}

#[test]
fn changed_bucket_keeps_its_proportion() {
    let mut state = State::default();
    assert_eq!(state.take(&[claim("b", 1, 1000, 10, 5)], 0), Ok(Grant::Granted));
    // Half full, now of 100: 50 are there, the 51st is not.
    assert_eq!(state.take(&[claim("b", 1, 1000, 100, 51)], 0), Ok(Grant::WaitMs(1000)));
    assert_eq!(state.take(&[claim("b", 1, 1000, 100, 50)], 0), Ok(Grant::Granted));
}

#[test]
fn invalid_numbers_are_refused() {
    let mut state = State::default();
    assert_eq!(state.take(&[claim("b", 1, 0, 1, 1)], 0), Err(StateError::Invalid));
    assert_eq!(state.take(&[claim("b", 0, 1, 1, 1)], 0), Err(StateError::Invalid));
    assert_eq!(state.take(&[claim("b", 1, 1, 1, 2)], 0), Err(StateError::Invalid));
    assert_eq!(state.take(&[claim("b", 1, 1, 0, 0)], 0), Err(StateError::Invalid));
    assert_eq!(
        state.take(&vec![claim("b", 1, 1, 99, 1); 65], 0),
        Err(StateError::Invalid)
    );
    assert_eq!(state.window_add("w", (100, 0), 1, 0), Err(StateError::Invalid));
    assert_eq!(state.window_add("w", (100, 65), 1, 0), Err(StateError::Invalid));
    assert_eq!(state.window_add("w", (0, 1), 1, 0), Err(StateError::Invalid));
}

#[test]
fn counter_stops_at_its_maximum_and_at_zero() {
    let mut state = State::default();
    assert_eq!(state.add("c", 2, Some(3), 0), Ok(Some(2)));
    assert_eq!(state.add("c", 2, Some(3), 0), Ok(None));
    assert_eq!(state.add("c", 1, Some(3), 0), Ok(Some(3)));
    // Above a lowered maximum it can still fall.
    assert_eq!(state.add("c", -1, Some(1), 0), Ok(Some(2)));
    assert_eq!(state.add("c", -9, None, 0), Ok(Some(0)));
}

#[test]
fn changed_bucket_is_first_filled_by_its_old_rule() {
    let mut state = State::default();
    assert_eq!(state.take(&[claim("b", 1, 1000, 2, 2)], 0), Ok(Grant::Granted));
    // Half full after a second of one token a second; half of 10 is 5.
    assert_eq!(state.take(&[claim("b", 100, 1000, 10, 6)], 1000), Ok(Grant::WaitMs(10)));
}

#[test]
fn window_counts_slots_that_do_not_divide_evenly() {
    let mut state = State::default();
    assert_eq!(state.window_add("w", (10, 3), 1, 3), Ok(1));
    assert_eq!(state.window_add("w", (10, 3), 1, 4), Ok(2));
    assert_eq!(state.window_add("w", (10, 3), 0, 9), Ok(2));
    assert_eq!(state.window_add("w", (10, 3), 0, 10), Ok(1));
    assert_eq!(state.window_add("w", (10, 3), 0, 14), Ok(0));
}

#[test]
fn window_forgets_slot_by_slot() {
    let mut state = State::default();
    assert_eq!(state.window_add("w", (100, 10), 1, 0), Ok(1));
    assert_eq!(state.window_add("w", (100, 10), 2, 55), Ok(3));
    assert_eq!(state.window_add("w", (100, 10), 0, 99), Ok(3));
    assert_eq!(state.window_add("w", (100, 10), 0, 100), Ok(2));
    assert_eq!(state.window_add("w", (100, 10), 0, 150), Ok(0));
}

#[test]
fn cell_is_written_by_the_faster_only() {
    let mut state = State::default();
    assert_eq!(state.get("k"), Ok(None));
    assert_eq!(state.compare_and_swap("k", 0, b"a", 0), Ok(Some(1)));
    assert_eq!(state.compare_and_swap("k", 0, b"b", 0), Ok(None));
    assert_eq!(state.compare_and_swap("k", 1, b"c", 0), Ok(Some(2)));
    assert_eq!(
        state.get("k"),
        Ok(Some(Cell {
            value: b"c".to_vec(),
            version: 2
        }))
    );
    state.remove("k");
    assert_eq!(state.get("k"), Ok(None));
}

#[test]
fn key_keeps_its_kind() {
    let mut state = State::default();
    assert_eq!(state.add("k", 1, None, 0), Ok(Some(1)));
    assert_eq!(state.get("k"), Err(StateError::WrongKind));
    assert_eq!(state.compare_and_swap("k", 0, b"", 0), Err(StateError::WrongKind));
    assert_eq!(state.window_add("k", (10, 1), 1, 0), Err(StateError::WrongKind));
    assert_eq!(state.take(&[claim("k", 1, 1, 1, 1)], 0), Err(StateError::WrongKind));
}

#[test]
fn number_and_size_are_bounded() {
    let mut state = State::default();
    assert_eq!(
        state.compare_and_swap("k", 0, &[0; MAX_VALUE + 1], 0),
        Err(StateError::TooLarge)
    );
    assert_eq!(
        state.add(&"k".repeat(MAX_KEY + 1), 1, None, 0),
        Err(StateError::TooLarge)
    );
    for index in 0..MAX_KEYS {
        assert_eq!(state.add(&index.to_string(), 1, None, 0), Ok(Some(1)));
    }
    assert_eq!(state.add("one more", 1, None, 0), Err(StateError::TooManyKeys));
    assert_eq!(
        state.take(&[claim("one more", 1, 1, 1, 1)], 0),
        Err(StateError::TooManyKeys)
    );
    assert_eq!(state.add("0", 1, None, 0), Ok(Some(2)));
}

#[test]
fn keys_that_hold_nothing_make_room() {
    let mut state = State::default();
    for index in 0..MAX_KEYS {
        assert_eq!(
            state.take(&[claim(&index.to_string(), 1, 10, 1, 1)], 0),
            Ok(Grant::Granted)
        );
    }
    assert_eq!(state.add("one more", 1, None, 9), Err(StateError::TooManyKeys));
    // All buckets are full again.
    assert_eq!(state.add("one more", 1, None, 10), Ok(Some(1)));
}

fn ask(key: &str, tokens: u32, max_wait_ms: u32) -> Ask {
    Ask {
        claim: Claim {
            key: key.to_owned(),
            bucket: Bucket {
                limit: 1,
                interval_ms: 100,
                burst: 2,
            },
            tokens,
        },
        max_wait_ms,
    }
}

fn place(key: &str, max: u32) -> Place {
    Place {
        key: key.to_owned(),
        max,
    }
}

#[test]
fn tokens_granted_ahead_lengthen_the_next_wait() {
    let mut state = State::default();
    assert_eq!(state.admit(&[ask("a", 2, 0)], &[], 0), Ok(Admission::Granted(0)));
    assert_eq!(state.admit(&[ask("a", 1, 300)], &[], 0), Ok(Admission::Granted(100)));
    assert_eq!(state.admit(&[ask("a", 1, 300)], &[], 50), Ok(Admission::Granted(150)));
    let short = Shortage { ask: 0, wait_ms: 250 };
    assert_eq!(state.admit(&[ask("a", 1, 249)], &[], 50), Ok(Admission::Short(short)));
    assert_eq!(
        state.admit(&[ask("a", 1, 0)], &[], 299),
        Ok(Admission::Short(Shortage { ask: 0, wait_ms: 1 }))
    );
    assert_eq!(state.admit(&[ask("a", 1, 0)], &[], 300), Ok(Admission::Granted(0)));
}

#[test]
fn claim_takes_nothing_when_place_or_bucket_refuses() {
    let mut state = State::default();
    let asks = [ask("a", 1, 0)];
    assert_eq!(state.admit(&asks, &[place("p", 1)], 0), Ok(Admission::Granted(0)));
    assert_eq!(
        state.admit(&asks, &[place("q", 1), place("p", 1)], 0),
        Ok(Admission::Full(1))
    );
    assert_eq!(state.places("q"), 0);
    assert_eq!(state.admit(&asks, &[place("q", 1)], 0), Ok(Admission::Granted(0)));
    let short = Shortage { ask: 0, wait_ms: 100 };
    assert_eq!(state.admit(&asks, &[place("r", 1)], 0), Ok(Admission::Short(short)));
    assert_eq!(state.places("r"), 0);
    state.free_place("p");
    assert_eq!(state.admit(&[], &[place("p", 1)], 0), Ok(Admission::Granted(0)));
}
