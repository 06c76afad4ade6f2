//! Tallies: what they belong to, and when they are reported.

use tokio::time::Instant;

use super::*;
use crate::plugin::tally::{CountingRule, Crossed, Judged, WindowRule};
use crate::plugin::verdict::{CellWrite, Crossing, OutcomeRule};

/// The entry id in tests that have only one.
const ENTRY_ID: u64 = 1;

/// A rule that reports two failures in a row, with the cells as they are now.
fn rule(state: &EntryState, tally: &str, cells: &[&str]) -> OutcomeRule {
    let cells = cells.iter().map(|key| CellWrite {
        key: (*key).to_owned(),
        write: state.get_with_write(key).unwrap().1,
    });
    OutcomeRule {
        tally: tally.to_owned(),
        cells: cells.collect(),
        counting: CountingRule {
            at_head: true,
            failing_statuses: vec![(500, 599)],
            consecutive_failures: Some(2),
            ..CountingRule::default()
        },
    }
}

fn judge(status: u16) -> impl Fn(&OutcomeRule) -> Option<Judged> {
    move |rule| rule.counting.judge_head(status)
}

/// Counts a failure, and returns what is reported.
fn fail(state: &EntryState, rule: &OutcomeRule) -> Vec<Crossing> {
    fail_under(state, ENTRY_ID, rule)
}

/// Counts a failure by a rule under this entry id, and returns what is reported.
fn fail_under(state: &EntryState, entry_id: u64, rule: &OutcomeRule) -> Vec<Crossing> {
    let counted = state.count_outcome(std::slice::from_ref(rule), entry_id, Instant::now, judge(500));
    assert_eq!(counted.uncounted, 0);
    counted.crossings
}

/// The rule with a window of this length, in which half of at least four requests is a threshold.
fn with_window(rule: OutcomeRule, length_ms: u32) -> OutcomeRule {
    let window = WindowRule {
        length_ms,
        slots: 10,
        minimum_requests: 4,
        failure_percent: Some(50),
        slow_percent: None,
    };
    let counting = CountingRule {
        window: Some(window),
        ..rule.counting
    };
    OutcomeRule { counting, ..rule }
}

/// The rule with a threshold for failures in a row, or without one.
fn with_row(rule: OutcomeRule, consecutive_failures: Option<u32>) -> OutcomeRule {
    let counting = CountingRule {
        consecutive_failures,
        ..rule.counting
    };
    OutcomeRule { counting, ..rule }
}

#[test]
fn threshold_is_reported_once_with_versions_of_cells() {
    let (state, _) = entry();
    state.compare_and_swap("c", 0, vec![1]).unwrap();
    let rule = rule(&state, "t", &["c", "missing"]);
    assert_eq!(fail(&state, &rule), []);
    let crossings = fail(&state, &rule);
    let [crossing] = crossings.as_slice() else {
        panic!("{crossings:?}")
    };
    assert_eq!(
        (crossing.tally.as_str(), &crossing.versions[..], crossing.crossed),
        ("t", &[1, 0][..], Crossed::ConsecutiveFailures)
    );
    assert_eq!(crossing.counts.consecutive_failures, 2);
    assert_eq!(fail(&state, &rule), []);
    state.report_again(&crossings);
    assert_eq!(fail(&state, &rule).len(), 1, "the plugin did not learn of it");
    state.remove("t");
    assert_eq!(fail(&state, &rule), []);
    assert_eq!(fail(&state, &rule).len(), 1, "a removed tally starts anew");
}

#[test]
fn rules_count_in_their_tallies_and_unjudged_ones_do_not() {
    let (state, _) = entry();
    let rules = [rule(&state, "a", &[]), rule(&state, "b", &[])];
    let only_b = |rule: &OutcomeRule| (rule.tally == "b").then(|| rule.counting.judge_head(500)).flatten();
    assert_eq!(
        state.count_outcome(&rules, ENTRY_ID, Instant::now, only_b).crossings,
        []
    );
    let counted = state.count_outcome(&rules, ENTRY_ID, Instant::now, judge(500));
    let tallies: Vec<&str> = counted
        .crossings
        .iter()
        .map(|crossing| crossing.tally.as_str())
        .collect();
    assert_eq!(tallies, ["b"]);
}

#[test]
fn outcome_from_before_a_write_is_not_counted_and_tally_starts_anew() {
    let (state, _) = entry();
    let before = rule(&state, "t", &["c"]);
    assert_eq!(fail(&state, &before), []);
    state.compare_and_swap("c", 0, vec![1]).unwrap();
    assert_eq!(fail(&state, &before), [], "late");
    let closed = rule(&state, "t", &["c"]);
    assert_eq!(fail(&state, &closed), [], "the first one of this state");
    assert_eq!(fail(&state, &before), [], "late, and it does not reset the tally");
    assert_eq!(fail(&state, &closed).len(), 1);
    state.remove("c");
    assert_eq!(fail(&state, &before), [], "the cell is missing again, but it was there");
    let forgotten = rule(&state, "t", &["c"]);
    assert_eq!(fail(&state, &forgotten), []);
    assert_eq!(fail(&state, &forgotten).len(), 1);
}

/// After some outcomes, so that the cells are known to be as they were.
#[test]
fn outcome_is_not_counted_after_a_cell_of_its_rule_was_written_removed_or_replaced() {
    let changes: [fn(&EntryState); 4] = [
        |state| assert_eq!(state.compare_and_swap("c", 1, vec![2]), Ok(Some(2))),
        |state| state.remove("c"),
        |state| assert_eq!(state.add("absent", 0, None), Ok(Some(0))),
        |state| assert_eq!(state.compare_and_swap("absent", 0, vec![1]), Ok(Some(1))),
    ];
    for change in changes {
        let (state, _) = entry();
        state.compare_and_swap("c", 0, vec![1]).unwrap();
        let rule = with_row(rule(&state, "t", &["absent", "c"]), Some(5));
        for _ in 0..4 {
            assert_eq!(fail(&state, &rule), []);
        }
        change(&state);
        for _ in 0..5 {
            assert_eq!(fail(&state, &rule), [], "the row would be long enough");
        }
    }
}

#[test]
fn rules_with_other_cells_share_a_tally_only_while_their_cells_are_current() {
    let (state, _) = entry();
    let (a, b) = (rule(&state, "t", &["a"]), rule(&state, "t", &["b"]));
    for _ in 0..3 {
        state.count_outcome(std::slice::from_ref(&a), ENTRY_ID, Instant::now, judge(200));
    }
    state.compare_and_swap("b", 0, vec![1]).unwrap();
    assert_eq!(fail(&state, &a), []);
    for _ in 0..3 {
        assert_eq!(fail(&state, &b), [], "its cell was written");
    }
    assert_eq!(
        fail(&state, &a).len(),
        1,
        "the other rule has neither counted nor emptied the tally"
    );
}

/// The tally takes the place of the cell that its rule has read.
#[test]
fn rule_whose_tally_is_one_of_its_cells_counts_once() {
    let (state, _) = entry();
    let rule = with_row(rule(&state, "t", &["t"]), Some(1));
    assert_eq!(fail(&state, &rule).len(), 1);
    state.count_outcome(std::slice::from_ref(&rule), ENTRY_ID, Instant::now, judge(200));
    for _ in 0..3 {
        assert_eq!(fail(&state, &rule), [], "the key holds no cell any more");
    }
}

#[test]
fn outcome_under_earlier_entry_id_is_not_counted_after_one_under_later_entry_id() {
    let (state, _) = entry();
    let early = with_row(with_window(rule(&state, "t", &[]), 1000), Some(1));
    let late = with_row(with_window(rule(&state, "t", &[]), 2000), None);
    for _ in 0..3 {
        assert_eq!(fail_under(&state, 2, &late), []);
        assert_eq!(fail_under(&state, 1, &early), [], "it would take the report");
    }
    let crossings = fail_under(&state, 2, &late);
    let [crossing] = crossings.as_slice() else {
        panic!("{crossings:?}")
    };
    assert_eq!(
        (crossing.crossed, crossing.counts.requests),
        (Crossed::FailurePercent, 4),
        "the window was neither emptied nor filled by the others"
    );
}

#[test]
fn outcome_under_earlier_entry_id_does_not_end_row_of_later_entry_id() {
    let (state, _) = entry();
    let late = rule(&state, "t", &[]);
    let early = with_row(with_window(rule(&state, "t", &[]), 1000), None);
    assert_eq!(fail_under(&state, 2, &late), []);
    assert_eq!(fail_under(&state, 1, &early), []);
    assert_eq!(fail_under(&state, 2, &late).len(), 1);
}

#[test]
fn outcome_under_earlier_entry_id_is_counted_until_one_under_later_entry_id_is() {
    let (state, _) = entry();
    let before = rule(&state, "t", &["c"]);
    assert_eq!(fail_under(&state, 1, &before), []);
    assert_eq!(fail_under(&state, 2, &before).len(), 1, "the row goes on");
    state.compare_and_swap("c", 0, vec![1]).unwrap();
    let after = rule(&state, "t", &["c"]);
    for _ in 0..3 {
        assert_eq!(fail_under(&state, 1, &after), [], "also after a write of the cell");
    }
    state.remove("t");
    assert_eq!(fail_under(&state, 1, &after), []);
    assert_eq!(
        fail_under(&state, 1, &after).len(),
        1,
        "a removed tally knows no entry ids"
    );
}

#[test]
fn removal_of_another_cell_changes_nothing() {
    let (state, _) = entry();
    state.compare_and_swap("other", 0, vec![1]).unwrap();
    let rule = rule(&state, "t", &["c"]);
    assert_eq!(fail(&state, &rule), []);
    state.remove("other");
    assert_eq!(fail(&state, &rule).len(), 1);
}

/// Only so many removals are remembered one by one; then a missing cell counts as changed.
#[test]
fn missing_cell_never_gets_an_earlier_number() {
    let (state, _) = entry();
    let mut numbers = vec![state.get_with_write("c").unwrap().1];
    for round in 0..200 {
        let key = if round % 50 == 0 {
            "c".to_owned()
        } else {
            format!("k{round}")
        };
        state.compare_and_swap(&key, 0, vec![1]).unwrap();
        state.remove(&key);
        numbers.push(state.get_with_write("c").unwrap().1);
    }
    assert!(numbers.is_sorted(), "{numbers:?}");
    let changes: Vec<usize> = (1..numbers.len())
        .filter(|at| numbers[*at] != numbers[at - 1])
        .collect();
    assert!(
        [1, 51, 101, 151].iter().all(|round| changes.contains(round)),
        "{changes:?}"
    );
    assert!((2..30).all(|at| numbers[at] == numbers[1]), "{numbers:?}");
}

#[test]
fn outcome_without_room_or_under_another_kind_of_key_is_not_counted() {
    let (state, clock) = entry();
    state.add("n", 1, None).unwrap();
    let counted = state.count_outcome(&[rule(&state, "n", &[])], ENTRY_ID, Instant::now, judge(500));
    assert_eq!((counted.crossings, counted.uncounted), (vec![], 1));
    assert_eq!(state.add("n", 0, None), Ok(Some(1)));
    for key in 1..MAX_KEYS {
        state.add(&format!("k{key}"), 1, None).unwrap();
    }
    let counted = state.count_outcome(&[rule(&state, "t", &[])], ENTRY_ID, Instant::now, judge(500));
    assert_eq!((counted.crossings, counted.uncounted), (vec![], 1));
    state.remove("n");
    let row = rule(&state, "t", &[]);
    assert_eq!(fail(&state, &row), []);
    assert_eq!(state.add("full", 1, None), Err(StateError::TooManyKeys));
    state.count_outcome(&[row], ENTRY_ID, Instant::now, judge(200));
    clock.advance(ms(1));
    assert_eq!(state.add("full", 1, None), Ok(Some(1)), "an empty tally makes room");
}
