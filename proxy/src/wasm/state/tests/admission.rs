//! Tokens and places, all or none.

use super::*;
use crate::wasm::state::{Admission, Ask, MAX_WAIT_MS, Place};

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
