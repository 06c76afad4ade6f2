use super::*;

const SUCCESS: Judged = Judged {
    judgement: Judgement::Success,
    is_slow: false,
};
const FAILURE: Judged = Judged {
    judgement: Judgement::Failure,
    is_slow: false,
};
const SLOW: Judged = Judged {
    judgement: Judgement::Success,
    is_slow: true,
};
const GIVEN_UP: Judged = Judged {
    judgement: Judgement::GivenUp,
    is_slow: true,
};

fn end(cause: EndCause, upstream_status: u16) -> End {
    End {
        cause,
        upstream_status,
        duration_us: 2000,
        upstream_us: 1000,
    }
}

fn row_of(failures: u32) -> CountingRule {
    CountingRule {
        consecutive_failures: Some(failures),
        ..CountingRule::default()
    }
}

fn shares(failure_percent: Option<u32>, slow_percent: Option<u32>) -> CountingRule {
    CountingRule {
        slower_than_us: Some(1500),
        window: Some(WindowRule {
            length_ms: 1000,
            slots: 10,
            minimum_requests: 4,
            failure_percent,
            slow_percent,
        }),
        ..CountingRule::default()
    }
}

/// The thresholds that are reported for these outcomes, at these times.
fn crossings(rule: &CountingRule, outcomes: &[(Judged, u64)]) -> Vec<Option<Crossed>> {
    let mut tally = Tally::default();
    let count = |(judged, at): &(Judged, u64)| tally.count(rule, *judged, *at).map(|(crossed, _)| crossed);
    outcomes.iter().map(count).collect()
}

fn at_once(outcomes: &[Judged]) -> Vec<(Judged, u64)> {
    outcomes.iter().map(|judged| (*judged, 0)).collect()
}

#[test]
fn end_is_judged_by_cause_and_upstream_status() {
    let rule = CountingRule {
        failing_statuses: vec![(429, 429), (500, 599)],
        failing_connections: ConnectionFailures {
            unreachable: true,
            upstream_reset: false,
            timeout: true,
        },
        ..row_of(1)
    };
    let judgement = |cause, status| rule.judge_end(&end(cause, status)).map(|judged| judged.judgement);
    for (cause, status, expected) in [
        (EndCause::Other, 200, Some(Judgement::Success)),
        (EndCause::Other, 428, Some(Judgement::Success)),
        (EndCause::Other, 429, Some(Judgement::Failure)),
        (EndCause::Other, 599, Some(Judgement::Failure)),
        (EndCause::Other, 0, None),
        (EndCause::Unreachable, 0, Some(Judgement::Failure)),
        (EndCause::Timeout, 200, Some(Judgement::Failure)),
        (EndCause::UpstreamReset, 500, None),
        (EndCause::ClientGone, 0, None),
        (EndCause::ClientGone, 500, None),
    ] {
        assert_eq!(judgement(cause, status), expected, "{cause:?} {status}");
    }
    let at_head = CountingRule { at_head: true, ..rule };
    assert_eq!(at_head.judge_head(503), Some(FAILURE));
    assert_eq!(at_head.judge_head(101), Some(SUCCESS));
}

#[test]
fn outcome_is_judged_once_by_its_head_or_its_end() {
    for at_head in [false, true] {
        let rule = CountingRule { at_head, ..row_of(1) };
        assert_eq!(rule.judge_head(200).is_some(), at_head);
        assert_eq!(rule.judge_end(&end(EndCause::Other, 200)).is_some(), !at_head);
        assert_eq!(rule.judge_head(101), Some(SUCCESS), "a tunnel begins");
        for cause in [EndCause::Other, EndCause::UpstreamReset, EndCause::ClientGone] {
            assert_eq!(rule.judge_end(&end(cause, 101)), None, "{cause:?}");
        }
    }
    let rule = CountingRule {
        at_head: true,
        failing_connections: ConnectionFailures {
            timeout: true,
            ..ConnectionFailures::default()
        },
        ..row_of(1)
    };
    let judged = rule.judge_end(&end(EndCause::Timeout, 0));
    assert_eq!(
        judged.map(|judged| judged.judgement),
        Some(Judgement::Failure),
        "without a head"
    );
}

#[test]
fn slowness_is_of_the_head_or_of_the_whole_wait_without_one() {
    let rule = shares(None, Some(50));
    let judged = |cause, status| rule.judge_end(&end(cause, status));
    assert_eq!(
        judged(EndCause::Other, 200),
        Some(SUCCESS),
        "the head took 1000 of 1500 µs"
    );
    assert_eq!(judged(EndCause::ClientGone, 0), Some(GIVEN_UP), "2000 of 1500 µs");
    let later = End {
        upstream_us: 1501,
        ..end(EndCause::Other, 200)
    };
    assert_eq!(rule.judge_end(&later), Some(SLOW));
    assert_eq!(row_of(1).judge_end(&later), Some(SUCCESS), "without a limit");
}

#[test]
fn row_of_failures_is_reported_once_until_a_success_ends_it() {
    let row = Some(Crossed::ConsecutiveFailures);
    let outcomes = [
        FAILURE, SUCCESS, FAILURE, FAILURE, FAILURE, SUCCESS, FAILURE, GIVEN_UP, FAILURE,
    ];
    assert_eq!(
        crossings(&row_of(2), &at_once(&outcomes)),
        [None, None, None, row, None, None, None, None, row]
    );
}

/// At times that go on by several slots, stay, or go back a little.
#[test]
fn counts_of_window_are_those_of_its_last_slots() {
    let (rule, mut tally) = (shares(Some(100), Some(100)), Tally::default());
    let (mut random, mut now_ms, mut newest) = (1_u64, 0_u64, 0_u64);
    let mut counted = Vec::new();
    for _ in 0..2000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bits = random >> 33;
        now_ms = (now_ms + bits % 250).saturating_sub(bits / 250 % 150);
        newest = newest.max(now_ms / 100);
        let judged = match bits % 7 {
            0 | 1 => FAILURE,
            2 => SLOW,
            _ => SUCCESS,
        };
        tally.count(&rule, judged, now_ms);
        counted.push((newest, judged));
        let number_of = |is_counted: fn(&Judged) -> bool| {
            let last = counted
                .iter()
                .filter(|(slot, judged)| slot + 10 > newest && is_counted(judged));
            u32::try_from(last.count()).unwrap()
        };
        let expected = Counts {
            requests: number_of(|_| true),
            failures: number_of(|judged| judged.judgement == Judgement::Failure),
            slow: number_of(|judged| judged.is_slow),
            consecutive_failures: 0,
        };
        assert_eq!(tally.counts(), expected, "at {now_ms} ms");
    }
    assert!(!tally.is_empty(now_ms) && tally.is_empty(newest * 100 + 1000));
}

#[test]
fn slots_are_numbered_alike_with_and_without_large_products() {
    for (length_ms, slots, now_ms) in [(1000, 10, 99), (7, 3, 1_000_003), (u32::MAX, 64, u64::MAX / 64)] {
        let exact = u128::from(now_ms) * slots as u128 / u128::from(length_ms);
        assert_eq!(u128::from(slot_number(length_ms, slots, now_ms)), exact);
    }
    let exact = u128::from(u64::MAX) * 64 / u128::from(u32::MAX);
    assert_eq!(u128::from(slot_number(u32::MAX, 64, u64::MAX)), exact);
}

#[test]
fn share_of_failures_needs_enough_requests_and_is_reported_once() {
    let half = Some(Crossed::FailurePercent);
    let outcomes = [FAILURE, FAILURE, SUCCESS, SUCCESS, FAILURE];
    assert_eq!(
        crossings(&shares(Some(50), None), &at_once(&outcomes)),
        [None, None, None, half, None]
    );
    let few = [FAILURE, SUCCESS, SUCCESS, SUCCESS, SUCCESS];
    assert_eq!(crossings(&shares(Some(50), None), &at_once(&few)), [None; 5]);
}

#[test]
fn share_of_slow_requests_counts_those_that_were_given_up() {
    let outcomes = [SUCCESS, SUCCESS, SLOW, GIVEN_UP];
    assert_eq!(
        crossings(&shares(Some(50), Some(50)), &at_once(&outcomes)),
        [None, None, None, Some(Crossed::SlowPercent)]
    );
}

#[test]
fn first_of_several_thresholds_is_reported_with_its_counts() {
    let rule = CountingRule {
        consecutive_failures: Some(4),
        ..shares(Some(50), Some(50))
    };
    let mut tally = Tally::default();
    let slow_failure = Judged {
        is_slow: true,
        ..FAILURE
    };
    let counted: Vec<_> = (0..4).map(|at| tally.count(&rule, slow_failure, at)).collect();
    let counts = Counts {
        requests: 4,
        failures: 4,
        slow: 4,
        consecutive_failures: 4,
    };
    assert_eq!(
        counted,
        [None, None, None, Some((Crossed::ConsecutiveFailures, counts))]
    );
}

#[test]
fn window_forgets_slot_by_slot_and_reports_again_when_it_was_empty() {
    let half = Some(Crossed::FailurePercent);
    let rule = shares(Some(100), None);
    let at = |times: &[u64]| crossings(&rule, &times.iter().map(|time| (FAILURE, *time)).collect::<Vec<_>>());
    assert_eq!(
        at(&[0, 100, 200, 999]),
        [None, None, None, half],
        "all are in the window"
    );
    assert_eq!(at(&[0, 100, 200, 1000]), [None; 4], "the first has left it");
    assert_eq!(
        at(&[0, 0, 0, 0, 999, 1999, 1999, 1999, 1999]),
        [None, None, None, half, None, None, None, None, half],
        "the window was empty at 1999"
    );
    let often: Vec<u64> = (0..20).map(|number| number * 300).collect();
    assert_eq!(at(&often).into_iter().flatten().count(), 1, "it was never empty");
}

#[test]
fn report_that_did_not_arrive_is_made_again() {
    let (mut tally, rule) = (Tally::default(), row_of(1));
    assert!(tally.count(&rule, FAILURE, 0).is_some());
    assert!(tally.count(&rule, FAILURE, 0).is_none());
    tally.report_again();
    assert!(tally.count(&rule, FAILURE, 0).is_some());
}

#[test]
fn changed_window_starts_empty_and_keeps_the_row() {
    let rule = |length_ms| {
        let mut rule = shares(Some(50), None);
        rule.window = rule.window.map(|window| WindowRule { length_ms, ..window });
        CountingRule {
            consecutive_failures: Some(9),
            ..rule
        }
    };
    let mut tally = Tally::default();
    for _ in 0..3 {
        assert_eq!(tally.count(&rule(1000), FAILURE, 0), None);
    }
    assert_eq!(tally.count(&rule(2000), FAILURE, 0), None, "one of at least four");
    assert_eq!((tally.counts().requests, tally.counts().consecutive_failures), (1, 4));
}

#[test]
fn tally_is_empty_when_its_window_has_passed_and_no_row_is_left() {
    let (mut tally, rule) = (Tally::default(), shares(Some(50), None));
    assert!(tally.is_empty(0));
    tally.count(&rule, FAILURE, 0);
    assert!(!tally.is_empty(999));
    assert!(tally.is_empty(1000));
    tally.count(&row_of(2), FAILURE, 1000);
    assert!(!tally.is_empty(u64::MAX));
    tally.count(&row_of(2), SUCCESS, 1000);
    assert!(tally.is_empty(1000));
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let with_window = |change: fn(&mut WindowRule)| {
        let mut rule = shares(Some(50), Some(50));
        rule.window.as_mut().into_iter().for_each(change);
        rule
    };
    for good in [row_of(1), shares(Some(1), None), shares(Some(100), Some(1))] {
        assert_eq!(good.check(), Ok(()), "{good:?}");
    }
    let ranges = |failing_statuses| CountingRule {
        failing_statuses,
        ..row_of(1)
    };
    let no_limit = CountingRule {
        slower_than_us: None,
        ..shares(None, Some(1))
    };
    for bad in [
        CountingRule::default(),
        row_of(0),
        ranges(vec![(500, 499)]),
        ranges(vec![(500, 599); MAX_RANGES + 1]),
        no_limit,
        shares(None, None),
        with_window(|window| window.length_ms = 0),
        with_window(|window| window.slots = 0),
        with_window(|window| window.slots = MAX_SLOTS + 1),
        with_window(|window| window.failure_percent = Some(0)),
        with_window(|window| window.slow_percent = Some(101)),
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}
