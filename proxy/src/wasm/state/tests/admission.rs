//! Tokens and places, all or none.

use super::*;
use crate::wasm::state::{Admission, Ask, Increment, MAX_WAIT_MS, Place};

fn ask(key: &str, max_wait_ms: u32) -> Ask {
    Ask {
        claim: claim(key, 1, 100, 2, 1),
        max_wait_ms,
    }
}

fn place(key: &str, max: u32) -> Place {
    Place { key: key.into(), max }
}

#[test]
fn grant_ahead_makes_next_wait_longer() {
    let (state, clock) = entry();
    let admit = |asks: &[Ask]| state.admit(asks, &[]).map(|(admission, _)| admission);
    assert_eq!(
        admit(&[ask("b", 0), ask("b", 0)]),
        Ok(Admission::Granted { wait_ms: 0 })
    );
    assert_eq!(admit(&[ask("b", 300)]), Ok(Admission::Granted { wait_ms: 100 }));
    clock.advance(ms(50));
    assert_eq!(admit(&[ask("b", 300)]), Ok(Admission::Granted { wait_ms: 150 }));
    assert_eq!(admit(&[ask("b", 249)]), Ok(Admission::Short { ask: 0, wait_ms: 250 }));
    clock.advance(ms(249));
    assert_eq!(admit(&[ask("b", 0)]), Ok(Admission::Short { ask: 0, wait_ms: 1 }));
    clock.advance(ms(1));
    assert_eq!(admit(&[ask("b", 0)]), Ok(Admission::Granted { wait_ms: 0 }));
}

#[test]
fn short_admission_names_ask_that_may_not_wait() {
    let (state, _) = entry();
    let (_, _held) = state
        .admit(&[ask("a", 0), ask("a", 0), ask("b", 0), ask("b", 0)], &[])
        .unwrap();
    let (_, _held) = state.admit(&[ask("a", 500)], &[]).unwrap();
    let (admission, _) = state.admit(&[ask("a", 500), ask("b", 0)], &[]).unwrap();
    assert_eq!(
        admission,
        Admission::Short { ask: 1, wait_ms: 100 },
        "the first would wait longer, and may"
    );
}

#[test]
fn place_is_free_again_when_it_is_dropped() {
    let (state, _) = entry();
    let (admission, held) = state.admit(&[], &[place("p", 1)]).unwrap();
    assert_eq!(admission, Admission::Granted { wait_ms: 0 });
    assert_eq!(
        state.admit(&[], &[place("p", 1)]).unwrap().0,
        Admission::Full { place: 0 }
    );
    drop(held);
    assert_eq!(
        state.admit(&[], &[place("p", 1), place("p", 1)]).unwrap().0,
        Admission::Full { place: 0 },
        "two at once are one too many"
    );
    assert_eq!(
        state.admit(&[], &[place("p", 1)]).unwrap().0,
        Admission::Granted { wait_ms: 0 }
    );
}

#[test]
fn release_of_place_frees_no_place_of_key_that_was_removed_and_taken_again() {
    let (state, _) = entry();
    let admit = || state.admit(&[], &[place("p", 1)]).unwrap();
    let (_, earlier) = admit();
    state.remove("p");
    let (admission, later) = admit();
    assert_eq!(admission, Admission::Granted { wait_ms: 0 });
    drop(earlier);
    assert_eq!(admit().0, Admission::Full { place: 0 }, "the later one is still held");
    drop(later);
    assert_eq!(admit().0, Admission::Granted { wait_ms: 0 });
}

#[test]
fn tokens_and_places_are_taken_together_or_not_at_all() {
    let (state, _) = entry();
    let (_, _held) = state.admit(&[ask("b", 0)], &[place("p", 1)]).unwrap();
    let refused = state.admit(&[ask("b", 0)], &[place("q", 1), place("p", 1)]).unwrap();
    assert_eq!(refused.0, Admission::Full { place: 1 });
    let (granted, _held) = state.admit(&[ask("b", 0)], &[place("q", 1)]).unwrap();
    assert_eq!(
        granted,
        Admission::Granted { wait_ms: 0 },
        "neither the token nor the place was taken"
    );
    let short = state.admit(&[ask("b", 0)], &[place("r", 1)]).unwrap();
    assert_eq!(short.0, Admission::Short { ask: 0, wait_ms: 100 });
    assert_eq!(
        state.admit(&[], &[place("r", 1)]).unwrap().0,
        Admission::Granted { wait_ms: 0 }
    );
    assert_eq!(state.admit(&[], &[place("r", 0)]).unwrap_err(), StateError::Invalid);
    assert_eq!(
        state.admit(&[ask("b", MAX_WAIT_MS + 1)], &[]).unwrap_err(),
        StateError::Invalid
    );
}

proptest! {
    /// Grants, each counted at the end of its wait, never exceed the bucket's rate.
    #[test]
    fn grants_ahead_of_time_keep_rate(steps in prop::collection::vec((0_u64..400, 0_u32..500), 1..80)) {
        let (state, clock) = entry();
        let (mut now, mut granted) = (0, Vec::new());
        for (pause, max_wait) in steps {
            clock.advance(ms(pause));
            now += pause;
            if let (Admission::Granted { wait_ms }, _) = state.admit(&[ask("b", max_wait)], &[]).unwrap() {
                granted.push(now + wait_ms);
            }
        }
        for (index, first) in granted.iter().enumerate() {
            for (more, last) in granted.iter().enumerate().skip(index) {
                let between = (more - index + 1) as u64;
                prop_assert!(between <= 2 + last.saturating_sub(*first) / 100 + 1, "{granted:?}");
            }
        }
    }
}

#[test]
fn repetition_takes_tokens_and_places_while_cells_are_unchanged() {
    let (state, clock) = entry();
    let ask = || Ask::available_now(claim("b", 1, 100, 2, 1));
    let (_, write) = state.get_with_write("c").unwrap();
    let repeat_with = |write: u64, places: &[Place]| {
        let mut repetition = state.repetition(None);
        if repetition.write_of("c") != Some(write) {
            return None;
        }
        repetition.take(&[ask()], places, &[])
    };
    let repeat = || repeat_with(write, &[place("p", 2)]);
    let first = repeat().unwrap();
    assert_eq!(first.len(), 1);
    let second = repeat().unwrap();
    assert!(repeat().is_none(), "the bucket is empty");
    clock.advance(ms(100));
    assert!(repeat().is_none(), "all places are taken");
    drop((first, second));
    assert_eq!(
        state.admit(&[ask()], &[]).unwrap().0,
        Admission::Granted { wait_ms: 0 },
        "the repetition that failed took nothing"
    );
    clock.advance(ms(100));
    state.compare_and_swap("c", 0, vec![1]).unwrap();
    assert!(repeat().is_none(), "the cell was written");
    let (_, write) = state.get_with_write("c").unwrap();
    assert!(repeat_with(write, &[]).is_some());
}

#[test]
fn keys_are_locked_from_first_cell_of_repetition_until_tokens_are_taken() {
    let (state, _) = entry();
    let mut repetition = state.repetition(None);
    assert!(!state.is_locked(), "facts of a request need no lock");
    assert_eq!(repetition.write_of("c"), Some(0));
    assert!(state.is_locked(), "nobody writes the cell before tokens are taken");
    assert!(repetition.take(&[ask("b", 0)], &[], &[]).is_some());
    assert!(!state.is_locked());
    let mut given_up = state.repetition(None);
    assert_eq!(given_up.write_of("c"), Some(0));
    drop(given_up);
    assert!(!state.is_locked());
}

#[test]
fn every_change_of_what_a_key_holds_is_counted() {
    let (state, clock) = entry();
    let changes = || state.repetition(None).changes();
    let mut known = changes();
    let changing: [fn(&EntryState); 6] = [
        |state| assert_eq!(state.compare_and_swap("c", 0, vec![1]), Ok(Some(1))),
        |state| assert_eq!(state.compare_and_swap("c", 1, vec![1]), Ok(Some(2))),
        |state| state.remove("c"),
        |state| state.increment("n", 1),
        |state| assert!(state.admit(&[ask("b", 0)], &[]).is_ok()),
        |state| state.remove("n"),
    ];
    for (at, change) in changing.into_iter().enumerate() {
        change(&state);
        assert!(changes() > known, "{at}");
        known = changes();
    }
    assert!(state.admit(&[ask("b", 0)], &[]).is_ok());
    assert_eq!(state.compare_and_swap("c", 7, vec![1]), Ok(None));
    assert_eq!(changes(), known, "the bucket is there already, and no cell was written");
    for number in 0..MAX_KEYS - 1 {
        state.increment(&number.to_string(), u64::from(number > 0));
    }
    known = changes();
    clock.advance(ms(60_000));
    state.increment("more", 1);
    assert_eq!(state.repetition(None).write_of("b"), Some(0), "it has made room");
    assert_eq!(changes(), known + 2, "the search for empty keys, and the new key");
}

#[test]
fn repetition_increments_counters_only_if_tokens_are_there() {
    let (state, _) = entry();
    let increments = [("n", 2), ("b", 1), ("n", u64::MAX)].map(|(key, by)| Increment {
        key: key.to_owned(),
        by,
    });
    let repeat = |increments: &[Increment]| state.repetition(None).take(&[ask("b", 0)], &[], increments);
    let count = || state.add("n", 0, None).unwrap();
    assert!(repeat(&increments[..1]).is_some());
    assert_eq!(count(), Some(2));
    assert!(repeat(&increments[..2]).is_some());
    assert_eq!((count(), state.series().snapshot().1), (Some(4), 1), "`b` is a bucket");
    assert!(repeat(&increments).is_none());
    assert_eq!(
        (count(), state.series().snapshot().1),
        (Some(4), 1),
        "no token was left"
    );
    assert!(state.repetition(None).take(&[], &[], &increments[2..]).is_some());
    assert_eq!(count(), Some(i64::MAX));
}

#[test]
fn ask_of_one_bucket_is_granted_short_or_refused() {
    let (state, clock) = entry();
    let admit = |ask: Ask| state.admit(&[ask], &[]).map(|(admission, _)| admission);
    let granted = |wait_ms| Ok(Admission::Granted { wait_ms });
    assert_eq!(admit(ask("b", 0)), granted(0));
    assert_eq!(admit(ask("b", 0)), granted(0));
    let short = Ok(Admission::Short { ask: 0, wait_ms: 100 });
    assert_eq!(admit(ask("b", 99)), short);
    assert_eq!(admit(ask("b", 0)), short, "an ask in vain takes nothing");
    assert_eq!(admit(ask("b", 100)), granted(100));
    clock.advance(ms(200));
    assert_eq!(admit(ask("b", 0)), granted(0));
    state.add("n", 1, None).unwrap();
    assert_eq!(admit(ask("n", 0)), Err(StateError::WrongKind));
}

#[test]
fn cell_that_is_removed_and_made_again_has_another_write() {
    let (state, _) = entry();
    let write = || state.get_with_write("c").unwrap().1;
    let mut writes = vec![write()];
    for _ in 0..2 {
        assert_eq!(
            state.compare_and_swap("c", 0, vec![1]),
            Ok(Some(1)),
            "versions start anew"
        );
        writes.push(write());
        state.remove("c");
        writes.push(write());
    }
    assert!(writes.is_sorted_by(|a, b| a < b), "{writes:?}");
    state.remove("c");
    assert_eq!(writes.last(), Some(&write()), "nothing was removed");
    state.add("n", 1, None).unwrap();
    assert_eq!(state.repetition(None).write_of("n"), None, "it is no cell");
    state.remove("n");
    let write = state.repetition(None).write_of("n");
    assert_eq!(write, Some(writes[0]), "no cell of this key was removed");
}
