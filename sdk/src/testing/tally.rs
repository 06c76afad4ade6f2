//! Judges and counts outcomes of requests (`outcome-rule` in `wit/types.wit`): what is a failure, and when a count reaches a
//! threshold.
//!
//! Pure; time comes in as an argument. The sidecar compiles this file too (`proxy/src/plugin/tally.rs`), so that a fake host
//! counts as it does.

/// Maximum number of slots of a window.
const MAX_SLOTS: u32 = 64;
/// Maximum number of ranges of failing statuses.
const MAX_RANGES: usize = 256;

/// What counts as a failure or as slow, and which counts are thresholds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CountingRule {
    /// Whether the response head decides, if there is one.
    pub(crate) at_head: bool,
    /// First and last status of each range.
    pub(crate) failing_statuses: Vec<(u16, u16)>,
    pub(crate) failing_connections: ConnectionFailures,
    pub(crate) slower_than_us: Option<u64>,
    pub(crate) window: Option<WindowRule>,
    pub(crate) consecutive_failures: Option<u32>,
}

/// Failures of the connection that count as failures of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionFailures {
    pub(crate) unreachable: bool,
    pub(crate) upstream_reset: bool,
    pub(crate) timeout: bool,
}

/// A sliding window, and the shares in it that are thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRule {
    pub(crate) length_ms: u32,
    pub(crate) slots: u32,
    pub(crate) minimum_requests: u32,
    pub(crate) failure_percent: Option<u32>,
    pub(crate) slow_percent: Option<u32>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) cause: EndCause,
    /// 0 without a response head.
    pub(crate) upstream_status: u16,
    pub(crate) duration_us: u64,
    /// Time until the response head.
    pub(crate) upstream_us: u64,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    ClientGone,
    Unreachable,
    UpstreamReset,
    Timeout,
    /// The response is complete, or a plugin or the host decided.
    Other,
}

/// An outcome that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) judgement: Judgement,
    pub(crate) is_slow: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Success,
    Failure,
    /// The client went away before the response head.
    GivenUp,
}

/// The threshold that a count has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crossed {
    ConsecutiveFailures,
    FailurePercent,
    SlowPercent,
}

/// What a tally has counted; the first three in its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: u32,
    pub(crate) failures: u32,
    pub(crate) slow: u32,
    pub(crate) consecutive_failures: u32,
}

/// Counts of outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    window: Option<Window>,
    consecutive_failures: u32,
    /// Whether a crossing was reported since the tally was empty.
    is_reported: bool,
}

/// A ring of slots, of which the oldest is dropped as time passes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    length_ms: u32,
    /// Slot number `n` of all time is at `n % len`.
    slots: Vec<Slot>,
    /// Number of the newest slot.
    newest: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    requests: u32,
    failures: u32,
    slow: u32,
}

impl CountingRule {
    /// Rejects numbers that make no sense.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let is_range = |(first, last): &(u16, u16)| first <= last;
        let is_percent = |percent: Option<u32>| percent.is_none_or(|percent| (1..=100).contains(&percent));
        if self.failing_statuses.len() > MAX_RANGES || !self.failing_statuses.iter().all(is_range) {
            return Err("failing-statuses has more than 256 ranges, or one that ends before it begins");
        }
        if self.consecutive_failures == Some(0) {
            return Err("consecutive-failures is 0");
        }
        let Some(window) = self.window else {
            return match self.consecutive_failures {
                None => Err("there is no threshold: neither a window nor consecutive-failures"),
                Some(_) => Ok(()),
            };
        };
        if window.length_ms == 0 || window.slots == 0 || window.slots > MAX_SLOTS {
            return Err("the window has no length, or other than 1 to 64 slots");
        }
        if window.failure_percent.is_none() && window.slow_percent.is_none() {
            return Err("the window has no threshold: neither failure-percent nor slow-percent");
        }
        if !is_percent(window.failure_percent) || !is_percent(window.slow_percent) {
            return Err("a share is not between 1 and 100");
        }
        if window.slow_percent.is_some() && self.slower_than_us.is_none() {
            return Err("slow-percent without slower-than-us");
        }
        Ok(())
    }

    /// Judges by a response head; `None` if the end of the request decides.
    pub(crate) fn judge_head(&self, status: u16) -> Option<Judged> {
        self.at_head.then(|| Judged {
            judgement: self.judge_status(status),
            is_slow: false,
        })
    }

    /// Judges by the end of a request; `None` if its head was judged, or if the end says nothing about the upstream.
    pub(crate) fn judge_end(&self, end: &End) -> Option<Judged> {
        if self.at_head && end.upstream_status != 0 {
            return None;
        }
        let took_us = match end.upstream_status {
            0 => end.duration_us,
            _ => end.upstream_us,
        };
        let is_slow = self.slower_than_us.is_some_and(|limit_us| took_us > limit_us);
        let ConnectionFailures {
            unreachable,
            upstream_reset,
            timeout,
        } = self.failing_connections;
        let judgement = match (end.cause, end.upstream_status) {
            (EndCause::ClientGone, 0) if is_slow => Judgement::GivenUp,
            (EndCause::ClientGone, _) => return None,
            (EndCause::Unreachable, _) if unreachable => Judgement::Failure,
            (EndCause::UpstreamReset, _) if upstream_reset => Judgement::Failure,
            (EndCause::Timeout, _) if timeout => Judgement::Failure,
            (EndCause::Unreachable | EndCause::UpstreamReset | EndCause::Timeout, _) | (EndCause::Other, 0) => {
                return None;
            }
            (EndCause::Other, status) => self.judge_status(status),
        };
        Some(Judged { judgement, is_slow })
    }

    fn judge_status(&self, status: u16) -> Judgement {
        let is_failing = |(first, last): &(u16, u16)| (*first..=*last).contains(&status);
        if self.failing_statuses.iter().any(is_failing) {
            Judgement::Failure
        } else {
            Judgement::Success
        }
    }

    /// The first threshold that these counts reach. A call that its client gave up does not continue a row of failures.
    fn crossed_by(&self, judgement: Judgement, counts: Counts) -> Option<Crossed> {
        let most = self.consecutive_failures.filter(|_| judgement != Judgement::GivenUp);
        if most.is_some_and(|most| counts.consecutive_failures >= most) {
            return Some(Crossed::ConsecutiveFailures);
        }
        let window = self
            .window
            .filter(|window| counts.requests >= window.minimum_requests)?;
        let reaches = |part: u32, percent: Option<u32>| {
            percent.is_some_and(|percent| u64::from(part) * 100 >= u64::from(percent) * u64::from(counts.requests))
        };
        if reaches(counts.failures, window.failure_percent) {
            Some(Crossed::FailurePercent)
        } else if reaches(counts.slow, window.slow_percent) {
            Some(Crossed::SlowPercent)
        } else {
            None
        }
    }
}

impl Tally {
    /// Counts an outcome. Returns the threshold that is reached, once until the tally is empty.
    pub(crate) fn count(&mut self, rule: &CountingRule, judged: Judged, now_ms: u64) -> Option<(Crossed, Counts)> {
        self.fit_window(rule.window, now_ms);
        let is_new = match &self.window {
            Some(window) => window.sum().requests == 0,
            None => self.consecutive_failures == 0,
        };
        self.is_reported &= !is_new;
        if let Some(window) = &mut self.window {
            window.add(judged);
        }
        self.consecutive_failures = match (rule.consecutive_failures, judged.judgement) {
            (None, _) | (Some(_), Judgement::Success) => 0,
            (Some(_), Judgement::Failure) => self.consecutive_failures.saturating_add(1),
            (Some(_), Judgement::GivenUp) => self.consecutive_failures,
        };
        let counts = self.counts();
        let crossed = rule.crossed_by(judged.judgement, counts)?;
        (!std::mem::replace(&mut self.is_reported, true)).then_some((crossed, counts))
    }

    /// Reports the next outcome beyond a threshold again: the report did not arrive.
    #[allow(dead_code, reason = "calls of a fake host do not fail")]
    pub(crate) fn report_again(&mut self) {
        self.is_reported = false;
    }

    /// Whether the tally is equal to an unused one.
    pub(crate) fn is_empty(&mut self, now_ms: u64) -> bool {
        if let Some(window) = &mut self.window {
            window.advance_to(now_ms);
        }
        let sum = self.window.as_ref().map(Window::sum).unwrap_or_default();
        self.consecutive_failures == 0 && sum.requests == 0
    }

    fn counts(&self) -> Counts {
        let sum = self.window.as_ref().map(Window::sum).unwrap_or_default();
        Counts {
            requests: sum.requests,
            failures: sum.failures,
            slow: sum.slow,
            consecutive_failures: self.consecutive_failures,
        }
    }

    /// Gives the tally the window of the rule, at this time. A window that changes its shape starts empty, because sums of
    /// other slots are not comparable.
    fn fit_window(&mut self, rule: Option<WindowRule>, now_ms: u64) {
        match (&mut self.window, rule) {
            (Some(window), Some(rule)) if window.has_shape(rule) => window.advance_to(now_ms),
            (window, rule) => *window = rule.map(|rule| Window::new(rule, now_ms)),
        }
    }
}

impl Window {
    fn new(rule: WindowRule, now_ms: u64) -> Self {
        Self {
            length_ms: rule.length_ms,
            slots: vec![Slot::default(); rule.slots as usize],
            newest: slot_number(rule.length_ms, rule.slots as usize, now_ms),
        }
    }

    fn has_shape(&self, rule: WindowRule) -> bool {
        self.length_ms == rule.length_ms && self.slots.len() == rule.slots as usize
    }

    fn add(&mut self, judged: Judged) {
        if let Some(slot) = self.slot_mut(self.newest) {
            slot.requests = slot.requests.saturating_add(1);
            let is_failure = judged.judgement == Judgement::Failure;
            slot.failures = slot.failures.saturating_add(is_failure.into());
            slot.slow = slot.slow.saturating_add(judged.is_slow.into());
        }
    }

    fn sum(&self) -> Slot {
        self.slots.iter().fold(Slot::default(), |sum, slot| Slot {
            requests: sum.requests.saturating_add(slot.requests),
            failures: sum.failures.saturating_add(slot.failures),
            slow: sum.slow.saturating_add(slot.slow),
        })
    }

    /// Empties the slots that are older than the window.
    fn advance_to(&mut self, now_ms: u64) {
        let now = slot_number(self.length_ms, self.slots.len(), now_ms);
        let passed = now.saturating_sub(self.newest).min(self.slots.len() as u64);
        for back in 0..passed {
            // The last `passed` slots up to `now`, wherever they are in the ring.
            if let Some(slot) = self.slot_mut(now - back) {
                *slot = Slot::default();
            }
        }
        self.newest = self.newest.max(now);
    }

    fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        let index = number.checked_rem(self.slots.len() as u64)?;
        self.slots.get_mut(index as usize)
    }
}

/// Slots are equal parts of the length even if it does not divide evenly, so they are counted by a fraction.
fn slot_number(length_ms: u32, slots: usize, now_ms: u64) -> u64 {
    let number = (u128::from(now_ms) * slots as u128)
        .checked_div(u128::from(length_ms))
        .unwrap_or(0);
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
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
    fn numbers_that_make_no_sense_are_rejected() {
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
}
