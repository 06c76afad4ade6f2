//! Judges and counts outcomes of requests (`outcome-rule` in `wit/types.wit`): what is a failure, and when a count reaches a
//! threshold.
//!
//! Pure; time comes in as an argument. The sidecar compiles this file too (`proxy/src/plugin/tally.rs`), so that a fake host
//! counts as it does.

/// Maximum number of slots of a window.
const MAX_SLOTS: u32 = 64;
/// Maximum number of ranges of failing statuses.
const MAX_RANGES: usize = 256;
/// The status with which a tunnel begins.
const SWITCHING_PROTOCOLS: u16 = 101;

/// Criteria for failures and slow requests, with the thresholds of their counts.
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

/// Counts of a tally; the first three are of its window.
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
    /// Sum of the slots, so that an outcome adds to one slot and reads none of the others.
    total: Slot,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    requests: u64,
    failures: u64,
    slow: u64,
}

impl CountingRule {
    /// Refuses numbers that make no sense.
    ///
    /// # Errors
    ///
    /// A description of the invalid number.
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
        self.is_judged_at_head(status).then(|| Judged {
            judgement: self.judge_status(status),
            is_slow: false,
        })
    }

    /// Judges by the end of a request; `None` if its head was judged, or if the end says nothing about the upstream.
    pub(crate) fn judge_end(&self, end: &End) -> Option<Judged> {
        if end.upstream_status != 0 && self.is_judged_at_head(end.upstream_status) {
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

    /// Whether a response head with this status decides. A 101 always does, because its tunnel may be open for hours.
    fn is_judged_at_head(&self, status: u16) -> bool {
        self.at_head || status == SWITCHING_PROTOCOLS
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
            Some(window) => window.total.requests == 0,
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
        self.consecutive_failures == 0 && self.total().requests == 0
    }

    /// Sum of the window's slots; 0 without a window.
    fn total(&self) -> Slot {
        self.window.as_ref().map(|window| window.total).unwrap_or_default()
    }

    fn counts(&self) -> Counts {
        let saturating_u32 = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let total = self.total();
        Counts {
            requests: saturating_u32(total.requests),
            failures: saturating_u32(total.failures),
            slow: saturating_u32(total.slow),
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
            total: Slot::default(),
        }
    }

    fn has_shape(&self, rule: WindowRule) -> bool {
        self.length_ms == rule.length_ms && self.slots.len() == rule.slots as usize
    }

    fn add(&mut self, judged: Judged) {
        let is_failure = judged.judgement == Judgement::Failure;
        let outcome = Slot {
            requests: 1,
            failures: is_failure.into(),
            slow: judged.is_slow.into(),
        };
        if let Some(slot) = self.slot_mut(self.newest) {
            slot.add(outcome);
            self.total.add(outcome);
        }
    }

    /// Empties the slots that are older than the window.
    fn advance_to(&mut self, now_ms: u64) {
        let now = slot_number(self.length_ms, self.slots.len(), now_ms);
        let passed = now.saturating_sub(self.newest).min(self.slots.len() as u64);
        for back in 0..passed {
            // The last `passed` slots up to `now`, wherever they are in the ring.
            if let Some(slot) = self.slot_mut(now - back) {
                let emptied = std::mem::take(slot);
                self.total.subtract(emptied);
            }
        }
        self.newest = self.newest.max(now);
    }

    fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        let index = number.checked_rem(self.slots.len() as u64)?;
        self.slots.get_mut(index as usize)
    }
}

impl Slot {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.failures += other.failures;
        self.slow += other.slow;
    }

    fn subtract(&mut self, other: Self) {
        self.requests -= other.requests;
        self.failures -= other.failures;
        self.slow -= other.slow;
    }
}

/// Slots are equal parts of the length even if it does not divide evenly, so they are counted by a fraction.
fn slot_number(length_ms: u32, slots: usize, now_ms: u64) -> u64 {
    if let Some(product) = now_ms.checked_mul(slots as u64) {
        // The usual case, and a division of 128 bits is slow.
        return product.checked_div(length_ms.into()).unwrap_or(0);
    }
    let number = (u128::from(now_ms) * slots as u128)
        .checked_div(u128::from(length_ms))
        .unwrap_or(0);
    u64::try_from(number).unwrap_or(u64::MAX)
}

// With the path, because the sidecar includes this file by its path, and would look for `tests.rs` beside it.
#[cfg(test)]
#[path = "tally/tests.rs"]
mod tests;
